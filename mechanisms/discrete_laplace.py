"""Integer Laplace noise with the same ε in every window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from penstock.mechanisms.core.plugin import parameter
from penstock.mechanisms.core.schedules import EveryWindow


@dataclass(frozen=True, kw_only=True)
class DiscreteLaplace(EveryWindow):
    """Add integer noise P(z) ∝ exp(−abs(z)·ε/C) to every count in every window.

    Parameters
    ----------
    epsilon
        Budget of *each* window, in nats.

    **Privacy.** Event-level ε-differential privacy: unit all of one user's events in one window, neighbours add or
    remove it, C = ``max_cells`` the L1 sensitivity from contribution bounding (Ghosh, Roughgarden, Sundararajan 2009).
    A user seen in T windows is protected by T·ε only. Integers carry no floating-point trace of the count.

    Notes
    -----
    Time and state O(n_cells) a window.

    Examples
    --------
    >>> import numpy as np
    >>> from penstock.mechanisms.core.contract import Facts
    >>> from penstock.mechanisms.core.run import run_mechanism
    >>> release = run_mechanism(DiscreteLaplace(epsilon=0.5), np.zeros((1, 2), int), Facts(n_cells=2), seed=1)[0]
    >>> release.scale, all(value == round(value) for value in release.values)
    (2.0, True)
    """

    noise: str = parameter("discrete_laplace", doc="noise family", choices=("discrete_laplace",))
    law: ClassVar[str] = "discrete_laplace"
    theorem: ClassVar[str] = "Ghosh, Roughgarden, Sundararajan 2009, the geometric mechanism"
