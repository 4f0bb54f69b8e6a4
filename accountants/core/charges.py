"""Price of a privacy event under each adjacency, in pure ε and in zCDP."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import singledispatch
from typing import Literal

import numpy as np

from penstock.mechanisms.core import events
from penstock.mechanisms.core.concentrated import MOST_COORDINATES, SMOOTHING
from penstock.mechanisms.core.plugin import UnsupportedEvent

Adjacency = Literal["add_remove", "replacement"]


@singledispatch
def _pure(event: events.Event) -> float:
    raise UnsupportedEvent(f"no pure ε is known for {type(event).__name__}")


@_pure.register
def _(event: events.Additive) -> float:
    if event.is_gaussian:
        # Its log-ratio is unbounded whatever its width; infinite noise stands for nothing published.
        return 0.0 if float(event.sensitivity) == 0 or np.isinf(float(event.scale)) else np.inf
    return _ratio(event.sensitivity, event.scale)


@_pure.register
def _(event: events.PureDP) -> float:
    return float(event.epsilon)


@_pure.register
def _(event: events.ConcentratedDP) -> float:
    # Its log-ratio has no bound.
    return 0.0 if float(event.rho) == 0 else np.inf


@_pure.register(events.Block)
@_pure.register(events.Linked)
def _(event: events.Block | events.Linked) -> float:
    return _pure(event.inner)


@_pure.register
def _(event: events.Sampled) -> float:
    pure, n_parts = _pure(event.inner), parts_sampled(event)
    if n_parts == 0:
        return pure
    return n_parts * _amplified(pure / n_parts, event.rate)


@_pure.register
def _(event: events.Exact) -> float:
    return np.inf


@_pure.register(events.Repeated)
@_pure.register(events.Covered)
@_pure.register(events.Nothing)
def _(event: events.Event) -> float:
    return 0.0


def _ratio(sensitivity: events.Number, scale: events.Number) -> float:
    if float(sensitivity) == 0:
        return 0.0
    return np.inf if float(scale) == 0 else float(sensitivity) / float(scale)


def parts_sampled(event: events.Sampled) -> int:
    """Parts of an event that are sampled independently; 0: none for which amplification is claimed."""
    # A user who is sampled as a whole is one part. Memberships that are sampled one by one are as many as the noisy
    # counts that one user moves by 1: l1 of them, or l2². Where that is no whole number they are not such counts.
    if event.unit == "user":
        return 1
    if not isinstance(event.inner, events.Additive):
        return 0
    sensitivity = float(event.inner.sensitivity)
    n_parts = round(sensitivity**2, 9) if event.inner.is_gaussian else sensitivity
    return int(n_parts) if n_parts == int(n_parts) else 0


def _amplified(epsilon: float, rate: float) -> float:
    """ln(1 + p·(e^ε − 1)): ε of an ε-DP step that reads its input with probability p (Li, Qardaji, Su 2012)."""
    if epsilon > 30:
        return epsilon + float(np.log(rate + (1 - rate) * np.exp(-epsilon)))
    return float(np.log1p(rate * np.expm1(epsilon)))


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
    >>> pure_epsilon([events.Additive("discrete_laplace", 2.0, scale=4.0)])
    0.5
    >>> pure_epsilon([events.Additive("discrete_laplace", 2.0, scale=4.0)], "replacement")
    1.0
    """
    total = float(sum(_pure(event) for event in charge))
    return 2 * total if adjacency == "replacement" else total


@singledispatch
def replaced(event: events.Event) -> events.Event:
    """Price an event for *replacing* a unit's contributions, where bounding selects again among those that remain.

    The L1 sensitivity doubles. The L2 sensitivity grows by √2 only, since contributions are never negative: the squared
    distance of two of them is at most the sum of their squared lengths.

    >>> replaced(events.Additive("discrete_laplace", 2.0, scale=4.0))
    Additive(family='discrete_laplace', sensitivity=4.0, scale=4.0)
    """
    # Pure losses are those of adding and of removing one after the other.
    epsilon = _pure(event)
    return event if epsilon in (0, np.inf) else events.PureDP(2 * epsilon)


