"""Uniform privacy of whole budget periods: every window has noise for all that a person does in its period."""

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
from penstock.mechanisms.core.events import Block, Covered, Event
from penstock.mechanisms.core.noise_family import NOISE_FAMILIES
from penstock.mechanisms.core.plugin import ParameterError, parameter
from penstock.mechanisms.core.schedules import BudgetSchedule
from penstock.mechanisms.core.sensitivity import Bounds
from penstock.mechanisms.core.state import State
from penstock.mechanisms.core.unit import PERIOD

if TYPE_CHECKING:
    from penstock.mechanisms.core.draws import Noise


@dataclass(frozen=True, kw_only=True)
class PeriodUniform(BudgetSchedule):
    """Add the same noise to every window of a budget period: for all memberships that a person has in it.

    Parameters
    ----------
    epsilon, rho, delta, noise
        As in `BudgetSchedule`, on counts. The budget is that of a budget period, or of a whole run without periods.

    **Privacy.** User-level ε-differential privacy for a budget period: all its windows are one release with noise for
    n memberships, n = ``bounding.max_per_period`` (unset: ``max_cells`` times the windows of the period), hence of
    scale n/ε, or of standard deviation √(n/(2ρ)) with Gaussian noise. Unit: all of one user's bounded contributions in
    a budget period; neighbours add or remove it. Dwork, McSherry, Nissim, Smith 2006, theorem 1; with Gaussian noise
    Bun and Steinke 2016, proposition 1.6. `penstock.mechanisms.core.sensitivity` has the proof of n. The period is
    charged once, as a block, when its first window is released; a charge counts in full in every other unit that meets
    the period, and at the price of a replacement in those that hold only a part of it.

    Notes
    -----
    Time and state O(n_cells) a window. Raises `ParameterError` on an endless stream without a ``budget_period``.

    Examples
    --------
    >>> from penstock.mechanisms.core.run import run_mechanism
    >>> facts = Facts(n_cells=5, max_cells=2, max_per_period=4, budget_period=3)
    >>> releases = run_mechanism(PeriodUniform(epsilon=2.0), np.zeros((6, 5), int), facts, seed=1)
    >>> [(release.scale, *release.charge) for release in releases[3:5]]
    [(2.0, Block(inner=DiscreteLaplace(l1=4.0, scale=2.0), first=4, last=6)), (2.0, Covered(first=4))]
    """

    noise: str = parameter("discrete_laplace", doc="noise family", choices=(*PURE_FAMILIES, *GAUSSIAN_FAMILIES))
    stages: ClassVar[tuple[str, ...]] = ("counts",)
    radius: None = field(default=None, init=False, repr=False)
    bounds_periods: ClassVar[bool] = True
    guarantee: ClassVar[Guarantee] = Guarantee(
        unit="all of one user's bounded contributions in a budget period",
        neighbours=ADD_REMOVE,
        statement="ε-differential privacy per budget period",
        theorem="Dwork, McSherry, Nissim, Smith 2006, theorem 1, on all windows of the period",
    )

    @property
    def period_budget(self) -> float:
        """The whole budget, in every budget period."""
        return self.budget

    def start(self, facts: Facts) -> State:
        """No period begun; the bounds on a user."""
        return {
            "max_cells": facts.constant(min(facts.max_cells, facts.n_cells), np.int64),
            "max_per_period": facts.constant(facts.max_per_period or 0, np.int64),
            # The window that the current period was charged in, and the last one that this covers.
            "charged": facts.constant(0, np.int64),
            "covered": facts.constant(0, np.int64),
        }

    def step(self, window: Window, counts: NDArray[Any], state: State, noise: Noise) -> tuple[list[Release], State]:
        """Publish one window."""
        event, scale, last = self._of_period(window, state)
        family, charge = NOISE_FAMILIES[self.noise], self._charge(window, state, event, last)
        release = Release.of(window, family.add(noise, counts, scale), charge, noise=self.noise, scale=scale)
        if isinstance(charge[0], Covered):
            return [release], state
        begun = {"charged": window.index, "covered": last}
        return [release], state | {name: np.full_like(state[name], index) for name, index in begun.items()}

    def worst_charge(self, window: Window, state: State) -> tuple[Event, ...]:
        """The budget, in the first window of a period that is released."""
        event, _, last = self._of_period(window, state)
        return self._charge(window, state, event, last)

    @staticmethod
    def _charge(window: Window, state: State, event: Event, last: int) -> tuple[Event, ...]:
        if window.index <= int(np.max(state["covered"])):
            return (Covered(int(np.max(state["charged"]))),)
        return (Block(event, window.index, last),)

    def _of_period(self, window: Window, state: State) -> tuple[Event, float, int]:
        """Event and scale of the window's whole period, and its last window."""
        if window.n_windows is None or window.period_last is None:
            raise ParameterError("budget_period", None, "given, so that the windows of a period are known")
        max_cells, most = (int(np.max(state[name])) for name in ("max_cells", "max_per_period"))
        bounds, family = Bounds(max_cells=max_cells, max_per_period=most or None), NOISE_FAMILIES[self.noise]
        moved = bounds.sensitivity(PERIOD, max_cells, window.n_windows)
        scale = float(family.scale(self.budget, moved))
        return family.event(moved, scale), scale, window.period_last
