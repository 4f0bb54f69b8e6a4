"""Adaptive landmark privacy: publish less often while little changes, and redistribute the unspent budget."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.core.contract import Facts, Window
from penstock.mechanisms.core.plugin import parameter
from penstock.mechanisms.core.portable import millionths
from penstock.mechanisms.core.schedules import LandmarkSchedule, Offer
from penstock.mechanisms.core.state import State

Array = NDArray[np.float64]

#: Publications that the drift sampler looks back on.
HISTORY = 64
#: Shares by which the sampling rate falls and rises if nothing is stated, on counts and on points of traces.
RATES = {"counts": (0.5, 0.5), "points": (0.1, 0.9)}


@dataclass(frozen=True, kw_only=True)
class LandmarkAdaptive(LandmarkSchedule):
    """Adapt the publication probability to changes between releases and redistribute budget saved at landmarks.

    Parameters
    ----------
    epsilon
        Budget of one period, in nats.
    rho, delta, noise, accounting, radius
        As in `BudgetSchedule`.
    decrease, increase
        How far the sampling rate moves towards 0 or 1 after a publication, in [0, 1]. Unset: 0.5 on counts; on traces
        0.1 and 0.9, which were best on the San Francisco cabs (``reproductions/landmark.md``).
    least_rate
        Sampling rate below which it never falls: only a publication can raise it again, so that at 0 nothing would.
    sampler
        ``paper``: the rate falls after a publication that differs from the one before by less than noise alone would
        make it. ``drift``: it falls after every publication and returns to 1 when a Page-Hinkley test (river) on the
        differences between releases sounds an alarm.
    calibration
        ``expected``: a difference is small below the expected difference of two noisy releases of the same value;
        ``paper``: below the noise scale, with which a vector of many cells never skips.

    **Privacy.** Each release starts from Uniform's share; a landmark that repeats divides its ε equally over all
    landmarks still to come and one regular window, so that the sum over the landmarks and any other window never passes
    ε. The rate reads releases only, hence is post-processing. Unit: one user's bounded contributions in all landmark
    windows and any one other window of a budget period; neighbours add or remove it. Katsomallos et al. 2022, Adaptive.
    With Gaussian noise all of this holds of ρ in place of ε, with √C the L2 sensitivity, by a Rényi filter (Feldman,
    Zrnic 2021).

    Time and state O(n_cells) a window; the drift sampler replays at most 64 differences and loops over replicas.

    Examples
    --------
    >>> from penstock.mechanisms.core.contract import Facts
    >>> from penstock.mechanisms.core.run import run_mechanism
    >>> facts = Facts(n_cells=50, n_windows=40, landmarks=(10, 20))
    >>> releases = run_mechanism(LandmarkAdaptive(epsilon=1.0), np.full((40, 50), 7), facts, seed=1)
    >>> 0 < sum(release.action == "repeated" for release in releases) < 40
    True
    """

    decrease: float = parameter(
        None,
        doc="share of the sampling rate that a small change takes away; unset: 0.5, on traces 0.1",
        at_least=0,
        at_most=1,
    )
    increase: float = parameter(
        None,
        doc="share of the missing rate that a large change gives back; unset: 0.5, on traces 0.9",
        at_least=0,
        at_most=1,
    )
    least_rate: float = parameter(0.05, doc="sampling rate below which it never falls", at_least=0, at_most=1)
    sampler: str = parameter(
        "paper", doc="rule by which the sampling rate follows the releases", choices=("paper", "drift")
    )
    calibration: str = parameter("expected", doc="threshold of a small change", choices=("expected", "paper"))
    adaptive: ClassVar[bool] = True
    first: ClassVar[dict[str, Any]] = LandmarkSchedule.first | {
        "bonus": 0.0,
        "rate": 1.0,
        "last_scale": 0.0,
        "n_published": 0,
    }
    per_period: ClassVar[tuple[str, ...]] = ("landmarks_seen", "bonus")

    def __post_init__(self) -> None:
        super().__post_init__()
        # What is unset is written out here, so that a configuration and its digest say which rate it is.
        for name, usual in zip(("decrease", "increase"), RATES[self.family.on]):
            if getattr(self, name) is None:
                object.__setattr__(self, name, usual)

    def start(self, facts: Facts) -> State:
        """Return the initial state, with a sampling rate of 1 and no publications."""
        history = {"history": np.full((*facts.shape, HISTORY), np.nan)} if self.sampler == "drift" else {}
        return super().start(facts) | history

    def amount(self, window: Window, state: State) -> Any:
        """Return the window's budget, including savings from landmarks."""
        return super().amount(window, state) + state["bonus"]

    def rate(self, state: State) -> Array:
        """Return the sampling rate."""
        return np.asarray(state["rate"])

    def record(self, window: Window, offer: Offer, after: State) -> State:
        """Save a landmark's unspent budget and adapt the sampling rates."""
        before, publish = offer.state, offer.publish
        recorded = super().record(window, offer, after)
        if np.any(window.landmark & ~publish & ~offer.refused):
            is_regular = True if window.regulars_to_come is None else window.regulars_to_come > 0
            receivers = np.asarray((0 if window.landmarks_to_come is None else window.landmarks_to_come) + is_regular)
            is_shared = window.landmark & ~publish & (receivers > 0)
            share = np.where(is_shared, offer.amount / np.maximum(receivers, 1), 0.0)
            recorded["bonus"] = before["bonus"] + share
        if not publish.any():
            return recorded
        scale = np.where(publish, offer.scale, 1.0)
        total, n = self.view.distance(after["last"], self.view.last_release(window, before), window)
        difference, expected = total / n, self.family.expected_difference(scale, before["last_scale"])
        # Nothing to compare: no earlier publication, or no active sensor.
        is_first = (before["n_published"] == 0) | (window.active is not None and not np.any(window.active))
        rate, history = self._next_rate(before, difference, expected, scale, is_first)
        if self.sampler == "drift":
            recorded["history"] = np.where(publish[..., None], history, before["history"])
        return recorded | {
            "rate": np.where(publish, rate, before["rate"]),
            "last_scale": np.where(publish, scale, before["last_scale"]),
            "n_published": before["n_published"] + publish,
        }

    def _next_rate(
        self, state: State, difference: Array, expected: Array, scale: Array, is_first: Any
    ) -> tuple[Array, Any]:
        """Return the next sampling rate and history, given the actual and expected distance between two releases."""
        rate = state["rate"]
        if self.sampler == "paper":
            is_small = difference < (expected if self.calibration == "expected" else scale)
            followed = np.where(is_small, rate - rate * self.decrease, rate + (1 - rate) * self.increase)
            return np.where(is_first, rate, np.maximum(followed, self.least_rate)), None
        relative = np.where(expected > 0, difference / np.where(expected > 0, expected, 1.0), difference)
        newest = np.where(is_first, np.nan, millionths(relative))[..., None]
        history = np.concatenate([state["history"][..., 1:], newest], axis=-1)
        alarm = page_hinkley_alarm(history)
        followed = np.where(alarm, 1.0, rate - rate * self.decrease)
        # After an alarm the past says nothing about what follows.
        history = np.where(alarm[..., None], np.nan, history)
        return np.where(is_first, rate, np.maximum(followed, self.least_rate)), history


def page_hinkley_alarm(history: NDArray[Any]) -> NDArray[np.bool_]:
    """Run a Page-Hinkley test on each history, shape (..., n), where NaN is missing, and return the final alarms."""
    # `river.drift.PageHinkley` (Page 1954) is replayed on the history at every call, about 2 µs a value, so that state
    # stays a plain array.
    from river.drift import PageHinkley

    rows = history.reshape(-1, history.shape[-1])
    alarms = np.zeros(len(rows), bool)
    for number, row in enumerate(rows):
        detector = PageHinkley(min_instances=5, delta=0.05, threshold=2.0, mode="up")
        for value in row[~np.isnan(row)]:
            detector.update(float(value))
        alarms[number] = detector.drift_detected
    return alarms.reshape(history.shape[:-1])
