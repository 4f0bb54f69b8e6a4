"""Budget schedules: landmark and w-event privacy over counts and traces, with their dissimilarity and drift tests."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mechanisms.core.contract import (
    ADD_REMOVE,
    PURE_FAMILIES,
    Facts,
    Guarantee,
    Mask,
    Mechanism,
    PointRelease,
    Release,
    Timestamp,
    Window,
    active_l1,
    add_noise,
    pure_event,
    pure_scale,
)
from mechanisms.core.draws import LARGEST_SCALE
from mechanisms.core.events import Event, Repeated
from mechanisms.core.geometry import Points, distance
from mechanisms.core.plugin import ParameterError, examples_of, parameter
from mechanisms.core.state import State
from mechanisms.core.traces import PLANAR, PointMechanism, only_present, perturbed, shown

if TYPE_CHECKING:
    from mechanisms.core.draws import Noise


# Change detection on a short history, without an object that would have to live in state.


def page_hinkley_alarm(history: NDArray[Any], threshold: float = 2.0, delta: float = 0.05) -> NDArray[np.bool_]:
    """Whether a Page-Hinkley test sounds its alarm at the last value of a history.

    Parameters
    ----------
    history
        Shape (..., n): values, oldest first; NaN where there is none.
    threshold, delta
        Of `river.drift.PageHinkley`: summed deviation that raises an alarm, and the change that is tolerated.

    Notes
    -----
    The detector is rebuilt from the history at every call, about 2 µs a value, so that state stays a plain array.
    Source: Page 1954; river's implementation.

    Examples
    --------
    >>> quiet = np.ones(20)
    >>> bool(page_hinkley_alarm(quiet)), bool(page_hinkley_alarm(np.append(quiet, 9.0)))
    (False, True)
    """
    from river.drift import PageHinkley

    rows = history.reshape(-1, history.shape[-1])
    alarms = np.zeros(len(rows), bool)
    for number, row in enumerate(rows):
        detector = PageHinkley(min_instances=5, delta=delta, threshold=threshold, mode="up")
        for value in row[~np.isnan(row)]:
            detector.update(float(value))
        alarms[number] = detector.drift_detected
    return alarms.reshape(history.shape[:-1])


# How far apart two noisy releases of the *same* value are expected to be.


def expected_difference(family: str, scale: Any, other: Any) -> NDArray[np.float64]:
    """E|Z₁ − Z₂| of independent noise of two scales.

    Parameters
    ----------
    family
        ``laplace``: (b₁² + b₁b₂ + b₂²)/(b₁ + b₂), that is 1.5 b for equal scales. ``discrete_laplace``: the exact sum
        over integers, from the partial fractions of the two generating functions.
    scale, other
        Scales b₁ and b₂, numbers or arrays.

    Examples
    --------
    >>> float(expected_difference("laplace", 2.0, 2.0))
    3.0
    >>> round(float(expected_difference("discrete_laplace", 2.0, 2.0)), 4)
    2.9361
    """
    b, c = np.asarray(scale, np.float64), np.asarray(other, np.float64)
    if family == "laplace":
        total = b + c
        return np.where(total == 0, 0.0, (b * b + b * c + c * c) / np.where(total == 0, 1.0, total))
    # Equal scales are a removable singularity; pulling them apart by 1e-4 changes the result by 1e-9 of itself.
    middle = (b + c) / 2
    close = np.abs(b - c) < 1e-4 * middle
    p = _ratio(np.where(close, middle * (1 + 5e-5), b))
    q = _ratio(np.where(close, middle * (1 - 5e-5), c))
    gap = np.where(p == q, 1.0, (p - q) * (1 - p * q))
    value = 2 * (1 - p) ** 2 * (1 - q) ** 2 / gap * (_moment(p) - _moment(q))
    return np.where(p == q, 0.0, value)


def _ratio(scale: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.exp(-1 / np.where(scale == 0, 1.0, scale)) * (scale > 0)


def _moment(p: NDArray[np.float64]) -> NDArray[np.float64]:
    return p**2 / ((1 - p) ** 3 * (1 + p))


# Budget schedules over traces: the same rules as for counts, for every user of a shard at once.


Budgets = NDArray[np.float64]

POSITIONS = "the positions may differ, the times at which there are points may not; landmarks are public"

LANDMARK_TRACES = Guarantee(
    unit="one user's positions at all landmarks of a budget period and at any one other timestamp",
    neighbours=f"two traces at most `radius` metres apart at each of these timestamps; {POSITIONS}",
    statement="ε-indistinguishability within `radius` metres, per user and budget period",
    theorem="Katsomallos et al. 2022 with planar Laplace noise (Andrés et al. 2013, sections 3.2 and 4.1)",
)
W_EVENT_TRACES = Guarantee(
    unit="one user's positions at any w successive timestamps",
    neighbours="two traces at most `radius` metres apart at each of them; the times of the points are public",
    statement="ε-indistinguishability within `radius` metres, for any w successive points of a user",
    theorem="Kellaris et al. 2014, theorem 3, with planar Laplace noise (Andrés et al. 2013, sections 3.2 and 4.1)",
)


@dataclass(frozen=True, kw_only=True)
class TraceSchedule(PointMechanism):
    """Decides *when to spend how much* on each user's points; planar Laplace does the rest.

    A schedule overrides `allot` and, where publishing is not a matter of budget alone, `choose` and `follow`. All
    arrays have shape (n_users,).
    """

    stages: ClassVar[tuple[str, ...]] = ("counts", "points")

    @property
    def question_epsilon(self) -> float:
        """ε that the decision to publish costs, at every timestamp."""
        return 0.0

    def allot(self, time: Timestamp, state: State) -> Budgets:
        """ε of a publication; 0 where none is due."""
        raise NotImplementedError(f"{type(self).__name__} does not work on points")

    def choose(self, time: Timestamp, points: Points, state: State, epsilon: Budgets, noise: Noise) -> Mask:
        """Who publishes of those who have something to spend."""
        return np.ones(len(epsilon), bool)

    def follow(self, time: Timestamp, before: State, after: State, epsilon: Budgets, publish: Mask) -> State:
        """The schedule's own state after a step that published with ``epsilon`` or repeated."""
        return after

    def enter(self, time: Timestamp, state: State) -> State:
        """State as the timestamp finds it."""
        return state

    def refused(self, time: Timestamp, state: State) -> Mask:
        """Who must not publish now, because more landmarks came than were declared."""
        return np.zeros(len(time.time), bool)

    def step_points(
        self, time: Timestamp, points: Points, present: Mask, state: State, noise: Noise
    ) -> tuple[PointRelease, State]:
        """Release one timestamp of many users."""
        before = self.enter(time, state)
        refused = self.refused(time, before)
        epsilon = np.where(refused, 0.0, self.allot(time, before))
        publish = present & (epsilon > 0) & self.choose(time, points, before, epsilon, noise)
        rate = epsilon / self.metres
        values, after = perturbed(time, points, before, rate, publish, noise)
        after = self.follow(time, before, after, epsilon, publish)
        with np.errstate(divide="ignore"):
            scale = np.where(publish, 1.0 / np.where(publish, rate, 1.0), 0.0)
        release = PointRelease(
            values=values,
            action=np.where(publish, "published", np.where(refused, "refused", "repeated")),
            noise=PLANAR,
            scale=scale,
            epsilon=np.where(publish, epsilon, 0.0) + self.question_epsilon,
            repeats=np.where(publish, -1, before["last_window"]),
        )
        return only_present(release, present, state, after)

    def worst_points(self, time: Timestamp, state: State) -> Budgets:
        """The question, and a publication with all that is allotted."""
        before = self.enter(time, state)
        return np.where(self.refused(time, before), 0.0, self.allot(time, before)) + self.question_epsilon


