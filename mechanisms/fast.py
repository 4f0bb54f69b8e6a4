"""FAST: publish when a PID controller says that it is due, with equal shares of a period's budget."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.core.contract import (
    ADD_REMOVE,
    GAUSSIAN_FAMILIES,
    PURE_FAMILIES,
    Facts,
    Guarantee,
    Release,
    Window,
)
from penstock.mechanisms.core.events import Event, Repeated
from penstock.mechanisms.core.period import PeriodBound
from penstock.mechanisms.core.plugin import parameter
from penstock.mechanisms.core.portable import exp
from penstock.mechanisms.core.schedules import BudgetSchedule
from penstock.mechanisms.core.state import State
from penstock.mechanisms.filter import noise_variance
from penstock.mechanisms.kalman import correct

if TYPE_CHECKING:
    from penstock.mechanisms.core.draws import Noise

#: Gains of the controller, proportional and integral, and the publications that its integral covers.
PROPORTIONAL, INTEGRAL, MEMORY = 0.9, 0.1, 5


@dataclass(frozen=True, kw_only=True)
class Fast(BudgetSchedule):
    """Publish a limited number of times in a budget period, sooner where releases surprise, later where they do not.

    Parameters
    ----------
    epsilon, rho, delta, noise
        As in `BudgetSchedule`, on counts. The budget is that of a budget period, or of a whole run without periods.
    publications
        M: the most publications in a period; each has an equal share of the budget.
    process_variance
        Of the Kalman filter by which surprise is measured.
    set_point, growth
        ξ: the relative surprise at which the interval stays as it is. θ: windows by which it can grow at once.

    **Privacy.** User-level ε-differential privacy for a budget period: it holds at most M publications of ε/M each, and
    the times of publications are functions of earlier ones. Unit: all of one user's bounded contributions in a budget
    period; neighbours add or remove it. Fan and Xiong 2014, theorem 3, by sequential composition. With Gaussian noise
    all of this holds of ρ in place of ε (Bun, Steinke 2016, lemma 2.3).

    With ``bounding.max_per_period`` the unit is n memberships at most, C in each publication: the noise is that of
    min(n, M·C) memberships for ε, whichever publications they are in. Fewer than M·C make it less.

    Notes
    -----
    Time and state O(n_cells) a window. The paper's estimator is `kalman` after it, with the same ``process_variance``.
    The paper samples each series on its own. Here all cells are published together, and the surprise is their mean:
    windows without a publication cost nothing in any cell.

    Examples
    --------
    >>> from penstock.mechanisms.core.run import run_mechanism
    >>> steady = np.full((12, 2), 1000)
    >>> releases = run_mechanism(Fast(epsilon=8.0, publications=4), steady, Facts(n_cells=2), seed=1)
    >>> [release.window for release in releases if release.action == "published"]
    [1, 2, 5, 9]
    """

    publications: int = parameter(8, doc="most publications in a budget period", at_least=1)
    process_variance: float = parameter(
        100.0, doc="variance of the change of a count from one window to the next", at_least=0
    )
    set_point: float = parameter(0.1, doc="relative surprise at which the interval stays as it is", above=0)
    growth: float = parameter(3.0, doc="windows by which the interval can grow at once", at_least=0, unit="windows")
    noise: str = parameter("discrete_laplace", doc="noise family", choices=(*PURE_FAMILIES, *GAUSSIAN_FAMILIES))
    stages: ClassVar[tuple[str, ...]] = ("counts",)
    radius: None = field(default=None, init=False, repr=False)
    adaptive: ClassVar[bool] = True
    bounds_periods: ClassVar[bool] = True
    guarantee: ClassVar[Guarantee] = Guarantee(
        unit="all of one user's bounded contributions in a budget period",
        neighbours=ADD_REMOVE,
        statement="ε-differential privacy per budget period",
        theorem="Fan and Xiong 2014, theorem 3 (sequential composition)",
    )

    @property
    def period_budget(self) -> float:
        """The whole budget, in every budget period."""
        return self.budget

    def memberships(self, bound: PeriodBound) -> int:
        """Those of all publications of a period."""
        return min(bound.whole, self.publications * bound.of_window)

    def start(self, facts: Facts) -> State:
        """Due at once, nothing estimated."""
        shape = (*facts.shape, facts.n_cells)
        return super().start(facts) | {
            "period": facts.constant(-1, np.int64),
            "published": facts.constant(0, np.int64),
            "due": facts.constant(0, np.int64),
            "interval": facts.constant(1.0),
            "surprises": np.zeros((*facts.shape, MEMORY)),
            "estimate": np.zeros(shape),
            "variance": np.full(shape, np.inf),
        }

    def step(self, window: Window, counts: NDArray[Any], state: State, noise: Noise) -> tuple[list[Release], State]:
        """Publish if a publication is due and left; then set the time of the next one."""
        state = self._begin(window, state)
        publish = np.asarray(self._publishes(window, state))
        release, after = self.publish_or_repeat(window, counts, state, self._share(state), publish, noise)
        values = np.asarray(release.values, np.float64)
        seen = publish[..., None] & ~np.isnan(values)
        predicted, spread = state["estimate"], state["variance"] + self.process_variance
        variance = np.where(seen, noise_variance(release.noise, release.scale) if publish.any() else 0.0, np.inf)
        estimate, spread = correct(predicted, spread, np.where(seen, values, 0.0), variance)
        surprise = np.abs(estimate - predicted) / np.maximum(np.abs(estimate), 1.0)
        surprise = np.where(seen, surprise, 0.0).sum(-1) / np.maximum(np.count_nonzero(seen, -1), 1)
        surprises = np.concatenate([surprise[..., None], state["surprises"][..., :-1]], -1)
        control = PROPORTIONAL * surprise + INTEGRAL * surprises.mean(-1)
        error = np.minimum((control - self.set_point) / self.set_point, 50.0)
        interval = np.maximum(1.0, state["interval"] + self.growth * (1.0 - exp(error)))
        return [release], after | {
            "published": state["published"] + publish,
            "interval": np.where(publish, interval, state["interval"]),
            "due": np.where(publish, window.index + np.rint(interval), state["due"]).astype(np.int64),
            "surprises": np.where(publish[..., None], surprises, state["surprises"]),
            "estimate": estimate,
            "variance": spread,
        }

    def worst_charge(self, window: Window, state: State) -> tuple[Event, ...]:
        """One share where a publication is due, nothing elsewhere."""
        state = self._begin(window, state)
        if not np.any(self._publishes(window, state)):
            return (Repeated(int(state["last_window"].max())),)
        return self.charge_of(window, state, self._share(state))

    def _share(self, state: State) -> float:
        """ε/M, or ε where the noise is that of all memberships of a period."""
        return self.budget if "memberships" in state else self.budget / self.publications

    def _begin(self, window: Window, state: State) -> State:
        """State at the beginning of the window: a new period has all its publications."""
        if int(np.max(state["period"])) == window.period:
            return state
        fresh = {"period": np.full_like(state["period"], window.period)}
        return state | fresh | {"published": np.zeros_like(state["published"])}

    def _publishes(self, window: Window, state: State) -> NDArray[np.bool_]:
        return np.asarray((state["due"] <= window.index) & (state["published"] < self.publications))
