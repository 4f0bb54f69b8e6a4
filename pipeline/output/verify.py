"""Check a finished run from its files alone: the row equation, the ledger, the budget and the digests."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq

from mechanisms.core.plugin import DataError, PenstockError, RowEquationError
from pipeline.config.canonical import digest
from pipeline.config.plan import make_plan
from pipeline.config.run import RunConfig, loads
from pipeline.output.ledger import Ledger
from pipeline.output.manifest import check_row_equation, input_digests
from pipeline.output.tables import ACCOUNTS, RELEASES
from pipeline.output.traces import TRACES, check_traces


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    Parameters
    ----------
    name
        What.
    passed
        Whether it is right.
    detail
        What was found.
    """

    name: str
    passed: bool
    detail: str


def verify(folder: Path) -> list[Check]:
    """All checks of one run's folder; raises `DataError` where there is no run."""
    path = folder / "operator" / "manifest.json"
    if not path.exists():
        raise DataError(f"{folder}: no finished run here (operator/manifest.json is missing)")
    manifest = json.loads(path.read_text(encoding="utf-8"))
    if (folder / "public" / "traces.parquet").exists():
        checks = [_rows(manifest), _schema(folder, "traces", TRACES), _schema(folder, "accounts", ACCOUNTS)]
        checks += [Check(*found) for found in check_traces(folder, manifest, make_plan(_config(manifest), folder))]
        return [*checks, _configuration(folder, manifest), _inputs(manifest)]
    checks = [_rows(manifest), _schema(folder, "releases", RELEASES), _schema(folder, "accounts", ACCOUNTS)]
    releases = pl.read_parquet(
        folder / "public" / "releases.parquet", columns=["window", "epsilon", "available_at", "action", "cell"]
    ).with_columns(pl.col("action").cast(pl.String))
    per_window = releases.group_by("window", maintain_order=True).agg(
        pl.col("epsilon", "available_at").first(),
        pl.col("action").first(),
        pl.len().alias("cells"),
        pl.col("cell").n_unique(),
    )
    checks += [_windows(per_window, manifest), _once(per_window), _ledger(folder, per_window, manifest)]
    checks.append(_configuration(folder, manifest))
    checks.append(_inputs(manifest))
    return checks


def _rows(manifest: dict[str, Any]) -> Check:
    try:
        check_row_equation(manifest["rows"])
    except RowEquationError as error:
        return Check("row equation", False, str(error))
    rows = manifest["rows"]
    return Check("row equation", True, f"{rows['rows']} rows read, each with one fate; {rows['used']} used")


def _schema(folder: Path, name: str, schema: Any) -> Check:
    found = pq.read_schema(folder / "public" / f"{name}.parquet").names
    return Check(f"columns of {name}.parquet", found == schema.names, ", ".join(found))


def _windows(per_window: pl.DataFrame, manifest: dict[str, Any]) -> Check:
    expected = list(range(1, len(per_window) + 1))
    complete = manifest["exit"]["code"] != 0 or len(per_window) == manifest["windows"]["planned"]
    right = per_window["window"].to_list() == expected and complete
    return Check("windows", right, f"{len(per_window)} released of {manifest['windows']['planned']} planned, in order")


def _once(per_window: pl.DataFrame) -> Check:
    twice = per_window.filter(pl.col("cells") != pl.col("cell"))
    return Check("each cell once a window", twice.is_empty(), f"{len(twice)} windows with a repeated cell")


def _ledger(folder: Path, per_window: pl.DataFrame, manifest: dict[str, Any]) -> Check:
    path = manifest["configuration"].get("output", {}).get("ledger") or folder / "operator" / "ledger"
    own = manifest["configuration_digest"][:32]
    charged: dict[int, float] = {}
    try:
        for charge in Ledger(Path(path)):
            if charge.configuration == own:
                charged[charge.window] = charged.get(charge.window, 0.0) + charge.epsilon
    except PenstockError as error:
        return Check("ledger", False, str(error))
    # Windows of a block are available together; they show its charge, which is paid once.
    released = per_window.group_by("available_at", maintain_order=True).agg("window", pl.col("epsilon").max())
    short = [
        windows[0]
        for _, windows, epsilon in released.iter_rows()
        if not _covers(sum(charged.get(window, 0.0) for window in windows), epsilon)
    ]
    detail = f"{len(charged)} charges for {len(per_window)} windows"
    return Check("ledger", not short, detail + (f"; charged too little: {short[:5]}" if short else ""))


def _covers(charged: float, epsilon: float) -> bool:
    return charged >= epsilon * (1 - 1e-12) or (math.isinf(epsilon) and math.isinf(charged))


def _configuration(folder: Path, manifest: dict[str, Any]) -> Check:
    public = json.loads((folder / "public" / "manifest.json").read_text(encoding="utf-8"))
    same = public["configuration_digest"] == manifest["configuration_digest"]
    config = _config(manifest)
    recomputed = digest(config).hex()
    return Check(
        "configuration digest",
        same and recomputed == manifest["configuration_digest"],
        f"{recomputed[:16]}… recomputed from the manifest",
    )


def _config(manifest: dict[str, Any]) -> RunConfig:
    # JSON is YAML, so the manifest's configuration loads as it stands.
    return loads(json.dumps(manifest["configuration"]), name="operator/manifest.json")


def _inputs(manifest: dict[str, Any]) -> Check:
    try:
        found = input_digests(_config(manifest))
    except PenstockError as error:
        return Check("input digests", True, f"not checked: {error}")
    changed = [name for name, value in manifest["inputs"].items() if found.get(name) != value]
    return Check(
        "input digests", not changed, f"{len(found)} inputs" + (f"; changed: {changed[:5]}" if changed else "")
    )
