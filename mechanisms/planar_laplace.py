"""Planar Laplace noise at the same scale at every point in a trace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from penstock.mechanisms.core.plugin import parameter
from penstock.mechanisms.core.schedules import EveryWindow


@dataclass(frozen=True, kw_only=True)
class PlanarLaplace(EveryWindow):
    """Perturb every point in every trace with planar Laplace noise.

    Parameters
    ----------
    epsilon
        What *each* point costs: two points ``radius`` metres apart are told apart at a cost of ε.
    radius
        That distance in metres, 1 if unset.

    **Privacy.** Geo-indistinguishability: points d metres apart are ε·d/radius-indistinguishable, each point of a trace
    on its own; the points of a trace add up. Unit: one point of one user; neighbours differ in its position, not in its
    time. Andrés, Bordenabe, Chatzikokolakis, Palamidessi 2013.

    Notes
    -----
    The mean error is 2·radius/ε metres. State: the last release; O(n_users) a timestamp.

    Examples
    --------
    >>> import numpy as np
    >>> from penstock.mechanisms.core.run import run_traces
    >>> track = np.tile([39.9, 116.4], (3, 1))
    >>> (released,) = run_traces(PlanarLaplace(epsilon=1.0, radius=100.0), [track], seed=1)
    >>> released.epsilon.tolist(), released.scale.tolist()
    ([1.0, 1.0, 1.0], [100.0, 100.0, 100.0])
    """

    epsilon: float = parameter(
        doc="cost of telling two points `radius` metres apart, at each point", above=0, unit="nats"
    )
    radius: float | None = parameter(None, doc="distance of two points that epsilon is about; unset: 1", above=0)
    law: ClassVar[str] = "planar_laplace"
    theorem: ClassVar[str] = "Andrés, Bordenabe, Chatzikokolakis, Palamidessi 2013, section 4.1"
