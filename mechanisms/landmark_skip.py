"""Landmark privacy by skipping: repeat the last release at landmarks and give every other window the whole budget."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.mechanisms.core.contract import Window
from penstock.mechanisms.core.schedules import LandmarkSchedule
from penstock.mechanisms.core.state import State


@dataclass(frozen=True, kw_only=True)
class LandmarkSkip(LandmarkSchedule):
    """Repeat the last release at landmarks and give every other window the whole ε.

    Parameters
    ----------
    epsilon
        Budget of one period, in nats.
    rho, delta, noise, accounting, radius
        As in `BudgetSchedule`.

    **Privacy.** Landmarks cost nothing, so the sum of ε over the landmarks and any other window is ε. Unit: one user's
    bounded contributions in all landmark windows and any one other window of a budget period; neighbours add or remove
    it. Which windows repeat is public. Katsomallos et al. 2022, Skip. With Gaussian noise all of this holds of ρ in
    place of ε, with √C the L2 sensitivity, by composition (Bun, Steinke 2016, lemma 2.3).

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

    def refused(self, window: Window, state: State) -> Any:
        """False, since landmarks cost nothing."""
        return False

    def amount(self, window: Window, state: State) -> Any:
        """Return 0 at landmarks, or the whole budget in all other windows."""
        return np.where(window.landmark, 0.0, self.budget)
