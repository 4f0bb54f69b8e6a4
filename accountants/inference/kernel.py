"""Multiply by a dense or sparse transition matrix in cache-sized blocks."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from penstock.accountants.markov import FloatArray, IntArray

#: Entries of a product that stays in the processor's cache.
BLOCK_ENTRIES = 1 << 15
#: Success, relative to the largest, below which the genie's values are rounded up.
FLOOR = 1e-280
#: Probability of a move to a place from which it is looked at before the others.
RARE = 0.01


class Kernel:
    """A nonnegative matrix (n_from, n_to), dense or sparse, whose entry [x, x'] is for the move from x to x'."""

    def __init__(self, matrix: Any) -> None:
        self.matrix = matrix
        self.is_sparse = sparse.issparse(matrix)
        self.n_from, self.n_to = matrix.shape
        # sparse by rows; dense transposed, so that the maximum over x' runs along whole rows of memory
        self._arranged: Any = matrix.tocsr() if self.is_sparse else np.ascontiguousarray(matrix.T)

    def forward(self, rows: FloatArray) -> FloatArray:
        """Return the sum over x of rows[x] matrix[x, x'] in one matrix product."""
        return np.asarray(rows @ self.matrix)

    def expected(self, rows: FloatArray) -> FloatArray:
        """Return the sum over x' of matrix[x, x'] rows[x'] for rows (..., n_to) in one matrix product."""
        flat = self._flat(rows)
        result = (self.matrix @ flat.T).T if self.is_sparse else flat @ self._arranged
        return np.asarray(result).reshape(*rows.shape[:-1], self.n_from)

    def best_next(self, rows: FloatArray) -> FloatArray:
        """Return the maximum over x' of matrix[x, x'] rows[x'] for rows (..., n_to) ≥ 0. O(nnz) per nonzero row.

        Of a dense matrix, places rarely moved to are left out where the most they could give is under what all have.
        """
        flat = self._flat(rows)
        result = np.zeros((len(flat), self.n_from))
        useful = np.flatnonzero(flat.any(axis=1))
        if self.is_sparse:
            csr, filled = self._arranged, np.flatnonzero(np.diff(self._arranged.indptr))
            for number in useful if filled.size else ():
                values = csr.data * flat[number, csr.indices]
                result[number, filled] = np.maximum.reduceat(values, csr.indptr[filled])
        else:
            likely, rare, largest = self._likely
            for part in self._blocks(len(useful), likely.size):
                result[useful[part]] = np.max(self._arranged[likely] * flat[useful[part]][:, likely, None], axis=1)
            others = (flat[np.ix_(useful, rare)] * largest).max(axis=1, initial=0.0)
            useful = useful[others > result[useful].min(axis=1)]
            for part in self._blocks(len(useful), self.n_to):
                result[useful[part]] = np.max(self._arranged * flat[useful[part], :, None], axis=1)
        return result.reshape(*rows.shape[:-1], self.n_from)

    @cached_property
    def _likely(self) -> tuple[IntArray, IntArray, FloatArray]:
        """The likely and the unlikely destinations, and the largest probability of a move to each unlikely one."""
        largest = self._arranged.max(axis=1)
        is_likely = largest > RARE
        if not 0 < is_likely.sum() <= self.n_to / 4:
            is_likely[:] = True
        return np.flatnonzero(is_likely), np.flatnonzero(~is_likely), largest[~is_likely]

    def _flat(self, rows: FloatArray) -> FloatArray:
        return rows.reshape(math.prod(rows.shape[:-1]), self.n_to)

    def best_previous_log(self, rows: FloatArray) -> FloatArray:
        """Return the maximum over x of rows[x] + ln matrix[x, x'] for rows of logarithms. O(n_rows nnz)."""
        log = self._log
        result = np.full((len(rows), self.n_to), -np.inf)
        if self.is_sparse:
            filled = np.flatnonzero(np.diff(log.indptr))
            for out, row in zip(result, rows):
                if filled.size:
                    out[filled] = np.maximum.reduceat(log.data + row[log.indices], log.indptr[filled])
            return result
        for part in self._blocks(len(rows), self.n_to):
            np.max(log + rows[part, :, None], axis=1, out=result[part])
        return result

    def _blocks(self, n_rows: int, n_to: int) -> list[slice]:
        """Split rows into blocks whose products with ``n_to`` dense columns fit in the cache."""
        size = max(1, BLOCK_ENTRIES // max(1, self.n_from * n_to))
        return [slice(first, first + size) for first in range(0, n_rows, size)]

    def log_column(self, to: NDArray[np.intp]) -> FloatArray:
        """Return ln matrix[:, x'] for each x' in ``to``, shape (n_rows, n_from). Impossible moves are −infinity."""
        log = self._log
        if not self.is_sparse:
            return np.asarray(log[:, to].T)
        result = np.full((len(to), self.n_from), -np.inf)
        for out, column in zip(result, to):
            part = slice(log.indptr[column], log.indptr[column + 1])
            out[log.indices[part]] = log.data[part]
        return result

    @cached_property
    def _log(self) -> Any:
        """The logarithms of the matrix. A sparse matrix is stored by column, without impossible moves."""
        with np.errstate(divide="ignore"):
            if not self.is_sparse:
                return np.log(self.matrix)
            log = self.matrix.tocsc(copy=True)
            log.sort_indices()
            log.data = np.log(log.data)
            return log


class Moves(Protocol):
    """Interface for one or many targets' transitions in the genie's recursion, on values of shape (..., n_places)."""

    def expected(self, rows: FloatArray) -> FloatArray:
        """Return the sum over x' of P[x, x'] rows[x']."""

    def best_next(self, rows: FloatArray) -> FloatArray:
        """Return the maximum over x' of P[x, x'] rows[x']."""


def genie_step(moves: Moves, values: FloatArray, has_total: bool = False) -> FloatArray:
    """Apply one backward step of the genie's recursion (see `success_prior`).

    `values`: (..., levels, n_to), success with 0, 1, … wrong guesses left; with ``has_total`` the last level is the
    mass of all.
    """
    after_error = one_wrong(values, has_total)
    return moves.expected(after_error) + moves.best_next(np.maximum(values - after_error, 0.0))


class GenieSuccess(NamedTuple):
    """The genie's success from each place, (..., levels, n_places), divided by exp of its log scale."""

    values: FloatArray
    log_scale: FloatArray


def genie_back(moves: Moves, values: FloatArray, n_windows: int) -> GenieSuccess:
    """Apply `genie_step` repeatedly, rounding up below `FLOOR`. The values have a maximum of 1."""
    log_scale: FloatArray = np.zeros(values.shape[:-2])
    for _ in range(n_windows):
        values = genie_step(moves, values)
        top = values.max(axis=(-2, -1))
        log_scale = log_scale + np.log(top)
        values = np.maximum(values / top[..., None, None], FLOOR)
    return GenieSuccess(values, log_scale)


def one_wrong(values: FloatArray, has_total: bool) -> FloatArray:
    """Return the values after a wrong guess, with one fewer tolerated error."""
    last = values.shape[-2] - has_total
    parts = [np.zeros_like(values[..., :1, :]), values[..., : last - 1, :], values[..., last:, :]]
    return np.concatenate(parts, axis=-2)
