"""Observation and inference periods: which windows the adversary learns from and which she is challenged on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mechanisms.core.errors import ParameterError

Period = int | slice | range | tuple[int, int] | Sequence[int] | NDArray[Any]


def period_windows(period: Period, n_windows: int, field: str) -> NDArray[np.intp]:
    """Window indices (0-based, in the order given) that a period stands for.

    Parameters
    ----------
    period
        A slice or range; a pair (start, stop); an integer n, the first n windows; a boolean mask over all windows;
        or the indices themselves.
    n_windows
        Number of windows there are.
    field
        Name of the argument, for the error message.

    Raises
    ------
    ParameterError
        If the period is empty, has a window twice or reaches outside the data.

    Examples
    --------
    >>> period_windows((2, 5), 8, "observation")
    array([2, 3, 4])
    >>> period_windows(2, 8, "observation")
    array([0, 1])
    """
    every = np.arange(n_windows)
    if isinstance(period, slice):
        windows = every[period]
    elif isinstance(period, int | np.integer):
        windows = np.arange(period)
    elif isinstance(period, tuple) and len(period) == 2:
        windows = np.arange(*period)
    else:
        given = np.asarray(period)
        whole = given.dtype == bool and given.shape == (n_windows,)
        windows = every[given] if whole else given
        if windows.ndim != 1 or not np.issubdtype(windows.dtype, np.integer):
            raise ParameterError(field, period, "a slice, range, (start, stop) pair, window indices or a mask")
    inside = windows.size > 0 and windows.min() >= 0 and windows.max() < n_windows
    if not inside or np.unique(windows).size != windows.size:
        raise ParameterError(field, period, f"one or more different windows of 0..{n_windows - 1}")
    return windows.astype(np.intp)


def game_blocks(observation: Period, inference: Period, n_windows: int, prior: str) -> NDArray[np.intp]:
    """Cut the observation period into blocks as long as the inference period.

    Aggregates of both periods must have the same number of windows, or no classifier trained on one applies to the
    other. Windows left over at the beginning of the observation period are not used.

    Parameters
    ----------
    observation, inference
        Periods; an integer `inference` n under a past-participation prior is the n windows after the observation.
    n_windows
        Number of windows there are.
    prior
        ``subset``, ``same_groups`` or ``different_groups``; the last two need periods that do not overlap.

    Returns
    -------
    windows (n_blocks, n_windows_of_inference)
        The blocks of the observation and, as the last one, the inference period. With equal periods there is one.

    Examples
    --------
    >>> game_blocks((0, 5), (5, 7), 8, "same_groups")
    array([[1, 2],
           [3, 4],
           [5, 6]])
    """
    observed = period_windows(observation, n_windows, "observation")
    past = prior != "subset"
    if past and isinstance(inference, int | np.integer):
        inference = (int(observed.max()) + 1, int(observed.max()) + 1 + int(inference))
    challenged = period_windows(inference, n_windows, "inference")
    if past and np.intersect1d(observed, challenged).size:
        raise ParameterError("inference", inference, f"apart from the observation period under the prior {prior}")
    n_blocks = observed.size // challenged.size
    if n_blocks == 0:
        raise ParameterError(
            "observation", observation, f"at least as long as the inference period ({challenged.size})"
        )
    blocks = observed[observed.size - n_blocks * challenged.size :].reshape(n_blocks, challenged.size)
    apart = blocks[(blocks != challenged).any(axis=1)]
    return np.vstack([apart, challenged[None]])
