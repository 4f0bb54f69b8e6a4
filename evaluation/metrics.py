"""Registry of utility metrics. Each metric is computed per cell, window or day from counts of shape (n_windows,
n_cells).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from types import ModuleType
from typing import Any, Concatenate, Literal, ParamSpec, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from penstock.mechanisms.core.plugin import (
    ParameterError,
    PluginError,
    check_choice,
    installed,
    load_entry,
    name_conflict,
    place_of,
    places,
)

Array = NDArray[np.float64]
Indices = NDArray[np.intp]
Scope = Literal["cell", "window", "day"]
#: Orientation of an array of counts.
Axes = Literal["cells_windows", "windows_cells"]
Options = ParamSpec("Options")


PERIOD = 24
"""Windows of a season: a day of hours."""


def by_day(counts: Array, days: ArrayLike | None) -> Array:
    """Sum the windows of each day. The result has shape (n_days, n_cells) and is ordered by date.

    `days`: local date of each window; NaT: of a day that is left out. None: every `PERIOD` windows are a day, and what
    is left at the end is left out unless there is nothing else.

    >>> by_day(np.array([[1.0], [2.0], [4.0], [8.0]]), ["2020-03-07", "2020-03-07", "2020-03-08", "NaT"])
    array([[3.],
           [4.]])
    """
    if days is None:
        number = np.arange(len(counts)) // PERIOD
        dates = np.where(number < max(1, len(counts) // PERIOD), number, np.iinfo(np.int64).min).astype("M8[D]")
    else:
        try:
            dates = np.asarray(days, "M8[D]")
        except (TypeError, ValueError):
            raise ParameterError("days", days, "dates, or texts such as 2020-03-07") from None
        if dates.shape != (len(counts),):
            raise ParameterError("days", dates.shape, f"one date for each of the {len(counts)} windows")
    kept = ~np.isnat(dates)
    if not kept.any():
        raise ParameterError("days", "NaT", "the date of at least one window")
    known, place = np.unique(dates[kept], return_inverse=True)
    totals = np.zeros((len(known), counts.shape[1]))
    np.add.at(totals, place, counts[kept])
    return totals


@dataclass(frozen=True)
class Metric:
    """A utility metric, as entered in the registry."""

    #: Name in a configuration.
    name: str
    #: (truth, released) as anybody has them → the mean, a float; see `metric`.
    function: Callable[..., float]
    #: Checked (truth, released) of windows × cells → one value for each cell, window or day; NaN for those that do not
    #: count.
    values: Callable[..., Array]
    #: What one value is about.
    scope: Scope
    #: Unit of the values; "" for a pure number.
    unit: str
    #: Whether a larger value means a more useful release.
    higher_is_better: bool
    #: Whose figure it is, where that must stand beside it.
    source: str = ""
    #: The least and the largest value there can be, where both are finite.
    bounds: tuple[float, float] | None = None
    #: Whether it is about the totals of days: its option ``days`` is as in `by_day`.
    daily: bool = False

    @property
    def help(self) -> str:
        """The first line of the metric's docstring."""
        return (self.function.__doc__ or "").strip().partition("\n")[0]

    def scores(self, truth: ArrayLike, released: ArrayLike, *options: Any, **named: Any) -> tuple[Indices, Array]:
        """Return the 0-based indices of the cells, windows or days in the mean, and the metric's value for each.

        ``truth``, ``released``: shape (n_windows, n_cells). The options are those of the metric's function.
        """
        pair = np.asarray(truth, dtype=np.float64), np.asarray(released, dtype=np.float64)
        if pair[0].ndim != 2 or pair[0].size == 0:
            raise ParameterError("truth", pair[0].shape, "of shape (n_windows, n_cells), at least (1, 1)")
        if pair[1].shape != pair[0].shape:
            raise ParameterError("released", pair[1].shape, f"of the truth's shape {pair[0].shape}")
        for name, array in zip(("truth", "released"), pair):
            if not np.isfinite(array).all():
                raise ParameterError(name, array[~np.isfinite(array)][0], "finite throughout")
        if (pair[0] < 0).any():
            raise ParameterError("truth", pair[0].min(), "counts of at least 0")
        values = np.asarray(self.values(*pair, *options, **named), np.float64)
        n_windows, n_cells = pair[0].shape
        expected = {"window": n_windows, "cell": n_cells}.get(self.scope)
        if self.scope == "day" and "days" in named:
            expected = len(by_day(pair[0], named["days"]))
        if values.ndim != 1 or expected not in (None, len(values)):
            text = f"metric {self.name} returns values of shape {values.shape}; it must be one for each {self.scope}"
            raise PluginError(f"{place_of(self.values)}: {text}")
        where = np.flatnonzero(~np.isnan(values))
        least, most = self.bounds or (-math.inf, math.inf)
        outside = values[(values < least - 1e-9) | (values > most + 1e-9)]
        if len(outside):
            text = f"metric {self.name} returns {outside[0]:g}; by its bounds it must be from {least:g} to {most:g}"
            raise PluginError(f"{place_of(self.values)}: {text}")
        return where, values[where]

    def mean(self, truth: ArrayLike, released: ArrayLike, *options: Any, **named: Any) -> float:
        """Return the mean of `scores`, or NaN if there are none."""
        values = self.scores(truth, released, *options, **named)[1]
        return float(values.mean()) if len(values) else math.nan


METRICS: dict[str, Metric] = {}
"""Every utility metric that was imported, by the name that a configuration gives it; `metric_names` are in use."""

