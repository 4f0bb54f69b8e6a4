"""How much noise Fourier coefficients get, and what that costs: the sound calibration and the paper's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mechanisms.core import event as events
from mechanisms.core.fourier import Matrix, l1_of, l2_sensitivity, matrices
from mechanisms.core.perturb import pure_scale

#: Coefficients of integer noise are whole multiples of this: far below any noise, far above the rounding of doubles.
RESOLUTION = 2.0**-20
#: C, W and U: how many cells of a window, windows of a block and cells of a block one user counts in.
Bounds = tuple[int, int, int]


@dataclass(frozen=True)
class Calibration:
    """Scale and charge of the noise on the coefficients of one block.

    Parameters
    ----------
    budget
        What the noise may cost: ε in nats, or ρ with Gaussian noise.
    n_coefficients
        k, as configured; a shorter block has fewer.
    noise
        ``laplace``, ``gaussian``, ``discrete_laplace`` or ``discrete_gaussian``; discrete noise is on a lattice of
        2⁻²⁰, and its scale counts steps of it.
    paper
        Scale √k·Δ₂/ε on complex coefficients, whatever that is worth, in place of the sound one.
    unnormalised
        With ``paper``: √n less noise, as if the transform were not orthonormal.
    measured
        With ``paper``: Δ₂ as measured from the data; None: √(C·W).

    Examples
    --------
    >>> sound = Calibration(1.0, 24, "laplace")
    >>> round(sound.scale(168, (1, 168, 78)))
    281
    """

    budget: float
    n_coefficients: int
    noise: str
    paper: bool = False
    unnormalised: bool = False
    measured: float | None = None

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
        """What the noise on all coefficients is really worth."""
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
