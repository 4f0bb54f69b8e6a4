"""What one privacy event costs under each adjacency: the one place where events are priced in pure ε and in zCDP."""

from __future__ import annotations

from collections.abc import Iterable
from functools import singledispatch
from typing import Literal

import numpy as np

from mechanisms.core import event as events
from mechanisms.core.errors import UnsupportedEvent

Adjacency = Literal["add_remove", "replacement"]


@singledispatch
def _pure(event: events.Event) -> float:
    raise UnsupportedEvent(f"no pure ε is known for {type(event).__name__}")


@_pure.register
def _(event: events.Laplace) -> float:
    return _ratio(event.l1, event.scale)


@_pure.register
def _(event: events.DiscreteLaplace) -> float:
    return _ratio(event.l1, event.scale)


@_pure.register(events.Gaussian)
@_pure.register(events.DiscreteGaussian)
def _(event: events.Gaussian | events.DiscreteGaussian) -> float:
    # Gaussian noise has unbounded log-ratio whatever its width.
    return 0.0 if float(event.l2) == 0 else np.inf


@_pure.register
def _(event: events.PureDP) -> float:
    return float(event.epsilon)


@_pure.register
def _(event: events.Block) -> float:
    return _pure(event.inner)


@_pure.register
def _(event: events.Sampled) -> float:
    # Without an amplification theorem the unsampled figure stands: it only overstates.
    return _pure(event.inner)


@_pure.register
def _(event: events.Exact) -> float:
    return np.inf


@_pure.register(events.Repeated)
@_pure.register(events.Nothing)
def _(event: events.Event) -> float:
    return 0.0


def _ratio(sensitivity: events.Number, scale: events.Number) -> float:
    if float(sensitivity) == 0:
        return 0.0
    return np.inf if float(scale) == 0 else float(sensitivity) / float(scale)


def pure_epsilon(charge: Iterable[events.Event], adjacency: Adjacency = "add_remove") -> float:
    """Pure ε of one release.

    Parameters
    ----------
    charge
        Events of the release; their losses add.
    adjacency
        ``add_remove`` (one unit present or absent) or ``replacement`` (one unit against another: an absent unit lies
        between the two, so the loss is at most twice).

    Returns
    -------
    ε in nats; infinite for Gaussian noise and for exact releases. Raises `UnsupportedEvent` for the unknown.

    Examples
    --------
    >>> pure_epsilon([events.DiscreteLaplace(l1=2.0, scale=4.0)])
    0.5
    >>> pure_epsilon([events.DiscreteLaplace(l1=2.0, scale=4.0)], "replacement")
    1.0
    """
    total = float(sum(_pure(event) for event in charge))
    return 2 * total if adjacency == "replacement" else total


def concentrated_rho(charge: Iterable[events.Event]) -> float:
    """Zero-concentrated DP ρ of one release under add/remove: L2²/(2σ²), or ε²/2 for a pure event.

    Source: Bun and Steinke 2016, propositions 1.4 and 1.6; Canonne, Kamath and Steinke 2020, theorem 4.

    >>> concentrated_rho([events.Gaussian(l2=1.0, sigma=2.0)])
    0.125
    """
    return float(sum(_rho(event) for event in charge))


def _rho(event: events.Event) -> float:
    if isinstance(event, events.Block | events.Sampled):
        return _rho(event.inner)
    if isinstance(event, events.Gaussian | events.DiscreteGaussian):
        return _ratio(event.l2, event.sigma) ** 2 / 2
    return _pure(event) ** 2 / 2
