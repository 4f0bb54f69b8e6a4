"""The results as tables: one row a number with where it comes from, and one row a setting with its interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from scipy import stats

from pipeline import parts

if TYPE_CHECKING:
    from pipeline.experiments.load import Experiment


def write_tables(
    experiment: Experiment, records: Mapping[int, Mapping[str, Any]], folder: Path
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Write ``results.parquet``, ``summary.parquet`` and ``summary.csv``.

    Returns
    -------
    Every measure of every finished cell, in the order of the grid: what varies; ``seed``, ``measure``, ``value``,
    ``unit``; ``mean``, ``low`` and ``high`` over the seeds of its setting; and for each number ``configuration``
    (digest of everything that affects released values), ``inputs`` and ``counts`` (digests) and ``versions``. And one
    row for each setting and measure, with its interval and spread.
    """
    results = _results(experiment, records)
    summary = _summary(results, experiment.columns, experiment.config.confidence)
    setting = (*experiment.columns, "measure")
    beside = summary.select(*setting, "mean", "low", "high")
    results = results.join(beside, on=setting, how="left", maintain_order="left", nulls_equal=True)
    first = (*experiment.columns, "seed", "measure", "value", "unit", "mean", "low", "high")
    results = results.select(*first, pl.exclude(first))
    _write(results, folder / "results.parquet")
    _write(summary, folder / "summary.parquet")
    with parts.whole(folder / "summary.csv") as temporary:
        summary.write_csv(temporary)
    return results, summary


def _results(experiment: Experiment, records: Mapping[int, Mapping[str, Any]]) -> pl.DataFrame:
    columns: dict[str, list[Any]] = {name: [] for name in experiment.columns}
    own = ("seed", "measure", "value", "unit", "configuration", "inputs", "counts", "versions")
    columns |= {name: [] for name in own}
    for cell in experiment.cells:
        record = records.get(cell.number)
        for row in record["measures"] if record else ():
            for name in experiment.columns:
                columns[name].append(cell.values[name])
            columns["seed"].append(cell.seed)
            columns["measure"].append(row["measure"])
            columns["value"].append(float(row["value"]))  # "inf" as text, for JSON has no such number
            columns["unit"].append(row["unit"])
            for name in ("configuration", "inputs", "counts"):
                columns[name].append(record[name])  # type: ignore[index]
            columns["versions"].append(_versions(record["versions"]))  # type: ignore[index]
    types = {"seed": pl.Int64, "value": pl.Float64}
    return pl.DataFrame({name: _column(name, values, types.get(name)) for name, values in columns.items()})


def _summary(results: pl.DataFrame, varied: Sequence[str], confidence: float) -> pl.DataFrame:
    """Mean and interval over seeds of every setting and measure.

    The interval is Student's; without one (a single seed) ``low`` and ``high`` are null.
    """
    groups = results.group_by(*varied, "measure", maintain_order=True)
    rows = []
    for key, group in groups:
        rows.append(
            dict(zip((*varied, "measure"), key))
            | {"unit": group["unit"][0]}
            | interval(group["value"].to_numpy(), confidence)
            | {name: _joined(group[name]) for name in ("configuration", "inputs", "versions")}
        )
    schema: dict[str, Any] = {name: results.schema[name] for name in (*varied, "measure", "unit")}
    figures: dict[str, Any] = {
        "n": pl.Int64,
        **dict.fromkeys(("mean", "low", "high", "standard_deviation"), pl.Float64),
    }
    figures |= dict.fromkeys(("minimum", "maximum"), pl.Float64)
    texts: dict[str, Any] = dict.fromkeys(("configuration", "inputs", "versions"), pl.String)
    return pl.DataFrame(rows, schema=schema | figures | texts)


def interval(values: Any, confidence: float) -> dict[str, Any]:
    """Mean, Student's interval and spread of independent numbers.

    Examples
    --------
    >>> found = interval([1.0, 2.0, 3.0], 0.95)
    >>> found["mean"], round(found["low"], 3), round(found["high"], 3)
    (2.0, -0.484, 4.484)
    >>> interval([2.0], 0.95)["low"] is None
    True
    """
    array = np.asarray(values, np.float64)
    n, mean = len(array), float(array.mean())
    low = high = spread = None
    if n > 1:
        with np.errstate(invalid="ignore"):
            spread = float(array.std(ddof=1))
        half = float(stats.t.ppf((1 + confidence) / 2, n - 1)) * spread / n**0.5
        low, high = mean - half, mean + half
    return {
        "n": n,
        "mean": mean,
        "low": low,
        "high": high,
        "standard_deviation": spread,
        "minimum": float(array.min()),
        "maximum": float(array.max()),
    }


def matching(frame: pl.DataFrame, where: Mapping[str, Any]) -> pl.DataFrame:
    """Rows with the given values in the given columns; a number fits its text in columns of mixed values."""
    for name, value in where.items():
        column = pl.col(name)
        frame = frame.filter(column == (str(value) if frame.schema[name] == pl.String else value))
    return frame


def _column(name: str, values: list[Any], dtype: Any) -> pl.Series:
    """A column of what varies: numbers where all are, else text."""
    if dtype is not None:
        return pl.Series(name, values, dtype=dtype)
    kinds = {type(value) for value in values}
    if kinds == {bool}:
        return pl.Series(name, values, dtype=pl.Boolean)
    if kinds == {int}:
        return pl.Series(name, values, dtype=pl.Int64)
    if kinds and kinds <= {int, float}:
        return pl.Series(name, [float(value) for value in values], dtype=pl.Float64)
    return pl.Series(name, [str(value) for value in values], dtype=pl.String)


def _versions(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def _joined(column: pl.Series) -> str:
    return "; ".join(column.unique(maintain_order=True).to_list())


def _write(frame: pl.DataFrame, path: Path) -> None:
    with parts.whole(path) as temporary:
        frame.write_parquet(temporary)
