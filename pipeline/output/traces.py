"""Outputs of a trace run: tables, utility and verification."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from accountants.core.accountant import ACCOUNTANTS, Accountant
from accountants.core.trace_view import TraceView
from mechanisms.core.geometry import distance
from mechanisms.core.plugin import PenstockError
from mechanisms.core.run import ReleasedTraces
from mechanisms.core.traces import Traces
from pipeline.config.plan import STREAM
from pipeline.config.rules import METRIC
from pipeline.output import files
from pipeline.output.ledger import Ledger
from pipeline.output.tables import TEXT, TIME, UTILITY, accounts_table
from pipeline.steps.traces import ROUNDING, pseudonyms

if TYPE_CHECKING:
    from pipeline.config.plan import Plan


# Released and true traces as Arrow tables: the columns of the files that a trace run writes.


TRACES = pa.schema(
    [
        ("pseudonym", TEXT),
        ("time", TIME),
        ("latitude", pa.float64()),
        ("longitude", pa.float64()),
        ("epsilon", pa.float64()),
        ("landmark", pa.bool_()),
        ("action", TEXT),
    ]
)
TRUE_TRACES = pa.schema([TRACES.field(name) for name in ("pseudonym", "time", "latitude", "longitude")])
ACTIONS = ("published", "repeated", "refused", "absent")


def accounts_of(accountant: Accountant, seen: TraceView) -> pa.Table:
    """Rows of one accountant."""
    return accounts_table(accountant.account_traces(seen), ACCOUNTANTS.name_of(type(accountant)), STREAM)


def traces_table(traces: Traces, released: ReleasedTraces) -> pa.Table:
    """One row a released point, in order of pseudonym and time."""
    codes = np.select([released.action == action for action in ACTIONS], range(len(ACTIONS))).astype(np.int32)
    columns = _who_and_when(traces) | {
        "latitude": released.values[:, 0],
        "longitude": released.values[:, 1],
        "epsilon": released.epsilon,
        "landmark": traces.landmarks,
        "action": pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(ACTIONS)),
    }
    return pa.table([columns[name] for name in TRACES.names], schema=TRACES)


def true_traces_table(traces: Traces) -> pa.Table:
    """One row a true point, in the order of `traces_table` (simulation only)."""
    columns = _who_and_when(traces) | {"latitude": traces.points[:, 0], "longitude": traces.points[:, 1]}
    return pa.table([columns[name] for name in TRUE_TRACES.names], schema=TRUE_TRACES)


def _who_and_when(traces: Traces) -> dict[str, Any]:
    names = pa.DictionaryArray.from_arrays(
        pa.array(traces.user_of.astype(np.int32)), pa.array(pseudonyms(traces.users), pa.string())
    )
    return {"pseudonym": names, "time": pa.array(traces.times).cast(TIME)}


# Utility of released traces: how far from the truth they are, in metres.


def errors(folder: Path) -> pl.DataFrame:
    """Distance between each released and true point, in metres, with pseudonym and landmark."""
    released = pl.read_parquet(folder / "public" / "traces.parquet")
    true = pl.read_parquet(folder / "operator" / "truth.parquet")
    apart = distance(*(frame.select("latitude", "longitude").to_numpy() for frame in (released, true)))
    return released.select(pl.col("pseudonym").cast(pl.String), "landmark", pl.Series("error", apart))


def write_trace_utility(plan: Plan) -> dict[str, float]:
    """Write ``operator/utility.parquet``: mean absolute error in metres, over all points, landmarks, others and users.

    Returns
    -------
    The figure of the whole run.
    """
    found = errors(plan.folder)
    scopes: list[tuple[str, float]] = [("run", _mean(found))]
    for name, is_landmark in (("landmarks", True), ("regular", False)):
        part = found.filter(pl.col("landmark") == is_landmark)
        scopes += [(name, _mean(part))] if len(part) else []
    per_user = found.group_by("pseudonym", maintain_order=True).agg(pl.col("error").mean())
    scopes += [(f"user:{name}", error) for name, error in per_user.iter_rows()]
    records: list[dict[str, Any]] = [
        {"stream": STREAM, "metric": METRIC, "scope": scope, "window": None, "value": value} for scope, value in scopes
    ]
    with files.whole(plan.folder / "operator" / "utility.parquet") as temporary:
        pq.write_table(pa.Table.from_pylist(records, schema=UTILITY), temporary)
    return {METRIC: scopes[0][1]}


def _mean(frame: pl.DataFrame) -> float:
    return float(frame["error"].to_numpy().mean()) if len(frame) else float("nan")


# Check a finished trace run from its files alone: order, ledger and budget.


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
        _trace_ledger(folder, rows, manifest),
        _budget(rows, plan),
    ]


def _trace_ledger(folder: Path, rows: pl.DataFrame, manifest: dict[str, Any]) -> Found:
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
    from pipeline.steps.traces import budget_periods

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
