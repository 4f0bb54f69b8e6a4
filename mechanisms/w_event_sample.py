"""Sampled w-event privacy: every w-th window gets the whole ε."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.core.contract import Release, Timestamp, Window
from penstock.mechanisms.core.events import Event, Repeated
from penstock.mechanisms.core.period import PeriodBound
from penstock.mechanisms.core.schedules import Budgets, WEventSchedule
from penstock.mechanisms.core.state import State

if TYPE_CHECKING:
    from penstock.mechanisms.core.draws import Noise


@dataclass(frozen=True, kw_only=True)
class WEventSample(WEventSchedule):
    """Publish the first of every w windows with the whole ε and repeat it in the others.

    Parameters
    ----------
    epsilon, rho, delta, w, noise, radius
        As in `WEventSchedule`.

    **Privacy.** w-event ε-differential privacy: any w successive windows hold one publication. Unit: all of one user's
    bounded contributions within any w successive windows; neighbours add or remove it. Kellaris et al. 2014, section 4.
    With Gaussian noise all of this holds of ρ in place of ε, with √C the L2 sensitivity, by composition (Bun, Steinke
    2016, lemma 2.3).

    With ``bounding.max_per_period`` a publication holds min(C, n) memberships of a user, and as many may have moved up
    to the next one, which is behind the w windows: the noise is that of both for ε (`PeriodBound.at_once`), wider than
    without a bound unless n < C/2.

    Notes
    -----
    Time and state O(n_cells) a window.

    Examples
    --------
    >>> import numpy as np
    >>> from penstock.mechanisms.core.contract import Facts
    >>> from penstock.mechanisms.core.run import run_mechanism
    >>> releases = run_mechanism(WEventSample(epsilon=1.0, w=3), np.zeros((4, 2), int), Facts(n_cells=2), seed=1)
    >>> [release.action for release in releases]
    ['published', 'repeated', 'repeated', 'published']
    """

    bounds_periods: ClassVar[bool] = True

    def memberships(self, bound: PeriodBound) -> int:
        """Those of one publication, and those that move up to the next ones."""
        return bound.at_once(self.w)

    def step(self, window: Window, counts: NDArray[Any], state: State, noise: Noise) -> tuple[list[Release], State]:
        """Publish the first of w windows."""
        if (window.index - 1) % self.w:
            return [self.repeat(window, state)], state
        release, state = self.publish(window, counts, state, self.budget, noise)
        return [release], state

    def worst_charge(self, window: Window, state: State) -> tuple[Event, ...]:
        """ε in every w-th window, nothing in between."""
        if (window.index - 1) % self.w:
            return (Repeated(int(state["last_window"].max())),)
        return self.charge_of(window, state, self.budget)

    def point_budget(self, time: Timestamp, state: State) -> Budgets:
        """ε at every w-th point of a user, nothing in between."""
        return np.full(len(time.time), 0.0 if (time.index - 1) % self.w else self.budget)
