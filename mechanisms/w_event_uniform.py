"""Uniform w-event privacy: every release gets ε/w."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.mechanisms.core.schedules import WEventTraceSchedule


@dataclass(frozen=True, kw_only=True)
class WEventUniform(WEventTraceSchedule):
    """Spend ε/w on every release.

    Parameters
    ----------
    epsilon, rho, delta, w, noise, accounting, radius
        As in `WEventTraceSchedule`.

    **Privacy.** w-event ε-differential privacy: any w successive releases spend ε. Unit: all of one user's bounded
    contributions within any w successive windows; neighbours add or remove it. Kellaris et al. 2014, theorem 3. With
    Gaussian noise all of this holds of ρ in place of ε, with √C the L2 sensitivity, by composition (Bun, Steinke 2016,
    lemma 2.3).

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
