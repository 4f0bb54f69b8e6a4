"""Upper bounds on what a series of releases tells about a trajectory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from accountants.inference.channel import cell_divergence
from accountants.inference.exact_information import raw_information, raw_operations
from accountants.inference.observation import ADDITIVE, Schedule, schedule
from accountants.inference.prior import MarkovPrior
from mechanisms.core.errors import ParameterError

FloatArray = NDArray[np.float64]
_EXACT_OPERATIONS = 5e9


def information_bound(
    prior: MarkovPrior,
    sensors: Sequence[int | Iterable[int]],
    noise: str | None = None,
    scale: Any = None,
    order: int | Literal["exact"] = 1,
) -> float:
    """Upper bound on the mutual information between the trajectory and the releases, in nats.

    The smallest of the bounds that apply. Whatever the noise: the information in the raw counts of the same sensors
    (data processing). Besides, per window and added up: for a noise family, a mixture bound from the divergences
    between locations; for ε-DP, ε tanh(ε/2); for ρ-zCDP, ρ.

    Parameters
    ----------
    prior
        The target's Markov chain.
    sensors
        Per window the set of active locations; an empty set where nothing new is observed (a repeated release).
    noise
        None for raw counts and anything computed from them; gaussian, laplace, discrete_gaussian, discrete_laplace
        with noise that does not depend on earlier releases; or a guarantee, pure_dp or zcdp (add/remove one person).
    scale
        σ or b per location, or ε or ρ of the window's whole release: a scalar, (n_steps,) or, for a noise family,
        (n_steps, n_locations). For a schedule that adapts to earlier releases use pure_dp with the largest path:
        the ε spent in one run is no bound. A release over a block of windows has its ε once, zero elsewhere.
    order
        How many earlier readings the raw bound remembers, at least 1, or "exact".

    Returns
    -------
    Nats. Time O(n_steps · order · sensors · M · unseen locations).

    Examples
    --------
    >>> from accountants.inference.prior import chain_prior
    >>> prior = chain_prior(20, 0.01)
    >>> first, exact = (information_bound(prior, [{10}] * 10, order=order) for order in (1, "exact"))
    >>> exact < first
    True
    >>> information_bound(prior, [{10}] * 10, "gaussian", 0.01) <= first   # never above the raw counts
    True

    Source: Koga, Meehan, Chaudhuri, section 3.3.1 and appendix C, extended to sets of sensors, other noise and
    higher orders; mixture bound: Kolchinsky, Tracey (2017).
    """
    if order != "exact" and not (isinstance(order, int | np.integer) and order >= 1):
        raise ParameterError("order", order, 'an integer of at least 1, or "exact"')
    plan = schedule(prior, sensors, noise, scale)
    raw = raw_information(plan, None if order == "exact" else int(order))
    return min(raw, noisy_information(plan))


def sharpest_information(plan: Schedule) -> float:
    """The sharpest information bound that costs under about a second: exact for raw counts where that is feasible."""
    order = None if raw_operations(plan, None) <= _EXACT_OPERATIONS else 1
    return min(raw_information(plan, order), noisy_information(plan))


def noisy_information(plan: Schedule) -> float:
    """Information bound from the noise alone, in nats; infinite for raw counts."""
    if plan.noise is None:
        return np.inf
    if plan.noise in ADDITIVE:
        return sum(_mixture_bound(plan, step) for step in range(plan.n_steps))
    charge = plan.scales.max(axis=1)
    return float(np.sum(charge if plan.noise == "zcdp" else charge * np.tanh(charge / 2)))


def _mixture_bound(plan: Schedule, step: int) -> float:
    """−Σ_m p_m ln Σ_l p_l exp(−D(m, l)), where D adds the divergences of the active cells in which m and l differ."""
    active = plan.active[step]
    if active.size == 0:
        return 0.0
    seen = plan.marginals[step, active]
    hidden = plan.marginals[step, plan.hidden[step]].sum()
    overlap = np.exp(-cell_divergence(str(plan.noise), plan.scales[step, active]))
    reached = seen * overlap
    same = np.append(seen + overlap * (hidden + reached.sum() - reached), hidden + reached.sum())
    weight = np.append(seen, hidden)
    positive = weight > 0
    return float(max(0.0, -weight[positive] @ np.log(np.minimum(same[positive], 1.0))))
