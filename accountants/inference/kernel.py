"""Products with a transition matrix, dense or sparse, in blocks that stay in the processor's cache."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from penstock.accountants.markov import FloatArray

#: Entries of a product that stays in the processor's cache.
BLOCK_ENTRIES = 1 << 15


class Kernel:
    """Nonnegative matrix (n_from, n_to), dense or sparse, entry [x, x'] for the move x to x'; vectors are rows."""

    def __init__(self, matrix: Any) -> None:
        self.matrix = matrix
        self.is_sparse = sparse.issparse(matrix)
        self.n_from, self.n_to = matrix.shape
        # sparse by rows; dense transposed, so that the maximum over x' runs along whole rows of memory
        self._arranged: Any = matrix.tocsr() if self.is_sparse else np.ascontiguousarray(matrix.T)
        self._log: Any = None

    def forward(self, rows: FloatArray) -> FloatArray:
        """Sum over x of rows[x] matrix[x, x']; one matrix product."""
        return np.asarray(rows @ self.matrix)

    def expected(self, rows: FloatArray) -> FloatArray:
        """Sum over x' of matrix[x, x'] rows[x']; one matrix product."""
        return np.asarray((self.matrix @ rows.T).T if self.is_sparse else rows @ self._arranged)

    def best_next(self, rows: FloatArray) -> FloatArray:
        """Largest matrix[x, x'] rows[x'] over x', for nonnegative rows; O(n_rows nnz)."""
        result = np.zeros((len(rows), self.n_from))
        if self.n_to == 0:
            return result
        if self.is_sparse:
            csr, filled = self._arranged, np.flatnonzero(np.diff(self._arranged.indptr))
            for out, row in zip(result, rows):
                if filled.size:
                    out[filled] = np.maximum.reduceat(csr.data * row[csr.indices], csr.indptr[filled])
            return result
        for part in self._blocks(len(rows)):
            np.max(self._arranged * rows[part, :, None], axis=1, out=result[part])
        return result

    def best_previous_log(self, rows: FloatArray) -> FloatArray:
        """Largest rows[x] + ln matrix[x, x'] over x, for rows of logarithms; O(n_rows nnz)."""
        log = self._log_matrix()
        result = np.full((len(rows), self.n_to), -np.inf)
        if self.is_sparse:
            filled = np.flatnonzero(np.diff(log.indptr))
            for out, row in zip(result, rows):
                if filled.size:
                    out[filled] = np.maximum.reduceat(log.data + row[log.indices], log.indptr[filled])
            return result
        for part in self._blocks(len(rows)):
            np.max(log + rows[part, :, None], axis=1, out=result[part])
        return result

    def _blocks(self, n_rows: int) -> list[slice]:
        """Split rows into blocks whose products with a dense matrix fit the cache."""
        size = max(1, BLOCK_ENTRIES // max(1, self.n_from * self.n_to))
        return [slice(first, first + size) for first in range(0, n_rows, size)]

    def log_column(self, to: NDArray[np.intp]) -> FloatArray:
        """ln matrix[:, x'] for each x' in ``to``: (n_rows, n_from), minus infinity where a move is impossible."""
        log = self._log_matrix()
        if not self.is_sparse:
            return np.asarray(log[:, to].T)
        result = np.full((len(to), self.n_from), -np.inf)
        for out, column in zip(result, to):
            part = slice(log.indptr[column], log.indptr[column + 1])
            out[log.indices[part]] = log.data[part]
        return result

    def _log_matrix(self) -> Any:
        """Logarithms, made once: dense as stored, sparse by columns with impossible moves left out."""
        if self._log is None:
            with np.errstate(divide="ignore"):
                if self.is_sparse:
                    self._log = self.matrix.tocsc(copy=True)
                    self._log.sort_indices()
                    self._log.data = np.log(self._log.data)
                else:
                    self._log = np.log(self.matrix)
        return self._log
