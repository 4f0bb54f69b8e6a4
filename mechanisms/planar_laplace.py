"""Planar Laplace noise of the same size at every point of a trace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from penstock.mechanisms.core.contract import Facts, Guarantee, Mask, PointRelease, Timestamp
from penstock.mechanisms.core.geometry import Points, with_planar_laplace
from penstock.mechanisms.core.plugin import parameter
from penstock.mechanisms.core.schedules import Budgets
from penstock.mechanisms.core.state import State
from penstock.mechanisms.core.traces import PLANAR, PointMechanism, only_present

if TYPE_CHECKING:
    from penstock.mechanisms.core.draws import Noise


@dataclass(frozen=True, kw_only=True)
class PlanarLaplace(PointMechanism):
    """Move every point of every trace by planar Laplace noise.

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
    The mean error is 2·radius/ε metres. No state; O(n_users) a timestamp.

    Examples
    --------
    >>> from penstock.mechanisms.core.run import run_traces
    >>> track = np.tile([39.9, 116.4], (3, 1))
    >>> (released,) = run_traces(PlanarLaplace(epsilon=1.0, radius=100.0), [track], seed=1)
    >>> released.epsilon.tolist(), released.scale.tolist()
    ([1.0, 1.0, 1.0], [100.0, 100.0, 100.0])
    """

    epsilon: float = parameter(
        doc="cost of telling two points `radius` metres apart, at each point", above=0, unit="nats"
    )
    stages: ClassVar[tuple[str, ...]] = ("points",)
    guarantee: ClassVar[Guarantee] = Guarantee(
        unit="one point of one user",
        neighbours="two positions at most `radius` metres apart; the times of the points are public",
        statement="ε-geo-indistinguishability within `radius` metres, for each point",
        theorem="Andrés, Bordenabe, Chatzikokolakis, Palamidessi 2013, section 4.1",
    )
    point_guarantee: ClassVar[Guarantee] = guarantee

    def start(self, facts: Facts) -> State:
        """Nothing to remember."""
        return {}

    def step_points(
        self, time: Timestamp, points: Points, present: Mask, state: State, noise: Noise
    ) -> tuple[PointRelease, State]:
        """Move every point."""
        values = with_planar_laplace(noise, points, np.full(len(points), self.epsilon / self.metres))
        scale, rho = self.metres / self.epsilon, self.epsilon**2 / 2
        release = PointRelease.same_for_all(values, PLANAR, scale, self.epsilon, rho)
        return only_present(release, present, state, state)

    def worst_points(self, time: Timestamp, state: State) -> Budgets:
        """ε, always."""
        return np.full(len(time.time), self.epsilon)
