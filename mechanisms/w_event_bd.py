"""Budget distribution: each publication gets half of the budget remaining in a sliding window of w windows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.mechanisms.core.contract import Facts, Window
from penstock.mechanisms.core.schedules import DissimilaritySchedule, Offer
from penstock.mechanisms.core.state import State


@dataclass(frozen=True, kw_only=True)
class WEventBd(DissimilaritySchedule):
    """Publish with half of the publication budget left over from the last w − 1 windows.

    Parameters
    ----------
    epsilon, rho, delta, w, noise, accounting, radius
        As in `DissimilaritySchedule`.

    **Privacy.** w-event ε-differential privacy: any w successive dissimilarity queries cost ε/2, any w successive
    publications at most ε/2. Deciding whether to publish reads the data and is paid for. Unit: all of one user's
    bounded contributions within any w successive windows; neighbours add or remove it. Kellaris et al. 2014, Budget
    Distribution. With Gaussian noise all of this holds of ρ in place of ε, with √C the L2 sensitivity, by a Rényi
    filter (Feldman, Zrnic 2021).

    Notes
    -----
    Time O(n_cells + w), state O(n_cells + w) a window.

    Examples
    --------
    >>> from penstock.mechanisms.core.contract import Facts
    >>> from penstock.mechanisms.core.run import run_mechanism
    >>> counts = np.zeros((6, 30), int)
    >>> releases = run_mechanism(WEventBd(epsilon=2.0, w=3), counts, Facts(n_cells=30), seed=1)
    >>> {release.action for release in releases} <= {"published", "repeated"}
    True
    """

    def start(self, facts: Facts) -> State:
        """Return the initial state, in which the whole budget remains."""
        return super().start(facts) | {"spent": self.unspent(facts)}

    def amount(self, window: Window, state: State) -> Any:
        """Return half of the remaining budget. Entry 0 of ``spent`` is outside the last w windows."""
        if np.isinf(self.budget):
            return np.full(state["spent"].shape[:-1], np.inf)
        left = self.budget / 2 - state["spent"][..., 1:].sum(-1)
        return np.maximum(left, 0.0) / 2

    def record(self, window: Window, offer: Offer, after: State) -> State:
        """Record how much was spent in each of the last w windows."""
        spent = np.where(offer.publish, offer.amount, 0.0)
        return {"spent": np.concatenate([after["spent"][..., 1:], spent[..., None]], axis=-1)}
