"""Where and when an attack finds its information: correlations of its components with cells and windows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluation.attacks.adversary import Adversary
from evaluation.attacks.game import MembershipGame
from evaluation.attacks.user_space import checked_binary, inverse_scale
from mechanisms.core.errors import ParameterError

Array = NDArray[np.float64]


def component_loadings(
    game: MembershipGame, target: int, n_top: int = 5, *, adversary: Adversary | None = None
) -> Array:
    """Correlation of each (cell, window) count with the components that matter most for one target.

    Parameters
    ----------
    game
        The game, attacked undefended by principal components.
    target
        Index of the user.
    n_top
        Components to add up: those with the largest absolute weights in the logistic regression.
    adversary
        What the game trained on this target before; None: train now.

    Returns
    -------
    loadings (n_cells, n_windows)
        Sum over the top components of the absolute correlation between a component's score and a count over the
        training samples, 0 where the count never varies. Windows are those of one block of the game. Add these up
        over targets and divide by the maximum for the published heat maps.

    Notes
    -----
    The components are found in user space and carried to cells and windows only for the `n_top` that matter.
    Pyrgelis, Troncoso, De Cristofaro, POMACS 2020, figures 2, 3 and 5.

    Examples
    --------
    >>> binary = np.random.default_rng(0).random((30, 5, 24)) < 0.2
    >>> game = MembershipGame(binary, group_size=10, observation=24, inference=24, n_samples=200)
    >>> component_loadings(game, 3).shape
    (5, 24)
    """
    if n_top < 1:
        raise ParameterError("n_top", n_top, "at least 1")
    trained = adversary or game.adversary(target)
    weights, variances = trained.distinguisher.weights, trained.distinguisher.components.variances
    top = np.argsort(-np.abs(weights), kind="stable")[:n_top]
    correlations = np.abs(trained.directions(np.eye(weights.size)[top])) * np.sqrt(variances[top, None])
    if not game.standardize:  # else the directions are of counts that have a deviation of 1
        correlations *= inverse_scale(game.space.deviations(trained.samples))
    loadings: Array = correlations.sum(axis=0).reshape(game.space.shape).T
    return loadings


def sort_by_popularity(loadings: Array, binary: NDArray[Any]) -> tuple[Array, NDArray[np.intp], NDArray[np.intp]]:
    """Reorder loadings from the least to the most popular cells and windows.

    Parameters
    ----------
    loadings (n_cells, n_windows)
        As `component_loadings` gives.
    binary (n_users, n_cells, n_windows)
        Whether a user was in a cell during a window, over the same windows; popularity is the number of events.

    Returns
    -------
    sorted, cells, windows
        The reordered loadings, and the original indices of its rows and columns.

    Examples
    --------
    >>> binary = np.array([[[1, 1], [0, 1]]], dtype=bool)
    >>> sort_by_popularity(np.array([[1.0, 2.0], [3.0, 4.0]]), binary)[0]
    array([[3., 4.],
           [1., 2.]])
    """
    presence = checked_binary(binary)
    if loadings.shape != presence.shape[1:]:
        raise ParameterError("loadings", loadings.shape, f"of the shape {presence.shape[1:]} of cells and windows")
    counts = presence.sum(axis=0)
    cells = np.argsort(counts.sum(axis=1), kind="stable")
    windows = np.argsort(counts.sum(axis=0), kind="stable")
    return loadings[np.ix_(cells, windows)], cells, windows
