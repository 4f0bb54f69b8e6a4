"""Laplace noise with the same ε in every window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from penstock.mechanisms.core.plugin import parameter
from penstock.mechanisms.core.schedules import EveryWindow


@dataclass(frozen=True, kw_only=True)
class Laplace(EveryWindow):
    """Add real Laplace noise with scale C/ε to every count in every window.

    Parameters
    ----------
    epsilon
        Budget of *each* window, in nats.

    **Privacy.** Event-level ε-differential privacy: unit all of one user's events in one window, neighbours add or
    remove it, C = ``max_cells`` the L1 sensitivity from contribution bounding (Dwork, McSherry, Nissim, Smith 2006,
    theorem 1). A user seen in T windows is protected by T·ε only. Real-valued noise carries floating-point traces of
    the count (Mironov 2012): simulation only; deploy `discrete_laplace`.

    Notes
    -----
    Time and state O(n_cells) a window.

    Examples
    --------
    >>> import numpy as np
    >>> from penstock.mechanisms.core.contract import Facts
    >>> from penstock.mechanisms.core.run import run_mechanism
    >>> run_mechanism(Laplace(epsilon=0.5), np.zeros((1, 2), int), Facts(n_cells=2, max_cells=2), seed=1)[0].scale
    4.0
    """

    noise: str = parameter("laplace", doc="noise family", choices=("laplace",))
    theorem: ClassVar[str] = "Dwork, McSherry, Nissim, Smith 2006, theorem 1"
