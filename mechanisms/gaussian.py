"""Gaussian noise at the same scale in every window."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from penstock.mechanisms.core.guarantee import Guarantee
from penstock.mechanisms.core.plugin import check_one_of, parameter
from penstock.mechanisms.core.schedules import Schedule
from penstock.mechanisms.core.sensitivity import Sensitivity


@dataclass(frozen=True, kw_only=True)
class Gaussian(Schedule):
    """Add real Gaussian noise to every count of every window.

    Parameters
    ----------
    rho
        Zero-concentrated DP of *each* window; sets σ = sqrt(C/(2ρ)).
    sigma
        Standard deviation, instead of ``rho``.

    **Privacy.** ρ-zCDP per window with ρ = C/(2σ²): unit all of one user's events in one window, neighbours add or
    remove it, sqrt(C) the L2 sensitivity from contribution bounding (Bun and Steinke 2016, proposition 1.6). The pure
    ε is infinite; (ε, δ) comes from the composition accountant. Real-valued noise carries floating-point traces of
    the count (Mironov 2012): simulation only; deploy `discrete_gaussian`.

    Notes
    -----
    Time and state O(n_cells) a window.

    Examples
    --------
    >>> import numpy as np
    >>> from penstock.mechanisms.core.contract import Facts
    >>> from penstock.mechanisms.core.run import run_mechanism
    >>> run_mechanism(Gaussian(rho=0.5), np.zeros((1, 4), int), Facts(n_cells=4, max_cells=4), seed=1)[0].scale
    2.0
    """

    rho: float | None = parameter(None, doc="zCDP budget of each window", above=0)
    sigma: float | None = parameter(None, doc="standard deviation, instead of rho", at_least=0)
    law: ClassVar[str] = "gaussian"
    theorem: ClassVar[str] = "Bun and Steinke 2016, proposition 1.6"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_one_of({"rho": self.rho, "sigma": self.sigma})

    @classmethod
    def examples(cls) -> tuple[Gaussian, ...]:
        """Return one instance per parameter."""
        return cls(rho=0.5), cls(sigma=2.0)

    @property
    def budget(self) -> float:
        """The ρ per window, or infinity if σ is given."""
        return float("inf") if self.rho is None else self.rho

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee, which is ρ-zCDP per window. If σ is given, ρ follows from the run's contribution bounds."""
        return replace(super().guarantee, amount=self.rho)

    def scale(self, amount: Any, sensitivity: Sensitivity) -> Any:
        """Return σ, either as given or derived from ρ."""
        return super().scale(amount, sensitivity) if self.sigma is None else self.sigma
