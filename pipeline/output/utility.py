"""Utility of a finished simulation: released against true counts, by every metric asked for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from evaluation.utility import METRICS
from pipeline.config.plan import STREAM
from pipeline.output import files
from pipeline.output.tables import UTILITY

if TYPE_CHECKING:
    from pipeline.config.plan import Plan


def matrices(folder: Path, cells: tuple[str, ...]) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[Any]]:
    """True and released counts of shape (n_cells, n_windows), and the indices of the windows.

    Only windows and cells that were released are compared; elsewhere both are 0.
    """
    order = pl.DataFrame({"cell": list(cells), "row": np.arange(len(cells))})
    released = _long(folder / "public" / "releases.parquet", "value", order)
    windows = released["window"].unique().sort().to_numpy()
    shape = (len(cells), len(windows))
    values, active = np.zeros(shape), np.zeros(shape, bool)
    at = (released["row"].to_numpy(), np.searchsorted(windows, released["window"].to_numpy()))
    values[at] = released["value"].to_numpy()
    active[at] = True
    counted = _long(folder / "operator" / "truth.parquet", "count", order)
    counted = counted.filter(pl.col("window").is_in(windows.tolist()))
    truth = np.zeros(shape)
    columns = np.searchsorted(windows, counted["window"].to_numpy())
    truth[counted["row"].to_numpy(), columns] = counted["count"].to_numpy()
    return np.where(active, truth, 0.0), values, windows


def _long(path: Path, column: str, order: pl.DataFrame) -> pl.DataFrame:
    frame = pl.read_parquet(path, columns=["window", "cell", column])
    return frame.with_columns(pl.col("cell").cast(pl.String)).join(order, on="cell", how="left")


def write_utility(plan: Plan) -> dict[str, float]:
    """Write ``operator/utility.parquet``: each metric over the whole run and, where it has them, per window.

    Returns
    -------
    The whole-run figure of every metric.
    """
    truth, released, windows = matrices(plan.folder, plan.space.cells)
    records: list[dict[str, Any]] = []
    totals: dict[str, float] = {}
    # A run that was stopped before its first window has nothing to compare.
    for name in plan.config.utility if len(windows) else ():
        metric = METRICS[name]
        totals[name] = float(metric.function(truth, released))
        records.append(_record(name, "run", None, totals[name]))
        places, values = metric.scores(truth, released)
        if metric.scope == "window":
            records += [_record(name, "window", int(windows[i]), float(v)) for i, v in zip(places, values)]
        else:
            cells = plan.space.cells
            records += [_record(name, f"cell:{cells[i]}", None, float(v)) for i, v in zip(places, values)]
    with files.whole(plan.folder / "operator" / "utility.parquet") as temporary:
        pq.write_table(pa.Table.from_pylist(records, schema=UTILITY), temporary)
    return totals


def _record(metric: str, scope: str, window: int | None, value: float) -> dict[str, Any]:
    return {"stream": STREAM, "metric": metric, "scope": scope, "window": window, "value": value}
