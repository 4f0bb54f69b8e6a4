"""Utility of released traces: how far from the truth they are, in metres."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from mechanisms.core.sphere import distance
from pipeline import parts
from pipeline.configuration.trace_rules import METRIC
from pipeline.plan import STREAM, Plan
from pipeline.tables import UTILITY


def errors(folder: Path) -> pl.DataFrame:
    """Distance between each released and true point, in metres, with pseudonym and landmark."""
    released = pl.read_parquet(folder / "public" / "traces.parquet")
    true = pl.read_parquet(folder / "operator" / "truth.parquet")
    apart = distance(*(frame.select("latitude", "longitude").to_numpy() for frame in (released, true)))
    return released.select(pl.col("pseudonym").cast(pl.String), "landmark", pl.Series("error", apart))


def write_utility(plan: Plan) -> dict[str, float]:
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
    with parts.whole(plan.folder / "operator" / "utility.parquet") as temporary:
        pq.write_table(pa.Table.from_pylist(records, schema=UTILITY), temporary)
    return {METRIC: scopes[0][1]}


def _mean(frame: pl.DataFrame) -> float:
    return float(frame["error"].to_numpy().mean()) if len(frame) else float("nan")
