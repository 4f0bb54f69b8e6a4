"""Schedules that allocate a budget over time, for replicas of counts and for users' traces."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.core.concentrated import gaussian_of, rho_of
from penstock.mechanisms.core.contract import Facts, Mask, Mechanism, Release, Window
from penstock.mechanisms.core.events import Block, Covered, Event, Repeated
from penstock.mechanisms.core.geometry import distance
from penstock.mechanisms.core.guarantee import GAUSSIAN, RHO, Guarantee, theorem_of
from penstock.mechanisms.core.noise import LARGEST_SCALE, Noise
from penstock.mechanisms.core.noise_family import NOISE_FAMILIES, NoiseFamily, families
from penstock.mechanisms.core.plugin import ParameterError, chance, parameter, parameters_of, stretch, typical
from penstock.mechanisms.core.sensitivity import Bounds, Sensitivity, of_cells, of_point
from penstock.mechanisms.core.state import State
from penstock.mechanisms.core.unit import LANDMARKS, PERIOD, WINDOW, Unit


@dataclass(frozen=True, kw_only=True)
class Budgeted(Mechanism):
    """Base class for mechanisms with a choice of noise and a budget in ε, ρ or (ε, δ) per unit of privacy."""

    epsilon: float | None = parameter(None, doc="budget of the unit", above=0, unit="nats")
    rho: float | None = parameter(None, doc="with Gaussian noise: the budget in zCDP, instead of epsilon", above=0)
    delta: float | None = chance(doc="with Gaussian noise and epsilon: δ of the whole")
    noise: str = parameter("discrete_laplace", doc="noise family", choices=families("counts"))

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.family.is_concentrated:
            offered = parameters_of(type(self))["noise"].choices or ()
            gaussian = ", ".join(name for name in families(measure="rho") if name in offered)
            for name in ("rho", "delta"):
                if getattr(self, name) is not None:
                    raise ParameterError(name, getattr(self, name), f"left out unless noise is one of {gaussian}")
            if self.epsilon is None:
                raise ParameterError("epsilon", None, f"given with {self.noise} noise")
        elif (self.rho is None) == (self.epsilon is None):
            raise ParameterError("rho", self.rho, f"given with {self.noise} noise, or else epsilon and delta")
        elif (self.epsilon is None) != (self.delta is None):
            raise ParameterError("delta", self.delta, "given where epsilon is, and only there")

    @property
    def family(self) -> NoiseFamily:
        """The noise family."""
        return NOISE_FAMILIES[self.noise]

    @property
    def budget(self) -> float:
        """The budget for one privacy unit: ε or, with Gaussian noise, ρ or μ²/2."""
        if self.rho is not None:
            return self.rho
        epsilon, largest = self.epsilon or 0.0, gaussian_of if self.family.measure == GAUSSIAN else rho_of
        return epsilon if self.delta is None else largest(epsilon, self.delta)


Array = NDArray[np.float64]

#: In place of a family of noise on counts: the one with less noise, for the bounds of the run (`BudgetSchedule`).
AUTO = "auto"


class Offer(NamedTuple):
    """A candidate publication for one window: initial state, budget, scale and whether to publish."""

    state: State
    amount: Array
    scale: Array
    sensitivity: Sensitivity
    refused: Mask
    publish: Mask


@dataclass(frozen=True)
class View(ABC):
    """A kind of released value, with its distance function and its conversion from budget to noise."""

    family: NoiseFamily
    radius: Any = None  # distance in metres of two points that a budget is about; None on counts

    @property
    @abstractmethod
    def query_family(self) -> NoiseFamily:
        """The noise family for dissimilarity queries."""

    @abstractmethod
    def sensitivity(self, window: Window, state: State) -> Sensitivity:
        """Return the sensitivity of one window."""

    @abstractmethod
    def last_release(self, window: Window, state: State) -> Array:
        """Return the last published value, or a public value before the first publication."""

    @abstractmethod
    def distance(self, one: NDArray[Any], other: NDArray[Any], window: Window) -> tuple[Array, int]:
        """Return n times the distance between two values, and n, the number of terms in the distance."""

    def query(self, budget: float, window: Window, state: State) -> tuple[Sensitivity, Any]:
        """Return a dissimilarity query's sensitivity and noise scale."""
        moved = self.sensitivity(window, state)
        return moved, self.query_family.scale(self.family.pure(budget), moved)

    @abstractmethod
    def charge(self, window: Window, offer: Offer, query_budget: float) -> tuple[Event, ...]:
        """Return the charge for a step, which covers its publication and, if it has a budget, its query."""


