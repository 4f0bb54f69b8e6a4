"""Laplace noise with the same ε in every window."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from numpy.typing import NDArray

from penstock.mechanisms.core.contract import ADD_REMOVE, ONE_WINDOW, Guarantee, Release, Window
from penstock.mechanisms.core.events import Event
from penstock.mechanisms.core.period import PeriodBound
from penstock.mechanisms.core.plugin import parameter
from penstock.mechanisms.core.schedules import BudgetSchedule
from penstock.mechanisms.core.state import State

if TYPE_CHECKING:
    from penstock.mechanisms.core.draws import Noise


@dataclass(frozen=True, kw_only=True)
class Laplace(BudgetSchedule):
    """Add real Laplace noise of scale C/ε to every count of every window.

    Parameters
    ----------
    epsilon
        Budget of *each* window, in nats.

    **Privacy.** Event-level ε-differential privacy: unit all of one user's events in one window, neighbours add or
    remove it, C = ``max_cells`` the L1 sensitivity from contribution bounding (Dwork, McSherry, Nissim, Smith 2006,
    theorem 1). A user seen in T windows is protected by T·ε only. Real-valued noise carries floating-point traces of
    the count (Mironov 2012): simulation only; deploy `discrete_laplace`.

    With ``bounding.max_per_period`` that unit also changes the memberships that move up, in later windows, when it
    goes: the noise is that of both together for ε (`PeriodBound.stretch`), wider than without a bound unless n < C/2.
    What gains is a whole period: n memberships, however many windows they are in.

    Notes
    -----
    Time and state O(n_cells) a window.

    Examples
    --------
    >>> import numpy as np
    >>> from penstock.mechanisms.core.contract import Facts
    >>> from penstock.mechanisms.core.run import run_mechanism
    >>> run_mechanism(Laplace(epsilon=0.5), np.zeros((1, 2), int), Facts(n_cells=2, max_cells=2), seed=1)[0].scale
    4.0
    """

    epsilon: float = parameter(doc="budget of each window", above=0, unit="nats")
    noise: str = parameter("laplace", doc="noise family", choices=("laplace",))
    stages: ClassVar[tuple[str, ...]] = ("counts",)
    bounds_periods: ClassVar[bool] = True
    #: Points and Gaussian noise have mechanisms of their own.
    radius: None = field(default=None, init=False, repr=False)
    rho: None = field(default=None, init=False, repr=False)
    delta: None = field(default=None, init=False, repr=False)
    guarantee: ClassVar[Guarantee] = Guarantee(
        unit=ONE_WINDOW,
        neighbours=ADD_REMOVE,
        statement="ε-differential privacy per window",
        theorem="Dwork, McSherry, Nissim, Smith 2006, theorem 1",
    )

    def memberships(self, bound: PeriodBound) -> int:
        """Those of a window, and those that move up when they go."""
        return bound.stretch(1)

    def step(self, window: Window, counts: NDArray[Any], state: State, noise: Noise) -> tuple[list[Release], State]:
        """Publish with ε."""
        release, state = self.publish(window, counts, state, self.epsilon, noise)
        return [release], state

    def worst_charge(self, window: Window, state: State) -> tuple[Event, ...]:
        """ε, always."""
        return self.charge_of(window, state, self.epsilon)