@replaced.register
def _(event: events.Additive) -> events.Event:
    return replace(event, sensitivity=(np.sqrt(2) if event.is_gaussian else 2) * event.sensitivity)


@replaced.register
def _(event: events.ConcentratedDP) -> events.Event:
    # Bun and Steinke 2016, proposition 1.9, for two steps: of removing and of adding.
    return events.ConcentratedDP(4 * event.rho)


@replaced.register(events.Block)
@replaced.register(events.Linked)
def _(event: events.Block | events.Linked) -> events.Event:
    return replace(event, inner=replaced(event.inner))


@replaced.register
def _(event: events.Sampled) -> events.Event:
    # Memberships that are sampled one by one are twice as many parts. No sampled curve is claimed for a user who is in
    # both samples.
    if event.unit == "membership":
        return replace(event, inner=replaced(event.inner))
    epsilon = _pure(event)
    return events.PureDP(2 * epsilon) if np.isfinite(epsilon) else replaced(event.inner)


def is_linked(charge: Iterable[events.Event]) -> bool:
    """Return whether releases of other windows read the same data, so that a window costs more than its release."""
    return links(charge) > 0


def links(charge: Iterable[events.Event]) -> float:
    """Largest ``times`` of the linked events in a charge, 0 without any."""
    largest = 0.0
    for event in charge:
        if isinstance(event, events.Linked):
            largest = max(largest, event.times)
        elif isinstance(event, events.Block | events.Sampled):
            largest = max(largest, links([event.inner]))
    return largest


def gaussian_amount(charge: Iterable[events.Event]) -> float:
    """Half of μ² of Gaussian differential privacy of one release under add/remove: infinite for any other noise.

    >>> gaussian_amount([events.Additive("gaussian", 2.0, 4.0)]), gaussian_amount([events.PureDP(0.1)])
    (0.125, inf)
    """
    return float(sum(_gaussian(event) for event in charge))


@singledispatch
def _gaussian(event: events.Event) -> float:
    # Of noise that links windows nothing is claimed.
    return 0.0 if isinstance(event, events.FREE) else np.inf


@_gaussian.register
def _(event: events.Additive) -> float:
    moved, variance = float(event.sensitivity) ** 2, float(event.scale) ** 2
    if not event.is_gaussian or moved > MOST_COORDINATES:
        return np.inf
    if event.family == "discrete_gaussian" and np.isfinite(variance):
        variance = max(variance - SMOOTHING, 0.0)
    return 0.0 if moved == 0 else np.inf if variance == 0 else moved / variance / 2


@_gaussian.register(events.Block)
@_gaussian.register(events.Sampled)
def _(event: events.Block | events.Sampled) -> float:
    # Given the sample, which is the same with and without the person, it is the noise on a part of the memberships.
    return _gaussian(event.inner)


def concentrated_rho(charge: Iterable[events.Event]) -> float:
    """Zero-concentrated DP ρ of one release under add/remove: L2²/(2σ²), or ε²/2 for a pure event."""
    # Bun and Steinke 2016, propositions 1.4 and 1.6; Canonne, Kamath and Steinke 2020, theorem 4.
    return float(sum(_rho(event) for event in charge))


@singledispatch
def _rho(event: events.Event) -> float:
    return _pure(event) ** 2 / 2


@_rho.register
def _(event: events.Additive) -> float:
    return _ratio(event.sensitivity, event.scale) ** 2 / 2


@_rho.register
def _(event: events.ConcentratedDP) -> float:
    return float(event.rho)


@_rho.register
def _(event: events.Block) -> float:
    return _rho(event.inner)


@_rho.register
def _(event: events.Linked) -> float:
    return event.times * _rho(event.inner)


@_rho.register
def _(event: events.Sampled) -> float:
    # No amplification is known for ρ; a pure figure that was amplified can still be the smaller one.
    return min(_rho(event.inner), _pure(event) ** 2 / 2)


#: Price of a charge by measure.
PRICES = {"epsilon": pure_epsilon, "rho": concentrated_rho, "gaussian": gaussian_amount}
