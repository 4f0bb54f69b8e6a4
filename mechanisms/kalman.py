"""A Kalman filter per cell, which models the count as a random walk."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.core import surprise
from penstock.mechanisms.core.contract import Facts, Postprocess, Release
from penstock.mechanisms.core.intervals import TINY
from penstock.mechanisms.core.plugin import parameter
from penstock.mechanisms.core.state import State
from penstock.mechanisms.filter import group_variance, noise_variance

Array = NDArray[np.float64]

#: Factor by which the largest surprise of a cell fades with each further window.
FADING = 0.998


@dataclass(frozen=True, kw_only=True)
class Kalman(Postprocess):
    """Model each count as a random walk observed with noise and release its filtered mean and standard deviation.

    Parameters
    ----------
    process_variance
        Variance of the change of a count from one window to the next.

    **Privacy.** No guarantee of its own: it reads earlier releases and public facts only, so that the step before it
    keeps its unit, neighbours and budget (post-processing).

    Notes
    -----
    Time and state O(n_cells). After `fast` it is the estimator of FAST (Fan, Xiong 2014, algorithm 2); laplace noise
    counts by its variance. A count that neither the walk nor noise explains has an ``alarm`` and is believed, as in
    `filter`, which learns the rhythm of the day as well and needs no parameter. A walk is surprised by every rush hour:
    what is no larger than a surprise of the cell's last days, or is of the first day, is no alarm.

    Examples
    --------
    >>> state = Kalman(process_variance=3.0).start(Facts(n_cells=1))
    >>> for window, value in ((1, 10.0), (2, 16.0)):
    ...     release = Release(window=window, values=np.array([value]), noise="gaussian", scale=1.0)
    ...     release, state = Kalman(process_variance=3.0).process(release, state)
    >>> release.values.tolist(), release.standard_deviation.round(3).tolist()
    ([14.8], [0.894])
    """

    process_variance: float = parameter(
        100.0, doc="variance of the change of a count from one window to the next", at_least=0
    )
    reads_noise: ClassVar[bool] = True
    raises_alarms: ClassVar[bool] = True
    version: ClassVar[int] = 3

    def start(self, facts: Facts) -> State:
        """Return the initial state, in which every variance is infinite."""
        shape = (*facts.shape, facts.n_cells)
        return {
            "estimate": np.zeros(shape),
            "variance": np.full(shape, np.inf),
            "hidden": np.zeros(shape),
            "windows_per_day": facts.constant(facts.windows_per_day, np.int64),
            "windows": facts.constant(0, np.int64),
            # The largest surprise of each cell, which fades.
            "largest": np.zeros(shape),
            **surprise.start(facts),
        }

    def process(self, release: Release, state: State) -> tuple[Release, State]:
        """Filter a release and return the estimates and next state."""
        values = np.asarray(release.values, np.float64)
        inactive = np.isnan(values)
        seen = np.asarray(np.asarray(release.action) == "published")[..., None] & ~inactive
        noise = np.where(seen, noise_variance(release.noise, release.scale), np.inf)
        noisy, predicted, spread = np.where(seen, values, 0.0), state["estimate"], state["variance"]
        spread = spread + self.process_variance
        known = seen & np.isfinite(spread)
        expected, added = np.where(np.isfinite(spread), spread, 0.0), np.where(seen, noise, 1.0)
        n_counts = float(np.max(state["windows_per_day"]) * values.shape[-1])
        begun = np.asarray(state["windows"] >= state["windows_per_day"])
        usual = np.sqrt(state["largest"])
        limit = tuple(np.maximum(end, usual) for end in surprise.limits(release.noise, release.scale, n_counts, begun))
        event, events = surprise.believed(predicted, expected, noisy, added, known, limit, state)
        surprises = np.where(known, (noisy - predicted) ** 2 / np.maximum(expected + added, TINY), 0.0)
        estimate, variance = correct(predicted, spread, noisy, noise)
        # What the walk is off by is what the cell's surprises show, and the estimate's error is no smaller.
        beyond = np.where(known, (added / (expected + added)) ** 2, np.isfinite(spread)) * (event.spread - expected)
        hidden = group_variance(release, seen, state["hidden"])
        best, doubt = event.mixed(estimate, variance + beyond)
        doubt = doubt + hidden
        unknown = inactive | np.isinf(variance)
        shown = replace(
            release,
            values=np.where(inactive, np.nan, np.where(np.isinf(variance), values, best)),
            standard_deviation=np.where(unknown, np.nan, np.sqrt(np.where(unknown, 0.0, doubt))),
            alarm=event.alarm & ~inactive,
        )
        # While an event lasts the walk itself goes on unseen.
        return shown, state | events | {
            "estimate": np.where(event.alarm, predicted, estimate),
            "variance": np.where(event.alarm, spread, variance),
            "hidden": hidden,
            "windows": state["windows"] + seen.any(-1),
            "largest": np.maximum(FADING * state["largest"], surprises),
        }


def correct(predicted: Array, variance: Any, noisy: Array, noise: Any) -> tuple[Array, Array]:
    """Return the mean and variance after a noisy observation. Infinite variance marks a missing prediction or value.

    >>> [part.tolist() for part in correct(np.zeros(2), np.array([np.inf, 4.0]), np.array([3.0, 3.0]), 4.0)]
    [[3.0, 1.5], [4.0, 2.0]]
    """
    first, none = np.isinf(variance), np.isinf(noise)
    usual = ~first & ~none
    with np.errstate(invalid="ignore"):
        gain = np.where(usual, variance / np.where(usual & (variance + noise > 0), variance + noise, 1.0), ~none)
    mean: Array = predicted + gain * (noisy - predicted)
    left = np.where(none, variance, np.where(first, noise, (1.0 - gain) * np.where(usual, variance, 0.0)))
    return np.where(gain == 1.0, noisy, mean), np.asarray(left, np.float64)
