"""Privacy loss distributions: count equal events during a run and compose them once at the end."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.accountants.core.charges import parts_sampled
from penstock.accountants.core.renyi import discrete_laplace_losses
from penstock.mechanisms.core import events
from penstock.mechanisms.core.state import State

#: Different events of a run that are remembered; beyond them the figure is left out.
MAX_DISTINCT = 32
#: Families whose loss distribution is known.
KINDS = ("laplace", "discrete_laplace", "gaussian")
GAUSSIAN = KINDS.index("gaussian")
#: Losses are rounded up to multiples of this, or, for memory's sake, to so many parts of what a long run can lose.
FINEST, N_PARTS = 1e-4, 2_000_000
#: Mass of losses that are taken to be infinite, or wrapped around, for short arrays.
TAIL = 1e-15
_ORDERS = np.array([*range(-20, 0), *range(1, 21)])


def remember(charge: tuple[events.Event, ...], table: NDArray[np.float64], n_kinds: int) -> State:
    """Count a release's events in the first ``n_kinds`` rows of ``table``, which closes after MAX_DISTINCT kinds."""
    # Rows: kind, sensitivity, scale, sampling rate and how often. The book is closed after too many different events or
    # one of another kind.
    table = table.copy()
    for event in charge:
        if isinstance(event, events.FREE):
            continue
        key, n_times = _key(event)
        same: Any = [] if key is None else np.flatnonzero((table[:n_kinds, :4] == key).all(axis=1))
        if len(same):
            table[same[0], 4] += n_times
        elif key is None or n_kinds >= MAX_DISTINCT:
            return {"events": np.zeros_like(table), "n_kinds": np.asarray(MAX_DISTINCT + 1)}
        else:
            table[n_kinds], n_kinds = [*key, n_times], n_kinds + 1
    return {"events": table, "n_kinds": np.asarray(n_kinds)}


def from_loss_distributions(
    table: NDArray[np.float64], n_kinds: int, delta: float, *, n_parts: int = N_PARTS
) -> float | None:
    """Compose all events in a `remember` table into an ε at δ, rounded up. Return None if it is closed or empty.

    Losses lie on dots, multiples of a step; between two dots mass is split so that its probability stays, with and
    without the person: the smallest curve of δ that is exact at every dot and nowhere too low (Doroshenko, Ghazi,
    Kamath, Kumar, Manurangsi 2022, *Connect the Dots*, algorithm 1).
    """
    # One coordinate shifted by the whole L1 sensitivity is the worst direction of (discrete) Laplace noise. At most
    # some 0.3 GB and a second, whatever the number of releases.
    if not 0 < n_kinds <= MAX_DISTINCT:
        return None
    parts = []
    for kind, sensitivity, scale, rate, count in table[:n_kinds].tolist():
        if sensitivity > 0 and scale == 0:
            return float("inf")
        if sensitivity > 0:
            is_one = kind == GAUSSIAN and rate == 1  # Gaussian releases together are one of more, or less noise
            loss = _Loss.of(KINDS[int(kind)], sensitivity * np.sqrt(count if is_one else 1.0), scale)
            parts.append((loss, rate, 1 if is_one else int(count)))
    # The grid spacing: any is sound, and each release is overstated by less than one spacing.
    reach = sum(loss.reach * n for loss, rate, n in parts if loss.is_bounded or rate == 1)
    step = max(FINEST, reach / n_parts)
    # With sampling, whether a person is removed or added makes a difference.
    directions = (True, False) if any(rate < 1 for _, rate, _ in parts) else (True,)
    return max(
        _epsilon([(*_discretise(loss, rate, step, removed), count) for loss, rate, count in parts], step, delta)
        for removed in directions
    )


