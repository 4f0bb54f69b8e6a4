"""Is the distribution of visits over cells preserved? Window by window.

Pyrgelis, Troncoso, De Cristofaro, *Measuring Membership Privacy on Aggregate Location Time-Series*, 2020, section 5.3.
"""

from __future__ import annotations

import numpy as np

from evaluation.metrics.arrays import Array


def js_divergences(truth: Array, released: Array) -> Array:
    """Jensen–Shannon divergence of the two distributions over cells, for each window, nats, shape (n_windows,).

    ½·KL(V‖Z) + ½·KL(W‖Z) with Z = (V + W)/2: from 0 to ln 2. Negative released counts are taken as 0. A window without
    any count has no distribution: two such windows are equal (0), and against any other the formula is left with one of
    its terms, ½·ln 2 (which is how the paper's tables treat fully suppressed windows).

    >>> truth, released = np.array([[1.0, 1.0, 0.0], [0.0, 3.0, 2.0]]), np.array([[0.0, 2.0, 0.0], [1.0, 6.0, 0.0]])
    >>> js_divergences(truth, released).round(4)
    array([0.6931, 0.    , 0.3466])
    """
    from scipy.special import rel_entr  # not for those who only read which metrics there are

    first, second = _shares(truth), _shares(np.maximum(released, 0.0))
    middle = 0.5 * (first + second)
    terms = rel_entr(first, middle) + rel_entr(second, middle)
    divergences: Array = np.maximum(0.5 * terms.sum(axis=0), 0.0)
    return divergences


def _shares(counts: Array) -> Array:
    totals = counts.sum(axis=0)
    shares: Array = np.divide(counts, totals, out=np.zeros_like(counts), where=totals > 0)
    return shares
