"""The adversary's prior knowledge: the observation and inference periods, and labelled groups from both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.accountants.online_attack import n_training, random_groups
from penstock.mechanisms.core.plugin import ParameterError

Period = int | slice | range | tuple[int, int] | Sequence[int] | NDArray[Any]


def period_windows(period: Period, n_windows: int, field: str) -> NDArray[np.intp]:
    """Return the indices of a period's windows, starting at 0."""
    every = np.arange(n_windows)
    if isinstance(period, slice):
        windows = every[period]
    elif isinstance(period, int | np.integer):
        windows = np.arange(period)
    elif isinstance(period, tuple) and len(period) == 2:
        windows = np.arange(*period)
    else:
        given = np.asarray(period)
        is_mask = given.dtype == bool and given.shape == (n_windows,)
        windows = every[given] if is_mask else given
        if windows.ndim != 1 or not np.issubdtype(windows.dtype, np.integer):
            raise ParameterError(field, period, "a slice, range, (start, stop) pair, window indices or a mask")
    inside = windows.size > 0 and windows.min() >= 0 and windows.max() < n_windows
    if not inside or np.unique(windows).size != windows.size:
        raise ParameterError(field, period, f"one or more different windows of 0..{n_windows - 1}")
    return windows.astype(np.intp)


def game_blocks(observation: Period, inference: Period, n_windows: int, prior: str) -> NDArray[np.intp]:
    """Divide the observation period into blocks as long as the inference period, which is the last block.

    Aggregates of both must have the same number of windows, or no classifier trained on one applies to the other.
    Windows left over at the beginning are not used; with equal periods there is one block.
    """
    observed = period_windows(observation, n_windows, "observation")
    past = prior != "subset"
    if past and isinstance(inference, int | np.integer):
        inference = (int(observed.max()) + 1, int(observed.max()) + 1 + int(inference))
    challenged = period_windows(inference, n_windows, "inference")
    if past and np.intersect1d(observed, challenged).size:
        raise ParameterError("inference", inference, f"others from the observation period under the prior {prior}")
    n_blocks = observed.size // challenged.size
    if n_blocks == 0:
        raise ParameterError(
            "observation", observation, f"at least as long as the inference period ({challenged.size})"
        )
    blocks = observed[observed.size - n_blocks * challenged.size :].reshape(n_blocks, challenged.size)
    others = blocks[(blocks != challenged).any(axis=1)]
    return np.vstack([others, challenged[None]])


PRIORS = ("subset", "same_groups", "different_groups")
CHALLENGES = ("known", "others")

Known = float | int | NDArray[Any] | list[int] | None


@dataclass(frozen=True)
class Samples:
    """Labelled groups: members, blocks of windows, and the split into training samples and challenges."""

    users: NDArray[np.intp]  # (n_known,): sorted indices of the users that groups are drawn from
    members: NDArray[np.bool_]  # (n_samples, n_known): whether a user belongs to the group of a sample
    blocks: NDArray[np.intp]  # (n_samples,): index of the block of windows over which the group is counted
    labels: NDArray[np.bool_]  # (n_samples,): whether the target is in the group
    n_train: int  # number of first samples for training; the others are challenges

    @property
    def challenges(self) -> Samples:
        """The challenges only, for an adversary who has no training set."""
        rows = slice(self.n_train, None)
        return Samples(self.users, self.members[rows], self.blocks[rows], self.labels[rows], 0)


def known_users(known: Known, target: int, n_users: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """Return the users whose locations the adversary knows, including the target."""
    if known is None:
        return np.arange(n_users)
    if isinstance(known, float | int | np.integer | np.floating):
        share = isinstance(known, float | np.floating)
        if share and not 0 < known <= 1:  # NaN is neither
            raise ParameterError("known", known, "a fraction above 0 and at most 1")
        n_known = round(known * n_users) if share else int(known)
        if not 2 <= n_known <= n_users:
            raise ParameterError("known", known, f"a fraction or number of 2 to {n_users} users")
        others = rng.choice(np.delete(np.arange(n_users), target), n_known - 1, replace=False)
        return np.sort(np.append(others, target))
    given = np.asarray(known)
    if given.dtype != bool and not np.issubdtype(given.dtype, np.integer):
        raise ParameterError("known", known, "a fraction, a number, indices or a mask of users")
    users = np.unique(np.flatnonzero(given) if given.dtype == bool else given).astype(np.intp)
    if users.size == 0 or users[0] < 0 or users[-1] >= n_users or target not in users:
        raise ParameterError("known", known, f"users of 0..{n_users - 1} with the target {target} among them")
    return users


def subset_samples(
    users: NDArray[np.intp],
    target: int,
    *,
    group_size: int,
    n_samples: int,
    n_blocks: int,
    rng: np.random.Generator,
    others: NDArray[np.intp] | None = None,
) -> Samples:
    """Draw samples for prior 1 (a subset of locations): groups of known users, four fifths of them for training.

    With one block of windows (equal periods) all samples are counted over it; otherwise training samples take turns
    over the earlier blocks and challenges are counted over the last one. Challenges are groups of the known users too,
    or of the target and ``others``, whom the adversary does not know.
    """
    labels = np.arange(n_samples) % 2 == 0
    n_train = n_training(n_samples)
    if n_samples - n_train < 2 or n_train < 2:
        raise ParameterError("n_samples", n_samples, "enough for both labels in training and test (at least 8)")
    blocks = (np.arange(n_samples) // 2) % max(n_blocks - 1, 1)
    blocks[n_train:] = n_blocks - 1
    everybody, pools = users, [(slice(n_samples), users)]
    if others is not None:
        everybody = np.union1d(users, others)
        pools = [(slice(n_train), users), (slice(n_train, None), np.union1d(others, [target]))]
    members = np.zeros((n_samples, everybody.size), dtype=bool)
    for rows, pool in pools:
        drawn = random_groups(pool.size, int(np.searchsorted(pool, target)), group_size, labels[rows], rng)
        members[rows, np.searchsorted(everybody, pool)] = drawn
    return Samples(everybody, members, blocks, labels, n_train)


def past_samples(
    n_users: int, target: int, *, group_size: int, n_groups: int, n_blocks: int, same: bool, rng: np.random.Generator
) -> Samples:
    """Draw samples for prior 2 (participation in past groups): past blocks for training, the last for challenges.

    Every one of the `n_groups` known groups gives a training sample for each past block, and `n_groups` challenges
    are counted over the last block: the same groups (2a) or as many new ones (2b).
    """
    included = np.arange(n_groups) % 2 == 0
    known = random_groups(n_users, target, group_size, included, rng)
    challenges = known if same else random_groups(n_users, target, group_size, included, rng)
    members = np.concatenate([known] * (n_blocks - 1) + [challenges])
    blocks = np.repeat(np.arange(n_blocks), n_groups)
    return Samples(np.arange(n_users), members, blocks, np.tile(included, n_blocks), n_groups * (n_blocks - 1))
