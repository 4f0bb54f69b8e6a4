"""Fourier perturbation: noise on the low frequencies of a block of windows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from penstock.mechanisms.core.budget import Budgeted
from penstock.mechanisms.core.contract import Facts
from penstock.mechanisms.core.fourier import RESOLUTION, FourierMechanism, Matrix, real_basis, real_matrices
from penstock.mechanisms.core.guarantee import Guarantee
from penstock.mechanisms.core.noise_family import families
from penstock.mechanisms.core.plugin import ParameterError, parameter
from penstock.mechanisms.core.unit import Unit


@dataclass(frozen=True, kw_only=True)
class Fpa(Budgeted, FourierMechanism):
    """Keep the first Fourier coefficients of each cell over a block, add noise to them, and transform back.

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
    of three bounds (see `core.fourier`), σ = √(C·W/(2ρ)). Rastogi and Nath 2010, theorem 4.1, with the sensitivity of
    a real transform; Bun and Steinke 2016, proposition 1.6. A user seen in several blocks adds up their budgets.

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
        """Return instances with each noise family, with few coefficients and with all."""
        return (
            *(cls(epsilon=1.0, coefficients=3, block=5, noise=family) for family in ("laplace", "discrete_laplace")),
            *(cls(rho=0.5, coefficients=5, block=5, noise=family) for family in ("gaussian", "discrete_gaussian")),
        )

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of each block, in ε or ρ."""
        return Guarantee(
            unit=Unit.block(self.block),
            measure=self.family.measure,
            amount=self.budget,
            delta=self.delta,
            theorem="Rastogi and Nath 2010, theorem 4.1, with the bounded sensitivity of a real transform",
        )

    def matrices(self, n_windows: int) -> tuple[Matrix, Matrix]:
        """Return the transform of a block and its inverse, with at most as many coefficients as windows."""
        return real_matrices(n_windows, self.coefficients, RESOLUTION if self.family.is_integer else None)

    def measured(self, facts: Facts) -> tuple[Matrix, None, None]:
        """Return the coefficients, stored in the first windows of their blocks (see `core.observation.Measured`)."""
        n_windows = facts.n_windows or 0
        mixed = np.zeros((n_windows, n_windows))
        for first in range(0, n_windows, self.block):
            length = min(self.block, n_windows - first)
            basis = real_basis(length, min(self.coefficients, length))
            mixed[first : first + len(basis), first : first + length] = basis
        return mixed, None, None
