"""How uncertain a trajectory is before any release."""

from __future__ import annotations

import numpy as np
from scipy import sparse
from scipy.special import entr

from accountants.inference.prior import MarkovPrior
from mechanisms.core.errors import ParameterError


def trajectory_entropy(prior: MarkovPrior, n_steps: int) -> float:
    """Shannon entropy of the first ``n_steps`` locations, in nats: H(X_1) + Σ_t H(X_t given X_{t−1}).

    Parameters
    ----------
    prior
        The target's Markov chain.
    n_steps
        Number of windows, at least 1. O(n_steps nnz) time.

    Examples
    --------
    >>> from math import log
    >>> uniform = MarkovPrior([0.5, 0.5], [[0.5, 0.5], [0.5, 0.5]])
    >>> trajectory_entropy(uniform, 3) / log(2)
    3.0

    Source: chain rule; Koga, Meehan, Chaudhuri, section 3.3.1.
    """
    if n_steps < 1:
        raise ParameterError("n_steps", n_steps, "at least 1")
    matrix = prior.transition
    if sparse.issparse(matrix):
        rows = sparse.csr_array((entr(matrix.data), matrix.indices, matrix.indptr), shape=matrix.shape).sum(axis=1)
    else:
        rows = entr(matrix).sum(axis=1)
    visits = prior.marginals(n_steps - 1).sum(axis=0) if n_steps > 1 else np.zeros(prior.n_locations)
    return float(entr(prior.initial).sum() + visits @ rows)
