"""Linear algebra of aggregates in the space of users instead of the space of cells and windows.

An aggregate is A = G·U: group membership G (n_samples, n_users) times presence U (n_users, n_windows·n_cells). All
that principal components and logistic regression need of A are inner products, A·Aᵀ = G·(U·Uᵀ)·Gᵀ, so a factor
L·Lᵀ = U·Uᵀ turns every aggregate into G·L, of as many coordinates as there are users and with the same distances.
With counts standardised by D, the same holds for U·D⁻¹.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.evaluation.attacks.priors import Samples
from penstock.mechanisms.core.plugin import ParameterError

COLUMNS_AT_ONCE = 1 << 13
EXACT_IN_SINGLE = 1 << 24  # integers below have exact single-precision sums


def checked_binary(binary: NDArray[Any]) -> NDArray[np.bool_]:
    """Presence of users as a boolean array (n_users, n_windows, n_cells), or an error naming the flaw."""
    array = np.asarray(binary)
    if array.ndim != 3 or 0 in array.shape:
        raise ParameterError("binary", array.shape, "a non-empty array (n_users, n_windows, n_cells)")
    if array.dtype != bool:
        if not np.isin(array, (0, 1)).all():
            raise ParameterError("binary", array.dtype, "boolean, or zeros and ones")
        array = array.astype(bool)
    return array


def inverse_scale(deviations: NDArray[np.float64]) -> NDArray[np.float64]:
    """Inverse standard deviations; 0 for constant features."""
    return np.divide(1.0, deviations, out=np.zeros_like(deviations), where=deviations > 0)


@dataclass(frozen=True)
class Embedding:
    """Isometric coordinates of (standardised) aggregates of some users."""

    # (n_past_blocks, n_users, rank): what one user adds to the coordinates of an aggregate over a block
    factor: NDArray[np.float64]
    # (rank, n_past_blocks·n_users): weights of (block, user) that make up each unit coordinate: its
    # pseudo-inverse
    inverse: NDArray[np.float64]

    @classmethod
    def of(cls, gram: NDArray[np.float64], n_blocks: int) -> Embedding:
        """Factor a matrix of inner products between rows of (block, user); O(n_rows³)."""
        values, vectors = np.linalg.eigh(gram)
        kept = values > values[-1] * values.size * np.finfo(float).eps
        scale = np.sqrt(values[kept])
        factor = (vectors[:, kept] * scale).reshape(n_blocks, len(gram) // n_blocks, scale.size)
        return cls(factor, (vectors[:, kept] / scale).T)

    def coordinates(self, samples: Samples) -> NDArray[np.float64]:
        """Coordinates (n_samples, rank) of the aggregates over past blocks; O(n_samples·n_users·rank)."""
        points = np.empty((samples.labels.size, self.factor.shape[2]))
        for block in np.unique(samples.blocks):
            chosen = samples.blocks == block
            points[chosen] = samples.members[chosen].astype(float) @ self.factor[block]
        return points


class UserSpace:
    """Presence of users over blocks of windows, and the inner products between their rows.

    `binary` (n_users, n_windows, n_cells): whether a user was in a cell during a window; kept by reference, and once
    more in the order of aggregates: two bytes an entry. `blocks` (n_blocks, n_block_windows): window indices of each
    block. Adversaries train on the past ones, all but the last if there are several.

    >>> binary = np.array([[[1], [0]], [[1], [1]]], dtype=bool)
    >>> UserSpace(binary, np.array([[0, 1]])).gram(np.array([0, 1]), np.ones(2))
    array([[1., 1.],
           [1., 2.]])
    """

    def __init__(self, binary: NDArray[np.bool_], blocks: NDArray[np.intp]) -> None:
        self.binary, self.blocks = binary, blocks

    @property
    def shape(self) -> tuple[int, int]:
        """Windows and cells of one aggregate."""
        return self.blocks.shape[1], self.binary.shape[2]

    @property
    def n_past(self) -> int:
        """Blocks that adversaries train on."""
        return max(len(self.blocks) - 1, 1)

    def presence(self, users: NDArray[np.intp], block: int) -> NDArray[np.float32]:
        """Rows (n_users, n_windows·n_cells) of U for one block."""
        rows: NDArray[np.float32] = self._rows[block][users].astype(np.float32)
        return rows

    def gram(self, users: NDArray[np.intp], scale: NDArray[np.float64]) -> NDArray[np.float64]:
        """Inner products between the rows of (past block, user), of columns times `scale`.

        The result is (n_past_blocks·n_users)².
        """
        rows = np.concatenate([self.presence(users, block) for block in range(self.n_past)])
        products = np.zeros((len(rows), len(rows)))
        for start in range(0, rows.shape[1], COLUMNS_AT_ONCE):
            columns = slice(start, start + COLUMNS_AT_ONCE)
            part = rows[:, columns] * scale[columns]
            products += part @ part.T
        return products

    def embedding(self, users: NDArray[np.intp], scale: NDArray[np.float64]) -> Embedding:
        """Coordinates for aggregates of these users over past blocks, their counts times `scale`."""
        return Embedding.of(self.gram(users, scale), self.n_past)

    def deviations(self, samples: Samples) -> NDArray[np.float64]:
        """Standard deviation of every count over the training samples, exact before its square root.

        From how often two users share a group, O(n_past_blocks·n_users²·n_windows·n_cells): no aggregate is formed.
        """
        totals = np.zeros((2, self.shape[0] * self.shape[1]))
        trained = samples.blocks[: samples.n_train]
        for block in np.unique(trained):
            members = samples.members[: samples.n_train][trained == block].astype(float)
            exact = np.float32 if members.sum() < EXACT_IN_SINGLE else np.float64
            rows, together = self.presence(samples.users, int(block)), (members.T @ members).astype(exact)
            totals[0] += members.sum(axis=0) @ rows
            totals[1] += np.einsum("uf,uf->f", rows, together @ rows, dtype=float)
        variances = (samples.n_train * totals[1] - totals[0] ** 2) / samples.n_train**2
        deviations: NDArray[np.float64] = np.sqrt(variances)
        return deviations

    def counts(self, samples: Samples, chosen: NDArray[np.intp]) -> NDArray[np.int64]:
        """Aggregates (n_chosen, n_windows, n_cells) of the chosen samples, 8 bytes an entry."""
        counts = np.empty((chosen.size, *self.shape), dtype=np.int64)
        for block in np.unique(samples.blocks[chosen]):
            here = samples.blocks[chosen] == block
            members = samples.members[chosen[here]].astype(np.float32)
            counts[here] = (members @ self.presence(samples.users, block)).reshape(-1, *self.shape)
        return counts

    def lift(self, embedding: Embedding, users: NDArray[np.intp], directions: NDArray[np.float64]) -> NDArray[Any]:
        """Carry directions (k, rank) of the coordinates to counts: (k, n_windows·n_cells), not yet scaled."""
        weights = (directions @ embedding.inverse).reshape(len(directions), self.n_past, users.size)
        lifted = np.zeros((len(directions), self.shape[0] * self.shape[1]))
        for block in range(self.n_past):
            lifted += weights[:, block] @ self.presence(users, block)
        return lifted

    def products(self, samples: Samples, direction: NDArray[np.float64]) -> NDArray[np.float64]:
        """Inner products (n_samples,) of aggregates with a direction (n_windows·n_cells,) of counts."""
        products = np.empty(samples.labels.size)
        for block in np.unique(samples.blocks):
            here = samples.blocks == block
            products[here] = samples.members[here].astype(float) @ (
                self.presence(samples.users, int(block)) @ direction
            )
        return products

    @cached_property
    def _rows(self) -> list[NDArray[np.bool_]]:
        """For each block, what every user adds to an aggregate: (n_users, n_windows·n_cells)."""
        shape = len(self.binary), self.shape[0] * self.shape[1]
        return [self.binary[:, windows].reshape(shape) for windows in self.blocks]
