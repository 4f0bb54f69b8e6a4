"""Noise asked for by its goal: the loss that a trace's secret points may have when its points depend on each other."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from mechanisms.core.errors import ParameterError
from mechanisms.core.parameters import Checked, parameter

KERNELS = ("rbf", "matern12", "matern32", "periodic")
FAMILIES = ("singletons", "every_other", "sliding_blocks")


@dataclass(frozen=True, kw_only=True)
class TracePrior(Checked):
    """What an adversary is assumed to know: each axis of a trace is a Gaussian process; and which points are secret.

    Parameters
    ----------
    kernel, length_scale, variance, period, nugget
        Of the process: seconds and square metres; the length scale of a periodic kernel has no unit.
    secrets, width
        Families of secret points: ``singletons``, ``every_other``, or ``sliding_blocks`` of ``width`` points.
    order
        Order λ of the Rényi divergence that measures the loss.

    Examples
    --------
    >>> TracePrior(length_scale=600.0, variance=1e6).kernel
    'rbf'
    """

    kernel: str = parameter("rbf", doc="kernel of the process", choices=KERNELS)
    length_scale: float = parameter(doc="length scale of the process", above=0, unit="seconds")
    variance: float = parameter(doc="variance of a position on each axis", above=0, unit="square metres")
    period: float | None = parameter(None, doc="period of the periodic kernel", above=0, unit="seconds")
    nugget: float = parameter(
        0.0, doc="variance that a position shares with no other", at_least=0, unit="square metres"
    )
    secrets: str = parameter("singletons", doc="which points are secret together", choices=FAMILIES)
    width: int = parameter(2, doc="points of a sliding block", at_least=1)
    order: float = parameter(2.0, doc="order of the Rényi divergence", at_least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.kernel == "periodic") != (self.period is not None):
            raise ParameterError("period", self.period, "given for the periodic kernel and for no other")


@dataclass(frozen=True, kw_only=True)
class ConditionalGoal(TracePrior):
    """The largest conditional inferential loss that every chosen secret may have, and the trace it is planned for.

    Parameters
    ----------
    goal
        Largest loss, nats.
    interval, n_points
        The planned trace: so many points, one every ``interval`` seconds. Points that come faster, or a longer trace,
        lose more; the conditional_inferential accountant says how much.

    Examples
    --------
    >>> goal = ConditionalGoal(goal=0.5, interval=60.0, n_points=1, length_scale=600.0, variance=1e6)
    >>> round(planned_sigma(goal, radius=200.0), 2)
    282.84
    """

    goal: float = parameter(doc="largest loss of every chosen secret", above=0, unit="nats")
    interval: float = parameter(doc="time between two points", above=0, unit="seconds")
    n_points: int = parameter(21, doc="points of the planned trace", at_least=1)


@dataclass(frozen=True, kw_only=True)
class PlannedNoise(Checked):
    """Noise that is worked out from a goal."""

    conditional_goal: ConditionalGoal = parameter(doc="the loss that the noise is to keep to")


@lru_cache(maxsize=64)
def planned_sigma(goal: ConditionalGoal, radius: float) -> float:
    """Least standard deviation, in metres on each axis, that keeps to a goal.

    Parameters
    ----------
    goal
        The goal.
    radius
        How far apart the two hypotheses about a secret point may be, in metres.

    Notes
    -----
    O(n_points³) for each secret, about ten times over. Meehan and Chaudhuri 2021, theorem 3.1 with its ball.
    """
    from accountants.conditional_inferential import named_family, smallest_sigma

    return smallest_sigma(
        goal.goal,
        goal.interval * np.arange(goal.n_points),
        named_family(goal.secrets, goal.n_points, goal.width),
        goal.length_scale,
        radius,
        goal.order,
        goal.kernel,
        goal.variance,
        goal.period,
        nugget=goal.nugget,
    )
