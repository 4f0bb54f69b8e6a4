"""Error of the released counts, cell by cell.

Pyrgelis, Troncoso, De Cristofaro, *Measuring Membership Privacy on Aggregate Location Time-Series*, 2020, section 5.1.
"""

from __future__ import annotations

import numpy as np

from evaluation.metrics.arrays import Array

SANITY_SHARE = 0.1


def relative_errors(truth: Array, released: Array) -> Array:
    """Mean relative error of each cell, shape (n_cells,).

    mean over t of |Y'[t] − Y[t]| / max(γ, Y[t]) with the sanity bound γ = 0.1·Σ_t Y[t] of the cell. A cell that nobody
    ever visited is measured as if one person had been there once (γ = 0.1): its error is neither infinite nor hidden.

    >>> relative_errors(np.array([[10.0, 0.0], [0.0, 0.0]]), np.array([[8.0, 1.0], [0.0, 0.0]]))
    array([0.6, 0. ])
    """
    bound = SANITY_SHARE * np.maximum(truth.sum(axis=1, keepdims=True), 1.0)
    errors: Array = (np.abs(released - truth) / np.maximum(bound, truth)).mean(axis=1)
    return errors


def absolute_errors(truth: Array, released: Array) -> Array:
    """Mean absolute error of each cell, in people, shape (n_cells,).

    >>> absolute_errors(np.array([[10.0, 0.0]]), np.array([[8.0, 1.0]]))
    array([1.5])
    """
    errors: Array = np.abs(released - truth).mean(axis=1)
    return errors
