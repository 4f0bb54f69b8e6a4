"""Real discrete Fourier transforms of a block of windows, and how far one user can move their coefficients."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]

#: Up to this many coefficients all their signs are tried.
MAX_SIGNS = 12


@lru_cache(maxsize=64)
def real_basis(n_windows: int, n_coefficients: int) -> Matrix:
    """First rows of the orthonormal real Fourier basis: constant, cosine 1, sine 1, cosine 2, sine 2, ….

    Parameters
    ----------
    n_windows
        Length n of the block.
    n_coefficients
        k, at most n. An odd one keeps the sine and cosine of each frequency together.

    Returns
    -------
    Shape (k, n), rows orthonormal: their transpose inverts the transform of what they span.

    Examples
    --------
    >>> basis = real_basis(5, 5)
    >>> bool(np.allclose(basis @ basis.T, np.eye(5)))
    True
    """
    time = 2 * np.pi * np.arange(n_windows) / n_windows
    rows = [np.full(n_windows, 1 / np.sqrt(n_windows))]
    for frequency in range(1, n_coefficients // 2 + 1):
        if 2 * frequency == n_windows:  # the alternating row has no sine
            rows.append((-1.0) ** np.arange(n_windows) / np.sqrt(n_windows))
        else:
            rows += [np.sqrt(2 / n_windows) * wave(frequency * time) for wave in (np.cos, np.sin)]
    return _frozen(np.array(rows[:n_coefficients]))


@lru_cache(maxsize=64)
def complex_basis(n_windows: int, n_coefficients: int) -> tuple[Matrix, Matrix]:
    """Real and imaginary parts of the first complex coefficients, and how to invert them.

    Parameters
    ----------
    n_windows
        Length n of the block.
    n_coefficients
        k complex coefficients, at most n // 2 + 1; those of frequency 0 and n / 2 have no imaginary part.

    Returns
    -------
    Rows of the parts under the unitary transform (factor 1/√n), shape (p, n), and the inverse, shape (n, p), which adds
    the conjugate half of the spectrum that public code forgets.
    """
    time = 2 * np.pi * np.arange(n_windows) / n_windows
    rows, weights = [], []
    for frequency in range(n_coefficients):
        alone = frequency == 0 or 2 * frequency == n_windows
        rows.append(np.cos(frequency * time) / np.sqrt(n_windows))
        weights.append(1.0 if alone else 2.0)
        if not alone:
            rows.append(-np.sin(frequency * time) / np.sqrt(n_windows))
            weights.append(2.0)
    basis = np.array(rows)
    return _frozen(basis), _frozen((basis * np.array(weights)[:, None]).T)


@lru_cache(maxsize=64)
def matrices(n_windows: int, n_coefficients: int, paper: bool, resolution: float | None) -> tuple[Matrix, Matrix]:
    """Transform and inverse of a block of any length, with as many coefficients as it has at most.

    Parameters
    ----------
    n_windows, n_coefficients
        Windows of the block; coefficients that are asked for.
    paper
        Complex coefficients, as in the paper, in place of real ones.
    resolution
        Rows in whole multiples of this, so that coefficients of counts are whole numbers; None: as they are.
    """
    if paper:
        return complex_basis(n_windows, min(n_coefficients, n_windows // 2 + 1))
    basis = real_basis(n_windows, min(n_coefficients, n_windows))
    return (basis if resolution is None else _frozen(np.rint(basis / resolution))), basis.T


@lru_cache(maxsize=256)
def l1_of(basis: tuple[int, int, bool, float | None], n_rows: int | None, bounds: tuple[int, int, int]) -> float:
    """`l1_sensitivity` of the first rows of `matrices`, remembered; ``bounds`` are C, W and U."""
    return l1_sensitivity(matrices(*basis)[0][:n_rows], *bounds)


def l1_sensitivity(basis: Matrix, max_cells: int, max_windows: int, max_block_cells: int) -> float:
    """How far one user can move all coefficients of all cells together, in L1.

    Parameters
    ----------
    basis
        Rows of the transform, shape (k, n): a cell's coefficients are ``basis @ counts``.
    max_cells, max_windows, max_block_cells
        C, W and U: a user adds 1 in at most C cells of a window, in at most W windows and U cells of the block.

    Returns
    -------
    The smallest of three bounds, none of which is below the truth: by Cauchy-Schwarz √(Σ|FFᵀ|·U·C·W), which is
    √(k·U·C·W) for orthonormal rows; window by window, C times the sum of the W largest ‖F e_t‖₁; and cell by cell, U
    times the largest ‖F b‖₁ of a 0/1 series b in W windows, found by trying all signs up to k = 12 and bounded from
    above beyond.

    Notes
    -----
    O(k · n), or O(2^k · n) for small k; once a run.

    Examples
    --------
    >>> round(l1_sensitivity(real_basis(168, 24), 1, 168, 78))
    281
    """
    max_windows = min(max_windows, basis.shape[1])
    max_block_cells = min(max_block_cells, max_cells * max_windows)
    # The largest ‖Fᵀs‖ over signs s; equal to √k for orthonormal rows.
    norm = float(np.sqrt(np.abs(basis @ basis.T).sum()))
    overall = norm * np.sqrt(float(max_block_cells) * max_cells * max_windows)
    by_window = max_cells * _largest(np.abs(basis).sum(axis=0), max_windows).sum()
    by_cell = max_block_cells * _largest_series(basis, norm, max_windows)
    return float(min(overall, by_window, by_cell))


def l2_sensitivity(basis: Matrix, max_cells: int, max_windows: int) -> float:
    """How far one user can move all coefficients together, in L2: √(C·W) for orthonormal rows, however many."""
    return float(np.linalg.norm(basis, 2) * np.sqrt(float(max_cells) * min(max_windows, basis.shape[1])))


def _largest_series(basis: Matrix, norm: float, max_windows: int) -> float:
    """At least the L1 norm of the coefficients of any 0/1 series with ``max_windows`` ones."""
    n_rows, n_windows = basis.shape
    if n_rows <= MAX_SIGNS:
        signs = 1.0 - 2.0 * ((np.arange(2**n_rows)[:, None] >> np.arange(n_rows)) & 1)
        return float(_largest(np.maximum(signs @ basis, 0.0), max_windows).sum(axis=1).max())
    # Σ(x)⁺ = (Σx + Σ|x|)/2 with x = sᵀF: the first is at most ‖F1‖₁, the second √n·‖x‖; or take W terms at once.
    both = (np.abs(basis.sum(axis=1)).sum() + np.sqrt(n_windows) * norm) / 2
    return float(min(both, np.sqrt(max_windows) * norm))


def _largest(values: Matrix, n: int) -> Matrix:
    """The n largest along the last axis."""
    return np.sort(values, axis=-1)[..., -n:]


def _frozen(matrix: Matrix) -> Matrix:
    matrix.setflags(write=False)
    return matrix
