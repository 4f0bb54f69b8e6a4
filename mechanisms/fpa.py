"""Fourier perturbation: noise on a block's low-frequency coefficients."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.core import events
from penstock.mechanisms.core.blocks import BlockMechanism
from penstock.mechanisms.core.contract import Facts, Interpretation, Measured
from penstock.mechanisms.core.guarantee import Guarantee
from penstock.mechanisms.core.noise import Noise
from penstock.mechanisms.core.noise_family import NoiseFamily, families
from penstock.mechanisms.core.plugin import ParameterError, parameter
from penstock.mechanisms.core.portable import in_order
from penstock.mechanisms.core.schedules import Budgeted
from penstock.mechanisms.core.sensitivity import Sensitivity, of_transform
from penstock.mechanisms.core.state import State
from penstock.mechanisms.core.unit import Unit

Matrix = NDArray[np.float64]
#: C, W and U: how many cells of a window, windows of a block and cells of a block one user counts in.
Bounds = tuple[int, int, int]

#: Coefficients of integer noise are whole multiples of this: far below any noise, far above the rounding of doubles.
RESOLUTION = 2.0**-20


@dataclass(frozen=True, kw_only=True)
class FourierMechanism(BlockMechanism, Interpretation):
    """Base class for mechanisms that add noise to each cell's low-frequency coefficients over a block.

    Discrete noise is on a lattice of `RESOLUTION`: transforms, coefficients and scales count steps of it.
    """

    kept: ClassVar[tuple[str, ...]] = ("n_windows", "bounds")

    @property
    @abstractmethod
    def family(self) -> NoiseFamily:
        """The noise family for the coefficients."""

    @property
    @abstractmethod
    def budget(self) -> float:
        """The budget per block: ε or ρ."""

    @abstractmethod
    def matrices(self, n_windows: int) -> tuple[Matrix, Matrix]:
        """Return the transform of a block in units of `step_size`, and its inverse."""

    @property
    def step_size(self) -> float:
        """The coefficients' lattice step, or 1 for real-valued noise."""
        return RESOLUTION if self.family.is_integer else 1.0

    def scale(self, n_windows: int, bounds: Bounds) -> float:
        """Return each coefficient's noise scale, in units of `step_size`."""
        # Unlike `NoiseFamily.scale`, without the square root of a quotient.
        return float(self.family.norm(sensitivity_of(self, n_windows, bounds)) / self.family.pure(self.budget))

    def empty(self, facts: Facts) -> State:
        """Return zero coefficients and the contribution bounds C, W and U."""
        windows = min(facts.max_windows or self.block, self.block)
        cells = min(facts.max_block_cells or facts.n_cells, facts.n_cells)
        bounds = np.broadcast_to(np.array([facts.sensitivity, windows, cells]), (*facts.shape, 3)).copy()
        n_rows = len(self.matrices(self.block)[0])
        kind = np.int64 if self.family.is_integer else np.float64
        return {"bounds": bounds, "coefficients": np.zeros((*facts.shape, n_rows, facts.n_cells), kind)}

    def gather(self, row: int, n_windows: int, counts: NDArray[Any], state: State) -> State:
        """Add the contribution of one window to every coefficient."""
        basis = self.matrices(n_windows)[0]
        if self.family.is_integer:
            basis = basis.astype(np.int64)
        part = basis[:, row, None] * counts[..., None, :]
        if len(basis) < state["coefficients"].shape[-2]:  # a short block has fewer
            part = np.concatenate([part, np.zeros_like(state["coefficients"][..., len(basis) :, :])], axis=-2)
        return {"coefficients": np.add(part, state["coefficients"], out=part)}

    def publish(self, n_windows: int, state: State, noise: Noise) -> tuple[NDArray[np.float64], dict[str, Any]]:
        """Add noise to the coefficients and apply the inverse transform."""
        basis, inverse = self.matrices(n_windows)
        exact, scale = state["coefficients"][..., : len(basis), :], self.scale(n_windows, _bounds(state))
        noisy = np.asarray(exact + self.family.draw(noise, scale, exact.shape), np.float64)
        values = in_order(inverse, noisy) * self.step_size
        return values, {"noise": self.family.of_sums, "scale": scale * self.step_size}

    def block_charge(self, n_windows: int, state: State) -> tuple[events.Event, ...]:
        """Return the charge for a block, which depends only on its length."""
        if self.family.is_integer and not self.family.is_concentrated:
            # Shifts of so many steps of the lattice are too many for the exact Rényi curve of discrete Laplace noise.
            return (self.family.spent(float(self.budget)),)
        bounds = _bounds(state)
        return (self.family.event(sensitivity_of(self, n_windows, bounds), self.scale(n_windows, bounds)),)

    def without_noise(self, counts: NDArray[Any]) -> NDArray[Any]:
        """Return the low-pass projection of the counts, block by block."""
        shown = []
        for block in self.blocks(counts):
            basis, inverse = self.matrices(block.shape[-2])
            shown.append(inverse @ (basis @ block) * self.step_size)
        return np.concatenate(shown, axis=-2)

    def noise_in(self, published: NDArray[np.float64], counts: NDArray[Any]) -> NDArray[np.float64]:
        """Return the noise of the coefficients, repeated if a block has fewer coefficients than windows."""
        parts = []
        for block in self.blocks(published - self.without_noise(counts)):
            noise = (self.matrices(len(block))[0] * self.step_size) @ block
            parts.append(noise[np.arange(len(block)) % len(noise)])
        return np.concatenate(parts)


def _bounds(state: State) -> Bounds:
    cells, windows, block_cells = state["bounds"].reshape(-1, 3)[0].tolist()
    return cells, windows, block_cells


# Transforms of a block and their sensitivity to one user.


