"""Information in raw counts, of any order and exactly.

A raw count says "at sensor c" or "elsewhere". A sighting resets the chain: what the past says about the next reading
depends only on the last sighting and on having been elsewhere since. So instead of all alphabet^m histories only
(last sighting, elsewhere since) are followed, and following them to the start gives the exact mutual information,
which Koga et al. call intractable.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.special import entr

from accountants.inference.observation import Schedule

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.intp]
_LOGARITHM = 50  # multiplications that one logarithm costs


def raw_information(plan: Schedule, order: int | None) -> float:
    """Σ_t H(Y_t given Y_{t−order} … Y_{t−1}) in nats, Y the raw reading; ``order`` None for the exact information.

    Since Y is a function of X, I(X; Y) = H(Y) = Σ_t H(Y_t given all earlier readings), and forgetting some of the
    past only adds to a term: every order is an upper bound, decreasing to the exact value.

    Cost: O(n_steps · min(order, n_steps) · sensors · M · min(M, unseen locations)) time.
    """
    plan = plan.raw
    order = plan.n_steps if order is None else order
    matrix = plan.prior.transition
    rows = np.empty((0, plan.prior.n_locations))  # joint weight of (last sighting, elsewhere since, location now)
    sighted_at = np.empty(0, dtype=np.intp)
    never = plan.marginals[0][None, :]
    total = _reading_entropy(never, plan, 0)
    for step in range(1, plan.n_steps):
        rows, sighted_at = _advance(rows, sighted_at, plan, step, order)
        if order < step:
            never = plan.marginals[step - order][None, :]
            for window in range(step - order, step):
                never = _unseen(never, plan, window) @ matrix
        else:
            never = _unseen(never, plan, step - 1) @ matrix
        total += _reading_entropy(rows, plan, step) + _reading_entropy(never, plan, step)
    return total


def _advance(
    rows: FloatArray, sighted_at: IntArray, plan: Schedule, step: int, order: int
) -> tuple[FloatArray, IntArray]:
    """Follow every last sighting of the past ``order`` windows from window step − 1 to window ``step``."""
    matrix, hidden, active = plan.prior.transition, plan.hidden[step - 1], plan.active[step - 1]
    alive = (step - sighted_at <= order) & (rows[:, hidden].sum(axis=1) > 0)
    unseen = rows[alive]
    if 2 * hidden.size > plan.prior.n_locations:
        unseen[:, active] = 0.0
        moved = unseen @ matrix
    else:
        moved = unseen[:, hidden] @ matrix[hidden]
    arrivals = plan.marginals[step - 1][active]
    fresh = matrix[active]
    fresh = fresh.toarray() if sparse.issparse(fresh) else fresh
    return (
        np.concatenate([moved, arrivals[:, None] * fresh]),
        np.concatenate([sighted_at[alive], np.full(active.size, step - 1)]),
    )


def _unseen(rows: FloatArray, plan: Schedule, window: int) -> FloatArray:
    result = rows.copy()
    result[:, plan.active[window]] = 0.0
    return result


def _reading_entropy(rows: FloatArray, plan: Schedule, step: int) -> float:
    """Σ over histories of Pr(history) · H(reading given history), from joint weights with the location."""
    seen = rows[:, plan.active[step]]
    unseen = rows[:, plan.hidden[step]].sum(axis=1)
    joint = entr(seen).sum(axis=1) + entr(unseen) - entr(seen.sum(axis=1) + unseen)
    return float(np.maximum(joint, 0.0).sum())


def raw_operations(plan: Schedule, order: int | None) -> float:
    """Cost of `raw_information` in multiplications, to choose an order beforehand."""
    plan = plan.raw
    depth = plan.n_steps if order is None else min(order, plan.n_steps)
    n_histories = depth * np.mean([active.size * (hidden.size > 0) for active, hidden in zip(plan.active, plan.hidden)])
    width = np.mean([hidden.size for hidden in plan.hidden])
    return float(plan.n_steps * n_histories * plan.prior.n_locations * (width + _LOGARITHM))
