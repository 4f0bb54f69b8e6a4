"""Labelled groups of people whom the adversary knows, and how many of them are where."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accountants.core.training import Training
from mechanisms.core.errors import ParameterError

#: Share of the groups that the adversary learns from; she is challenged with the others.
TRAINING_SHARE = 0.8


@dataclass(frozen=True, eq=False)
class Groups:
    """Groups with and without one target.

    Parameters
    ----------
    subject
        Number of the target, from 0: a row must name nobody.
    trajectories
        Shape (n_known, n_windows): cell of every known person, -1 where not seen; the target is the first.
    members
        Shape (n_groups, n_known): who is in which group.
    n_train
        How many groups, from the first on, are learned from.

    Examples
    --------
    >>> groups = Groups(0, np.array([[1], [0], [-1]]), np.array([[True, True, False], [False, True, True]]), 1)
    >>> groups.counts(1, n_cells=2).tolist(), groups.labels.tolist()
    ([[1, 1], [1, 0]], [True, False])
    """

    subject: int
    trajectories: NDArray[np.integer[Any]]
    members: NDArray[np.bool_]
    n_train: int

    @property
    def labels(self) -> NDArray[np.bool_]:
        """Whether the target is in a group, shape (n_groups,)."""
        return self.members[:, 0]

    @property
    def n_windows(self) -> int:
        """Windows in which it is known who was where."""
        return int(self.trajectories.shape[1])

    def counts(self, window: int, n_cells: int) -> NDArray[np.int64]:
        """People of each group in each cell of a window (1-based), shape (n_groups, n_cells)."""
        cells = self.trajectories[:, window - 1]
        there = (cells[:, None] == np.arange(n_cells)).astype(np.float64)
        counts: NDArray[np.int64] = np.rint(self.members.astype(np.float64) @ there).astype(np.int64)
        return counts

    def features(self, values: NDArray[np.float64], window: int) -> NDArray[np.float64]:
        """What the adversary looks at in released values (n_groups, n_cells): shape (n_groups, n_cells + 1).

        Every cell, and again the one where the target is (0 where not seen), which is another one in every window but
        tells the same; each less its mean over the groups that are learned from, which goes with the time of day.
        """
        apart = values - values[: self.n_train].mean(axis=0)
        cell = int(self.trajectories[0, window - 1])
        own = apart[:, cell] if cell >= 0 else np.zeros(len(values))
        return np.column_stack([apart, own])


def draw_groups(
    training: Training, *, n_targets: int, n_known: int, group_size: int | None, n_samples: int, seed: int
) -> tuple[Groups, ...]:
    """Choose targets, whom the adversary of each one knows, and groups of them, half with the target.

    Parameters
    ----------
    training
        Where people were.
    n_targets, n_known
        How many targets, and people known to the adversary of each, the target among them; fewer where there are
        fewer. Only people who are seen become targets.
    group_size
        People in a group; None: half of the known.
    n_samples
        Groups of each target.
    seed
        Of all choices. Those of one target do not depend on the others.
    """
    seen = np.flatnonzero((training.trajectories >= 0).any(axis=1))
    n_known = min(n_known, training.n_users)
    size = n_known // 2 if group_size is None else group_size
    if not 1 <= size < n_known:
        raise ParameterError("group_size", size, f"1 to {n_known - 1}, as {n_known} people are known")
    n_train = 2 * round(TRAINING_SHARE * n_samples / 2)
    chosen = np.random.default_rng(seed).permutation(seen)[:n_targets]
    groups = []
    for subject, target in enumerate(chosen.tolist()):
        rng = np.random.default_rng([seed, target])
        others = rng.choice(np.delete(np.arange(training.n_users), target), n_known - 1, replace=False)
        keys = rng.random((n_samples, n_known))
        keys[:, 0] = np.where(np.arange(n_samples) % 2 == 0, -1.0, 2.0)
        members = np.zeros(keys.shape, bool)
        np.put_along_axis(members, np.argpartition(keys, size - 1, axis=1)[:, :size], True, axis=1)
        groups.append(Groups(subject, training.trajectories[np.append(target, others)], members, n_train))
    return tuple(groups)
