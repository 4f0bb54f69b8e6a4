"""Declaration of noise by a goal: the conditional inferential loss that the secret points of a trace may have.

The numbers alone; `accountants.gaussian_process.goal` works out the standard deviation that keeps a trace to a goal.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.mechanisms.core.plugin import Checked, ParameterError, parameter

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
    """The largest conditional inferential loss that every chosen secret of a trace may have.

    The noise is worked out for each trace, from the times of its own points, which are public. No plan made beforehand
    holds for the times that come: sets of secrets can lose more at longer gaps as well as at shorter ones.

    >>> ConditionalGoal(goal=0.5, length_scale=600.0, variance=1e6).n_points
    100
    """

    goal: float = parameter(doc="largest loss of every chosen secret", above=0, unit="nats")
    # points of a trace that are released. Later ones repeat the last of these, and are no secrets of the promise.
    n_points: int = parameter(100, doc="points of a trace that are released; later ones repeat the last", at_least=1)


@dataclass(frozen=True, kw_only=True)
class PlannedNoise(Checked):
    """Noise that is worked out from a goal, for each trace."""

    conditional_goal: ConditionalGoal = parameter(doc="the loss that the noise is to keep to")