class Counts(View):
    """Released count vectors. Their distance is the mean absolute difference over active cells."""

    @property
    def query_family(self) -> NoiseFamily:
        """The pure noise family for dissimilarity queries."""
        return NOISE_FAMILIES["discrete_laplace"] if self.family.is_concentrated else self.family

    def sensitivity(self, window: Window, state: State) -> Sensitivity:
        """Return the sensitivity of one window. No user can contribute to more cells than are active."""
        return of_cells(state["max_cells"], window.active)

    def last_release(self, window: Window, state: State) -> Array:
        """Return the last published vector, or zeros before the first one."""
        return np.asarray(state["last"])

    def distance(self, one: NDArray[Any], other: NDArray[Any], window: Window) -> tuple[Array, int]:
        """Return n times the distance and n, the number of active cells. One unit changes the product by at most L1."""
        differences = np.abs(one - other)
        if window.active is not None:
            differences = differences[..., window.active]
        return np.asarray(differences.sum(-1), np.float64), max(differences.shape[-1], 1)

    def charge(self, window: Window, offer: Offer, query_budget: float) -> tuple[Event, ...]:
        """Return the charge for a step, which covers its publication and, if it has a budget, its query."""
        if not (offer.publish.ndim or offer.publish):
            charge: tuple[Event, ...] = (Repeated(int(offer.state["last_window"])),)
        else:
            charge = (self.family.event(offer.sensitivity, np.where(offer.publish, offer.scale, np.inf)),)
        if not query_budget:
            return charge
        moved, scale = self.query(query_budget, window, offer.state)
        return (self.query_family.event(Sensitivity(*map(np.max, moved)), np.max(scale)), *charge)


class Points(View):
    """Released positions, with distances in metres and budgets stated per ``radius``."""

    @property
    def query_family(self) -> NoiseFamily:
        """The noise family for dissimilarity queries, which measure a distance in metres."""
        return NOISE_FAMILIES["laplace"]

    def sensitivity(self, window: Window, state: State) -> Sensitivity:
        """Return the sensitivity of one position."""
        return of_point(self.radius)

    def last_release(self, window: Window, state: State) -> Array:
        """Return each user's last release, or the public point before the first release."""
        if window.origin is None:
            raise ParameterError("noise", self.family.name, "a family on counts, where counts are released")
        return np.where((state["last_window"] > 0)[:, None], state["last"], window.origin)

    def distance(self, one: NDArray[Any], other: NDArray[Any], window: Window) -> tuple[Array, int]:
        """Return the great-circle distance, which changes by at most a moved point's displacement, and a count of 1."""
        return distance(one, other), 1

    def charge(self, window: Window, offer: Offer, query_budget: float) -> tuple[Event, ...]:
        """Return a single event for the whole step, which is the cost of distinguishing two points."""
        return (self.family.spent(np.where(offer.publish, offer.amount, 0.0) + query_budget),)


