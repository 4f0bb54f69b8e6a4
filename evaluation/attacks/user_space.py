"""People's presence: its check, targets among people, and aggregates over blocks as counts or user-space coordinates.

An aggregate is A = G·U: group membership G (n_samples, n_users) times presence U (n_users, n_windows·n_cells). All
that principal components and logistic regression need of A are inner products, A·Aᵀ = G·(U·Uᵀ)·Gᵀ, so a factor
L·Lᵀ = U·Uᵀ turns every aggregate into G·L, of as many coordinates as there are users and with the same distances.
With counts standardised by D, the same holds for U·D⁻¹.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from penstock.evaluation.attacks.priors import Samples
from penstock.mechanisms.core.plugin import ParameterError


def checked_binary(binary: NDArray[Any]) -> NDArray[np.bool_]:
    """Validate users' presence and return it as a boolean array, shape (n_users, n_windows, n_cells)."""
    array = np.asarray(binary)
    if array.ndim != 3 or 0 in array.shape:
        raise ParameterError("binary", array.shape, "a non-empty array (n_users, n_windows, n_cells)")
    if array.dtype != bool:
        if not np.isin(array, (0, 1)).all():
            raise ParameterError("binary", array.dtype, "boolean, or zeros and ones")
        array = array.astype(bool)
    return array


def inverse_scale(deviations: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the inverse standard deviation of each feature, or 0 for constant features."""
    return np.divide(1.0, deviations, out=np.zeros_like(deviations), where=deviations > 0)


class UserSpace:
    """Users' presence over blocks of windows, from which aggregates of groups of users are computed.

    `binary` (n_users, n_windows, n_cells): whether a user was in a cell during a window; kept by reference, and once
    more as the places where it is true. `blocks` (n_blocks, n_block_windows): window indices of each
    block.
    """

    def __init__(self, binary: NDArray[np.bool_], blocks: NDArray[np.intp]) -> None:
        self.binary, self.blocks = binary, blocks

    @property
    def shape(self) -> tuple[int, int]:
        """The number of windows and the number of cells in an aggregate."""
        return self.blocks.shape[1], self.binary.shape[2]

    def presence(self, users: NDArray[np.intp], block: int) -> NDArray[np.float32]:
        """Return the rows of U for one block, shape (n_users, n_windows·n_cells)."""
        return np.asarray(self._rows[block][users].toarray())

    def counts(self, samples: Samples, chosen: NDArray[np.intp]) -> NDArray[np.int64]:
        """Return the aggregates of the chosen samples, shape (n_chosen, n_windows, n_cells), 8 bytes per entry."""
        counts = np.empty((chosen.size, *self.shape), dtype=np.int64)
        for block in np.unique(samples.blocks[chosen]):
            in_block = samples.blocks[chosen] == block
            members = csr_array(samples.members[chosen[in_block]], dtype=np.float32)
            counts[in_block] = (members @ self._rows[block][samples.users]).toarray().reshape(-1, *self.shape)
        return counts

    def coordinates(self, samples: Samples) -> NDArray[np.float64]:
        """Return isometric coordinates of all aggregates, (n_samples, rank), scaled by the training set's deviations.

        No aggregate is formed. With n_rows the number of (block, user): O(n_rows²·(n_windows·n_cells + n_rows +
        n_samples)) time, and 8·n_rows·(n_windows·n_cells + n_samples) bytes.
        """
        n_blocks, n_users, n_train = len(self.blocks), samples.users.size, samples.n_train
        of_blocks = np.zeros((samples.labels.size, n_blocks, n_users))
        of_blocks[np.arange(len(of_blocks)), samples.blocks] = samples.members
        members = of_blocks.reshape(-1, n_blocks * n_users)
        rows = np.concatenate([self.presence(samples.users, block) for block in range(n_blocks)]).astype(float)
        trained = members[:n_train]
        totals, squares = trained.sum(axis=0) @ rows, np.einsum("uf,uf->f", rows, (trained.T @ trained) @ rows)
        rows *= inverse_scale(np.sqrt(n_train * squares - totals**2) / n_train)
        values, vectors = np.linalg.eigh(rows @ rows.T)
        kept = values > values[-1] * values.size * np.finfo(float).eps
        return np.asarray(members @ (vectors[:, kept] * np.sqrt(values[kept])))

    @cached_property
    def _rows(self) -> list[Any]:
        """Every user's contribution to an aggregate, as a sparse matrix (n_users, n_windows·n_cells) per block."""
        shape = len(self.binary), self.shape[0] * self.shape[1]
        return [csr_array(self.binary[:, windows].reshape(shape), dtype=np.float32) for windows in self.blocks]


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
    """Return the users with the most memberships. Ties go to users in emptier cells, then to lower indices.

    Noise hides each count that a user is in alike, so that whoever is in most of them stands out most.

    >>> most_exposed(np.array([[[1, 1, 0]], [[0, 1, 1]], [[0, 1, 0]]], dtype=bool), 2)
    array([0, 1])
    """
    presence = checked_binary(binary)
    weights = 1 / np.maximum(presence.sum(axis=0), 1)
    alone = [weights[person].sum() for person in presence]
    order: NDArray[np.intp] = np.lexsort((-np.array(alone), -presence.sum(axis=(1, 2))))
    return order[:n_targets]
