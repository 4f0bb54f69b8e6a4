"""Uniform period privacy: every window's noise covers everything that a person does in a budget period."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.mechanisms.core.schedules import PeriodSchedule


@dataclass(frozen=True, kw_only=True)
class PeriodUniform(PeriodSchedule):
    """Add the same noise to every window in a budget period, calibrated to all of a person's memberships in it.

    Parameters
    ----------
    epsilon, rho, delta, noise, accounting
        As in `BudgetSchedule`, on counts. The budget is that of a budget period, or of a whole run without periods.

    **Privacy.** User-level ε-differential privacy for a budget period: all its windows are one release with noise for
    n memberships, n = ``bounding.max_per_period`` (unset: ``max_cells`` times the windows of the period), hence of
    scale n/ε, or of standard deviation √(n/(2ρ)) with Gaussian noise. Unit: all of one user's bounded contributions in
    a budget period; neighbours add or remove it. Dwork, McSherry, Nissim, Smith 2006, theorem 1; with Gaussian noise
    Bun and Steinke 2016, proposition 1.6. `penstock.mechanisms.core.sensitivity` has the proof of n. The period is
    charged once, as a block, when its first window is released; a charge counts in full in every other unit that meets
    the period, and at the price of a replacement in those that hold only a part of it.

    Notes
    -----
    Time and state O(n_cells) a window. Raises `ParameterError` on an endless stream without a ``budget_period``.

    Examples
    --------
    >>> import numpy as np
    >>> from penstock.mechanisms.core.run import run_mechanism
    >>> from penstock.mechanisms.core.contract import Facts
    >>> facts = Facts(n_cells=5, max_cells=2, max_per_period=4, budget_period=3)
    >>> releases = run_mechanism(PeriodUniform(epsilon=2.0), np.zeros((6, 5), int), facts, seed=1)
    >>> releases[3].charge[0]
    Block(inner=Additive(family='discrete_laplace', sensitivity=4.0, scale=2.0), first=4, last=6)
    >>> releases[4].scale, releases[4].charge
    (2.0, (Covered(first=4),))
    """