class Schedule(Mechanism):
    """Base class for mechanisms that allocate a budget over time, using one noise family and one view.

    A schedule says `amount`, unless every window has the whole budget, and where publishing is not a matter of budget
    alone `rate`, ``query_budget`` and `record`. All of them are functions of public facts and of state that follows
    from earlier releases and from paid answers; amounts and state have one entry for each replica of counts, or each
    user of traces.
    """

    #: The noise.
    law: ClassVar[str] = "laplace"
    #: Where it is proved that the amounts of a unit stay within the budget.
    theorem: ClassVar[str] = "sequential composition, Dwork and Roth 2014, theorem 3.16"
    #: Whether amounts depend on earlier outputs.
    adaptive: ClassVar[bool] = False
    #: State of one row before the first window, and the part of it that begins anew with a budget period.
    first: ClassVar[dict[str, Any]] = {}
    per_period: ClassVar[tuple[str, ...]] = ()

    @property
    def unit(self) -> Unit:
        """The unit of privacy, which is one window by default."""
        return WINDOW

    @property
    def family(self) -> NoiseFamily:
        """The noise family."""
        return NOISE_FAMILIES[self.law]

    @property
    @abstractmethod
    def budget(self) -> float:
        """The budget for one privacy unit: ε or ρ."""

    @property
    def radius(self) -> float | None:
        """For traces, the distance between two points to which the budget applies. The default is None."""
        return None

    @property
    def metres(self) -> float:
        """For traces, the distance within which the budget protects a point: ``radius``, or 1 if it is not set."""
        return float(self.radius or 1.0)

    @property
    def view(self) -> View:
        """The view through which values are released."""
        return Points(self.family, self.metres) if self.family.on == "points" else Counts(self.family)

    @property
    def query_budget(self) -> float:
        """The privacy cost of each window's dissimilarity query, or 0 if there are no queries."""
        return 0.0

    def amount(self, window: Window, state: State) -> Any:
        """Return this publication's budget (by default, the whole budget), or 0 to repeat the last publication."""
        return self.budget

    def refused(self, window: Window, state: State) -> Any:
        """Return whether to refuse publication because the window exceeds the declared number."""
        return False

    def rate(self, state: State) -> Array | None:
        """Return the sampling probability for a due publication, or None if it is always made."""
        return None

    def record(self, window: Window, offer: Offer, after: State) -> State:
        """Return the state entries to update; ``after`` already holds the new last release."""
        return {}

    # What it is made of.

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee, which is the budget per unit of privacy."""
        return Guarantee(
            unit=self.unit,
            measure=self.family.measure,
            amount=self.budget,
            theorem=self.theorem if self.unit == WINDOW else theorem_of(self.theorem, self.family, self.adaptive),
            radius=self.view.radius,
            adaptive=self.adaptive,
        )

    def start(self, facts: Facts) -> State:
        """Return the initial state."""
        state: State = {
            "max_cells": facts.constant(facts.sensitivity, np.int64),
            "last": np.zeros((*facts.shape, facts.n_cells)),
            "last_window": facts.constant(0, np.int64),
        }
        if self.unit.has_periods:
            state["period"] = facts.constant(-1, np.int64)
        for name, value in self.first.items():
            value = np.asarray(value)
            state[name] = np.array(np.broadcast_to(value, (*facts.shape, *value.shape)))
        return state

    def sensitivity(self, window: Window, state: State) -> Sensitivity:
        """Return the sensitivity that an amount covers: one window's, or the whole period's if the unit is a period."""
        return self.view.sensitivity(window, state)

    def scale(self, amount: Any, sensitivity: Sensitivity) -> Any:
        """Return the noise scale for an amount of budget."""
        return self.family.scale(amount, sensitivity)

    def perturb(self, window: Window, values: NDArray[Any], offer: Offer, scale: Any, noise: Noise) -> tuple[Any, Any]:
        """Add noise to the values and return the result with the published scale."""
        return self.family.add(noise, values, scale), scale

    def _offer(self, window: Window, state: State) -> Offer:
        """Prepare a candidate publication. The state is reset at the start of each budget period."""
        if "period" in state and (is_new := state["period"] != window.period).any():
            fresh = {}
            for name in self.per_period:
                rows = is_new.reshape(is_new.shape + (1,) * (state[name].ndim - is_new.ndim))
                fresh[name] = np.where(rows, np.asarray(self.first[name]), state[name])
            state = state | fresh | {"period": np.array(np.broadcast_to(window.period, is_new.shape), np.int64)}
        shape = state["last_window"].shape
        refused = np.broadcast_to(np.asarray(self.refused(window, state)), shape)
        amount = np.where(refused, 0.0, self.amount(window, state))
        moved = self.sensitivity(window, state)
        scale = np.asarray(self.scale(np.where(amount > 0, amount, 1.0), moved), np.float64)
        # Halving again and again may leave less than any noise source serves; such a budget is none.
        is_served = (amount > 0) & (scale <= LARGEST_SCALE)
        amount, scale = (np.where(is_served, one, 0.0) for one in (amount, scale))
        return Offer(state, amount, scale, moved, refused, is_served)

    def ask(self, window: Window, values: NDArray[Any], state: State, noise: Noise) -> Array:
        """Answer the dissimilarity query with the noisy distance between the values and the last release."""
        view = self.view
        _, scale = view.query(self.query_budget, window, state)
        total, n = view.distance(values, view.last_release(window, state), window)
        asked = np.floor(total).astype(np.int64) if view.query_family.is_integer else total
        return np.asarray(view.query_family.add(noise, asked[..., None], scale)[..., 0] / n)

    def step(self, window: Window, counts: NDArray[Any], state: State, noise: Noise) -> tuple[list[Release], State]:
        """Release one window, or every user's next point."""
        offer = self._offer(window, state)
        state, publish = offer.state, offer.publish
        rate = self.rate(state)
        if rate is not None and not np.all(offer.refused):
            publish = publish & (noise.uniform(rate.shape) < rate)
        if self.query_budget:
            publish = publish & (self.ask(window, counts, state, noise) > self.family.mean_size * offer.scale)
        released, scale = self.view.last_release(window, state), np.where(publish, offer.scale, 0.0)
        if publish.any():
            noisy, scale = self.perturb(window, counts, offer, scale, noise)
            is_published = publish[..., None] if window.active is None else publish[..., None] & window.active
            released = np.where(is_published, noisy, released)
        after = state | {
            "last": np.where(publish[..., None], released, state["last"]),
            "last_window": np.where(publish, window.index, state["last_window"]),
        }
        offer = offer._replace(publish=publish)
        after |= self.record(window, offer, after)
        charge, after = self._charge_step(window, offer, {name: np.asarray(value) for name, value in after.items()})
        scale, before = np.asarray(scale), state["last_window"]
        if publish.ndim:
            shown: dict[str, Any] = {
                "action": np.where(publish, "published", np.where(offer.refused, "refused", "repeated")),
                "noise": self.family.name,
                # An infinite scale is a publication without content.
                "scale": np.where(publish[..., None], scale if scale.ndim > publish.ndim else scale[..., None], np.inf),
                "repeats": np.where(publish, -1, before),
            }
        elif publish:
            shown = {"noise": self.family.name, "scale": scale if scale.ndim else float(scale)}
        else:
            shown = {"action": "refused" if offer.refused else "repeated", "repeats": int(before)}
        return [Release.of(window, released, charge, **shown)], after

    def worst_charge(self, window: Window, state: State) -> tuple[Event, ...]:
        """Return the worst-case charge, which is the query plus a publication that spends the full amount."""
        offer = self._offer(window, state)
        return self._charge_step(window, offer, offer.state)[0]

    def _charge_step(self, window: Window, offer: Offer, after: State) -> tuple[tuple[Event, ...], State]:
        """Return the charge for a step and the updated state."""
        return self.view.charge(window, offer, self.query_budget), after


