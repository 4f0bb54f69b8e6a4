"""Integer Gaussian noise at the same scale in every window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from penstock.mechanisms.gaussian import Gaussian


@dataclass(frozen=True, kw_only=True)
class DiscreteGaussian(Gaussian):
    """Add integer Gaussian noise P(z) ∝ exp(−z²/(2σ²)) to every count of every window.

    Parameters
    ----------
    rho
        Zero-concentrated DP of *each* window; sets σ = sqrt(C/(2ρ)).
    sigma
        Parameter σ, instead of ``rho``.

    **Privacy.** ρ-zCDP per window with ρ = C/(2σ²): unit all of one user's events in one window, neighbours add or
    remove it, sqrt(C) the L2 sensitivity from contribution bounding (Canonne, Kamath, Steinke 2020, theorem 4). The
    pure ε is infinite; (ε, δ) comes from the composition accountant. Integers carry no floating-point trace.

    Notes
    -----
    Time and state O(n_cells) a window.

    Examples
    --------
    >>> import numpy as np
    >>> from penstock.mechanisms.core.contract import Facts
    >>> from penstock.mechanisms.core.run import run_mechanism
    >>> release = run_mechanism(DiscreteGaussian(sigma=3.0), np.zeros((1, 2), int), Facts(n_cells=2), seed=1)[0]
    >>> release.noise, all(value == round(value) for value in release.values)
    ('discrete_gaussian', True)
    """

    law: ClassVar[str] = "discrete_gaussian"
    theorem: ClassVar[str] = "Canonne, Kamath, Steinke 2020, theorem 4"
