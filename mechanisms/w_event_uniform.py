"""Uniform w-event privacy: every release gets ε/w."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.core.contract import Release, Timestamp, Window
from penstock.mechanisms.core.events import Event
from penstock.mechanisms.core.period import PeriodBound
from penstock.mechanisms.core.schedules import Budgets, WEventSchedule
from penstock.mechanisms.core.state import State

if TYPE_CHECKING:
    from penstock.mechanisms.core.draws import Noise


@dataclass(frozen=True, kw_only=True)
class WEventUniform(WEventSchedule):
    """Give every release ε/w.

    Parameters
    ----------
    epsilon, rho, delta, w, noise, radius
        As in `WEventSchedule`.

    **Privacy.** w-event ε-differential privacy: any w successive releases spend ε. Unit: all of one user's bounded
    contributions within any w successive windows; neighbours add or remove it. Kellaris et al. 2014, theorem 3. With
    Gaussian noise all of this holds of ρ in place of ε, with √C the L2 sensitivity, by composition (Bun, Steinke 2016,
    lemma 2.3).

    With ``bounding.max_per_period`` the noise is that of S memberships for ε, not of w · C: S is what a user's events
    in any of w successive windows change, with the memberships that find room instead (`PeriodBound.part_of_stretch`).

    Notes
    -----
    Time and state O(n_cells) a window.

    Examples
    --------
    >>> import numpy as np
    >>> from penstock.mechanisms.core.contract import Facts
    >>> from penstock.mechanisms.core.run import run_mechanism
    >>> run_mechanism(WEventUniform(epsilon=1.0, w=4), np.zeros((1, 2), int), Facts(n_cells=2), seed=1)[0].scale
    4.0
    """

    bounds_periods: ClassVar[bool] = True

    def memberships(self, bound: PeriodBound) -> int:
        """Those of any w windows, and those that move up when they go."""
        return bound.part_of_stretch(self.w)

    def step(self, window: Window, counts: NDArray[Any], state: State, noise: Noise) -> tuple[list[Release], State]:
        """Publish with the share."""
        release, state = self.publish(window, counts, state, self._share(state), noise)
        return [release], state

    def worst_charge(self, window: Window, state: State) -> tuple[Event, ...]:
        """The share, always."""
        return self.charge_of(window, state, self._share(state))

    def _share(self, state: State) -> Any:
        """ε/w, or ε where the noise is that of all memberships of w windows."""
        return self.budget if "memberships" in state else self.budget / self.w

    def point_budget(self, time: Timestamp, state: State) -> Budgets:
        """ε/w, always."""
        return np.full(len(time.time), self.budget / self.w)
