"""Privacy events: mechanism-independent descriptions of releases, from which accountants compute privacy costs.

The family is closed. An event states the mechanism's noise and the sensitivity to *adding or removing* one unit; it
does not state an ε, because accountants compare different neighbours. An L2 sensitivity holds for contributions that
are not negative, so that replacing one by another moves the vector by at most √2 times as much. Fields are numbers, or
arrays over replicas.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.core.plugin import check_choice

Number = float | NDArray[np.float64]


@dataclass(frozen=True)
class Event:
    """Base class for the closed family of privacy events."""


#: Families of additive noise; the sensitivity of the first two is in L1, that of the Gaussian ones in L2.
FAMILIES = ("laplace", "discrete_laplace", "gaussian", "discrete_gaussian")


@dataclass(frozen=True)
class Additive(Event):
    """Additive noise from one family, on a vector with the given add/remove sensitivity (L2 if Gaussian, otherwise L1).

    The scale of ``laplace`` and, on integers, ``discrete_laplace`` is b of P(z) ∝ exp(−abs(z)/b), that of ``gaussian``
    its standard deviation, and of ``discrete_gaussian``, on integers, its parameter σ.

    >>> Additive("cauchy", 1.0, 1.0)
    Traceback (most recent call last):
    penstock.mechanisms.core.plugin.ParameterError: family: 'cauchy' is not allowed; it must be one of laplace, …
    """

    family: str
    sensitivity: Number
    scale: Number

    def __post_init__(self) -> None:
        check_choice("family", self.family, FAMILIES)

    @property
    def is_gaussian(self) -> bool:
        """Return whether the noise is Gaussian, which implies L2 sensitivity and unbounded privacy loss."""
        return self.family.endswith("gaussian")


@dataclass(frozen=True)
class PureDP(Event):
    """A step that is ``epsilon``-differentially private under add/remove."""

    epsilon: Number


@dataclass(frozen=True)
class ConcentratedDP(Event):
    """A step that is ``rho``-zero-concentrated differentially private under add/remove."""

    rho: Number


@dataclass(frozen=True)
class Sampled(Event):
    """A step ``inner`` on a random sample that keeps each membership (or person, if ``unit`` is "user") at ``rate``."""

    inner: Event
    rate: float
    unit: str = "membership"


@dataclass(frozen=True)
class Block(Event):
    """A single release that covers a whole block: ``inner`` applies to all windows from ``first`` to ``last``."""

    inner: Event
    first: int
    last: int


@dataclass(frozen=True)
class Linked(Event):
    """One window's contribution ``inner`` to the cost of releases for several windows that all read its data.

    What several windows cost together is at most the sum of their ε, or the sum of ``times`` as much ρ as ``inner`` has
    by itself: losses that concern one draw add up before they are squared.
    """

    inner: Event
    times: float = 1.0


@dataclass(frozen=True)
class Repeated(Event):
    """A repeat of an earlier release. ``window`` 0 is the public constant shown before the first release."""

    window: int


@dataclass(frozen=True)
class Covered(Event):
    """Noise already charged by the `Block` that starts at window ``first``."""

    first: int


@dataclass(frozen=True)
class Exact(Event):
    """A release of unprotected input, which has no guarantee."""


#: Events that cost nothing of their own.
FREE = (Repeated, Covered)
#: The whole family, in the order above.
EVENTS: tuple[type[Event], ...] = tuple(Event.__subclasses__())
