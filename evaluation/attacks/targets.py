"""Choice of targets by mobility, the most and least exposed of them, and their activity."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.evaluation.attacks.user_space import checked_binary
from penstock.mechanisms.core.plugin import ParameterError

MOBILITY_GROUPS = ("barely", "somewhat", "highly")


def mobility_groups(binary: NDArray[Any]) -> NDArray[np.intp]:
    """Thirds of the users by number of events: 0 barely, 1 somewhat, 2 highly mobile (`MOBILITY_GROUPS`).

    Users without an event are in no group, −1. Ties go by index.

    >>> mobility_groups(np.array([[[1, 1, 1]], [[1, 0, 0]], [[0, 0, 0]], [[1, 1, 0]]], dtype=bool))
    array([ 2,  0, -1,  1])
    """
    events = checked_binary(binary).sum(axis=(1, 2))
    order = np.argsort(events, kind="stable")[np.count_nonzero(events == 0) :]
    groups = np.full(events.size, -1)
    groups[order] = np.arange(order.size) * len(MOBILITY_GROUPS) // max(order.size, 1)
    return groups


def sample_targets(binary: NDArray[Any], n_per_group: int, seed: int) -> NDArray[np.intp]:
    """Equally many random targets of each mobility group.

    `binary` (n_users, n_windows, n_cells): whether a user was in a cell during a window.

    Returns targets (3·n_per_group,): user indices: barely, somewhat, then highly mobile ones.

    >>> binary = np.tril(np.ones((6, 6), dtype=bool))[:, None, :]
    >>> sample_targets(binary, 2, seed=0)
    array([0, 1, 2, 3, 4, 5])
    """
    smallest = np.count_nonzero(mobility_groups(binary) >= 0) // len(MOBILITY_GROUPS)
    if not 1 <= n_per_group <= smallest:
        raise ParameterError("n_per_group", n_per_group, f"1 to {smallest}, the users of the smallest group")
    return draw_targets(binary, n_per_group * len(MOBILITY_GROUPS), seed)


def draw_targets(binary: NDArray[Any], n_targets: int, seed: int) -> NDArray[np.intp]:
    """Random targets, a third of each mobility group; what three do not divide goes to the less mobile ones.

    `binary` (n_users, n_windows, n_cells): whether a user was in a cell during a window.

    Returns targets (n_targets,): user indices: barely, somewhat, then highly mobile ones.

    >>> binary = np.tril(np.ones((6, 6), dtype=bool))[:, None, :]
    >>> draw_targets(binary, 5, seed=0)
    array([0, 1, 2, 3, 4])
    """
    rng, groups = np.random.default_rng(seed), mobility_groups(binary)
    n_users = np.count_nonzero(groups >= 0)
    if not 1 <= n_targets <= n_users:
        raise ParameterError("n_targets", n_targets, f"1 to {n_users}, the users who are seen")
    share, rest = divmod(n_targets, len(MOBILITY_GROUPS))
    sizes = [share + (group < rest) for group in range(len(MOBILITY_GROUPS))]
    chosen = [rng.choice(np.flatnonzero(groups == group), size, replace=False) for group, size in enumerate(sizes)]
    return np.concatenate([np.sort(own) for own in chosen])


def extreme_targets(auc: NDArray[Any], share: float = 0.1) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Positions of the most and of the least exposed targets, each the given share (at least one).

    `auc` (n_targets,): how well each was attacked; ties go by position.

    >>> extreme_targets(np.array([0.5, 0.9, 0.7, 0.6]), 0.25)
    (array([1]), array([0]))
    """
    if not 0 < share <= 0.5:
        raise ParameterError("share", share, "above 0 and at most 0.5")
    order = np.argsort(-np.asarray(auc, dtype=float), kind="stable")
    n = max(1, round(share * order.size))
    return order[:n], order[order.size - n :]


def activity_profile(binary: NDArray[Any], users: NDArray[Any], *, axes: str | None = None) -> NDArray[np.float64]:
    """Events of some users over the windows, as a share of the busiest window (all 0 without events).

    `binary` (n_users, n_windows, n_cells): whether a user was in a cell during a window. `users` (n,): indices of the
    users.

    >>> activity_profile(np.array([[[1, 1], [0, 1]]], dtype=bool), np.array([0]), axes="windows_cells")
    array([1. , 0.5])
    """
    events = checked_binary(binary, "activity_profile", axes)[np.asarray(users)].sum(axis=(0, 2), dtype=float)
    profile: NDArray[np.float64] = events / max(events.max(), 1)
    return profile
