"""Privacy costs of events under each neighbouring relation, in pure ε and zCDP."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from penstock.mechanisms.core import events
from penstock.mechanisms.core.concentrated import MAX_COORDINATES, SMOOTHING
from penstock.mechanisms.core.contract import Release
from penstock.mechanisms.core.plugin import UnsupportedEvent
from penstock.mechanisms.core.sensitivity import price_of_replacement

Adjacency = Literal["add_remove", "replacement"]


def _pure(event: events.Event) -> float:
    match event:
        case events.Repeated() | events.Covered():
            return 0.0
        case events.Exact():
            return np.inf
        case events.Additive() if event.is_gaussian:
            # Its log-ratio is unbounded whatever its width; infinite noise stands for nothing published.
            return 0.0 if float(event.sensitivity) == 0 or np.isinf(float(event.scale)) else np.inf
        case events.Additive():
            return _ratio(event.sensitivity, event.scale)
        case events.PureDP():
            return float(event.epsilon)
        case events.ConcentratedDP():
            return 0.0 if float(event.rho) == 0 else np.inf  # its log-ratio has no bound
        case events.Block() | events.Linked():
            return _pure(event.inner)
        case events.Sampled():
            whole, n_parts = _pure(event.inner), parts_sampled(event)
            return n_parts * _amplify(whole / n_parts, event.rate) if n_parts else whole
    raise UnsupportedEvent(f"no pure ε is known for {type(event).__name__}")


def _ratio(sensitivity: events.Number, scale: events.Number) -> float:
    if float(sensitivity) == 0:
        return 0.0
    return np.inf if float(scale) == 0 else float(sensitivity) / float(scale)


def parts_sampled(event: events.Sampled) -> int:
    """Return the number of independently sampled parts in an event, or 0 if sampling does not amplify it."""
    # A user who is sampled as a whole is one part. Memberships that are sampled one by one are as many as the noisy
    # counts that one user moves by 1: l1 of them, or l2². Where that is no whole number they are not such counts.
    if event.unit == "user":
        return 1
    if not isinstance(event.inner, events.Additive):
        return 0
    sensitivity = float(event.inner.sensitivity)
    n_parts = round(sensitivity**2, 9) if event.inner.is_gaussian else sensitivity
    return int(n_parts) if n_parts == int(n_parts) else 0


def _amplify(epsilon: float, rate: float) -> float:
    """Return ln(1 + p·(e^ε − 1)), the ε of an ε-DP step on a sample taken at rate p (Li et al. 2012)."""
    if epsilon > 30:
        return epsilon + float(np.log(rate + (1 - rate) * np.exp(-epsilon)))
    return float(np.log1p(rate * np.expm1(epsilon)))


def pure_epsilon(charge: Iterable[events.Event], adjacency: Adjacency = "add_remove") -> float:
    """Return one release's pure ε in nats. It is infinite for Gaussian noise and for exact releases.

    ``replacement`` is one unit against another, at most twice ``add_remove``. Raises `UnsupportedEvent` for the
    unknown.
    """
    total = float(sum(_pure(event) for event in charge))
    return price_of_replacement("epsilon") * total if adjacency == "replacement" else total


def replaced(event: events.Event) -> events.Event:
    """Return the event under *replacement* of a unit's contributions, if bounding selects others in their place."""
    match event:
        case events.Additive():
            # The ρ of Gaussian noise goes with the square of the sensitivity.
            factor = np.sqrt(price_of_replacement("rho")) if event.is_gaussian else price_of_replacement("epsilon")
            return replace(event, sensitivity=factor * event.sensitivity)
        case events.ConcentratedDP():
            return events.ConcentratedDP(price_of_replacement("rho", is_pure=True) * event.rho)
        case events.Block() | events.Linked():
            return replace(event, inner=replaced(event.inner))
        case events.Sampled() if event.unit == "membership" or np.isinf(_pure(event)):
            # Memberships that are sampled one by one are twice as many parts. No sampled curve is claimed for a user
            # who is in both samples.
            inner = replaced(event.inner)
            return replace(event, inner=inner) if event.unit == "membership" else inner
    # Pure losses are those of adding and of removing one after the other.
    epsilon = _pure(event)
    return event if epsilon in (0, np.inf) else events.PureDP(price_of_replacement("epsilon") * epsilon)


def is_linked(charge: Iterable[events.Event]) -> bool:
    """Return whether releases of several windows read the same data, so that a window costs more than one release."""
    for event in charge:
        if isinstance(event, events.Linked) and event.times > 0:
            return True
        if isinstance(event, events.Block | events.Sampled) and is_linked([event.inner]):
            return True
    return False


def gaussian_amount(charge: Iterable[events.Event]) -> float:
    """Return one release's μ²/2 in μ-Gaussian DP under add/remove, which is infinite for non-Gaussian noise."""
    return float(sum(_gaussian(event) for event in charge))


def _gaussian(event: events.Event) -> float:
    match event:
        case events.Block() | events.Sampled():
            # Given the sample, which is the same with and without the person, it is noise on some memberships.
            return _gaussian(event.inner)
        case events.Additive() if event.is_gaussian:
            moved, variance = float(event.sensitivity) ** 2, float(event.scale) ** 2
            if event.family == "discrete_gaussian" and np.isfinite(variance):
                variance = max(variance - SMOOTHING, 0.0)
            if moved <= MAX_COORDINATES and variance > 0:
                return moved / variance / 2
            return 0.0 if moved == 0 else np.inf
    # Of noise that links windows nothing is claimed.
    return 0.0 if isinstance(event, events.FREE) else np.inf


def concentrated_rho(charge: Iterable[events.Event]) -> float:
    """Return the ρ of one release in zero-concentrated DP under add/remove: L2²/(2σ²), or ε²/2 for a pure event."""
    # Bun and Steinke 2016, propositions 1.4 and 1.6; Canonne, Kamath and Steinke 2020, theorem 4.
    return float(sum(_rho(event) for event in charge))


def _rho(event: events.Event) -> float:
    match event:
        case events.Additive():
            return _ratio(event.sensitivity, event.scale) ** 2 / 2
        case events.ConcentratedDP():
            return float(event.rho)
        case events.Block():
            return _rho(event.inner)
        case events.Linked():
            return event.times * _rho(event.inner)
        case events.Sampled():
            # No amplification is known for ρ; a pure figure that was amplified can still be the smaller one.
            return min(_rho(event.inner), _pure(event) ** 2 / 2)
    return _pure(event) ** 2 / 2


#: Price of a charge by measure.
PRICES = {"epsilon": pure_epsilon, "rho": concentrated_rho, "gaussian": gaussian_amount}


def charges_shown(releases: Sequence[Release]) -> list[tuple[events.Event, ...]]:
    """Return the charge to display for each release. A block's single charge appears in each of its windows."""
    shown: list[tuple[events.Event, ...]] = []
    block: tuple[events.Event, ...] = ()
    last = 0
    for release in releases:
        ends = [event.last for event in release.charge if isinstance(event, events.Block)]
        if ends:
            block, last = release.charge, max(ends)
        shown.append(block if not release.charge and release.window <= last else release.charge)
    return shown
