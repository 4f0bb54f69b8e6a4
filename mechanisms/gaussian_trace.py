"""Gaussian noise of the same size at every point of a trace."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from penstock.mechanisms.core.contract import Facts, Guarantee, Mask, PointRelease, Timestamp
from penstock.mechanisms.core.geometry import Points, with_planar_gaussian
from penstock.mechanisms.core.plugin import ParameterError, parameter
from penstock.mechanisms.core.schedules import Budgets
from penstock.mechanisms.core.state import State
from penstock.mechanisms.core.trace_goal import PlannedNoise
from penstock.mechanisms.core.traces import PointMechanism, only_present, remember, shown

if TYPE_CHECKING:
    from penstock.mechanisms.core.draws import Noise


@dataclass(frozen=True, kw_only=True)
class GaussianTrace(PointMechanism):
    """Move every point of every trace by Gaussian noise, as large as asked for or as a goal needs.

    Parameters
    ----------
    sigma
        Standard deviation on each axis, in metres; or ``conditional_goal``: the conditional inferential loss that
        secret points may have when the points of a trace depend on each other. It is worked out for each trace from the
        times of its points: `penstock.accountants.gaussian_process.goal.planned_deviations`.
    radius
        How far apart the two hypotheses about a secret point may be, in metres; 1 if unset.

    **Privacy.** Alone, a point has a Rényi loss of order λ of λ·radius²/(2σ²) (ρ-zCDP with ρ = radius²/(2σ²)). With a
    goal, every chosen secret of every trace has at most the goal's loss, whatever the times of its points, against an
    adversary who knows that each axis is a Gaussian process with the given kernel. What no noise can keep to the goal
    is refused: all points of a trace in which secret points follow from each other to machine precision, and points
    beyond the goal's ``n_points``. Unit: the secret points of one user; neighbours differ in their positions. Meehan
    and Chaudhuri 2021.

    Notes
    -----
    The pure ε is infinite. State: with a goal the last release. O(n_users) a timestamp.

    Examples
    --------
    >>> from penstock.mechanisms.core.run import run_traces
    >>> track = np.tile([39.9, 116.4], (3, 1))
    >>> (released,) = run_traces(GaussianTrace(sigma=50.0), [track], seed=1)
    >>> released.scale.tolist()
    [50.0, 50.0, 50.0]
    """

    sigma: float | PlannedNoise = parameter(doc="standard deviation on each axis in metres, or a conditional_goal")
    stages: ClassVar[tuple[str, ...]] = ("points",)
    guarantee: ClassVar[Guarantee] = Guarantee(
        unit="the secret points of one user's trace",
        neighbours="two hypotheses at most `radius` metres apart at each secret point; times of points are public",
        statement="Rényi-indistinguishability of each point; with a goal, conditional inferential privacy of secrets",
        theorem="Meehan and Chaudhuri 2021, theorem 3.1; Bun and Steinke 2016, proposition 1.6",
    )
    point_guarantee: ClassVar[Guarantee] = guarantee

    def __post_init__(self) -> None:
        super().__post_init__()
        given = self.sigma
        if isinstance(given, PlannedNoise):
            return
        if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given < math.inf:
            raise ParameterError("sigma", given, "a finite number at least 0 (metres), or a conditional_goal")

    @classmethod
    def examples(cls) -> tuple[GaussianTrace, ...]:
        """One with a given σ; what a goal needs is not known without traces."""
        return (cls(sigma=100.0),)

    @property
    def deviation(self) -> float | None:
        """σ in metres where it is the same for every trace; None with a goal."""
        return None if isinstance(self.sigma, PlannedNoise) else self.sigma

    def start(self, facts: Facts) -> State:
        """Nothing released; without a goal nothing to remember."""
        if not isinstance(self.sigma, PlannedNoise):
            return {}
        n_users = facts.n_replicas or 1
        return {"last": np.zeros((n_users, 2)), "last_window": np.zeros(n_users, np.int64)}

    def step_points(
        self, time: Timestamp, points: Points, present: Mask, state: State, noise: Noise
    ) -> tuple[PointRelease, State]:
        """Move every point; with a goal those that it covers."""
        if isinstance(self.sigma, PlannedNoise):
            return self._planned(time, points, present, state, noise, self.sigma.conditional_goal.n_points)
        values = with_planar_gaussian(noise, points, np.full(len(points), self.sigma))
        rho = self.metres**2 / (2 * self.sigma**2) if self.sigma else np.inf
        release = PointRelease.same_for_all(values, "gaussian", self.sigma, np.inf, rho)
        return only_present(release, present, state, state)

    def _planned(
        self, time: Timestamp, points: Points, present: Mask, state: State, noise: Noise, n_points: int
    ) -> tuple[PointRelease, State]:
        if time.deviation is None:
            right = "worked out for the traces first: penstock.accountants.gaussian_process.goal.planned_deviations"
            raise ParameterError("sigma", "conditional_goal", right)
        publish = np.isfinite(time.deviation) & (time.index <= n_points)
        scale = np.where(publish, time.deviation, 0.0)
        drawn = with_planar_gaussian(noise, points, scale)
        values = np.where(publish[:, None], drawn, shown(time, state))
        release = PointRelease(
            values=values,
            action=np.where(publish, "published", "refused"),
            noise="gaussian",
            scale=scale,
            epsilon=np.where(publish, np.inf, 0.0),
            rho=np.where(publish, self.metres**2 / (2 * np.where(publish, scale, 1.0) ** 2), 0.0),
            repeats=np.where(publish, -1, state["last_window"]),
        )
        return only_present(release, present, state, remember(time, values, state, publish))

    def worst_points(self, time: Timestamp, state: State) -> Budgets:
        """Infinite: Gaussian noise has no pure ε."""
        return np.full(len(time.time), np.inf)