# What all budget schedules share: how an allocated ε becomes a published vector, and how a vector is repeated.


LANDMARK_GUARANTEE = Guarantee(
    unit="one user's bounded contributions in all landmark windows of a budget period and in any one other window",
    neighbours="add or remove the unit; landmarks are public",
    statement="ε-differential privacy per budget period",
    theorem="Katsomallos, Tzompanaki, Kotzinos 2022, landmark privacy (sequential composition)",
)


@dataclass(frozen=True, kw_only=True)
class BudgetSchedule(TraceSchedule):
    """Base of mechanisms that decide *when to spend how much* and leave the noise to a pure family.

    Parameters
    ----------
    epsilon
        Budget that the schedule divides, in nats.
    noise
        ``discrete_laplace`` (integers, the default) or ``laplace`` on counts; ``planar_laplace`` on traces.
    radius
        On traces: distance in metres at which ε holds.
    """

    epsilon: float = parameter(doc="budget that the schedule divides", above=0, unit="nats")
    noise: str = parameter(
        "discrete_laplace",
        doc="noise family; planar_laplace: release points of traces",
        choices=(*PURE_FAMILIES, PLANAR),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.radius is not None and not self.on_points:
            raise ParameterError("radius", self.radius, f"left out unless noise is {PLANAR}")

    @property
    def on_points(self) -> bool:
        """Whether the noise is that of points."""
        return self.noise == PLANAR

    @classmethod
    def examples(cls) -> tuple[Mechanism, ...]:
        """One instance for every noise family of counts."""
        return tuple(example for example in examples_of(cls) if not example.on_points)

    def start(self, facts: Facts) -> State:
        """Sensitivity, and nothing released yet."""
        return {
            "max_cells": facts.constant(facts.sensitivity, np.int64),
            "last": np.zeros((*facts.shape, facts.n_cells)),
            "last_window": facts.constant(0, np.int64),
        }

    def charge_of(self, window: Window, state: State, epsilon: Any) -> tuple[Event, ...]:
        """Event of publishing this window's vector with ``epsilon``."""
        l1 = active_l1(window, state["max_cells"])
        return (pure_event(self.noise, l1, pure_scale(epsilon, l1)),)

    def publish(
        self, window: Window, counts: NDArray[Any], state: State, epsilon: Any, noise: Noise
    ) -> tuple[Release, State]:
        """Publish the window with ``epsilon`` and remember what was published."""
        scale = pure_scale(epsilon, active_l1(window, state["max_cells"]))
        values = add_noise(noise, self.noise, counts, scale if np.ndim(scale) else float(scale))
        release = Release.of(
            window,
            values,
            self.charge_of(window, state, epsilon),
            noise=self.noise,
            scale=scale[..., None] if np.ndim(scale) else float(scale),
        )
        last = values if window.active is None else np.where(window.active, values, state["last"])
        remembered = {
            "last": np.asarray(last, np.float64),
            "last_window": np.full_like(state["last_window"], window.index),
        }
        return release, state | remembered

    def decide(
        self,
        window: Window,
        counts: NDArray[Any],
        state: State,
        epsilon: Any,
        publish: NDArray[np.bool_],
        noise: Noise,
        decision: tuple[Event, ...] = (),
    ) -> tuple[Release, State]:
        """Publish or repeat, replica by replica.

        Parameters
        ----------
        epsilon
            Budget of a publication, shape of the leading axes.
        publish
            Which replicas publish, same shape.
        decision
            What reading the data for the decision has cost already.
        """
        if publish.ndim == 0:
            if not publish:
                repeated = self.repeat(window, state)
                return replace(repeated, charge=(*decision, *repeated.charge)), state
            release, state = self.publish(window, counts, state, epsilon, noise)
            return replace(release, charge=(*decision, *release.charge)), state
        allotted = np.where(publish, epsilon, self.epsilon)
        made, published = self.publish(window, counts, state, allotted, noise)
        shown = self.repeat(window, state)
        scale = np.where(publish[..., None], made.scale, np.inf)
        release = replace(
            made,
            values=np.where(publish[..., None], made.values, shown.values),
            action=np.where(publish, "published", "repeated"),
            # An infinite scale is a publication without content: the price of the replicas that repeat.
            charge=(*decision, pure_event(self.noise, active_l1(window, state["max_cells"]), scale[..., 0])),
            scale=scale,
            repeats=np.where(publish, -1, state["last_window"]),
        )
        merged = {
            name: np.where(publish.reshape(publish.shape + (1,) * (new.ndim - publish.ndim)), new, state[name])
            for name, new in published.items()
        }
        return release, merged

    def repeat(self, window: Window, state: State) -> Release:
        """Show the last published vector again; costs nothing."""
        last = state["last_window"]
        repeats = last.astype(np.int64) if last.ndim else int(last)
        charge = (Repeated(int(last.max())),)
        return Release.of(window, state["last"].copy(), charge, action="repeated", repeats=repeats)


# What landmark schedules share: budget periods, and landmarks beyond the declared maximum.


@dataclass(frozen=True, kw_only=True)
class LandmarkSchedule(BudgetSchedule):
    """Base of landmark mechanisms: counts the landmarks of a period and refuses those over the declared maximum."""

    guarantee: ClassVar[Guarantee] = LANDMARK_GUARANTEE
    point_guarantee: ClassVar[Guarantee] = LANDMARK_TRACES

    @property
    def landmark_budget(self) -> float:
        """The whole ε, in every budget period."""
        return self.epsilon

    def start(self, facts: Facts) -> State:
        """No period begun yet."""
        return super().start(facts) | {
            "period": facts.constant(-1, np.int64),
            "landmarks_seen": facts.constant(0, np.int64),
        }

    def begin_period(self, window: Window, state: State) -> State:
        """State as the window finds it: a new budget period starts afresh."""
        if _latest(state["period"]) == window.period:
            return state
        fresh = {
            "period": np.full_like(state["period"], window.period),
            "landmarks_seen": np.zeros_like(state["landmarks_seen"]),
        }
        return state | fresh

    def is_refused(self, window: Window, state: State) -> bool:
        """Whether the window is a landmark beyond the declared maximum of its period."""
        if window.n_landmarks is None:
            raise ParameterError("landmarks", None, "listed, or bounded by max_per_period with a budget_period")
        if not window.landmark:
            return False
        return _latest(self.begin_period(window, state)["landmarks_seen"]) >= window.n_landmarks

    def share(self, window: Window) -> float:
        """ε/n, n the landmarks of the period and one more window, if there are that many."""
        n_together = (window.n_landmarks or 0) + 1
        return self.epsilon / (n_together if window.n_windows is None else min(n_together, window.n_windows))

    def step(self, window: Window, counts: NDArray[Any], state: State, noise: Noise) -> tuple[list[Release], State]:
        """Release one window, or refuse a landmark that was not planned for."""
        state = self.begin_period(window, state)
        refused = self.is_refused(window, state)
        if window.landmark:
            state = state | {"landmarks_seen": state["landmarks_seen"] + 1}
        if refused:
            return [replace(self.repeat(window, state), action="refused")], state
        release, state = self.release(window, counts, state, noise)
        return [release], state

    def worst_charge(self, window: Window, state: State) -> tuple[Event, ...]:
        """Nothing for a refused landmark, else the most that the schedule can spend."""
        state = self.begin_period(window, state)
        if self.is_refused(window, state):
            return (Repeated(0),)
        return self.worst(window, state)

    def enter(self, time: Timestamp, state: State) -> State:
        """A new budget period of a user starts afresh."""
        is_new = state["period"] != time.period
        return state | {"period": time.period, "landmarks_seen": np.where(is_new, 0, state["landmarks_seen"])}

    def refused(self, time: Timestamp, state: State) -> Mask:
        """Landmarks beyond the declared maximum of their period."""
        return time.landmark & (state["landmarks_seen"] >= time.n_landmarks)

    def shares(self, time: Timestamp) -> Budgets:
        """The share of every user's timestamp."""
        return self.epsilon / np.minimum(time.n_landmarks + 1, time.n_timestamps)

    def follow(self, time: Timestamp, before: State, after: State, epsilon: Budgets, publish: Mask) -> State:
        """Count the landmarks."""
        return after | {"landmarks_seen": before["landmarks_seen"] + time.landmark}

    @abstractmethod
    def release(self, window: Window, counts: NDArray[Any], state: State, noise: Noise) -> tuple[Release, State]:
        """Release a window that is not refused."""

    @abstractmethod
    def worst(self, window: Window, state: State) -> tuple[Event, ...]:
        """The most that `release` can charge."""


def _latest(number: NDArray[Any]) -> int:
    """The largest of the replicas' numbers, or the only one."""
    return int(number.max() if number.ndim else number)


# What w-event schedules share: the protected stretch, and the noisy dissimilarity that two of them decide by.


@dataclass(frozen=True, kw_only=True)
class WEventSchedule(BudgetSchedule):
    """Base of w-event mechanisms.

    Parameters
    ----------
    epsilon
        Budget of any w successive windows, in nats.
    w
        Length of the protected stretch, in windows; on traces, in points of a user.
    noise, radius
        As in `BudgetSchedule`.
    """

    point_guarantee: ClassVar[Guarantee] = W_EVENT_TRACES
    w: int = parameter(doc="length of the protected stretch", at_least=1, unit="windows")
    guarantee: ClassVar[Guarantee] = Guarantee(
        unit="all of one user's bounded contributions within any w successive windows",
        neighbours=ADD_REMOVE,
        statement="w-event ε-differential privacy",
        theorem="Kellaris, Papadopoulos, Xiao, Papadias 2014, theorem 3",
    )


@dataclass(frozen=True, kw_only=True)
class DissimilaritySchedule(WEventSchedule):
    """Base of the two schedules that spend half their budget on asking whether a publication is worth it.

    Parameters
    ----------
    epsilon
        Budget of any w successive windows, in nats: half for asking whether to publish, half for publishing.
    noise
        The same for questions and publications, of those that `BudgetSchedule` names.
    w, radius
        As in `WEventSchedule`.
    """

    adaptive: ClassVar[bool] = True
    ideal: ClassVar[str] = "exact where it publishes; the last publication where it repeats"

    @property
    def unit(self) -> float:
        """ε/(2w): what one window's question costs, and the unit in which publications are paid."""
        return self.epsilon / (2 * self.w)

    @abstractmethod
    def offer(self, window: Window | Timestamp, state: State) -> NDArray[np.float64]:
        """ε that a publication of this window may spend; 0 where it must not publish."""

    @abstractmethod
    def spend(self, window: Window | Timestamp, state: State, spent: NDArray[np.float64]) -> State:
        """The schedule's own state after ``spent`` (0: repeated)."""

    def step(self, window: Window, counts: NDArray[Any], state: State, noise: Noise) -> tuple[list[Release], State]:
        """Ask how far the counts are from the last release; publish if that is more than the noise would be."""
        l1 = active_l1(window, state["max_cells"])
        epsilon = self.offer(window, state)
        # Halving again and again may leave less than any noise source serves; such an offer is none.
        epsilon = np.where(epsilon * LARGEST_SCALE < l1, 0.0, epsilon)
        distance = np.abs(counts - state["last"])
        if window.active is not None:
            distance = distance[..., window.active]
        n_active = max(distance.shape[-1], 1)
        asked = self._sum_with_noise(noise, distance.sum(-1), pure_scale(self.unit, l1)) / n_active
        publish = np.asarray((epsilon > 0) & (asked > pure_scale(np.where(epsilon > 0, epsilon, 1.0), l1)))
        release, after = self.decide(window, counts, state, epsilon, publish, noise, self._question(l1))
        return [release], after | self.spend(window, state, np.where(publish, epsilon, 0.0))

    def worst_charge(self, window: Window, state: State) -> tuple[Event, ...]:
        """The question, and a publication with all that is on offer."""
        epsilon = self.offer(window, state)
        question = self._question(active_l1(window, state["max_cells"]))
        return question + (self.charge_of(window, state, epsilon) if np.any(epsilon > 0) else ())

    @property
    def question_epsilon(self) -> float:
        """One unit, at every timestamp."""
        return self.unit

    def allot(self, time: Timestamp, state: State) -> Budgets:
        """What is on offer, unless its noise would be larger than the world."""
        epsilon = self.offer(time, state)
        return np.where(epsilon * LARGEST_SCALE < self.metres, 0.0, epsilon)

    def choose(self, time: Timestamp, points: Points, state: State, epsilon: Budgets, noise: Noise) -> Mask:
        """Whoever is further from the last release, as far as noise lets that be told, than a new one would be."""
        scale = float(pure_scale(self.unit, self.metres))
        asked = distance(points, shown(time, state)) + noise.laplace(scale, epsilon.shape)
        # The mean length of a planar Laplace step is twice its scale.
        return np.asarray(asked > 2 * pure_scale(np.where(epsilon > 0, epsilon, 1.0), self.metres))

    def follow(self, time: Timestamp, before: State, after: State, epsilon: Budgets, publish: Mask) -> State:
        """Remember what was spent."""
        return after | self.spend(time, before, np.where(publish, epsilon, 0.0))

    def _question(self, l1: NDArray[np.float64]) -> tuple[Event, ...]:
        return (pure_event(self.noise, float(l1.max()), float(pure_scale(self.unit, l1).max())),)

    def _sum_with_noise(self, noise: Noise, total: NDArray[Any], scale: NDArray[Any]) -> NDArray[np.float64]:
        # The sum of distances moves by at most L1 when one unit comes or goes; for integers it is an integer.
        summed = np.asarray(total).astype(np.int64) if self.noise == "discrete_laplace" else np.asarray(total)
        return np.asarray(add_noise(noise, self.noise, summed[..., None], scale)[..., 0], np.float64)
