"""Sampled w-event privacy: every w-th window gets the whole ε."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.mechanisms.core.contract import Window
from penstock.mechanisms.core.schedules import WEventTraceSchedule
from penstock.mechanisms.core.state import State


@dataclass(frozen=True, kw_only=True)
class WEventSample(WEventTraceSchedule):
    """Publish the first of every w windows with the whole ε and repeat that release in the other windows.

    Parameters
    ----------
    epsilon, rho, delta, w, noise, accounting, radius
        As in `WEventTraceSchedule`.

    **Privacy.** w-event ε-differential privacy: any w successive windows hold one publication. Unit: all of one user's
    bounded contributions within any w successive windows; neighbours add or remove it. Kellaris et al. 2014, section 4.
    With Gaussian noise all of this holds of ρ in place of ε, with √C the L2 sensitivity, by composition (Bun, Steinke
    2016, lemma 2.3).

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

    def amount(self, window: Window, state: State) -> Any:
        """Return the whole budget in every w-th window, or 0 in all other windows."""
        return 0.0 if (window.index - 1) % self.w else self.budget
