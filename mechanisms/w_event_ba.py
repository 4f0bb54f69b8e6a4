"""Budget absorption: a publication absorbs the budget that preceding windows did not use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from penstock.mechanisms.core.contract import Window
from penstock.mechanisms.core.schedules import DissimilaritySchedule, Offer
from penstock.mechanisms.core.state import State


@dataclass(frozen=True, kw_only=True)
class WEventBa(DissimilaritySchedule):
    """Publish with the unused budget of earlier windows, then pause for as many windows as were absorbed.

    Parameters
    ----------
    epsilon, rho, delta, w, noise, accounting, radius
        As in `DissimilaritySchedule`.

    **Privacy.** w-event ε-differential privacy: any w successive dissimilarity queries cost ε/2; a publication that
    used k shares of ε/(2w) is followed by k − 1 windows without one, so that any w successive publications spend at
    most ε/2. Deciding whether to publish reads the data and is paid for. Unit: all of one user's bounded contributions
    within any w successive windows; neighbours add or remove it. Kellaris et al. 2014, Budget Absorption. With Gaussian
    noise all of this holds of ρ in place of ε, with √C the L2 sensitivity, by a Rényi filter (Feldman, Zrnic 2021).

    Notes
    -----
    Time and state O(n_cells) a window.

    Examples
    --------
    >>> from penstock.mechanisms.core.contract import Facts
    >>> from penstock.mechanisms.core.run import run_mechanism
    >>> counts = np.zeros((6, 30), int)
    >>> releases = run_mechanism(WEventBa(epsilon=2.0, w=3), counts, Facts(n_cells=30), seed=1)
    >>> {release.action for release in releases} <= {"published", "repeated"}
    True
    """

    first: ClassVar[dict[str, Any]] = {"pause": 0, "saved": 0}  # no window to pause for, no share absorbed

    def amount(self, window: Window, state: State) -> Any:
        """Return this window's budget plus any saved budgets (at most w in total), or 0 during a pause."""
        return np.where(state["pause"] > 0, 0.0, self.query_budget * self._shares(state))

    def record(self, window: Window, offer: Offer, after: State) -> State:
        """After publishing with the budgets of k windows, pause for k − 1 windows, which forfeit theirs."""
        is_paused = after["pause"] > 0
        pause = np.where(offer.publish, self._shares(after) - 1, np.maximum(after["pause"] - 1, 0))
        return {"pause": pause, "saved": np.where(offer.publish | is_paused, 0, self._shares(after))}

    def _shares(self, state: State) -> Any:
        return np.minimum(state["saved"] + 1, self.w)
