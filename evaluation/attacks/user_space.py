"""Linear algebra of aggregates in the space of users instead of the space of cells and windows.

An aggregate is A = G·U: group membership G (n_samples, n_users) times presence U (n_users, n_windows·n_cells). All
that principal components and logistic regression need of A are inner products, A·Aᵀ = G·(U·Uᵀ)·Gᵀ, so a factor
L·Lᵀ = U·Uᵀ turns every aggregate into G·L, of as many coordinates as there are users and with the same distances.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluation.attacks.priors import Samples
from mechanisms.core.errors import ParameterError

COLUMNS_AT_ONCE = 1 << 15


def checked_binary(binary: NDArray[Any]) -> NDArray[np.bool_]:
    """Presence of users as a boolean array (n_users, n_cells, n_windows), or an error saying what is wrong."""
    array = np.asarray(binary)
    if array.ndim != 3 or 0 in array.shape:
        raise ParameterError("binary", array.shape, "a non-empty array (n_users, n_cells, n_windows)")
    if array.dtype != bool:
        if not np.isin(array, (0, 1)).all():
            raise ParameterError("binary", array.dtype, "boolean, or zeros and ones")
        array = array.astype(bool)
    return array


@dataclass(frozen=True)
class Embedding:
    """Isometric coordinates of aggregates of some users.

    Attributes
    ----------
    factor (n_blocks, n_known, rank)
        What one user adds to the coordinates of an aggregate over a block.
    inverse (rank, n_blocks·n_known)
        Weights of (block, user) that make up each unit coordinate: its pseudo-inverse.
    """

    factor: NDArray[np.float64]
    inverse: NDArray[np.float64]

    def coordinates(self, samples: Samples) -> NDArray[np.float64]:
        """Coordinates (n_samples, rank) of the aggregates; O(n_samples·n_known·rank)."""
        points = np.empty((samples.labels.size, self.factor.shape[2]))
        for block in np.unique(samples.blocks):
            chosen = samples.blocks == block
            points[chosen] = samples.members[chosen].astype(float) @ self.factor[block]
        return points


class UserSpace:
    """Presence of users over blocks of windows, and the inner products between their rows.

    Parameters
    ----------
    binary (n_users, n_cells, n_windows)
        Whether a user was in a cell during a window; kept by reference, one byte an entry.
    blocks (n_blocks, n_block_windows)
        Window indices of each block.
    shared
        Compute U·Uᵀ of all users once, for many targets: O((n_blocks·n_users)²·n_cells·n_block_windows) time and
        8·(n_blocks·n_users)² bytes. Otherwise only for the users asked for, each time.

    Examples
    --------
    >>> binary = np.array([[[1, 0]], [[1, 1]]], dtype=bool)
    >>> UserSpace(binary, np.array([[0, 1]])).gram(np.array([0, 1]))
    array([[1., 1.],
           [1., 2.]])
    """

    def __init__(self, binary: NDArray[np.bool_], blocks: NDArray[np.intp], *, shared: bool = True) -> None:
        self.binary, self.blocks, self.shared = binary, blocks, shared

    @property
    def shape(self) -> tuple[int, int]:
        """Windows and cells of one aggregate."""
        return self.blocks.shape[1], self.binary.shape[1]

    def presence(self, users: NDArray[np.intp], block: int) -> NDArray[np.float32]:
        """Rows (n_known, n_windows·n_cells) of U for one block."""
        rows = self.binary[users][:, :, self.blocks[block]].transpose(0, 2, 1)
        flat: NDArray[np.float32] = rows.reshape(users.size, -1).astype(np.float32)
        return flat

    def gram(self, users: NDArray[np.intp]) -> NDArray[np.float64]:
        """Inner products (n_blocks·n_known, n_blocks·n_known) between rows of (block, user)."""
        if not self.shared:
            return self._products(users)
        rows = (np.arange(len(self.blocks))[:, None] * len(self.binary) + users).ravel()
        products: NDArray[np.float64] = self._everybody[np.ix_(rows, rows)]
        return products

    def embedding(self, users: NDArray[np.intp]) -> Embedding:
        """Coordinates for aggregates of these users; O((n_blocks·n_known)³), kept if they are everybody."""
        return self._whole if self.shared and users.size == len(self.binary) else self._factor(users)

    def counts(self, samples: Samples, chosen: NDArray[np.intp]) -> NDArray[np.int64]:
        """Aggregates (n_chosen, n_windows, n_cells) of the chosen samples, 8 bytes an entry."""
        counts = np.empty((chosen.size, *self.shape), dtype=np.int64)
        for block in np.unique(samples.blocks[chosen]):
            here = samples.blocks[chosen] == block
            members = samples.members[chosen[here]].astype(np.float32)
            counts[here] = (members @ self.presence(samples.users, block)).reshape(-1, *self.shape)
        return counts

    def lift(self, embedding: Embedding, users: NDArray[np.intp], directions: NDArray[np.float64]) -> NDArray[Any]:
        """Directions (k, rank) of the coordinates as directions (k, n_windows·n_cells) of aggregates."""
        weights = (directions @ embedding.inverse).reshape(len(directions), len(self.blocks), users.size)
        lifted = np.zeros((len(directions), self.shape[0] * self.shape[1]))
        for block in range(len(self.blocks)):
            lifted += weights[:, block] @ self.presence(users, block)
        return lifted

    def _products(self, users: NDArray[np.intp]) -> NDArray[np.float64]:
        # Single precision is exact here: sums of fewer than 2**24 zeros and ones a slice.
        rows = np.concatenate([self.presence(users, block) for block in range(len(self.blocks))])
        products = np.zeros((len(rows), len(rows)))
        for start in range(0, rows.shape[1], COLUMNS_AT_ONCE):
            part = rows[:, start : start + COLUMNS_AT_ONCE]
            products += part @ part.T
        return products

    def _factor(self, users: NDArray[np.intp]) -> Embedding:
        values, vectors = np.linalg.eigh(self.gram(users))
        kept = values > values[-1] * values.size * np.finfo(float).eps
        scale = np.sqrt(values[kept])
        factor = (vectors[:, kept] * scale).reshape(len(self.blocks), users.size, scale.size)
        return Embedding(factor, (vectors[:, kept] / scale).T)

    @cached_property
    def _everybody(self) -> NDArray[np.float64]:
        return self._products(np.arange(len(self.binary)))

    @cached_property
    def _whole(self) -> Embedding:
        return self._factor(np.arange(len(self.binary)))
