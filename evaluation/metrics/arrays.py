"""What all utility metrics share: checked arrays, and which cells are busiest."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mechanisms.core.errors import ParameterError

Array = NDArray[np.float64]
Indices = NDArray[np.intp]


def checked_pair(truth: ArrayLike, released: ArrayLike) -> tuple[Array, Array]:
    """Truth and release as float arrays of the same shape (n_cells, n_windows), neither empty nor NaN nor infinite.

    Raises
    ------
    ParameterError
        Naming the array that is wrong, and its shape.

    Examples
    --------
    >>> checked_pair([[1, 2]], [[1, 3]])
    (array([[1., 2.]]), array([[1., 3.]]))
    >>> checked_pair([[1, 2]], [[1, 2, 3]])
    Traceback (most recent call last):
    mechanisms.core.errors.ParameterError: released: (1, 3) is not allowed; it must be of the truth's shape (1, 2)
    """
    pair = np.asarray(truth, dtype=np.float64), np.asarray(released, dtype=np.float64)
    if pair[0].ndim != 2 or pair[0].size == 0:
        raise ParameterError("truth", pair[0].shape, "of shape (n_cells, n_windows), at least (1, 1)")
    if pair[1].shape != pair[0].shape:
        raise ParameterError("released", pair[1].shape, f"of the truth's shape {pair[0].shape}")
    for name, array in zip(("truth", "released"), pair):
        if not np.isfinite(array).all():
            raise ParameterError(name, array[~np.isfinite(array)][0], "finite throughout")
    if (pair[0] < 0).any():
        raise ParameterError("truth", pair[0].min(), "counts of at least 0")
    return pair


def n_busiest(n_cells: int, fraction: float) -> int:
    """How many cells are the busiest ``fraction``, rounded up: at least one.

    >>> n_busiest(100, 0.1), n_busiest(78, 0.1), n_busiest(3, 0.1)
    (10, 8, 1)
    """
    if not 0 < fraction <= 1:
        raise ParameterError("fraction", fraction, "above 0 and at most 1")
    return max(1, math.ceil(fraction * n_cells - 1e-9))


def busiest(counts: Array, fraction: float) -> Indices:
    """Indices of the busiest cells along the first axis, busiest first; of equals, the one with the lower index.

    >>> busiest(np.array([1.0, 5.0, 5.0, 0.0]), 0.5)
    array([1, 2])
    """
    return np.argsort(-counts, axis=0, kind="stable")[: n_busiest(len(counts), fraction)]
