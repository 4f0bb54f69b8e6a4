"""Mobility features: what may explain why some users are more exposed than others."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluation.attacks.user_space import checked_binary
from mechanisms.core.errors import ParameterError

Array = NDArray[np.float64]


def mobility_features(binary: NDArray[Any], weekend: NDArray[Any]) -> dict[str, Array]:
    """Eleven statistics of every user's movements.

    Parameters
    ----------
    binary (n_users, n_cells, n_windows)
        Whether a user was in a cell during a window; an event is one True.
    weekend (n_windows,)
        Whether a window belongs to a weekend.

    Returns
    -------
    features
        Arrays (n_users,) by name: ``events``, ``unique_cells``, ``active_windows``; ``cells_per_window``, the mean
        over active windows; ``active_windows_weekday``, ``active_windows_weekend``, ``events_weekday``,
        ``events_weekend``, means over all windows of the kind; ``spatial_entropy``, ``temporal_entropy`` of the
        events over cells and over windows, in nats; ``unicity``. A mean over nothing is 0.

    Notes
    -----
    Pyrgelis, Troncoso, De Cristofaro, POMACS 2020, section 3.1 and tables 2 and 3.

    Examples
    --------
    >>> binary = np.array([[[1, 1, 0], [1, 0, 0]], [[1, 0, 0], [0, 0, 0]]], dtype=bool)
    >>> features = mobility_features(binary, np.array([False, False, True]))
    >>> features["events"], features["cells_per_window"], features["unicity"]
    (array([3., 1.]), array([1.5, 1. ]), array([0.66666667, 0.33333333]))
    """
    presence = checked_binary(binary)
    weekend = np.asarray(weekend)
    if weekend.shape != presence.shape[2:] or weekend.dtype != bool:
        raise ParameterError("weekend", weekend.shape, f"a boolean mask over the {presence.shape[2]} windows")
    by_cell = presence.sum(axis=2, dtype=float)
    by_window = presence.sum(axis=1, dtype=float)
    events, active = by_cell.sum(axis=1), by_window > 0
    return {
        "events": events,
        "unique_cells": (by_cell > 0).sum(axis=1).astype(float),
        "active_windows": active.sum(axis=1).astype(float),
        "cells_per_window": events / np.maximum(active.sum(axis=1), 1),
        "active_windows_weekday": _mean(active[:, ~weekend]),
        "active_windows_weekend": _mean(active[:, weekend]),
        "events_weekday": _mean(by_window[:, ~weekend]),
        "events_weekend": _mean(by_window[:, weekend]),
        "spatial_entropy": _entropy(by_cell),
        "temporal_entropy": _entropy(by_window),
        "unicity": unicity(presence),
    }


def unicity(binary: NDArray[Any]) -> Array:
    """Share of the windows in which a user is somewhere and nobody else is in exactly the same cells.

    The order of the cells within a window is not in the binary matrix, so sets are compared where the source
    compares sequences: this never exceeds its figure.

    Parameters
    ----------
    binary (n_users, n_cells, n_windows)
        Whether a user was in a cell during a window.

    Examples
    --------
    >>> unicity(np.array([[[1, 0]], [[1, 1]]], dtype=bool))
    array([0. , 0.5])
    """
    presence = checked_binary(binary)
    n_users, _, n_windows = presence.shape
    unique = np.zeros(n_users)
    for window in range(n_windows):
        cells = np.packbits(presence[:, :, window], axis=1)
        patterns = np.ascontiguousarray(cells).view(np.dtype((np.void, cells.shape[1]))).ravel()
        _, pattern, sharing = np.unique(patterns, return_inverse=True, return_counts=True)
        unique += (sharing[pattern] == 1) & cells.any(axis=1)
    share: Array = unique / n_windows
    return share


def _mean(values: NDArray[Any]) -> Array:
    mean: Array = values.sum(axis=1) / max(values.shape[1], 1)
    return mean


def _entropy(counts: Array) -> Array:
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    entropy: Array = -(shares * np.log(shares, out=np.zeros_like(shares), where=shares > 0)).sum(axis=1)
    return np.abs(entropy)  # no negative zero
