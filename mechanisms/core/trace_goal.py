"""Noise determined by a goal: the largest conditional inferential loss allowed for the secret points of a trace.

The numbers alone; `accountants.gaussian_process.goal` works out the standard deviation that keeps a trace to a goal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from penstock.mechanisms.core.plugin import Checked, ParameterError, check_one_of, parameter

KERNELS = ("rbf", "matern12", "matern32", "periodic")
FAMILIES = ("singletons", "every_other", "sliding_blocks")


@dataclass(frozen=True, kw_only=True)
class LengthScales(Checked):
    """The length scales of the processes that an adversary may know: all up to the longest one, or exactly one.

    >>> LengthScales(at_most=300.0).longest
    300.0
    """

    at_most: float | None = parameter(None, doc="longest of all length scales above 0", above=0, below=math.inf)
    exactly: float | None = parameter(None, doc="the only length scale", above=0, below=math.inf)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_one_of({"at_most": self.at_most, "exactly": self.exactly})

    @property
    def longest(self) -> float:
        """The longest length scale."""
        return float(self.at_most or self.exactly or 0.0)


@dataclass(frozen=True, kw_only=True)
class TracePrior(Checked):
    """The assumed knowledge of an adversary: a Gaussian process on each axis of a trace, and the set of secret points.

    Parameters
    ----------
    kernel, variance, period, nugget
        Of the process: seconds and square metres.
    length_scale
        Of the process: seconds, without a unit for a periodic kernel. A number stands for ``at_most``: every length
        scale up to it is protected. The longest is not always the worst.
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
    length_scale: float | LengthScales = parameter(doc="longest length scale of the process, or {exactly: …}")
    variance: float = parameter(doc="variance of a position on each axis", above=0, unit="square metres")
    period: float | None = parameter(None, doc="period of the periodic kernel", above=0, unit="seconds")
    nugget: float = parameter(
        0.0, doc="variance that a position shares with no other", at_least=0, unit="square metres"
    )
    secrets: str = parameter("singletons", doc="points that are secret together", choices=FAMILIES)
    width: int = parameter(2, doc="points of a sliding block", at_least=1)
    order: float = parameter(2.0, doc="order of the Rényi divergence", at_least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.kernel == "periodic") != (self.period is not None):
            raise ParameterError("period", self.period, "given for the periodic kernel and for no other")
        given = self.length_scale
        is_number = isinstance(given, int | float) and not isinstance(given, bool) and 0 < given < math.inf
        if not is_number and not isinstance(given, LengthScales):
            raise ParameterError("length_scale", given, "a finite number above 0, {at_most: …} or {exactly: …}")

    @property
    def length_scales(self) -> LengthScales:
        """The length scales that are protected."""
        given = self.length_scale
        return given if isinstance(given, LengthScales) else LengthScales(at_most=float(given))


@dataclass(frozen=True, kw_only=True)
class ConditionalGoal(TracePrior):
    """The largest conditional inferential loss allowed for each chosen secret of a trace.

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
    """Noise that is planned for each trace to meet a goal."""

    conditional_goal: ConditionalGoal = parameter(doc="the loss that the noise is to keep to")