@dataclass(frozen=True, kw_only=True)
class EveryWindow(Schedule):
    """Base class for mechanisms that spend the same ε in every window or at every point in a trace."""

    epsilon: float = parameter(doc="budget of each window", above=0, unit="nats")

    @property
    def budget(self) -> float:
        """The ε per window or point."""
        return self.epsilon


@dataclass(frozen=True, kw_only=True)
class BudgetSchedule(Budgeted, Schedule):
    """Base class for schedules with a choice of noise and a budget in ε, ρ or (ε, δ).

    Parameters
    ----------
    epsilon
        Budget that the schedule divides, in nats. With Gaussian noise it is that of (ε, ``delta``).
    rho
        With Gaussian noise, in place of epsilon and delta: the budget in ρ of zero-concentrated differential privacy.
    delta
        With Gaussian noise and an epsilon: δ of the whole. The schedule divides the largest ρ that keeps to both.
    noise
        ``discrete_laplace`` (integers) or ``laplace`` on counts, which divide ε; ``discrete_gaussian`` or ``gaussian``
        on counts, which divide ρ; on traces ``planar_laplace``, which divides ε, or ``planar_gaussian``, which divides
        ρ. ``auto`` (the default) is ``discrete_laplace`` without a δ and ``discrete_gaussian`` with a ρ; with ε and δ
        it is whichever of the two has the smaller standard deviation under the bounds of the run (`noise_choice`).
        Until that is known it stands for Gaussian noise, and the promise is (ε, δ).
    accounting
        What ε and δ become with Gaussian noise: ``rho``, which adds up with any other loss, or ``gaussian``, whose ε is
        exact, for 5 to 7 % less noise. That holds only while all that is charged for a unit is Gaussian noise, in the
        ledger of a deployment, too, and here where amounts are fixed beforehand. Unset: whichever has less noise.
    """

    epsilon: float | None = parameter(None, doc="budget that the schedule divides", above=0, unit="nats")
    noise: str = parameter(AUTO, doc="noise family; auto: the one with less noise", choices=(AUTO, *families("counts")))
    accounting: str | None = parameter(
        None,
        doc="measure that (ε, δ) is divided in: rho, or gaussian (exact where all noise of a ledger is "
        "Gaussian); unset: the one with less noise",
        choices=(RHO, GAUSSIAN),
    )

    def __post_init__(self) -> None:
        if self.noise == AUTO and self.delta is None:  # there is nothing to choose
            object.__setattr__(self, "noise", "discrete_laplace" if self.rho is None else "discrete_gaussian")
        super().__post_init__()
        if self.accounting is not None and self.delta is None:
            raise ParameterError("accounting", self.accounting, "left out without Gaussian noise and a delta")
        if self.accounting == GAUSSIAN and not self.is_exact:
            expected = "rho where amounts follow earlier releases, and on traces"
            raise ParameterError("accounting", self.accounting, expected)

    @property
    def is_exact(self) -> bool:
        """Return whether exact Gaussian accounting applies, because all amounts are on counts and fixed in advance."""
        return not self.adaptive and self.noise not in families("points")

    @property
    def family(self) -> NoiseFamily:
        """The chosen noise family."""
        family = NOISE_FAMILIES["discrete_gaussian" if self.noise == AUTO else self.noise]
        return replace(family, measure=GAUSSIAN) if self.accounting == GAUSSIAN and family.is_concentrated else family

    @property
    def candidates(self) -> tuple[Self, ...]:
        """The schedule under each candidate noise family, pure noise first; just itself if the noise is fixed."""
        pure = (replace(self, noise="discrete_laplace", delta=None, accounting=None),) if self.noise == AUTO else ()
        named = replace(self, noise="discrete_gaussian") if self.noise == AUTO else self
        is_open = self.accounting is None and self.delta is not None and self.is_exact
        return *pure, *(replace(named, accounting=law) for law in (RHO, GAUSSIAN) if is_open), *(named,) * (not is_open)

    def deviation(self, facts: Facts, windows: Sequence[Window]) -> float:
        """Return a publication's noise standard deviation, averaged over windows that each start a unit."""
        state = self.start(facts)
        offers = (self._offer(window, state) for window in windows)
        scales = [np.ravel(offer.scale) for offer in offers if np.all(offer.amount > 0)]
        if not scales:
            return float("inf")
        return float(np.sqrt(self.family.variance(np.stack(scales)).mean(axis=1).mean()))

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee at the configured δ."""
        return replace(super().guarantee, delta=self.delta)

    @classmethod
    def examples(cls) -> tuple[Mechanism, ...]:
        """Return one instance per noise family for counts, and one with a budget in (ε, δ)."""
        pure = [schedule for schedule in typical(cls, epsilon=1.0) if schedule.noise in families("counts")]
        offered = parameters_of(cls)["noise"].choices or ()
        gaussian = [
            replace(pure[0], epsilon=None, rho=0.5, noise=name) for name in families("counts", "rho") if name in offered
        ]
        both = [replace(schedule, rho=None, epsilon=2.0, delta=1e-6) for schedule in gaussian[:1]]
        return (*pure, *gaussian, *both)


class PeriodSchedule(BudgetSchedule):
    """Base class for mechanisms whose unit of privacy is a person's entire contribution to a budget period."""

    theorem: ClassVar[str] = "Dwork, McSherry, Nissim, Smith 2006, theorem 1, on all windows of the period"

    @property
    def unit(self) -> Unit:
        """The unit of privacy, which is an entire budget period."""
        return PERIOD

    def start(self, facts: Facts) -> State:
        """Return the initial state, which also tracks when the period was charged and which windows it covers."""
        return super().start(facts) | {
            "charged": facts.constant(0, np.int64),
            "covered": facts.constant(0, np.int64),
            "max_per_period": facts.constant(facts.max_per_period or 0, np.int64),
        }

    def windows_together(self, window: Window) -> int:
        """Return the maximum number of published windows per period."""
        if window.n_windows is None:
            raise ParameterError("budget_period", None, "given, so that the windows of a period are known")
        return int(window.n_windows)

    def sensitivity(self, window: Window, state: State) -> Sensitivity:
        """Return the joint sensitivity of all publications in one period."""
        max_cells, maximum = (int(np.max(state[name])) for name in ("max_cells", "max_per_period"))
        bounds = Bounds(max_cells=max_cells, max_per_period=maximum or None)
        return bounds.of_unit(PERIOD, max_cells, self.windows_together(window))

    def _charge_step(self, window: Window, offer: Offer, after: State) -> tuple[tuple[Event, ...], State]:
        """Return the charge for a step and the updated state. The first release pays for the whole period."""
        if window.period_last is None:
            raise ParameterError("budget_period", None, "given, so that the windows of a period are known")
        if window.index <= int(np.max(after["covered"])):
            covered = Covered(int(np.max(after["charged"])))
            return (covered if offer.publish.any() else Repeated(int(np.max(offer.state["last_window"]))),), after
        scale = self.scale(self.budget, offer.sensitivity)
        begun = {"charged": window.index, "covered": window.period_last}
        after = after | {name: np.full_like(after[name], index) for name, index in begun.items()}
        largest = Sensitivity(*(float(np.max(one)) for one in offer.sensitivity))
        return (Block(self.family.event(largest, float(np.max(scale))), window.index, window.period_last),), after


