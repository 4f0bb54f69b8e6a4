"""Tables of results with intervals, and comparison with published figures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from scipy import stats

from mechanisms.core.plugin import DataError
from pipeline.experiments.config import Expectation, ExperimentConfig
from pipeline.output import files

if TYPE_CHECKING:
    from pipeline.experiments.load import Experiment


# The results as tables: one row a number with where it comes from, and one row a setting with its interval.


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
    with files.whole(folder / "summary.csv") as temporary:
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
    with files.whole(path) as temporary:
        frame.write_parquet(temporary)


# Claims held against results: the number that each is about, with its interval over seeds, and whether it fits.


AGREES, UNCERTAIN, DIFFERS, MISSING = "agrees", "too close to tell", "differs", "not measured"


def write_expected(
    config: ExperimentConfig, results: pl.DataFrame, varied: Sequence[str], folder: Path
) -> list[dict[str, Any]]:
    """Write ``expected.csv``: every claim beside what came out."""
    rows = [_held(claim, results, varied, config.confidence) for claim in config.expected]
    if rows:
        with files.whole(folder / "expected.csv") as temporary:
            pl.DataFrame(rows, schema=_SCHEMA).write_csv(temporary)
    return rows


_SCHEMA = {
    "says": pl.String,
    "source": pl.String,
    "number": pl.String,
    "at_least": pl.Float64,
    "at_most": pl.Float64,
    "value": pl.Float64,
    "low": pl.Float64,
    "high": pl.Float64,
    "verdict": pl.String,
}


def _held(claim: Expectation, results: pl.DataFrame, varied: Sequence[str], confidence: float) -> dict[str, Any]:
    values = per_seed(claim, results)
    found = interval(values, confidence) if len(values) else {"mean": None, "low": None, "high": None}
    return {
        "says": claim.says,
        "source": claim.source,
        "number": _number(claim),
        "at_least": claim.at_least,
        "at_most": claim.at_most,
        "value": found["mean"],
        "low": found["low"],
        "high": found["high"],
        "verdict": verdict(claim, found["mean"], found["low"], found["high"]),
    }


def per_seed(claim: Expectation, results: pl.DataFrame) -> Any:
    """The claim's number for each seed: a mean over settings, or the ratio of two.

    Seeds are paired: both sides of a ratio use the same seed, so that what they share does not widen the interval.
    """
    frame = results.filter(pl.col("measure") == claim.measure)
    first = _means(matching(frame, claim.where))
    if claim.over is None:
        return first["value"].to_numpy()
    second = _means(matching(frame, claim.where | claim.over))
    both = first.join(second, on="seed", suffix="_over").sort("seed")
    if (both["value_over"] == 0).any():
        raise DataError(f"expected: {claim.says!r} divides by a mean of 0")
    return np.asarray(both["value"] / both["value_over"])


def _means(frame: pl.DataFrame) -> pl.DataFrame:
    """The mean of each seed of which all settings are there; after a failed run a seed may lack some."""
    means = frame.group_by("seed").agg(pl.col("value").mean(), pl.len().alias("n"))
    return means.filter(pl.col("n") == pl.col("n").max()).sort("seed")


def verdict(claim: Expectation, mean: float | None, low: float | None, high: float | None) -> str:
    """Whether a number fits a claim: with certainty, not so that one could tell, or not.

    >>> claim = Expectation(says="less", source="A. Author", measure="mae", at_most=1.0)
    >>> verdict(claim, 0.5, 0.4, 0.6), verdict(claim, 1.1, 0.9, 1.3), verdict(claim, 2.0, None, None)
    ('agrees', 'too close to tell', 'differs')
    """
    if mean is None or math.isnan(mean):
        return MISSING
    least = -math.inf if claim.at_least is None else claim.at_least
    most = math.inf if claim.at_most is None else claim.at_most
    low, high = (mean if low is None else low), (mean if high is None else high)
    if low >= least and high <= most:
        return AGREES
    return UNCERTAIN if high >= least and low <= most else DIFFERS


def _number(claim: Expectation) -> str:
    """What the number is, in words."""

    def settings(where: dict[str, Any]) -> str:
        """What the cells have in common."""
        return ", ".join(str(v) if k == "variant" else f"{k} {v}" for k, v in where.items()) or "all settings"

    ratio = "" if claim.over is None else f" ÷ {settings(claim.over)}"
    return f"{claim.measure}: {settings(claim.where)}{ratio}"
