"""Budget distribution: publications get half of what is left among any w successive windows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.core.contract import Facts, Timestamp, Window
from penstock.mechanisms.core.schedules import DissimilaritySchedule
from penstock.mechanisms.core.state import State


@dataclass(frozen=True, kw_only=True)
class WEventBd(DissimilaritySchedule):
    """Publish with half of the publication budget that the last w − 1 windows have left.

    Parameters
    ----------
    epsilon, rho, delta, w, noise, radius
        As in `DissimilaritySchedule`.

    **Privacy.** w-event ε-differential privacy: any w successive dissimilarity queries cost ε/2, any w successive
    publications at most ε/2. Deciding whether to publish reads the data and is paid for. Unit: all of one user's
    bounded contributions within any w successive windows; neighbours add or remove it. Kellaris et al. 2014, Budget
    Distribution. With Gaussian noise all of this holds of ρ in place of ε, with √C the L2 sensitivity, by a Rényi
    filter (Feldman, Zrnic 2021).

    With ``bounding.max_per_period`` a window changes by min(C, n) memberships. What a stretch leaves moves up to
    windows behind it, which have a budget of their own: the noise is that of both for ε (`PeriodBound.at_once`), wider
    than without a bound unless n < C/2. As amounts follow the releases, one window may have all of them; the sums
    along every outcome are bounded beforehand, which is what the filter asks for.

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
        """Nothing spent in the last w − 1 windows."""
        return super().start(facts) | {"spent": np.zeros((*facts.shape, self.w))}

    def publication_budget(self, window: Window | Timestamp, state: State) -> NDArray[np.float64]:
        """Half of the remaining budget; entry 0 of ``spent`` is no longer among the last w windows."""
        if np.isinf(self.budget):
            return np.full(state["spent"].shape[:-1], np.inf)
        left = self.budget / 2 - state["spent"][..., 1:].sum(-1)
        return np.asarray(np.maximum(left, 0.0) / 2)

    def record_spent(self, window: Window | Timestamp, state: State, spent: NDArray[np.float64]) -> State:
        """Remember what the last w windows spent."""
        return {"spent": np.concatenate([state["spent"][..., 1:], np.asarray(spent)[..., None]], axis=-1)}