#: Group of the entry points by which installed packages add metrics.
GROUP = "penstock.metrics"


def metric_names() -> tuple[str, ...]:
    """Return the names of all metrics. Those from installed packages come last."""
    return (*filter(_is_in_use, METRICS), *(name for name in installed(GROUP) if name not in METRICS))


def metric_called(name: str) -> Metric | None:
    """Return the metric with the given name, importing an installed package if necessary, or None.

    >>> from penstock.evaluation.utility import metric_called  # which has penstock's own
    >>> metric_called("mae").unit, metric_called("mea")
    ('people', None)
    """
    entry = installed(GROUP).get(name)
    if entry is not None:
        if name in METRICS and METRICS[name].values.__module__ != entry.module:
            raise name_conflict(entry, place_of(METRICS[name].values))
        check_metric(load_entry(entry, name))
    return METRICS.get(name) if _is_in_use(name) else None


def _is_in_use(name: str) -> bool:
    """Return whether a metric is registered and not left over from a plug-in folder of an earlier configuration."""
    if name not in METRICS:
        return False
    package, _, module = METRICS[name].values.__module__.rpartition(".")
    return package != __package__ or any(
        os.path.isfile(os.path.join(place, f"{module}.py")) for place in places(package, GROUP)
    )


def check_metric(module: ModuleType) -> None:
    """Check that a plug-in file registers exactly one metric, which has the same name as the file."""
    name = module.__name__.rpartition(".")[2]
    registered = [metric.name for metric in METRICS.values() if metric.values.__module__ == module.__name__]
    if registered != [name]:
        text = f"the file must register the metric {name}, and no other: @metric({name!r}, …) above its function"
        raise PluginError(f"{module.__file__}:1: {text}")
    if not METRICS[name].help:
        text = f"the metric {name} has no docstring, the first line of which says what it measures"
        raise PluginError(f"{place_of(METRICS[name].values)}: {text}")


def metric(
    name: str, scope: Scope, unit: str = "", *, higher_is_better: bool, **facts: Any
) -> Callable[[Callable[Concatenate[Array, Array, Options], Array]], Callable[..., float]]:
    """Register the decorated function of counts as a metric, and replace it with one that returns the mean.

    The returned function takes ``truth`` and ``released`` of any orientation: (n_cells, n_windows), or
    (n_windows, n_cells) with ``axes="windows_cells"``.

    Examples
    --------
    >>> @metric("doubled_people", "window", "people", higher_is_better=False)
    ... def doubled_people(truth, released):
    ...     return released.sum(1) - truth.sum(1)
    >>> doubled_people([[1, 2]], [[1, 3]]), METRICS.pop("doubled_people").scope
    (0.5, 'window')
    """

    check_choice("scope", scope, get_args(Scope))
    if scope == "day" and not facts.get("daily"):
        raise ParameterError("daily", False, "true where scope is day: the function takes `days`, for `by_day`")

    def register(values: Callable[Concatenate[Array, Array, Options], Array]) -> Callable[..., float]:

        @wraps(values)
        def mean(
            truth: ArrayLike, released: ArrayLike, *options: Any, axes: Axes = "cells_windows", **named: Any
        ) -> float:
            return entry.mean(*reorient(axes, truth, released), *options, **named)

        code = getattr(values, "__code__", None)
        if name in METRICS and _is_own(METRICS[name].values) and code is not None and not _is_own(values):
            text = f"the metric {name} is there already, penstock's own; call it by another name"
            raise PluginError(f"{code.co_filename}:{code.co_firstlineno}: {text}")
        entry = METRICS[name] = Metric(name, mean, values, scope, unit, higher_is_better, **facts)
        return mean

    return register


def _is_own(values: Callable[..., Array]) -> bool:
    """Return whether a function is defined in this package."""
    return Path(getattr(getattr(values, "__code__", None), "co_filename", "")).parent == Path(__file__).parent


def half_width(values: NDArray[np.float64], confidence: float) -> float:
    """Return half the width of Student's t interval for the mean of two or more independent numbers."""
    from scipy.stats import sem, t  # not for those who only read which metrics there are

    return float(t.ppf((1 + confidence) / 2, len(values) - 1) * sem(values))


def reorient(axes: Axes, *arrays: ArrayLike) -> tuple[NDArray[Any], ...]:
    """Return arrays with axes (…, n_windows, n_cells), swapping the last two if given as ``cells_windows``."""
    if axes not in ("windows_cells", "cells_windows"):
        raise ParameterError("axes", axes, "windows_cells or cells_windows")
    given = [np.asarray(array) for array in arrays]
    return tuple(array if axes == "windows_cells" or array.ndim < 2 else array.swapaxes(-1, -2) for array in given)


def busiest(counts: Array, fraction: float) -> Indices:
    """Return the indices of the busiest cells along the last axis, in descending order. Ties go to the lower index.

    At least one is named, and a part of a cell counts as a whole one.
    """
    if not 0 < fraction <= 1:
        raise ParameterError("fraction", fraction, "above 0 and at most 1")
    n_busiest = max(1, math.ceil(fraction * counts.shape[-1] - 1e-9))
    return np.argsort(-counts, axis=-1, kind="stable")[..., :n_busiest]


def entropies(counts: NDArray[Any]) -> Array:
    """Return the entropy, in nats, of the fractions along the last axis. The entropy of an empty row is 0."""
    shares = counts / np.maximum(counts.sum(axis=-1, keepdims=True), 1)
    return np.asarray(np.abs((shares * np.log(shares, out=np.zeros_like(shares), where=shares > 0)).sum(axis=-1)))
