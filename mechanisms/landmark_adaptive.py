"""Adaptive landmark privacy: publish less often while little changes, and hand on what landmarks leave unspent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.core.contract import Facts, Mask, Release, Timestamp, Window, active_l1
from penstock.mechanisms.core.events import Event
from penstock.mechanisms.core.geometry import Points, distance
from penstock.mechanisms.core.plugin import parameter
from penstock.mechanisms.core.portable import millionths
from penstock.mechanisms.core.schedules import Budgets, LandmarkSchedule, expected_difference, page_hinkley_alarm
from penstock.mechanisms.core.state import State

if TYPE_CHECKING:
    from penstock.mechanisms.core.draws import Noise


#: Publications that the drift sampler looks back on.
HISTORY = 64


@dataclass(frozen=True, kw_only=True)
class LandmarkAdaptive(LandmarkSchedule):
    """Publish with a probability that follows how much the releases change; share what landmarks do not spend.

    Parameters
    ----------
    epsilon
        Budget of one period, in nats.
    rho, delta, noise, radius
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

    With ``bounding.max_per_period`` the unit costs most where its S memberships (`PeriodBound.with_landmarks`) are in
    the windows of least noise, C in each. Along every outcome that is at most ε, bounded beforehand, as the filter asks
    for: each window may spend what leaves as much to every window to come. That begins with the noise of
    `landmark_uniform`, whose windows may cost ε/S a membership each; what is not spent makes later noise less only
    where fewer windows are left than hold S memberships.

    Notes
    -----
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
    sampler: str = parameter("paper", doc="how the sampling rate follows the releases", choices=("paper", "drift"))
    calibration: str = parameter("expected", doc="what a small change is", choices=("expected", "paper"))
    adaptive: ClassVar[bool] = True
    bounds_periods: ClassVar[bool] = True

    def __post_init__(self) -> None:
        # What is unset is written out here, so that a configuration and its digest say which rate it is.
        for name, on_counts, on_traces in (("decrease", 0.5, 0.1), ("increase", 0.5, 0.9)):
            if getattr(self, name) is None:
                object.__setattr__(self, name, on_traces if self.on_points else on_counts)
        super().__post_init__()

    def start(self, facts: Facts) -> State:
        """Sampling rate 1, nothing published."""
        own: State = {
            "rate": facts.constant(1.0),
            "bonus": facts.constant(0.0),
            "last_scale": facts.constant(0.0),
            "n_published": facts.constant(0, np.int64),
        }
        if self.sampler == "drift":
            own["history"] = np.full((*facts.shape, HISTORY), np.nan)
        bound = facts.period_bound
        if bound is not None:
            # The largest budgets of the period's publications, which may hold all of the unit's memberships.
            own["dearest"] = np.zeros((*facts.shape, min(bound.longest, -(-2 * bound.most // bound.of_window))))
        return super().start(facts) | own

    def begin_period(self, window: Window, state: State) -> State:
        """A new period forgets what the last one left over, or spent."""
        begun = super().begin_period(window, state)
        if begun is state:
            return state
        return begun | {name: np.zeros_like(state[name]) for name in ("bonus", "dearest") if name in state}

    def window_budget(self, window: Window, state: State) -> NDArray[np.float64]:
        """Publication budget of this window."""
        bound = self.bound_of(window, state)
        if bound is None:
            return np.asarray(self.share(window) + state["bonus"])
        to_come = 1 + (window.landmarks_to_come or 0) + (window.regulars_to_come or 0)
        n_full = bound.with_landmarks(window) / bound.of_window
        return even_budget(self.budget, state["dearest"], to_come, n_full)

    def release(self, window: Window, counts: NDArray[Any], state: State, noise: Noise) -> tuple[Release, State]:
        """Publish with probability ``rate``, else repeat and hand on a landmark's share."""
        epsilon = self.window_budget(window, state)
        publish = np.asarray(noise.uniform(state["rate"].shape) < state["rate"])
        made, after = self.publish_or_repeat(window, counts, state, epsilon, publish, noise)
        if "dearest" in state:
            spent = np.where(publish, epsilon, 0.0)[..., None]
            dearest = -np.sort(-np.concatenate([state["dearest"], spent], -1), -1)[..., :-1]
            kept: State = {"bonus": state["bonus"], "dearest": dearest}
        else:
            kept = {"bonus": np.where(publish, state["bonus"], state["bonus"] + self._handed_on(window, epsilon))}
        if not publish.any():
            return made, after | kept
        scale = self.scale_of(epsilon, active_l1(window, state["max_cells"]))
        rate, history = self._follow(window, state, after, scale)
        own = kept | {
            "rate": np.where(publish, rate, state["rate"]),
            "last_scale": np.where(publish, scale, state["last_scale"]),
            "n_published": np.asarray(state["n_published"] + publish),
        }
        if self.sampler == "drift":
            own["history"] = np.where(publish[..., None], history, state["history"])
        return made, after | own

    def worst(self, window: Window, state: State) -> tuple[Event, ...]:
        """Publication with the whole publication budget."""
        return self.charge_of(window, state, self.window_budget(window, state))

    def enter(self, time: Timestamp, state: State) -> State:
        """A new period of a user forgets what the last one left over."""
        is_new = state["period"] != time.period
        return super().enter(time, state) | {"bonus": np.where(is_new, 0.0, state["bonus"])}

    def point_budget(self, time: Timestamp, state: State) -> Budgets:
        """The share and what landmarks have handed on."""
        return self.shares(time) + state["bonus"]

    def choose(self, time: Timestamp, points: Points, state: State, epsilon: Budgets, noise: Noise) -> Mask:
        """Each user with the sampling rate of their own."""
        return np.asarray(noise.uniform(state["rate"].shape) < state["rate"])

    def follow(self, time: Timestamp, before: State, after: State, epsilon: Budgets, publish: Mask) -> State:
        """Hand on what a landmark left unspent; adapt the sampling rate of those who published."""
        after = super().follow(time, before, after, epsilon, publish)
        receivers = time.landmarks_to_come + (time.regulars_to_come > 0)
        handing = time.landmark & ~publish & (receivers > 0)
        bonus = before["bonus"] + np.where(handing, epsilon / np.maximum(receivers, 1), 0.0)
        if not publish.any():
            return after | {"bonus": bonus}
        scale = self.spread(np.where(publish, epsilon, 1.0))
        apart = np.where(publish, distance(after["last"], before["last"]), 0.0)
        expected = self.apart_by_noise(scale, before["last_scale"])
        rate, history = self._next_rate(before, apart, expected, scale, before["n_published"] == 0)
        own = {
            "bonus": bonus,
            "rate": np.where(publish, rate, before["rate"]),
            "last_scale": np.where(publish, scale, before["last_scale"]),
            "n_published": before["n_published"] + publish,
        }
        if self.sampler == "drift":
            own["history"] = np.where(publish[:, None], history, before["history"])
        return after | own

    @staticmethod
    def _handed_on(window: Window, epsilon: NDArray[np.float64]) -> Any:
        regular = window.regulars_to_come is None or window.regulars_to_come > 0
        receivers = (window.landmarks_to_come or 0) + regular
        return epsilon / receivers if window.landmark and receivers else 0.0

    def _follow(
        self, window: Window, state: State, after: State, scale: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], Any]:
        """The sampling rate after a publication, and the history of differences with it."""
        apart = np.abs(after["last"] - state["last"])
        shown = apart if window.active is None else apart[..., window.active]
        difference = shown.sum(-1) / max(shown.shape[-1], 1)
        expected = expected_difference(self.noise, scale, state["last_scale"])
        # Nothing to compare: no earlier publication, or no active sensor.
        first = (state["n_published"] == 0) | (shown.shape[-1] == 0)
        return self._next_rate(state, difference, expected, scale, first)

    def _next_rate(
        self, state: State, difference: Budgets, expected: Budgets, scale: Budgets, first: Any
    ) -> tuple[NDArray[np.float64], Any]:
        """The sampling rate and history, from how far two releases are apart and would be without a change."""
        rate = state["rate"]
        if self.sampler == "paper":
            small = difference < (expected if self.calibration == "expected" else scale)
            followed = np.where(small, rate - rate * self.decrease, rate + (1 - rate) * self.increase)
            return np.where(first, rate, np.maximum(followed, self.least_rate)), None
        relative = np.where(expected > 0, difference / np.where(expected > 0, expected, 1.0), difference)
        newest = np.where(first, np.nan, millionths(relative))[..., None]
        history = np.concatenate([state["history"][..., 1:], newest], axis=-1)
        alarm = page_hinkley_alarm(history)
        followed = np.where(alarm, 1.0, rate - rate * self.decrease)
        # After an alarm the past says nothing about what follows.
        history = np.where(alarm[..., None], np.nan, history)
        return np.where(first, rate, np.maximum(followed, self.least_rate)), history


def even_budget(total: float, dearest: Budgets, n_to_come: int, n_full: float) -> Budgets:
    """The most that each window to come can spend, if all spend as much, and the dearest windows stay within a total.

    Parameters
    ----------
    total
        What the ``n_full`` dearest windows of the period may cost; of a part of a window, that part of its cost.
    dearest
        Shape (..., n): the dearest windows so far, the dearest first; 0 where there are none.

    Examples
    --------
    >>> [float(even_budget(6.0, np.array(spent), 2, 3)) for spent in ([0.0, 0.0], [2.0, 0.0], [3.0, 1.0])]
    [3.0, 2.0, 1.5]
    """
    if np.isinf(total):
        return np.full(dearest.shape[:-1], total)
    n = dearest.shape[-1]
    # Windows by rank: the first `above` of those so far, all to come, then the others. Whatever the order, it may not
    # cost more; the right one costs most.
    weights = np.clip(n_full - np.arange(n + n_to_come), 0.0, 1.0)
    found = np.full(dearest.shape[:-1], np.inf)
    for above in range(n + 1):
        own = weights[above : above + n_to_come].sum()
        if own > 0:
            rank = np.arange(n) + np.where(np.arange(n) < above, 0, n_to_come)
            spent = np.cumsum(dearest * weights[rank], -1)[..., -1]
            found = np.minimum(found, (total - spent) / own)
    return np.asarray(np.maximum(found, 0.0))
