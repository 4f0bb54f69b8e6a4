"""After the last window: parts become files, the row equation is checked and the manifests are written."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from mechanisms.core.errors import RowEquationError
from pipeline import parts, tables
from pipeline.fate import Fate
from pipeline.merging import Merging, Target
from pipeline.paths import parts_folder
from pipeline.plan import Plan


def merging(plan: Plan, ahead: bool) -> Merging:
    """The tables of a run, each window once, to be made from their parts; ``ahead``: beginning now."""
    public, operator = plan.folder / "public", plan.folder / "operator"

    def target(kind: str, path: Path, schema: pa.Schema, once: str | None = None) -> Target:
        return Target(parts_folder(plan, kind), path, schema, once)

    wanted = {
        "releases": target("releases", public / "releases.parquet", tables.RELEASES, "window"),
        "accounts_public": target("accounts_public", public / "accounts.parquet", tables.ACCOUNTS),
        "accounts": target("accounts", operator / "accounts.parquet", tables.ACCOUNTS),
    }
    if plan.config.mode == "simulation" and plan.config.output.truth:
        wanted["truth"] = target("truth", operator / "truth.parquet", tables.TRUTH, "window")
    return Merging(wanted, ahead)


def merge_outputs(plan: Plan, merging: Merging) -> None:
    """Merge the parts of every table, two side by side, and the rejected rows."""
    merging.stop()
    with ThreadPoolExecutor(2) as pool:
        merged = [pool.submit(merging.end, kind) for kind in merging]
        merge_rejects(plan)
        for each in merged:
            each.result()
    pa.default_memory_pool().release_unused()


def merge_rejects(plan: Plan) -> None:
    """Merge the rejected rows into one file."""
    with parts.whole(plan.folder / "operator" / "rejects.jsonl") as temporary, temporary.open("wb") as target:
        for path in sorted(parts_folder(plan, "rejects").glob("*.jsonl")):
            with path.open("rb") as source:
                shutil.copyfileobj(source, target)


def row_equation(plan: Plan) -> dict[str, Any]:
    """Rows by fate over the whole run; raises `RowEquationError` if one is missing or was counted twice."""
    total = Fate()
    for path in sorted(parts_folder(plan, "fates").glob("*.json")):
        total.add(Fate(**json.loads(path.read_text(encoding="utf-8"))))
    memberships = sum(json.loads(p.read_text()) for p in parts_folder(plan, "memberships").glob("*.json"))
    equation = {
        "rows": total.rows,
        "used": total.used,
        "duplicates": total.used + total.overlaps - memberships,
        "late": total.late,
        "out_of_area": total.out_of_area,
        "out_of_time": total.out_of_time,
        "rejected": sum(total.rejected.values()),
        "rejected_by_reason": dict(sorted(total.rejected.items())),
    }
    if plan.calendar.overlapping:
        equation["overlaps"] = total.overlaps  # duplicates are counted in every window, so there may be more than rows
    check_row_equation(equation)
    return equation


def check_row_equation(equation: dict[str, Any]) -> None:
    """Raise `RowEquationError` unless rows = used + late + out of area + out of time + rejected."""
    fates = {name: equation[name] for name in ("used", "late", "out_of_area", "out_of_time", "rejected")}
    most = equation["used"] + equation.get("overlaps", 0)
    if equation["rows"] != sum(fates.values()) or not 0 <= equation["duplicates"] <= most:
        raise RowEquationError(f"{equation['rows']} rows were read, but their fates are {fates}")


def user_summaries(plan: Plan) -> dict[str, Any] | None:
    """Users seen, and the spread over them of distinct cells and active windows."""
    if not plan.summarises_users:
        return None
    cells: list[int] = []
    windows: list[int] = []
    for path in sorted(parts_folder(plan, "users").glob("*.json")):
        summary = json.loads(path.read_text())
        cells += summary["cells"]
        windows += summary["windows"]
    return {
        "users": len(cells),
        "cells_per_user": spread(cells),
        "active_windows_per_user": spread(windows),
    }


def spread(values: list[int]) -> dict[str, float]:
    """Mean, standard deviation, extremes and median of some figures; nothing for none."""
    if not values:
        return {}
    array = np.asarray(values)
    return {
        "mean": float(array.mean()),
        "standard_deviation": float(array.std(ddof=1)) if len(array) > 1 else 0.0,
        "minimum": int(array.min()),
        "median": float(np.median(array)),
        "maximum": int(array.max()),
    }


def account_summaries(plan: Plan) -> list[dict[str, Any]]:
    """Every accountant's books in a few figures, in the order of the configuration."""
    return [json.loads(path.read_text()) for path in sorted(parts_folder(plan, "summaries").glob("*.json"))]


def stopped(plan: Plan) -> str | None:
    """Why the run stopped before its last window, if it did."""
    path = parts_folder(plan, "stopped") / "stopped.json"
    return str(json.loads(path.read_text())) if path.exists() else None


def released(folder: Path) -> pl.DataFrame:
    """Window and action of every release, in the order of the file."""
    frame = pl.scan_parquet(folder / "public" / "releases.parquet").select("window", "action")
    # The rows of a window follow each other, and say the same.
    return frame.filter((pl.col("window") != pl.col("window").shift()).fill_null(True)).collect()


def actions(released: pl.DataFrame) -> dict[str, int]:
    """How many windows were published, repeated, suppressed and refused."""
    counted = released.with_columns(pl.col("action").cast(pl.String)).group_by("action").len()
    return dict(sorted(counted.iter_rows()))


def check_windows(plan: Plan, released: pl.DataFrame, complete: bool) -> None:
    """Raise `RowEquationError` if the releases lack a window, or have one twice.

    Parameters
    ----------
    plan
        The run, its parts merged.
    released
        Its windows.
    complete
        Whether it came to its last window; otherwise only those before the last one released are due.
    """
    present = released["window"].to_numpy()
    n_due = plan.calendar.n_windows if complete else None
    if n_due is None:
        n_due = int(present[-1]) if len(present) else 0
    if np.array_equal(present, np.arange(1, n_due + 1)):
        return
    absent = np.setdiff1d(np.arange(1, n_due + 1), present).tolist()
    # A window in which no sensor is active has no row.
    missing = [w for w in absent if (active := plan.windows(w, w)[0].active) is None or active.any()]
    if missing or (np.diff(present) <= 0).any():
        named = ", ".join(map(str, missing[:5])) + (", …" if len(missing) > 5 else "")
        what = f"{len(missing)} of {n_due} are missing ({named})" if missing else "some are there twice"
        raise RowEquationError(f"{plan.folder / 'public' / 'releases.parquet'}: of the windows that are due {what}")


def clear_parts(plan: Plan) -> None:
    """Remove what is no longer needed."""
    for folder in ("public/parts", "operator/parts", "operator/checkpoint"):
        shutil.rmtree(plan.folder / folder, ignore_errors=True)
