"""Does the release rise and fall with the truth? Cell by cell.

Pyrgelis, Troncoso, De Cristofaro, *Measuring Membership Privacy on Aggregate Location Time-Series*, 2020, section 5.4.
"""

from __future__ import annotations

import numpy as np

from evaluation.metrics.arrays import Array


def pearson_correlations(truth: Array, released: Array) -> Array:
    """Pearson's r between the two series of each cell, shape (n_cells,); 0 where a side is constant.

    >>> pearson_correlations(np.array([[1.0, 2.0, 3.0], [4.0, 4.0, 4.0]]), np.array([[2.0, 4.0, 6.0], [1.0, 2.0, 3.0]]))
    array([1., 0.])
    """
    first, second = _standardised(truth), _standardised(released)
    correlations: Array = np.clip(np.einsum("ct,ct->c", first, second), -1.0, 1.0)
    return correlations


def _standardised(series: Array) -> Array:
    """Each row less its mean and divided by its norm; zero where it is constant, whatever the mean rounds to."""
    varies = (series != series[:, :1]).any(axis=1, keepdims=True)
    largest = np.abs(series).max(axis=1, keepdims=True)
    scaled = np.divide(series, largest, out=np.zeros_like(series), where=varies)
    centred = scaled - scaled.mean(axis=1, keepdims=True)
    norms = np.linalg.norm(centred, axis=1, keepdims=True)
    standardised: Array = np.divide(centred, norms, out=np.zeros_like(series), where=varies & (norms > 0))
    return standardised
