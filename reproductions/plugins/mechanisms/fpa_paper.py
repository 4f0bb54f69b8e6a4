"""Fourier perturbation as calibrated in papers: less noise than its epsilon requires, charged at its true cost."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.core import events
from penstock.mechanisms.core.guarantee import Guarantee
from penstock.mechanisms.core.noise import Noise
from penstock.mechanisms.core.noise_family import NOISE_FAMILIES, NoiseFamily
from penstock.mechanisms.core.plugin import ParameterError, parameter
from penstock.mechanisms.core.state import State
from penstock.mechanisms.core.unit import Unit
from penstock.mechanisms.fpa import Bounds, FourierMechanism, Matrix, frozen


@dataclass(frozen=True, kw_only=True)
class FpaPaper(FourierMechanism):
    """Keep the first complex Fourier coefficients of each cell's block, and add noise of scale √k·Δ₂/ε to them.

    Parameters
    ----------
    epsilon
        What the paper claims for one block, in nats.
    coefficients
        k: complex coefficients that are kept, from the constant on.
    block
        n: windows of a block; the last one of a run may be shorter.
    transform
        ``orthonormal`` or, with √n less noise, ``unnormalised``.
    measured_sensitivity
        Δ₂ as measured from the data, which leaves no guarantee; unset: √(C·W).
    inverse
        ``whole``: with the conjugate half of the spectrum. ``one_sided``: the real part of the inverse of the first k
        coefficients of the full transform, all others 0, as public code has it: every frequency but the mean is halved,
        a bias where there is little noise and a shrinkage where there is much.
    most
        m: counts are rounded and held in [0, m]; unset: shown as they come.

    **Privacy.** None that it states: no guarantee, since its ε is that of a single series and transform. It is charged
    at what it is worth by the L1 sensitivity of the complex transform under C, W and U (`core.sensitivity`): ε for one
    cell, up to √U times as much over U cells, √n times as much unnormalised; infinite where Δ₂ was measured.

    Notes
    -----
    For comparison with Rastogi and Nath 2010 and with Pyrgelis, Troncoso, De Cristofaro 2020, whose tables 22 and 26
    are those of ``inverse: one_sided`` with k = 20 and Δ₂ = 51.43, unnormalised, counts held in [0, m], m people.
    Delay: n windows. Time O(k · n_cells) a window, state the same.

    Examples
    --------
    >>> paper = FpaPaper(epsilon=np.inf, coefficients=3, block=4, inverse="one_sided")
    >>> (paper.without_noise(np.array([[4.0], [0.0], [4.0], [0.0]])).round(9) + 0.0).ravel().tolist()
    [4.0, 0.0, 4.0, 0.0]
    """

    epsilon: float = parameter(doc="what the paper claims for one block", above=0, unit="nats")
    coefficients: int = parameter(doc="complex coefficients that are kept", at_least=1)
    transform: str = parameter("orthonormal", doc="transform", choices=("orthonormal", "unnormalised"))
    measured_sensitivity: float | None = parameter(None, doc="L2 sensitivity measured from the data", above=0)
    inverse: str = parameter("whole", doc="what becomes of the conjugate half", choices=("whole", "one_sided"))
    most: int | None = parameter(None, doc="counts are rounded and held in [0, most]", at_least=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.coefficients > self.block // 2 + 1:
            raise ParameterError("coefficients", self.coefficients, f"at most block // 2 + 1 ({self.block // 2 + 1})")

    @classmethod
    def examples(cls) -> tuple[FpaPaper, ...]:
        """Return examples with each of the two transforms and with a measured sensitivity."""
        common: dict[str, Any] = {"epsilon": 1.0, "coefficients": 2, "block": 5}
        return cls(**common), cls(**common, transform="unnormalised"), cls(**common, measured_sensitivity=1.5)

    @property
    def guarantee(self) -> Guarantee:
        """A guarantee for blocks that does not state an amount."""
        theorem = "Rastogi and Nath 2010, theorem 4.1, whose sensitivity is that of one series"
        return Guarantee(unit=Unit.block(self.block), theorem=theorem)

    @property
    def family(self) -> NoiseFamily:
        """The noise family, which is real-valued Laplace noise."""
        return NOISE_FAMILIES["laplace"]

    @property
    def budget(self) -> float:
        """The ε that the paper claims for a block."""
        return self.epsilon

    def matrices(self, n_windows: int) -> tuple[Matrix, Matrix]:
        """Return the transform and its inverse for a block of ``n_windows`` windows."""
        return complex_basis(n_windows, self._n_kept(n_windows), self.inverse == "one_sided")

    def scale(self, n_windows: int, bounds: Bounds) -> float:
        """Return the scale √k·Δ₂/ε for parts of k complex coefficients, by √n less if not normalised."""
        cells, windows, _ = bounds
        delta_2 = self.measured_sensitivity or np.sqrt(float(cells) * min(windows, n_windows))
        scale = np.sqrt(self._n_kept(n_windows)) * delta_2 / self.epsilon
        return float(scale / (np.sqrt(n_windows) if self.transform == "unnormalised" else 1.0))

    def block_charge(self, n_windows: int, state: State) -> tuple[events.Event, ...]:
        """Return the true privacy cost of a block."""
        return (events.Exact(),) if self.measured_sensitivity is not None else super().block_charge(n_windows, state)

    def _n_kept(self, n_windows: int) -> int:
        return min(self.coefficients, n_windows // 2 + 1)

    def publish(self, n_windows: int, state: State, noise: Noise) -> tuple[NDArray[np.float64], dict[str, Any]]:
        """Add noise to the coefficients and apply the inverse transform."""
        values, further = super().publish(n_windows, state, noise)
        return self._hold(values), further

    def without_noise(self, counts: NDArray[Any]) -> NDArray[Any]:
        """Reconstruct the counts of each block from the coefficients that are kept, without adding noise."""
        return self._hold(super().without_noise(counts))

    def defended(self, counts: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
        """Release many aggregates' blocks, (n_replicas, block, n_cells), each user in a cell per window."""
        basis, inverse = self.matrices(self.block)
        scale = self.scale(self.block, (1, self.block, 1))
        coefficients = basis @ counts
        return self._hold(inverse @ (coefficients + rng.laplace(0.0, scale, coefficients.shape)))

    def _hold(self, values: NDArray[Any]) -> NDArray[Any]:
        return values if self.most is None else np.clip(np.rint(values), 0, self.most)


@lru_cache(maxsize=64)
def complex_basis(n_windows: int, n_coefficients: int, one_sided: bool = False) -> tuple[Matrix, Matrix]:
    """Return the parts (p, n) of the first k complex coefficients, where k ≤ n // 2 + 1, and the inverse (n, p)."""
    # Unitary transform (factor 1/√n); frequencies 0 and n / 2 have no imaginary part. The inverse adds the conjugate
    # half of the spectrum; ``one_sided`` leaves it out, as public code does, and takes the real part.
    time = 2 * np.pi * np.arange(n_windows) / n_windows
    rows, weights = [], []
    for frequency in range(n_coefficients):
        alone = frequency == 0 or 2 * frequency == n_windows
        rows.append(np.cos(frequency * time) / np.sqrt(n_windows))
        weights.append(1.0 if alone or one_sided else 2.0)
        if not alone:
            rows.append(-np.sin(frequency * time) / np.sqrt(n_windows))
            weights.append(weights[-1])
    basis = np.array(rows)
    return frozen(basis), frozen((basis * np.array(weights)[:, None]).T)
