"""Budget schedules: landmark and w-event privacy over counts and traces, with their dissimilarity and drift tests."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.core.concentrated import epsilon_of, rho_of
from penstock.mechanisms.core.contract import (
    ADD_REMOVE,
    GAUSSIAN_FAMILIES,
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
    noise_event,
    noise_scale,
    pure_scale,
)
from penstock.mechanisms.core.draws import LARGEST_SCALE
from penstock.mechanisms.core.events import Event, Repeated
from penstock.mechanisms.core.geometry import (
    Points,
    distance,
    expected_distance,
    with_planar_gaussian,
    with_planar_laplace,
)
from penstock.mechanisms.core.period import PeriodBound
from penstock.mechanisms.core.plugin import ParameterError, examples_of, parameter, parameters_of
from penstock.mechanisms.core.portable import exp
from penstock.mechanisms.core.state import State
from penstock.mechanisms.core.traces import (
    PLANAR,
    PLANAR_FAMILIES,
    PLANAR_GAUSSIAN,
    PointMechanism,
    only_present,
    remember,
    shown,
)

if TYPE_CHECKING:
    from penstock.mechanisms.core.draws import Noise


Budgets = NDArray[np.float64]


#: Parts of a person in which integers hold the length of a difference.
GRID = 16
RENYI_FILTER = "Feldman and Zrnic 2021, Rényi filter, for amounts that follow earlier releases"


#: δ at which a budget in ρ alone is said as (ε, δ).
DELTA = 1e-6
POSITIONS = "the positions may differ, the times at which there are points may not; landmarks are public"


#: What is proved of one point, by the noise that moves it; schedules add.
ONE_POINT = {
    PLANAR: "with planar Laplace noise (Andrés et al. 2013, sections 3.2 and 4.1)",
    PLANAR_GAUSSIAN: "with planar Gaussian noise (Bun and Steinke 2016, lemma 2.4)",
}

LANDMARK_TRACES = Guarantee(
    unit="one user's positions at all landmarks of a budget period and at any one other timestamp",
    neighbours=f"two traces at most `radius` metres apart at each of these timestamps; {POSITIONS}",
    statement="ε-indistinguishability within `radius` metres, per user and budget period",
    theorem=f"Katsomallos et al. 2022 {ONE_POINT[PLANAR]}",
)

W_EVENT_TRACES = Guarantee(
    unit="one user's positions at any w successive timestamps",
    neighbours="two traces at most `radius` metres apart at each of them; the times of the points are public",
    statement="ε-indistinguishability within `radius` metres, for any w successive points of a user",
    theorem=f"Kellaris et al. 2014, theorem 3, {ONE_POINT[PLANAR]}",
)

LANDMARK_GUARANTEE = Guarantee(
    unit="one user's bounded contributions in all landmark windows of a budget period and in any one other window",
    neighbours="add or remove the unit; landmarks are public",
    statement="ε-differential privacy per budget period",
    theorem="Katsomallos, Tzompanaki, Kotzinos 2022, landmark privacy (sequential composition)",
)


@dataclass(frozen=True, kw_only=True)
class TraceSchedule(PointMechanism):
    """Base of budget schedules on traces: *when to spend how much* on each user's points, with noise in the plane.

    A schedule overrides `point_budget` and, where publishing is not a matter of budget alone, `choose` and `follow`.
    All arrays have shape (n_users,); amounts are in ε, or in ρ where the schedule is `concentrated`.
    """

    stages: ClassVar[tuple[str, ...]] = ("counts", "points")

    @property
    def query_budget(self) -> float:
        """What the dissimilarity query costs at every timestamp; 0 without one."""
        return 0.0

    def spread(self, budget: Any) -> Budgets:
        """Scale in metres of the noise that spends a budget on a point: 1/ε of Laplace noise, σ of Gaussian noise."""
        if self.concentrated:
            return np.asarray(np.sqrt(pure_scale(2 * np.asarray(budget), self.metres**2)))
        return np.asarray(pure_scale(np.asarray(budget), self.metres))

    def apart_by_noise(self, scale: Budgets, other: Budgets) -> Budgets:
        """Expected distance of two releases of one place, by their scales."""
        if self.concentrated:
            return np.asarray(np.sqrt(np.pi / 2 * (scale * scale + other * other)))
        return expected_distance(scale, other)

    def _perturbed(self, points: Points, budget: Budgets, publish: Mask, noise: Noise) -> Points:
        """Points with the noise of a budget where ``publish``, unmoved elsewhere."""
        if self.concentrated:
            return with_planar_gaussian(noise, points, np.where(publish, self.spread(budget), 0.0))
        return with_planar_laplace(noise, points, np.where(publish, budget / self.metres, np.inf))

    def point_budget(self, time: Timestamp, state: State) -> Budgets:
        """Publication budget of each user's timestamp; 0 where no publication is due."""
        raise NotImplementedError(f"{type(self).__name__} does not work on points")

    def choose(self, time: Timestamp, points: Points, state: State, epsilon: Budgets, noise: Noise) -> Mask:
        """Which users publish, of those with a publication budget."""
        return np.ones(len(epsilon), bool)

    def follow(self, time: Timestamp, before: State, after: State, epsilon: Budgets, publish: Mask) -> State:
        """State of the schedule after a step that published with ``epsilon`` or repeated."""
        return after

    def enter(self, time: Timestamp, state: State) -> State:
        """State at the beginning of the timestamp."""
        return state

    def refused(self, time: Timestamp, state: State) -> Mask:
        """Users who must not publish because more landmarks came than were declared."""
        return np.zeros(len(time.time), bool)

    def step_points(
        self, time: Timestamp, points: Points, present: Mask, state: State, noise: Noise
    ) -> tuple[PointRelease, State]:
        """Release one timestamp of many users."""
        before = self.enter(time, state)
        refused = self.refused(time, before)
        epsilon = np.where(refused, 0.0, self.point_budget(time, before))
        publish = present & (epsilon > 0) & self.choose(time, points, before, epsilon, noise)
        moved = self._perturbed(points, epsilon, publish, noise)
        values = np.where(publish[:, None], moved, shown(time, before))
        after = self.follow(time, before, remember(time, values, before, publish), epsilon, publish)
        spent = np.where(publish, epsilon, 0.0) + self.query_budget
        release = PointRelease(
            values=values,
            action=np.where(publish, "published", np.where(refused, "refused", "repeated")),
            noise=PLANAR_GAUSSIAN if self.concentrated else PLANAR,
            scale=np.where(publish, self.spread(np.where(publish, epsilon, 1.0)), 0.0),
            epsilon=np.where(spent > 0, np.inf, 0.0) if self.concentrated else spent,
            rho=spent if self.concentrated else spent**2 / 2,
            repeats=np.where(publish, -1, before["last_window"]),
        )
        return only_present(release, present, state, after)

    def worst_points(self, time: Timestamp, state: State) -> Budgets:
        """Worst case: the dissimilarity query plus a publication with the whole publication budget."""
        before = self.enter(time, state)
        return np.where(self.refused(time, before), 0.0, self.point_budget(time, before)) + self.query_budget