@dataclass(frozen=True, kw_only=True)
class TraceSchedule(BudgetSchedule):
    """Base class for schedules on counts or traces. Points d metres apart cost ε·d/radius or ρ·(d/radius)²."""

    noise: str = parameter(
        AUTO,
        doc="noise family; auto: the one with less noise; planar_laplace, planar_gaussian: release points of traces",
        choices=(AUTO, *families()),
    )
    radius: float | None = parameter(
        None, doc="on traces: distance of two points that cost epsilon or rho to tell apart; unset: 1", above=0
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.radius is not None and self.noise not in families("points"):
            raise ParameterError("radius", self.radius, "left out unless noise is " + " or ".join(families("points")))


class LandmarkSchedule(TraceSchedule):
    """Base class for landmark mechanisms, which count each period's landmarks and refuse those beyond the maximum."""

    theorem: ClassVar[str] = "Katsomallos, Tzompanaki, Kotzinos 2022, landmark privacy"
    first: ClassVar[dict[str, Any]] = {"landmarks_seen": 0}
    per_period: ClassVar[tuple[str, ...]] = ("landmarks_seen",)

    @property
    def unit(self) -> Unit:
        """The unit of privacy, which is a period's landmarks plus any one other window."""
        return LANDMARKS

    def refused(self, window: Window, state: State) -> Any:
        """Return whether the window is a landmark that exceeds its period's declared maximum."""
        if window.n_landmarks is None:
            raise ParameterError("landmarks", None, "listed, or bounded by max_per_period with a budget_period")
        return window.landmark & (state["landmarks_seen"] >= window.n_landmarks)

    def amount(self, window: Window, state: State) -> Any:
        """Return the budget divided by the period's landmarks plus one, or by its number of windows if smaller."""
        n_together = window.n_landmarks + 1
        return self.budget / (n_together if window.n_windows is None else np.minimum(n_together, window.n_windows))

    def record(self, window: Window, offer: Offer, after: State) -> State:
        """Update the number of landmarks seen so far."""
        return {"landmarks_seen": after["landmarks_seen"] + window.landmark}


@dataclass(frozen=True, kw_only=True)
class WEventSchedule(BudgetSchedule):
    """Base class for w-event mechanisms, whose budget covers any ``w`` successive windows."""

    w: int = stretch()
    theorem: ClassVar[str] = "Kellaris, Papadopoulos, Xiao, Papadias 2014, theorem 3"

    @property
    def unit(self) -> Unit:
        """The unit of privacy, which is any w successive windows."""
        return Unit.stretch(self.w)

    def amount(self, window: Window, state: State) -> Any:
        """Return the budget divided by w."""
        return self.budget / self.w

    def unspent(self, facts: Facts) -> NDArray[np.float64]:
        """Return zero spending for each of the last w windows, or for the whole run if it is shorter."""
        return np.zeros((*facts.shape, min(self.w, facts.n_windows or self.w)))


class WEventTraceSchedule(TraceSchedule, WEventSchedule):
    """Base class for w-event mechanisms on counts and traces."""


class DissimilaritySchedule(WEventTraceSchedule):
    """Base class for schedules that spend half their budget on dissimilarity queries (Kellaris et al. 2014).

    The other half serves the publications of any w windows; a schedule says their `amount`. A query is the distance
    from the last release, compared with the mean error of a new one: on counts the mean absolute difference, of which
    the sum over the cells moves by C. It has the noise of publications, with Gaussian noise discrete Laplace noise of ε
    = √(2ρ) on the sum, cut to an integer, which costs ρ (on traces Laplace noise).
    """

    adaptive: ClassVar[bool] = True

    @property
    def query_budget(self) -> float:
        """The budget per dissimilarity query, B/(2w), which is also the unit for publication budgets."""
        return self.budget / (2 * self.w)
