"""Uniform landmark privacy: every release gets the same fraction of the budget."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.mechanisms.core.schedules import LandmarkSchedule


@dataclass(frozen=True, kw_only=True)
class LandmarkUniform(LandmarkSchedule):
    """Spend ε/n on every release, where n is the number of landmarks plus one.

    Parameters
    ----------
    epsilon
        Budget of one period, in nats.
    rho, delta, noise, accounting, radius
        As in `BudgetSchedule`.

    **Privacy.** For landmarks L, the sum of ε over L and any other window is ε: n = abs(L) + 1, or abs(L) where every
    window of the period is a landmark. Unit: one user's bounded contributions in all landmark windows and any one other
    window of a budget period; neighbours add or remove it. Katsomallos et al. 2022, Uniform. With Gaussian noise all of
    this holds of ρ in place of ε, with √C the L2 sensitivity, by composition (Bun, Steinke 2016, lemma 2.3).

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