@dataclass(frozen=True, kw_only=True)
class BudgetSchedule(TraceSchedule):
    """Base of mechanisms that decide *when to spend how much* and leave the noise to a family.

    Parameters
    ----------
    epsilon
        Budget that the schedule divides, in nats. With Gaussian noise it is that of (ε, ``delta``).
    rho
        With Gaussian noise, in place of epsilon and delta: the budget in ρ of zero-concentrated differential privacy.
    delta
        With Gaussian noise and an epsilon: δ of the whole. The schedule divides the largest ρ that keeps to both.
    noise
        ``discrete_laplace`` (integers, the default) or ``laplace`` on counts, which divide ε; ``discrete_gaussian`` or
        ``gaussian`` on counts, which divide ρ; on traces ``planar_laplace``, which divides ε, or ``planar_gaussian``,
        which divides ρ.
    radius
        On traces: distance in metres at which ε or ρ holds.
    """

    epsilon: float | None = parameter(None, doc="budget that the schedule divides", above=0, unit="nats")
    rho: float | None = parameter(None, doc="with Gaussian noise: the budget in zCDP, instead of epsilon", above=0)
    delta: float | None = parameter(None, doc="with Gaussian noise and epsilon: δ of the whole", above=0, below=1)
    noise: str = parameter(
        "discrete_laplace",
        doc="noise family; planar_laplace, planar_gaussian: release points of traces",
        choices=(*PURE_FAMILIES, *GAUSSIAN_FAMILIES, *PLANAR_FAMILIES),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.radius is not None and not self.on_points:
            raise ParameterError("radius", self.radius, "left out unless noise is " + " or ".join(PLANAR_FAMILIES))
        if not self.concentrated:
            for name in ("rho", "delta"):
                if getattr(self, name) is not None:
                    right = "left out unless noise is one of " + ", ".join((*GAUSSIAN_FAMILIES, PLANAR_GAUSSIAN))
                    raise ParameterError(name, getattr(self, name), right)
            if self.epsilon is None:
                raise ParameterError("epsilon", None, f"given with {self.noise} noise")
        elif (self.rho is None) == (self.epsilon is None):
            raise ParameterError("rho", self.rho, f"given with {self.noise} noise, or else epsilon and delta")
        elif (self.epsilon is None) != (self.delta is None):
            raise ParameterError("delta", self.delta, "given where epsilon is, and only there")

    @property
    def concentrated(self) -> bool:
        """Whether the noise is Gaussian, and budgets are in ρ."""
        return self.noise in (*GAUSSIAN_FAMILIES, PLANAR_GAUSSIAN)

    @property
    def budget(self) -> float:
        """What the schedule divides: ε, or with Gaussian noise ρ."""
        if self.rho is not None:
            return self.rho
        if self.epsilon is None:
            raise ParameterError("epsilon", None, "given")
        return self.epsilon if self.delta is None else rho_of(self.epsilon, self.delta)

    @property
    def stated_guarantee(self) -> Guarantee:
        """That of Gaussian noise is in ρ, hence in (ε, δ)."""
        stated = super().stated_guarantee
        if not self.concentrated:
            return stated
        delta = self.delta or DELTA
        figure = f"ρ = {self.budget:.4g}, hence ε = {epsilon_of(self.budget, delta):.4g} at δ = {delta:g}"
        theorem = RENYI_FILTER if self.adaptive else "Bun and Steinke 2016, lemma 2.3"
        proved = stated.theorem.replace(ONE_POINT[PLANAR], ONE_POINT[PLANAR_GAUSSIAN])
        return replace(
            stated,
            statement=stated.statement.replace("ε-", "ρ-zero-concentrated ") + f" ({figure})",
            theorem=f"{proved}; amounts of ρ add: {theorem}",
        )

    @property
    def on_points(self) -> bool:
        """Whether the noise is that of points."""
        return self.noise in PLANAR_FAMILIES

    @classmethod
    def examples(cls) -> tuple[Mechanism, ...]:
        """One instance for every noise family of counts, and one with a budget in (ε, δ)."""
        pure = [example for example in examples_of(cls, epsilon=1.0) if not example.on_points]
        offered = parameters_of(cls)["noise"].choices or ()
        gaussian = [
            replace(pure[0], epsilon=None, rho=0.5, noise=family) for family in GAUSSIAN_FAMILIES if family in offered
        ]
        both = [replace(one, rho=None, epsilon=2.0, delta=1e-6) for one in gaussian[:1]]
        return (*pure, *gaussian, *both)

    def start(self, facts: Facts) -> State:
        """Sensitivity, and nothing released yet; with what a budget is for, where users are bounded over periods."""
        state: State = {
            "max_cells": facts.constant(facts.sensitivity, np.int64),
            "last": np.zeros((*facts.shape, facts.n_cells)),
            "last_window": facts.constant(0, np.int64),
        }
        bound = facts.period_bound
        most = None if bound is None else self.memberships(bound)
        return state if most is None else state | {"memberships": facts.constant(most, np.int64)}

    def memberships(self, bound: PeriodBound) -> int | None:
        """Memberships that noise for a budget is for, where users are bounded over periods; None: not always as many.

        That many cost a budget, in whichever windows they are.
        """
        return None

    def scale_of(self, budget: Any, l1: Any) -> Any:
        """Scale of the noise that spends a budget where ``l1`` cells move by 1."""
        return noise_scale(self.noise, budget, l1)

    def part_of_budget(self, window: Window, state: State, n_memberships: Any) -> Any:
        """What a window's own memberships cost where the unit changes ``n_memberships`` at the cost of the budget."""
        return self.budget * active_l1(window, state["max_cells"]) / n_memberships

    @staticmethod
    def paid_for(window: Window, state: State) -> NDArray[np.float64]:
        """Memberships that noise for a budget is for: those that one user has in the window, unless it says more."""
        if "memberships" in state:
            return np.asarray(state["memberships"], np.float64)
        return active_l1(window, state["max_cells"])

    def charge_of(self, window: Window, state: State, budget: Any) -> tuple[Event, ...]:
        """Event of publishing this window's vector with a part of the budget."""
        scale = self.scale_of(budget, self.paid_for(window, state))
        return (noise_event(self.noise, active_l1(window, state["max_cells"]), scale),)

    def publish(
        self, window: Window, counts: NDArray[Any], state: State, budget: Any, noise: Noise
    ) -> tuple[Release, State]:
        """Publish the window with a part of the budget and remember what was published."""
        scale = self.scale_of(budget, self.paid_for(window, state))
        values = add_noise(noise, self.noise, counts, scale if np.ndim(scale) else float(scale))
        release = Release.of(
            window,
            values,
            self.charge_of(window, state, budget),
            noise=self.noise,
            scale=scale[..., None] if np.ndim(scale) else float(scale),
        )
        last = values if window.active is None else np.where(window.active, values, state["last"])
        remembered = {
            "last": np.asarray(last, np.float64),
            "last_window": np.full_like(state["last_window"], window.index),
        }
        return release, state | remembered

    def publish_or_repeat(
        self,
        window: Window,
        counts: NDArray[Any],
        state: State,
        budget: Any,
        publish: NDArray[np.bool_],
        noise: Noise,
        query: tuple[Event, ...] = (),
    ) -> tuple[Release, State]:
        """Publish or repeat, replica by replica.

        `budget`: publication budget, shape of the leading axes. `publish`: which replicas publish, same shape.
        """
        if publish.ndim == 0:
            if not publish:
                repeated = self.repeat(window, state)
                return replace(repeated, charge=(*query, *repeated.charge)), state
            release, state = self.publish(window, counts, state, budget, noise)
            return replace(release, charge=(*query, *release.charge)), state
        budget = np.where(publish, budget, self.budget)
        made, published = self.publish(window, counts, state, budget, noise)
        shown = self.repeat(window, state)
        scale = np.where(publish[..., None], made.scale, np.inf)
        release = replace(
            made,
            values=np.where(publish[..., None], made.values, shown.values),
            action=np.where(publish, "published", "repeated"),
            # An infinite scale is a publication without content: the price of the replicas that repeat.
            charge=(*query, noise_event(self.noise, active_l1(window, state["max_cells"]), scale[..., 0])),
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


@dataclass(frozen=True, kw_only=True)
class LandmarkSchedule(BudgetSchedule):
    """Base of landmark mechanisms: counts the landmarks of a period and refuses those over the declared maximum."""

    guarantee: ClassVar[Guarantee] = LANDMARK_GUARANTEE
    point_guarantee: ClassVar[Guarantee] = LANDMARK_TRACES

    @property
    def landmark_budget(self) -> float:
        """The whole budget, in every budget period."""
        return self.budget

    def start(self, facts: Facts) -> State:
        """No period begun yet."""
        state = super().start(facts) | {
            "period": facts.constant(-1, np.int64),
            "landmarks_seen": facts.constant(0, np.int64),
        }
        bound = facts.period_bound
        if bound is None:
            return state
        named = {"most_memberships": bound.most, "most_cells": bound.max_cells}
        return state | {name: facts.constant(value, np.int64) for name, value in named.items()}

    @staticmethod
    def bound_of(window: Window, state: State) -> PeriodBound | None:
        """Bound on a user's memberships in the window's period, where there is one."""
        if "most_memberships" not in state:
            return None
        most, max_cells = (_latest(state[name]) for name in ("most_memberships", "most_cells"))
        return PeriodBound(most=most, max_cells=max_cells, shortest=1, longest=window.n_windows or 1)

    def begin_period(self, window: Window, state: State) -> State:
        """State at the beginning of the window: a new budget period starts from zero."""
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
        """The budget over n, the landmarks of the period and one more window, if there are that many."""
        n_together = (window.n_landmarks or 0) + 1
        return self.budget / (n_together if window.n_windows is None else min(n_together, window.n_windows))

    def step(self, window: Window, counts: NDArray[Any], state: State, noise: Noise) -> tuple[list[Release], State]:
        """Release one window, or refuse a landmark over the declared maximum."""
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
        """State at the beginning of the timestamp: a user's new budget period starts from zero."""
        is_new = state["period"] != time.period
        return state | {"period": time.period, "landmarks_seen": np.where(is_new, 0, state["landmarks_seen"])}

    def refused(self, time: Timestamp, state: State) -> Mask:
        """Landmarks beyond the declared maximum of their period."""
        return time.landmark & (state["landmarks_seen"] >= time.n_landmarks)

    def shares(self, time: Timestamp) -> Budgets:
        """The share of every user's timestamp."""
        return self.budget / np.minimum(time.n_landmarks + 1, time.n_timestamps)

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


@dataclass(frozen=True, kw_only=True)
class WEventSchedule(BudgetSchedule):
    """Base of w-event mechanisms.

    Parameters
    ----------
    epsilon
        Budget of any w successive windows, in nats.
    w
        Length of the protected stretch, in windows; on traces, in points of a user.
    rho, delta, noise, radius
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
    """Base of the two schedules that spend half their budget on dissimilarity queries (Kellaris et al. 2014).

    Parameters
    ----------
    epsilon
        Budget of any w successive windows, in nats: half for dissimilarity queries, half for publications.
    noise
        The same for queries and publications, of those that `BudgetSchedule` names. A query is the mean absolute
        difference to the last release, compared with the mean error of a new one; with Gaussian noise it is the
        difference in L2, which one user moves by √C, compared with the error in L2.
    rho, delta, w, radius
        As in `WEventSchedule`.
    """

    adaptive: ClassVar[bool] = True
    bounds_periods: ClassVar[bool] = True

    def memberships(self, bound: PeriodBound) -> int:
        """Any window may have all of the budget."""
        return bound.at_once(self.w)

    @property
    def unit(self) -> float:
        """A 2w-th of the budget: that of one dissimilarity query, and the unit of publication budgets."""
        return self.budget / (2 * self.w)

    @abstractmethod
    def publication_budget(self, window: Window | Timestamp, state: State) -> NDArray[np.float64]:
        """Publication budget of this window; 0 where it must not publish."""

    @abstractmethod
    def record_spent(self, window: Window | Timestamp, state: State, spent: NDArray[np.float64]) -> State:
        """State of the schedule after a publication that spent ``spent`` (0: repeated)."""

    def step(self, window: Window, counts: NDArray[Any], state: State, noise: Noise) -> tuple[list[Release], State]:
        """Query the dissimilarity to the last release; publish if it exceeds the noise of a publication."""
        priced = self.paid_for(window, state)
        budget = self.publication_budget(window, state)
        # Halving again and again may leave less than any noise source serves; such a budget is none.
        budget = np.where(self.scale_of(budget, priced) > LARGEST_SCALE, 0.0, budget)
        apart = np.abs(counts - state["last"])
        if window.active is not None:
            apart = apart[..., window.active]
        n_active = max(apart.shape[-1], 1)
        dissimilarity = self._answer(noise, apart, self._query_scale(window, state)) / n_active
        error = self.scale_of(np.where(budget > 0, budget, 1.0), priced)
        # In L2 the vector of errors is √n times as long as one of them.
        worth = error / np.sqrt(n_active) if self.concentrated else error
        publish = np.asarray((budget > 0) & (dissimilarity > worth))
        query = self._query_event(window, state)
        release, after = self.publish_or_repeat(window, counts, state, budget, publish, noise, query)
        return [release], after | self.record_spent(window, state, np.where(publish, budget, 0.0))

    def worst_charge(self, window: Window, state: State) -> tuple[Event, ...]:
        """Worst case: the dissimilarity query plus a publication with the whole publication budget."""
        budget = self.publication_budget(window, state)
        query = self._query_event(window, state)
        return query + (self.charge_of(window, state, budget) if np.any(budget > 0) else ())

    @property
    def query_budget(self) -> float:
        """One unit, at every timestamp."""
        return self.unit

    def point_budget(self, time: Timestamp, state: State) -> Budgets:
        """The publication budget, unless it is too small for any noise source."""
        budget = self.publication_budget(time, state)
        return np.where(self.spread(budget) > LARGEST_SCALE, 0.0, budget)

    def choose(self, time: Timestamp, points: Points, state: State, epsilon: Budgets, noise: Noise) -> Mask:
        """Users whose noisy distance from the last release exceeds the mean error of a new one."""
        # A distance moves by no more than the point does, so that it is told apart by the same scale on one axis.
        scale = float(self.spread(np.float64(self.unit)))
        drawn = noise.gaussian(scale, epsilon.shape) if self.concentrated else noise.laplace(scale, epsilon.shape)
        worth = self.spread(np.where(epsilon > 0, epsilon, 1.0))
        # The mean length of a planar Laplace step is twice its scale, of a Gaussian one √(π/2) times.
        length = np.sqrt(np.pi / 2) if self.concentrated else 2.0
        return np.asarray(distance(points, shown(time, state)) + drawn > length * worth)

    def follow(self, time: Timestamp, before: State, after: State, epsilon: Budgets, publish: Mask) -> State:
        """Remember what was spent."""
        return after | self.record_spent(time, before, np.where(publish, epsilon, 0.0))

    def _query_event(self, window: Window, state: State) -> tuple[Event, ...]:
        moved = self._moved(window, state, active_l1(window, state["max_cells"]))
        return (noise_event(self.noise, float(moved.max()), float(np.max(self._query_scale(window, state)))),)

    def _query_scale(self, window: Window, state: State) -> NDArray[np.float64]:
        return np.asarray(self.scale_of(self.unit, self._moved(window, state, self.paid_for(window, state))))

    def _answer(self, noise: Noise, apart: NDArray[Any], scale: NDArray[np.float64]) -> NDArray[np.float64]:
        """Noisy length of a vector of absolute differences: in L1, or in L2 with Gaussian noise."""
        if not self.concentrated:
            return self._sum_with_noise(noise, apart.sum(-1), scale)
        if self.noise == "gaussian":
            return self._sum_with_noise(noise, np.sqrt((apart**2).sum(-1)), scale)
        return self._sum_with_noise(noise, _on_grid(apart), scale) / GRID

    def _moved(self, window: Window, state: State, n_memberships: NDArray[Any]) -> NDArray[np.float64]:
        """What this many memberships move the query by, at most: in L1, its square in L2, as `noise_scale` wants it."""
        if self.noise != "discrete_gaussian":
            return np.asarray(n_memberships)
        if "memberships" not in state:
            return _on_grid_moved(n_memberships)
        # They may be in several windows, any number in each: as many times the most that one of them moves in any.
        together = np.arange(1, int(np.max(state["max_cells"])) + 1)
        return np.asarray(n_memberships * (_on_grid_moved(together) / together).max())

    def _sum_with_noise(self, noise: Noise, total: NDArray[Any], scale: NDArray[Any]) -> NDArray[np.float64]:
        # The sum of distances moves by at most L1 when one unit comes or goes; for integers it is an integer.
        summed = np.asarray(total).astype(np.int64) if self.noise.startswith("discrete") else np.asarray(total)
        return np.asarray(add_noise(noise, self.noise, summed[..., None], scale)[..., 0], np.float64)


def _on_grid_moved(l1: NDArray[Any]) -> NDArray[np.float64]:
    """Square of what ``l1`` entries of a vector, moved by 1 each, move its length on the grid by, at most."""
    # The length of a vector moves by at most that of what is added: √l1 (triangle inequality), or √(2·l1) where l1
    # entries give way to as many others, which accountants price at √2 times the first. Rounded down to the grid it
    # moves by at most the next whole number; the second step of the grid may be the larger one in proportion.
    added, swapped = np.ceil(GRID * np.sqrt(l1)), np.ceil(GRID * np.sqrt(2 * np.asarray(l1)))
    return np.asarray(np.maximum(added**2, swapped**2 / 2))


def _on_grid(apart: NDArray[Any]) -> NDArray[np.int64]:
    """The L2 length of whole numbers in parts of GRID, rounded down exactly."""
    # Differences are cut off where their squares would not fit, which brings no two vectors further apart.
    most = math.isqrt(2**62 // GRID**2 // max(apart.shape[-1], 1))
    squared = GRID**2 * (np.minimum(apart, most).astype(np.int64) ** 2).sum(-1)
    root = np.asarray(np.sqrt(squared.astype(np.float64)).astype(np.int64))
    root = root - (root * root > squared)
    return np.asarray(root + ((root + 1) * (root + 1) <= squared))


# Tests on releases by which the adaptive landmark mechanism sets its sampling rate.


def expected_difference(family: str, scale: Any, other: Any) -> NDArray[np.float64]:
    """E|Z₁ − Z₂| of independent noise of two scales b₁ and b₂ of a pure family, numbers or arrays."""
    # laplace: (b₁² + b₁b₂ + b₂²)/(b₁ + b₂), that is 1.5 b for equal scales. discrete_laplace: the exact sum over
    # integers, from the partial fractions of the two generating functions.
    b, c = np.asarray(scale, np.float64), np.asarray(other, np.float64)
    if family == "gaussian":
        return np.asarray(np.sqrt(2 / np.pi * (b * b + c * c)))
    if family == "discrete_gaussian":
        return np.asarray(np.vectorize(_integer_gaussian_difference, otypes=[np.float64])(b, c))
    if family == "laplace":
        total = b + c
        return np.where(total == 0, 0.0, (b * b + b * c + c * c) / np.where(total == 0, 1.0, total))
    # Equal scales are a removable singularity; pulling them apart by 1e-4 changes the result by 1e-9 of itself.
    middle = (b + c) / 2
    close = np.abs(b - c) < 1e-4 * middle
    p = _ratio(np.where(close, middle * (1 + 5e-5), b))
    q = _ratio(np.where(close, middle * (1 - 5e-5), c))
    gap = np.where(p == q, 1.0, (p - q) * (1 - p * q))
    both = (1 - p) * (1 - q)
    value = 2 * both * both / gap * (_moment(p) - _moment(q))
    return np.where(p == q, 0.0, value)


@lru_cache(maxsize=1024)
def _integer_gaussian_difference(b: float, c: float) -> float:
    """E|Z₁ − Z₂| of integer Gaussian noise: the sum, or beyond its reach the integral with its correction at 0."""
    spread = math.sqrt(b * b + c * c)
    if max(b, c) > 200:
        return spread * math.sqrt(2 / math.pi) - 1 / (6 * spread * math.sqrt(2 * math.pi))
    z = np.arange(-math.ceil(9 * max(b, c)), math.ceil(9 * max(b, c)) + 1.0)
    below = []
    for sigma in (b, c):
        weights = exp(-(z * z) / (2 * sigma * sigma)) if sigma else (z == 0) * 1.0
        below.append(np.cumsum(weights) / np.cumsum(weights)[-1])
    # Between z and z + 1 lies one of the two and not the other.
    first, second = below
    return float(np.cumsum(first * (1 - second) + second * (1 - first))[-1])


def _ratio(scale: NDArray[np.float64]) -> NDArray[np.float64]:
    return exp(-1 / np.where(scale == 0, 1.0, scale)) * (scale > 0)


def _moment(p: NDArray[np.float64]) -> NDArray[np.float64]:
    left = 1 - p
    return p * p / (left * left * left * (1 + p))


def page_hinkley_alarm(history: NDArray[Any]) -> NDArray[np.bool_]:
    """Whether a Page-Hinkley test raises an alarm at the last value of histories (..., n); NaN: no value."""
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