@lru_cache(maxsize=64)
def real_basis(n_windows: int, n_coefficients: int) -> Matrix:
    """Return the first k rows, shape (k, n), of the orthonormal real Fourier basis (constant, cosine 1, sine 1, …)."""
    # The transpose inverts the transform on what the rows span. An odd k keeps sine and cosine of each frequency
    # together.
    time = 2 * np.pi * np.arange(n_windows) / n_windows
    rows = [np.full(n_windows, 1 / np.sqrt(n_windows))]
    for frequency in range(1, n_coefficients // 2 + 1):
        if 2 * frequency == n_windows:  # the alternating row has no sine
            rows.append((-1.0) ** np.arange(n_windows) / np.sqrt(n_windows))
        else:
            rows += [np.sqrt(2 / n_windows) * wave(frequency * time) for wave in (np.cos, np.sin)]
    return frozen(np.array(rows[:n_coefficients]))


@lru_cache(maxsize=64)
def real_matrices(n_windows: int, n_coefficients: int, resolution: float | None) -> tuple[Matrix, Matrix]:
    """Return a block's transform and its inverse, with no more coefficients than windows."""
    # `resolution`: rows are rounded to whole multiples of it, so that coefficients of counts are whole numbers.
    basis = real_basis(n_windows, min(n_coefficients, n_windows))
    return (basis if resolution is None else frozen(np.rint(basis / resolution))), basis.T


@lru_cache(maxsize=256)
def sensitivity_of(mechanism: FourierMechanism, n_windows: int, bounds: Bounds) -> Sensitivity:
    """Return the joint sensitivity of a block's coefficients to one user, in units of `step_size`."""
    return of_transform(mechanism.matrices(n_windows)[0], *bounds)


def frozen(matrix: Matrix) -> Matrix:
    """Make a matrix read-only and return it."""
    matrix.setflags(write=False)
    return matrix


@dataclass(frozen=True, kw_only=True)
class Fpa(Budgeted, FourierMechanism):
    """Keep each cell's first Fourier coefficients over a block, add noise to them and transform back.

    Parameters
    ----------
    epsilon
        Budget of one block, in nats; with Gaussian noise that of (ε, ``delta``).
    rho, delta
        With Gaussian noise: the zCDP budget of one block, in place of ``epsilon``, or the δ that belongs to it.
    coefficients
        k: real coefficients that are kept, of the constant, cosine 1, sine 1, cosine 2, ….
    block
        n: windows of a block; the last one of a run may be shorter.
    noise
        ``laplace`` or ``gaussian``; ``discrete_laplace`` and ``discrete_gaussian`` do the same on a lattice of 2⁻²⁰
        in integers, whose noise carries no floating-point trace.

    **Privacy.** ε-differential privacy, or ρ-zCDP, of each block: unit all of one user's events in a block, neighbours
    add or remove it, with C, W and U as contribution bounding enforces them. Laplace scale L1/ε with L1 the smallest
    of three bounds (`core.sensitivity.of_transform`), σ = √(C·W/(2ρ)). Rastogi and Nath 2010, theorem 4.1, with the
    sensitivity of a real transform; Bun and Steinke 2016, proposition 1.6. A user seen in several blocks adds up their
    budgets.

    Notes
    -----
    Delay: n windows; every release says when its block was complete. Time O(k · n_cells) a window, state the same.
    ``noise`` and ``scale`` of a release are those of the coefficients, in counts. Without noise the release is the
    projection onto the low frequencies: both halves of the spectrum are there.

    Examples
    --------
    >>> import numpy as np
    >>> from penstock.mechanisms.core.run import run_mechanism
    >>> counts = np.array([[4], [0], [4], [0], [9]])
    >>> [r.values.round(9).item() for r in run_mechanism(Fpa(epsilon=np.inf, coefficients=1, block=4), counts)]
    [2.0, 2.0, 2.0, 2.0, 9.0]
    """

    epsilon: float | None = parameter(None, doc="budget of one block", above=0, unit="nats")
    coefficients: int = parameter(doc="coefficients that are kept", at_least=1)
    noise: str = parameter("laplace", doc="noise family", choices=families("counts"))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.coefficients > self.block:
            raise ParameterError("coefficients", self.coefficients, f"at most block ({self.block})")

    @classmethod
    def examples(cls) -> tuple[Fpa, ...]:
        """Return one instance per noise family, with few coefficients and with all of them."""
        return (
            *(cls(epsilon=1.0, coefficients=3, block=5, noise=family) for family in ("laplace", "discrete_laplace")),
            *(cls(rho=0.5, coefficients=5, block=5, noise=family) for family in ("gaussian", "discrete_gaussian")),
        )

    @property
    def guarantee(self) -> Guarantee:
        """Each block's guarantee, in ε or ρ."""
        return Guarantee(
            unit=Unit.block(self.block),
            measure=self.family.measure,
            amount=self.budget,
            delta=self.delta,
            theorem="Rastogi and Nath 2010, theorem 4.1, with the bounded sensitivity of a real transform",
        )

    def matrices(self, n_windows: int) -> tuple[Matrix, Matrix]:
        """Return a block's transform and its inverse, with no more coefficients than windows."""
        return real_matrices(n_windows, self.coefficients, RESOLUTION if self.family.is_integer else None)

    def measured(self, facts: Facts) -> Measured:
        """Return the coefficients as linear functions of the counts, placed in each block's first windows."""
        n_windows = facts.n_windows or 0
        mixed = np.zeros((n_windows, n_windows))
        for first in range(0, n_windows, self.block):
            length = min(self.block, n_windows - first)
            basis = real_basis(length, min(self.coefficients, length))
            mixed[first : first + len(basis), first : first + length] = basis
        return Measured(mixed)
