"""Which points of a trace are secret: one subset, or a family of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mechanisms.core.errors import ParameterError

Indices = NDArray[np.intp]


def secret_indices(secret: ArrayLike, n_points: int, field: str = "secret") -> Indices:
    """Sorted indices of a secret subset given as indices or as a mask.

    Parameters
    ----------
    secret
        Indices of the secret points (negative ones count from the end), or a bool mask of shape (n_points,).
    n_points
        Number of points of the trace.
    field
        Name of the parameter for messages.

    Raises
    ------
    ParameterError
        If the subset is empty, repeats a point, or leaves the trace.

    Examples
    --------
    >>> secret_indices([True, False, True], 3)
    array([0, 2])
    >>> secret_indices([-1, 0], 3)
    array([0, 2])
    """
    given = np.atleast_1d(np.asarray(secret))
    expected = f"indices of distinct points of a trace of {n_points}, or a mask of that length, and not empty"
    if given.dtype == np.bool_:
        if given.shape != (n_points,) or not given.any():
            raise ParameterError(field, secret, expected)
        return np.flatnonzero(given)
    if given.ndim != 1 or given.size == 0 or not np.issubdtype(given.dtype, np.integer):
        raise ParameterError(field, secret, expected)
    if given.min() < -n_points or given.max() >= n_points:
        raise ParameterError(field, secret, expected)
    indices = np.unique(given % n_points)
    if len(indices) != len(given):
        raise ParameterError(field, secret, expected)
    return indices.astype(np.intp)


def secret_family(secrets: Any, n_points: int, field: str = "secrets") -> list[Indices]:
    """Several secret subsets; a single subset is a family of one.

    Parameters
    ----------
    secrets
        One subset as in `secret_indices`, or a sequence of them (their sizes may differ).
    n_points, field
        As in `secret_indices`.

    Examples
    --------
    >>> secret_family([[0], [1, 2]], 3)
    [array([0]), array([1, 2])]
    >>> secret_family([1, 2], 3)
    [array([1, 2])]
    """
    one = np.ndim(secrets) == 0 if np.isscalar(secrets) else len(secrets) == 0 or np.ndim(secrets[0]) == 0
    return [secret_indices(secret, n_points, field) for secret in ([secrets] if one else secrets)]


def singletons(n_points: int) -> list[Indices]:
    """Every point as a secret of its own.

    >>> singletons(2)
    [array([0]), array([1])]
    """
    return [np.array([point]) for point in range(n_points)]


def every_other(n_points: int) -> list[Indices]:
    """The points in turn, from the first and from the second on.

    >>> every_other(4)
    [array([0, 2]), array([1, 3])]
    """
    return [np.arange(first, n_points, 2) for first in range(min(2, n_points))]


def sliding_blocks(n_points: int, width: int) -> list[Indices]:
    """Every run of ``width`` points in a row; a shorter trace is one block.

    >>> sliding_blocks(4, 3)
    [array([0, 1, 2]), array([1, 2, 3])]
    """
    if width < 1:
        raise ParameterError("width", width, "at least 1")
    size = min(width, n_points)
    return [np.arange(first, first + size) for first in range(n_points - size + 1)] if n_points else []


FAMILIES: dict[str, str] = {
    "singletons": "every point on its own",
    "every_other": "all odd points, and all even points",
    "sliding_blocks": "every run of `width` points",
}
"""Names under which a configuration asks for a family of secrets, with one line of help each."""


def named_family(name: str, n_points: int, width: int = 2) -> Sequence[Indices]:
    """Family of secrets by its name in `FAMILIES`; ``width`` is used by ``sliding_blocks`` only.

    >>> named_family("every_other", 3)
    [array([0, 2]), array([1])]
    """
    if name == "singletons":
        return singletons(n_points)
    if name == "every_other":
        return every_other(n_points)
    if name == "sliding_blocks":
        return sliding_blocks(n_points, width)
    raise ParameterError("secrets", name, "one of " + ", ".join(FAMILIES))