class _Loss(NamedTuple):
    """One release's privacy loss distribution. `reach` bounds the loss (Gaussian: except with probability 10⁻²²)."""

    #: Probability of at most a loss with the person, and of a larger one without, both exact where they are small.
    probabilities: Callable[[NDArray[np.float64]], tuple[NDArray[np.float64], NDArray[np.float64]]]
    reach: float
    is_bounded: bool

    @classmethod
    def of(cls, family: str, sensitivity: float, scale: float) -> _Loss:
        """Return the privacy loss distribution for one release with noise from the given family."""
        if family == "gaussian":
            from scipy.special import ndtr  # a tenth of a second that other noise does without

            mu = sensitivity / scale
            half = mu**2 / 2
            return cls(lambda t: (ndtr((t - half) / mu), ndtr((-t - half) / mu)), half + 10 * mu, False)
        if family == "laplace":
            maximum = sensitivity / scale

            def laplace(t: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
                is_within = (t >= -maximum) & (t < maximum)
                inside = np.clip(t, -maximum, maximum)
                at_most = np.where(is_within, np.exp((inside - maximum) / 2) / 2, t >= maximum)
                return at_most, np.where(is_within, np.exp(-(inside + maximum) / 2) / 2, t < -maximum)

            return cls(laplace, maximum, True)
        log_mass, losses = discrete_laplace_losses(scale, int(np.ceil(sensitivity)))
        with_person = np.append(0.0, np.cumsum(np.exp(log_mass[::-1])))
        without = np.append(np.cumsum(np.exp(log_mass - losses))[::-1], 0.0)

        def discrete(t: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
            n_at_most = np.searchsorted(losses[::-1], t, "right")
            return with_person[n_at_most], without[n_at_most]

        return cls(discrete, float(losses[0]), True)


def _discretise(loss: _Loss, rate: float, step: float, removed: bool) -> tuple[int, NDArray[np.float64], float]:
    """Discretise the loss of removing or adding a person sampled at ``rate``: first index, masses, infinite mass."""
    with np.errstate(divide="ignore"):
        ends = np.logaddexp(np.log1p(-rate), np.log(rate) + np.array([-loss.reach, loss.reach]))
    low, high = ends if removed else -ends[::-1]
    first, last = math.ceil(low / step) - 1, math.floor(high / step) + 1  # a loss at either end lies between them
    dots = np.arange(first, last + 1) * step
    bounds = dots if removed else -dots[::-1]
    with np.errstate(divide="ignore", over="ignore"):
        at_most, above = loss.probabilities(bounds if rate == 1 else np.log(np.maximum(1 + np.expm1(bounds) / rate, 0)))
    # The first and last entries: what is below and above all dots.
    with_person = np.concatenate([at_most[:1], np.diff(at_most), 1 - at_most[-1:]])
    without = np.concatenate([1 - above[:1], -np.diff(above), above[-1:]])
    with_person = rate * with_person + (1 - rate) * without
    mass, other = (with_person, without) if removed else (without[::-1], with_person[::-1])
    between = mass[1:-1]
    with np.errstate(divide="ignore"):
        upper = (between - np.exp(np.log(other[1:-1]) + dots[:-1])) / -np.expm1(-step)
    upper = np.clip(upper, 0, between)
    return first, np.append(between - upper, 0.0) + np.append(0.0, upper), float(mass[0] + mass[-1])


def _epsilon(parts: Sequence[tuple[int, NDArray[np.float64], float, int]], step: float, delta: float) -> float:
    """Return the composed ε at δ, given each kind's first grid index, masses, infinite mass and count."""
    low, high = 0, sum(n * (len(mass) - 1) for _, mass, _, n in parts)
    span = max((len(mass) for _, mass, _, _ in parts), default=1)
    log_moments = sum(n * _log_moments(mass, span) for _, mass, _, n in parts)
    for order, bound in zip(_ORDERS, span * (log_moments + math.log(2 / TAIL)) / _ORDERS):  # Chernoff's, on both tails
        low, high = (low, min(high, math.ceil(bound))) if order > 0 else (max(low, math.floor(bound)), high)
    n_dots = 1 << max(high - low, span).bit_length()
    product = np.ones(n_dots // 2 + 1, complex)
    for _, mass, _, n in parts:
        product *= np.fft.rfft(mass, n_dots) ** n
    mass = np.maximum(np.roll(np.fft.irfft(product, n_dots), -low)[: high - low + 1], 0)
    infinite = TAIL - math.expm1(sum(n * math.log1p(-rest) for _, _, rest, n in parts))
    losses = (sum(n * first for first, _, _, n in parts) + low + np.arange(len(mass))) * step
    # δ at ε is the largest of what the losses above a dot make of it: their mass, less exp(ε) times the other mass.
    n_above = np.count_nonzero(losses > 0)
    mass, losses = mass[::-1][:n_above], losses[::-1][:n_above]
    excess = infinite + np.cumsum(mass) - delta
    if infinite > delta:
        return math.inf
    with np.errstate(divide="ignore", invalid="ignore"):
        log_other = np.logaddexp.accumulate(np.log(mass) - losses)
        return float(np.max(np.log(np.maximum(excess, 0)) - log_other, initial=0.0, where=excess > 0))


def _log_moments(mass: NDArray[np.float64], span: int) -> NDArray[np.float64]:
    """Return the logarithms of the moments E exp(order · dot / span) for all orders."""
    factor = np.exp(np.arange(len(mass)) / span)
    tilted, moments = mass * factor ** _ORDERS[0], []
    for step in np.diff(_ORDERS, append=_ORDERS[-1]).tolist():
        moments.append(tilted.sum())
        tilted *= factor**step
    return np.log(moments)


def _key(event: events.Event) -> tuple[list[float] | None, int]:
    """Return a key shared by equal events (None if no distribution is known) and the number of events."""
    match event:
        case events.Additive() if event.family in KINDS:
            return [KINDS.index(event.family), float(event.sensitivity), float(event.scale), 1.0], 1
        case events.Block(inner):
            return _key(inner)
        case events.Linked(events.Additive(family="gaussian") as inner, times=1):
            # A sum of shifts under one Gaussian draw is a Gaussian event again; of other noise no distribution is
            # claimed.
            return _key(inner)
        case events.Sampled(events.Additive(family="gaussian" | "laplace") as inner) if n := parts_sampled(event):
            # Each part that is sampled by itself is an event of its own share of the sensitivity.
            share = np.sqrt(n) if inner.is_gaussian else n
            return [KINDS.index(inner.family), float(inner.sensitivity) / share, float(inner.scale), event.rate], n
    return None, 1
