"""Claims held against results: the number that each is about, with its interval over seeds, and whether it fits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from mechanisms.core.errors import DataError
from pipeline import parts
from pipeline.experiments.config import Expectation, ExperimentConfig
from pipeline.experiments.table import interval, matching

AGREES, UNCERTAIN, DIFFERS, MISSING = "agrees", "too close to tell", "differs", "not measured"


def write_expected(
    config: ExperimentConfig, results: pl.DataFrame, varied: Sequence[str], folder: Path
) -> list[dict[str, Any]]:
    """Write ``expected.csv``: every claim beside what came out."""
    rows = [_held(claim, results, varied, config.confidence) for claim in config.expected]
    if rows:
        with parts.whole(folder / "expected.csv") as temporary:
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
