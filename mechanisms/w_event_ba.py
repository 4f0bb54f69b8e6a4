"""Budget absorption: a publication takes the shares of the windows before it that did not use theirs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.core.contract import Facts, Timestamp, Window
from penstock.mechanisms.core.schedules import DissimilaritySchedule
from penstock.mechanisms.core.state import State


@dataclass(frozen=True, kw_only=True)
class WEventBa(DissimilaritySchedule):
    """Publish with the unused shares of earlier windows, then pause for as many windows as were absorbed.

    Parameters
    ----------
    epsilon, rho, delta, w, noise, radius
        As in `DissimilaritySchedule`.

    **Privacy.** w-event ε-differential privacy: any w successive dissimilarity queries cost ε/2; a publication that
    used k shares of ε/(2w) is followed by k − 1 windows without one, so that any w successive publications spend at
    most ε/2. Deciding whether to publish reads the data and is paid for. Unit: all of one user's bounded contributions
    within any w successive windows; neighbours add or remove it. Kellaris et al. 2014, Budget Absorption. With Gaussian
    noise all of this holds of ρ in place of ε, with √C the L2 sensitivity, by a Rényi filter (Feldman, Zrnic 2021).

    With ``bounding.max_per_period`` a window changes by min(C, n) memberships. What a stretch leaves moves up to
    windows behind it, which have a budget of their own: the noise is that of both for ε (`PeriodBound.at_once`), wider
    than without a bound unless n < C/2. As amounts follow the releases, one window may have all of them; the sums
    along every outcome are bounded beforehand, which is what the filter asks for.

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

    def start(self, facts: Facts) -> State:
        """Nothing published: no window to pause for, no share absorbed."""
        return super().start(facts) | {
            "pause": facts.constant(0, np.int64),
            "saved": facts.constant(0, np.int64),
        }

    def publication_budget(self, window: Window | Timestamp, state: State) -> NDArray[np.float64]:
        """This window's share and those saved up, at most w of them; nothing during a pause."""
        shares = np.minimum(state["saved"] + 1, self.w)
        return np.where(state["pause"] > 0, 0.0, self.unit * shares)

    def record_spent(self, window: Window | Timestamp, state: State, spent: NDArray[np.float64]) -> State:
        """A publication of k shares pauses the next k − 1 windows; shares of paused windows are gone."""
        published, paused = np.asarray(spent) > 0, state["pause"] > 0
        shares = np.minimum(state["saved"] + 1, self.w)
        pause = np.where(published, shares - 1, np.maximum(state["pause"] - 1, 0))
        saved = np.where(published | paused, 0, state["saved"] + 1)
        return {"pause": pause.astype(np.int64), "saved": np.minimum(saved, self.w).astype(np.int64)}
