"""Gaussian noise of the same size in every window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.core import events
from penstock.mechanisms.core.contract import (
    ADD_REMOVE,
    ONE_WINDOW,
    Facts,
    Guarantee,
    Mechanism,
    Release,
    Window,
    active_l1,
)
from penstock.mechanisms.core.plugin import check_one_of, parameter
from penstock.mechanisms.core.state import State

if TYPE_CHECKING:
    from penstock.mechanisms.core.draws import Noise


@dataclass(frozen=True, kw_only=True)
class Gaussian(Mechanism):
    """Add real Gaussian noise to every count of every window.

    Parameters
    ----------
    rho
        Zero-concentrated DP of *each* window; sets σ = sqrt(C/(2ρ)).
    sigma
        Standard deviation, instead of ``rho``.

    **Privacy.** ρ-zCDP per window with ρ = C/(2σ²): unit all of one user's events in one window, neighbours add or
    remove it, sqrt(C) the L2 sensitivity from contribution bounding (Bun and Steinke 2016, proposition 1.6). The pure
    ε is infinite; (ε, δ) comes from the composition accountant. Real-valued noise carries floating-point traces of
    the count (Mironov 2012): simulation only; deploy `discrete_gaussian`.

    With ``bounding.max_per_period`` that unit also changes the memberships that move up, in later windows, when it
    goes: ``rho`` is what both cost together (`PeriodBound.stretch`), so that noise is wider than without a bound unless
    n < C/2. What gains is a whole period: n memberships cost n/(2σ²), however many windows they are in.

    Notes
    -----
    Time and state O(n_cells) a window.

    Examples
    --------
    >>> from penstock.mechanisms.core.run import run_mechanism
    >>> run_mechanism(Gaussian(rho=0.5), np.zeros((1, 4), int), Facts(n_cells=4, max_cells=4), seed=1)[0].scale
    2.0
    """

    rho: float | None = parameter(None, doc="zCDP budget of each window", above=0)
    sigma: float | None = parameter(None, doc="standard deviation, instead of rho", at_least=0)
    family: ClassVar[str] = "gaussian"
    bounds_periods: ClassVar[bool] = True
    guarantee: ClassVar[Guarantee] = Guarantee(
        unit=ONE_WINDOW,
        neighbours=ADD_REMOVE,
        statement="ρ-zero-concentrated differential privacy per window",
        theorem="Bun and Steinke 2016, proposition 1.6",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_one_of({"rho": self.rho, "sigma": self.sigma})

    @classmethod
    def examples(cls) -> tuple[Gaussian, ...]:
        """One instance for each of the two parameters."""
        return cls(rho=0.5), cls(sigma=2.0)

    def start(self, facts: Facts) -> State:
        """The sensitivity, and where users are bounded over periods all memberships that one window's events change."""
        state: State = {"max_cells": facts.constant(facts.sensitivity, np.int64)}
        bound = facts.period_bound
        return state if bound is None else state | {"memberships": facts.constant(bound.stretch(1), np.int64)}

    def step(self, window: Window, counts: NDArray[Any], state: State, noise: Noise) -> tuple[list[Release], State]:
        """Publish one window."""
        sigma = self._sigma(window, state)
        draw = noise.discrete_gaussian if self.family == "discrete_gaussian" else noise.gaussian
        values, charge = counts + draw(sigma, counts.shape), self.worst_charge(window, state)
        return [Release.of(window, values, charge, noise=self.family, scale=sigma)], state

    def worst_charge(self, window: Window, state: State) -> tuple[events.Event, ...]:
        """The same in every window."""
        return (events.Additive(self.family, self._l2(window, state), self._sigma(window, state)),)

    @staticmethod
    def _l2(window: Window, state: State) -> float:
        return float(np.sqrt(active_l1(window, state["max_cells"]).max()))

    def _sigma(self, window: Window, state: State) -> float:
        if self.sigma is not None:
            return self.sigma
        l2 = float(np.sqrt(state["memberships"].max())) if "memberships" in state else self._l2(window, state)
        return l2 / float(np.sqrt(2 * (self.rho or 0.0)))
