"""Skip landmark privacy: landmarks show the last release, everything else gets the whole budget."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.core.contract import Mask, Release, Timestamp, Window
from penstock.mechanisms.core.events import Event, Repeated
from penstock.mechanisms.core.schedules import Budgets, LandmarkSchedule
from penstock.mechanisms.core.state import State

if TYPE_CHECKING:
    from penstock.mechanisms.core.draws import Noise


@dataclass(frozen=True, kw_only=True)
class LandmarkSkip(LandmarkSchedule):
    """Repeat the last release at landmarks and give every other window the whole ε.

    Parameters
    ----------
    epsilon
        Budget of one period, in nats.
    rho, delta, noise, radius
        As in `BudgetSchedule`.

    **Privacy.** Landmarks cost nothing, so the sum of ε over the landmarks and any other window is ε. Unit: one user's
    bounded contributions in all landmark windows and any one other window of a budget period; neighbours add or remove
    it. Which windows repeat is public. Katsomallos et al. 2022, Skip. With Gaussian noise all of this holds of ρ in
    place of ε, with √C the L2 sensitivity, by composition (Bun, Steinke 2016, lemma 2.3).

    With ``bounding.max_per_period`` the noise is that of min(C, n) memberships of the other window, and of those that
    move up to windows of the period outside the unit, for ε. Where that may be n of them the bound costs more than it
    saves, unless C is large and n small; where every window is a landmark nothing is published anyway.

    Notes
    -----
    Time and state O(n_cells) a window. Before any release a landmark shows zeros, a public constant: where every
    window is a landmark nothing else is ever shown.

    Examples
    --------
    >>> import numpy as np
    >>> from penstock.mechanisms.core.contract import Facts
    >>> from penstock.mechanisms.core.run import run_mechanism
    >>> facts = Facts(n_cells=1, n_windows=3, landmarks=(2,))
    >>> releases = run_mechanism(LandmarkSkip(epsilon=2.0), np.array([[5], [9], [7]]), facts, seed=1)
    >>> [release.action for release in releases], releases[1].repeats
    (['published', 'repeated', 'published'], 1)
    """

    bounds_periods: ClassVar[bool] = True

    def is_refused(self, window: Window, state: State) -> bool:
        """Never: however many landmarks there are, they cost nothing."""
        return False

    def release(self, window: Window, counts: NDArray[Any], state: State, noise: Noise) -> tuple[Release, State]:
        """Repeat at a landmark, publish elsewhere."""
        if window.landmark:
            return self.repeat(window, state), state
        return self.publish(window, counts, state, self._whole(window, state), noise)

    def worst(self, window: Window, state: State) -> tuple[Event, ...]:
        """Nothing at a landmark, ε elsewhere."""
        if window.landmark:
            return (Repeated(int(state["last_window"].max())),)
        return self.charge_of(window, state, self._whole(window, state))

    def _whole(self, window: Window, state: State) -> Any:
        """ε, or what a window may cost of it where users are bounded over periods."""
        bound = self.bound_of(window, state)
        if bound is None:
            return self.budget
        # Landmarks cost nothing, but what they leave moves up to windows that do.
        n_landmarks, n_windows = window.n_landmarks or 0, window.n_windows or 1
        with_other, without = (bound.moved_up(n, n_windows) for n in (n_landmarks + 1, n_landmarks))
        return self.part_of_budget(window, state, max(bound.of_window + with_other, without))

    def refused(self, time: Timestamp, state: State) -> Mask:
        """None: landmarks cost nothing."""
        return np.zeros(len(time.landmark), bool)

    def point_budget(self, time: Timestamp, state: State) -> Budgets:
        """Nothing at a landmark, ε elsewhere."""
        return np.where(time.landmark, 0.0, self.budget)
