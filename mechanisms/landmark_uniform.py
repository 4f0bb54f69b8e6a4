"""Uniform landmark privacy: every release gets the same share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from numpy.typing import NDArray

from penstock.mechanisms.core.contract import Release, Timestamp, Window
from penstock.mechanisms.core.events import Event
from penstock.mechanisms.core.schedules import Budgets, LandmarkSchedule
from penstock.mechanisms.core.state import State

if TYPE_CHECKING:
    from penstock.mechanisms.core.draws import Noise


@dataclass(frozen=True, kw_only=True)
class LandmarkUniform(LandmarkSchedule):
    """Give every release ε/n, n the number of landmarks plus one.

    Parameters
    ----------
    epsilon
        Budget of one period, in nats.
    rho, delta, noise, radius
        As in `BudgetSchedule`.

    **Privacy.** For landmarks L, the sum of ε over L and any other window is ε: n = abs(L) + 1, or abs(L) where every
    window of the period is a landmark. Unit: one user's bounded contributions in all landmark windows and any one other
    window of a budget period; neighbours add or remove it. Katsomallos et al. 2022, Uniform. With Gaussian noise all of
    this holds of ρ in place of ε, with √C the L2 sensitivity, by composition (Bun, Steinke 2016, lemma 2.3).

    With ``bounding.max_per_period: m`` the noise is that of S memberships for ε: S = m where every window is a
    landmark, so that the unit is the whole period; else up to 2·m, since what the unit leaves makes room for later
    memberships (`PeriodBound.part`). The loss is that of the whole unit: a part of it, some of its windows or one
    event, may move more counts than the whole, up to 2·m. `composition` prices one window and one event.

    Notes
    -----
    Time and state O(n_cells) a window. Raises `ParameterError` if the number of landmarks of a period is unknown.

    Examples
    --------
    >>> import numpy as np
    >>> from penstock.mechanisms.core.contract import Facts
    >>> from penstock.mechanisms.core.run import run_mechanism
    >>> facts = Facts(n_cells=1, n_windows=4, landmarks=(2, 3))
    >>> releases = run_mechanism(LandmarkUniform(epsilon=3.0), np.zeros((4, 1), int), facts, seed=1)
    >>> [release.scale for release in releases]
    [1.0, 1.0, 1.0, 1.0]
    """

    bounds_periods: ClassVar[bool] = True

    def release(self, window: Window, counts: NDArray[Any], state: State, noise: Noise) -> tuple[Release, State]:
        """Publish with the share."""
        return self.publish(window, counts, state, self._share(window, state), noise)

    def worst(self, window: Window, state: State) -> tuple[Event, ...]:
        """The share, always."""
        return self.charge_of(window, state, self._share(window, state))

    def _share(self, window: Window, state: State) -> Any:
        """ε/n, or what a window may cost of ε where landmarks and one more window change no more than some counts."""
        bound = self.bound_of(window, state)
        return self.share(window) if bound is None else self.part_of_budget(window, state, bound.with_landmarks(window))

    def point_budget(self, time: Timestamp, state: State) -> Budgets:
        """The share, always."""
        return self.shares(time)
