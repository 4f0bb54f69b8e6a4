"""Selection of targets, either by mobility or by exposure."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.evaluation.attacks.user_space import checked_binary
from penstock.mechanisms.core.plugin import ParameterError

MOBILITY_GROUPS = ("barely", "somewhat", "highly")


def mobility_groups(binary: NDArray[Any]) -> NDArray[np.intp]:
    """Divide users into thirds by their number of events: 0 barely, 1 somewhat, 2 highly mobile (`MOBILITY_GROUPS`).

    Users without an event are in no group, −1. Ties go by index.
    """
    events = checked_binary(binary).sum(axis=(1, 2))
    order = np.argsort(events, kind="stable")[np.count_nonzero(events == 0) :]
    groups = np.full(events.size, -1)
    groups[order] = np.arange(order.size) * len(MOBILITY_GROUPS) // max(order.size, 1)
    return groups


def draw_targets(binary: NDArray[Any], n_targets: int, seed: int) -> NDArray[np.intp]:
    """Draw random targets, a third from each mobility group. Any remainder comes from the less mobile groups."""
    rng, groups = np.random.default_rng(seed), mobility_groups(binary)
    n_users = np.count_nonzero(groups >= 0)
    if not 1 <= n_targets <= n_users:
        raise ParameterError("n_targets", n_targets, f"1 to {n_users}, the users who are seen")
    share, rest = divmod(n_targets, len(MOBILITY_GROUPS))
    sizes = [share + (group < rest) for group in range(len(MOBILITY_GROUPS))]
    chosen = [rng.choice(np.flatnonzero(groups == group), size, replace=False) for group, size in enumerate(sizes)]
    return np.concatenate([np.sort(of_group) for of_group in chosen])


def most_exposed(binary: NDArray[Any], n_targets: int) -> NDArray[np.intp]:
    """Return the users with the most memberships. Ties are broken by emptier cells, and then by lower index.

    Noise hides each count that a user is in alike, so that whoever is in most of them stands out most.

    >>> most_exposed(np.array([[[1, 1, 0]], [[0, 1, 1]], [[0, 1, 0]]], dtype=bool), 2)
    array([0, 1])
    """
    presence = checked_binary(binary)
    weights = 1 / np.maximum(presence.sum(axis=0), 1)
    alone = [weights[person].sum() for person in presence]
    order: NDArray[np.intp] = np.lexsort((-np.array(alone), -presence.sum(axis=(1, 2))))
    return order[:n_targets]
