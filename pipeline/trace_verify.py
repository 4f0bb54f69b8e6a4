"""Check a finished trace run from its files alone: order, ledger and budget."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from accountants.core.trace_view import TraceView
from mechanisms.core.errors import PenstockError
from pipeline.ledger import Ledger
from pipeline.plan import Plan
from pipeline.trace_loop import ROUNDING

#: Name of a check, whether it passed, and what was found.
Found = tuple[str, bool, str]


def check_traces(folder: Path, manifest: dict[str, Any], plan: Plan) -> list[Found]:
    """Order of the rows, ledger, and the budget of every user.

    Parameters
    ----------
    folder
        The run's folder.
    manifest
        The operator's manifest.
    plan
        The run, from the manifest's configuration.
    """
    columns = ["pseudonym", "time", "epsilon", "landmark", "action"]
    rows = pl.read_parquet(folder / "public" / "traces.parquet", columns=columns).with_columns(
        pl.col("pseudonym", "action").cast(pl.String), pl.col("time").dt.epoch("ms")
    )
    order = rows.select(
        (pl.col("pseudonym") > pl.col("pseudonym").shift(1))
        | ((pl.col("pseudonym") == pl.col("pseudonym").shift(1)) & (pl.col("time") > pl.col("time").shift(1)))
    ).to_series()
    expected = manifest["rows"]["used"] - manifest["rows"]["duplicates"]
    return [
        ("points", len(rows) == expected, f"{len(rows)} released, {expected} distinct ones read"),
        ("order", bool(order[1:].all()), "each user's points once, in order of time"),
        _ledger(folder, rows, manifest),
        _budget(rows, plan),
    ]


def _ledger(folder: Path, rows: pl.DataFrame, manifest: dict[str, Any]) -> Found:
    path = manifest["configuration"].get("output", {}).get("ledger") or folder / "operator" / "ledger"
    own = manifest["configuration_digest"][:32]
    charged: dict[int, float] = {}
    try:
        for charge in Ledger(Path(path)):
            if charge.configuration == own:
                charged[charge.window] = max(charged.get(charge.window, 0.0), charge.epsilon)
    except PenstockError as error:
        return "ledger", False, str(error)
    index = rows.select(pl.int_range(1, pl.len() + 1).over("pseudonym").alias("index"), "epsilon")
    spent = dict(index.group_by("index").agg(pl.col("epsilon").max()).iter_rows())
    short = sorted(i for i, epsilon in spent.items() if charged.get(i, 0.0) < epsilon)
    detail = f"{len(charged)} timestamps charged, {len(spent)} released"
    return "ledger", not short, detail + (f"; charged too little: {short[:5]}" if short else "")


def _budget(rows: pl.DataFrame, plan: Plan) -> Found:
    from pipeline.trace_landmarks import budget_periods

    budget = plan.point_mechanism.landmark_budget
    if budget is None:
        return "budget", True, "the mechanism promises no landmark budget"
    names, times = rows["pseudonym"], rows["time"].to_numpy()
    starts = np.flatnonzero(names.ne_missing(names.shift(1)).to_numpy())
    seen = TraceView(
        subjects=names.gather(starts).to_list(),
        starts=starts,
        times=times,
        landmarks=rows["landmark"].to_numpy(),
        periods=budget_periods(plan, times),
        epsilon=rows["epsilon"].to_numpy(),
        scale=np.zeros(len(rows)),
        action=rows["action"].to_numpy(),
        noise="",
        mechanism=plan.point_mechanism,
    )
    largest = float(seen.landmark_sums()[1].max(initial=0.0))
    passed = largest <= budget * (1 + ROUNDING)
    return "budget", passed, f"landmarks and any one other point of a user cost at most {largest:g} of {budget:g}"
