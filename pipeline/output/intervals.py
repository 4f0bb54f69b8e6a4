"""Intervals that hold a true count with 95 %, from what is released; a count is never negative."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

Array = NDArray[np.float64]

#: Share of the counts that the intervals are to hold.
LEVEL = 0.95


def margin(value: Array, deviation: Array) -> Array:
    """Half-width of the shortest 95 % interval of a count of which value and standard deviation are stated.

    The count is normal with both, given that it is not negative (the highest-density interval of a truncated normal).
    It is a whole number: the normal that stands for it has a variance larger by 1/12 (Sheppard 1898). The interval is
    ``ends(value, margin)``: symmetric around a value that is far from 0, else from 0 to ``value + margin``.

    ``value``, ``deviation``: at least 0, of one shape; NaN: not known.

    >>> margin(np.array([9.0, 1.0, 0.0]), np.ones(3)).round(3).tolist()
    [2.04, 1.803, 2.04]
    """
    from scipy.special import ndtr, ndtri  # loaded where a deviation is stated

    deviation = np.where(deviation > 0, np.sqrt(np.square(deviation) + 1 / 12), deviation)
    with np.errstate(divide="ignore", invalid="ignore"):
        distance = np.where(deviation > 0, value / deviation, np.inf)
    below = ndtr(-distance)
    symmetric = -ndtri((1 - LEVEL * (1 - below)) / 2)
    from_zero = ndtri(LEVEL + (1 - LEVEL) * below)
    return np.asarray(deviation * np.where(symmetric <= distance, symmetric, from_zero))


def ends(value: Any, margin: Any) -> tuple[Any, Any]:
    """Both ends of an interval of a count: what is below 0 is left out, which no count is.

    >>> low, high = ends(np.array([9.0, 1.0, -5.0]), np.array([2.0, 2.0, 2.0]))
    >>> low.tolist(), high.tolist()
    ([7.0, 0.0, 0.0], [11.0, 3.0, 0.0])
    """
    return np.maximum(value - margin, 0.0), np.maximum(value + margin, 0.0)


def half_width(columns: Collection[str]) -> pl.Expr:
    """Half-width of the interval that holds a true count with 95 %: of a stated deviation, else of the noise.

    NaN where there is no noise of a known family. ``columns``: those of the table of releases; earlier versions wrote
    no ``standard_deviation``.
    """
    of_noise = pl.col("scale") * (
        pl.when(pl.col("noise").is_in(["laplace", "discrete_laplace"]))
        .then(-math.log(1 - LEVEL))
        .when(pl.col("noise").is_in(["gaussian", "discrete_gaussian"]))
        .then(1.96)
        .otherwise(math.nan)
    )
    if "standard_deviation" not in columns:
        return of_noise
    stated = pl.map_batches(["value", "standard_deviation"], _stated, return_dtype=pl.Float64, is_elementwise=True)
    return pl.when(pl.col("standard_deviation").is_not_null()).then(stated).otherwise(of_noise)


def _stated(both: Sequence[pl.Series]) -> pl.Series:
    """`margin` of values and deviations, which most mechanisms do not state."""
    value, deviation = both
    return deviation if deviation.is_null().all() else pl.Series(margin(value.to_numpy(), deviation.to_numpy()))
