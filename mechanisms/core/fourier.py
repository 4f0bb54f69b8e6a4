"""Fourier transforms of a block of windows: sensitivity, noise calibration and private choice of coefficients."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.core import events
from penstock.mechanisms.core.contract import pure_scale

if TYPE_CHECKING:
    from penstock.mechanisms.core.draws import Noise


Matrix = NDArray[np.float64]


#: C, W and U: how many cells of a window, windows of a block and cells of a block one user counts in.
Bounds = tuple[int, int, int]


#: Up to this many coefficients all their signs are tried.
MAX_SIGNS = 12


#: Coefficients of integer noise are whole multiples of this: far below any noise, far above the rounding of doubles.
RESOLUTION = 2.0**-20


@dataclass(frozen=True)
class Calibration:
    """Scale and charge of the noise on the coefficients of one block."""

    budget: float  # ε in nats, or ρ with Gaussian noise
    n_coefficients: int  # k, as configured; a shorter block has fewer
    # ``laplace``, ``gaussian``, ``discrete_laplace`` or ``discrete_gaussian``; discrete noise is on a lattice of
    # 2⁻²⁰, and its scale counts steps of it
    noise: str
    paper: bool = False  # scale √k·Δ₂/ε on complex coefficients in place of the sound one
    unnormalised: bool = False  # with ``paper``: √n less noise, as if the transform were not orthonormal
    measured: float | None = None  # with ``paper``: Δ₂ as measured from the data; None: √(C·W)

    @property
    def gaussian(self) -> bool:
        """Whether the budget is zCDP's."""
        return self.noise.endswith("gaussian")

    @property
    def lattice(self) -> bool:
        """Whether noise is drawn in whole steps."""
        return self.noise.startswith("discrete")

    @property
    def unit(self) -> float:
        """Size of a step."""
        return RESOLUTION if self.lattice else 1.0

    def matrices(self, n_windows: int) -> tuple[Matrix, Matrix]:
        """Transform, in steps, and inverse of a block of ``n_windows``."""
        return matrices(*self._basis(n_windows))

    def coefficients(self, block: NDArray[Any]) -> Matrix:
        """The kept coefficients, in counts, of each cell over a block: (n_windows, n_cells) to (n_kept, n_cells)."""
        basis, _ = self.matrices(len(block))
        kept: Matrix = (basis * self.unit) @ block
        return kept

    def projection(self, block: NDArray[Any]) -> Matrix:
        """A block as its kept coefficients alone tell it."""
        basis, inverse = self.matrices(len(block))
        shown: Matrix = inverse @ (basis @ block) * self.unit
        return shown

    def scale(self, n_windows: int, bounds: Bounds, n_rows: int | None = None) -> float:
        """Scale of the noise, in steps, on each of the first ``n_rows`` coefficients (None: all)."""
        cells, windows, _ = bounds
        if self.gaussian:
            return float(self._l2(n_windows, bounds) / np.sqrt(2 * self.budget))
        if not self.paper:
            return float(pure_scale(self.budget, self._l1(n_windows, bounds, n_rows)))
        delta_2 = self.measured or np.sqrt(float(cells) * min(windows, n_windows))
        k = min(self.n_coefficients, n_windows // 2 + 1)
        return float(np.sqrt(k) * delta_2 / self.budget / (np.sqrt(n_windows) if self.unnormalised else 1.0))

    def scales(self, n_windows: int, bounds: Bounds, n_rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """`scale` for every number of coefficients in an array."""
        scales = [self.scale(n_windows, bounds, k) for k in n_rows.ravel().tolist()]
        return np.array(scales).reshape(n_rows.shape)

    def spread(self, n_windows: int, bounds: Bounds, n_rows: NDArray[np.int64], n_cells: int) -> NDArray[np.float64]:
        """Root mean square norm of the noise on the first ``n_rows`` coefficients of all cells, in steps."""
        variance = 1.0 if self.gaussian else 2.0
        norm: NDArray[np.float64] = np.sqrt(variance * n_rows * n_cells) * self.scales(n_windows, bounds, n_rows)
        return norm

    def charge(self, n_windows: int, bounds: Bounds) -> events.Event:
        """Privacy event of the noise on all coefficients, at its true price."""
        if self.measured is not None:
            return events.Exact()
        if self.gaussian:
            kind = events.DiscreteGaussian if self.lattice else events.Gaussian
            return kind(self._l2(n_windows, bounds), self.scale(n_windows, bounds))
        if self.lattice:
            # Priced as pure: shifts of a fine lattice are too many steps for the exact Rényi curve.
            return events.PureDP(self.budget)
        return events.Laplace(self._l1(n_windows, bounds), self.scale(n_windows, bounds))

    def _l1(self, n_windows: int, bounds: Bounds, n_rows: int | None = None) -> float:
        return l1_of(self._basis(n_windows), n_rows, bounds)

    def _l2(self, n_windows: int, bounds: Bounds) -> float:
        return l2_sensitivity(self.matrices(n_windows)[0], *bounds[:2])

    def _basis(self, n_windows: int) -> tuple[int, int, bool, float | None]:
        return n_windows, self.n_coefficients, self.paper, RESOLUTION if self.lattice else None


def candidates(n_coefficients: int) -> NDArray[np.int64]:
    """Numbers of coefficients to choose from: the odd ones, which keep sine and cosine together, and all."""
    return np.unique([*range(1, n_coefficients + 1, 2), n_coefficients])


def choose_number(
    numbers: NDArray[np.int64],
    *,
    power: NDArray[np.float64],
    energy: NDArray[np.float64],
    spread: NDArray[np.float64],
    sensitivity: float,
    epsilon: float,
    noise: Noise,
) -> NDArray[np.int64]:
    """Number of coefficients chosen by the exponential mechanism, shape (...) (McSherry, Talwar 2007, theorem 6)."""
    # The cost is the norm of what is cut off (`power`: sum of squares over cells of each coefficient, shape (..., k);
    # `energy`: sum of squares of all counts of the block, shape (...)) plus `spread`, the public norm of the noise for
    # each number, shape (m,). A projection moves by no more than what it projects, so one user moves the cost by at
    # most `sensitivity`, the largest L2 norm of one user's block. With an infinite `epsilon` all coefficients are kept,
    # which cuts off least. One uniform number is drawn for each candidate (Gumbel's form).
    leading: Any = energy.shape
    if np.isinf(epsilon):
        return np.full(leading, numbers[-1])
    kept = power.cumsum(axis=-1)[..., numbers - 1]
    cut_off = np.sqrt(np.maximum(energy[..., None] - kept, 0.0))
    score = -(cut_off + spread) * epsilon / (2 * sensitivity)
    with np.errstate(divide="ignore"):
        gumbel = -np.log(-np.log(noise.uniform(score.shape)))
    return np.asarray(numbers[np.argmax(score + gumbel, axis=-1)])


# Transforms of a block and their sensitivity to one user.


@lru_cache(maxsize=64)
def real_basis(n_windows: int, n_coefficients: int) -> Matrix:
    """First k rows (k, n) of the orthonormal real Fourier basis: constant, cosine 1, sine 1, cosine 2, sine 2, …."""
    # The transpose inverts the transform on what the rows span. An odd k keeps sine and cosine of each frequency
    # together.
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
    """Parts (p, n) of the first k complex coefficients, k at most n // 2 + 1, and the inverse (n, p)."""
    # Unitary transform (factor 1/√n); frequencies 0 and n / 2 have no imaginary part. The inverse adds the conjugate
    # half of the spectrum that public code forgets.
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
    """Transform and inverse of a block, with at most as many coefficients as it has windows."""
    # `paper`: complex coefficients in place of real ones. `resolution`: rows are rounded to whole multiples of it, so
    # that coefficients of counts are whole numbers.
    if paper:
        return complex_basis(n_windows, min(n_coefficients, n_windows // 2 + 1))
    basis = real_basis(n_windows, min(n_coefficients, n_windows))
    return (basis if resolution is None else _frozen(np.rint(basis / resolution))), basis.T


@lru_cache(maxsize=256)
def l1_of(basis: tuple[int, int, bool, float | None], n_rows: int | None, bounds: tuple[int, int, int]) -> float:
    """Cached `l1_sensitivity` of the first rows of `matrices`; ``bounds`` are C, W and U."""
    return l1_sensitivity(matrices(*basis)[0][:n_rows], *bounds)


def l1_sensitivity(basis: Matrix, max_cells: int, max_windows: int, max_block_cells: int) -> float:
    """L1 sensitivity of all coefficients ``basis @ counts`` of all cells together to one user."""
    # The user adds 1 in at most C cells of a window, in at most W windows and U cells of the block. The result is the
    # smallest of three sound bounds: by Cauchy-Schwarz √(Σ|FFᵀ|·U·C·W), which is √(k·U·C·W) for orthonormal rows;
    # window by window, C times the sum of the W largest ‖F e_t‖₁; and cell by cell, U times the largest ‖F b‖₁ of a 0/1
    # series b in W windows, found by trying all signs up to k = 12 and bounded from above beyond. O(k · n), or O(2^k ·
    # n) for small k; once a run.
    max_windows = min(max_windows, basis.shape[1])
    max_block_cells = min(max_block_cells, max_cells * max_windows)
    # The largest ‖Fᵀs‖ over signs s; equal to √k for orthonormal rows.
    norm = float(np.sqrt(np.abs(basis @ basis.T).sum()))
    overall = norm * np.sqrt(float(max_block_cells) * max_cells * max_windows)
    by_window = max_cells * _largest(np.abs(basis).sum(axis=0), max_windows).sum()
    by_cell = max_block_cells * _largest_series(basis, norm, max_windows)
    return float(min(overall, by_window, by_cell))


def l2_sensitivity(basis: Matrix, max_cells: int, max_windows: int) -> float:
    """L2 sensitivity of all coefficients together to one user: √(C·W) for orthonormal rows, however many."""
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
