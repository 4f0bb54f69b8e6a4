"""Privacy loss distributions at the end of a run: equal events are counted while it lasts and composed once."""

from __future__ import annotations

from functools import singledispatch
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.accountants.core.charges import parts_sampled
from penstock.mechanisms.core import events
from penstock.mechanisms.core.state import State

#: Different events of a run that are remembered; beyond them the figure is left out.
MAX_DISTINCT = 32
#: Families that the library has a loss distribution of.
KINDS = ("laplace", "discrete_laplace", "gaussian")
GAUSSIAN = KINDS.index("gaussian")
#: Losses are rounded up to multiples of this, or, for memory's sake, to so many parts of what a long run can lose.
FINEST, N_PARTS = 1e-4, 2_000_000


def remember(charge: tuple[events.Event, ...], table: NDArray[np.float64], n_kinds: int) -> State:
    """Count a release's events in the first ``n_kinds`` rows of ``table``; more than MAX_DISTINCT: book closed."""
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


def from_loss_distributions(table: NDArray[np.float64], n_kinds: int, delta: float) -> float | None:
    """ε at δ of everything in a table of `remember`, rounded up; None where the book is closed or empty."""
    # One coordinate shifted by the whole L1 sensitivity is the worst direction of (discrete) Laplace noise. At most
    # some 0.3 GB and a second, whatever the number of releases.
    if not 0 < n_kinds <= MAX_DISTINCT:
        return None
    from dp_accounting.dp_event import PoissonSampledDpEvent  # loads half of SciPy, and is needed at the end of a run
    from dp_accounting.pld import PLDAccountant

    accountant = PLDAccountant(value_discretization_interval=_interval(table[:n_kinds]))
    for kind, sensitivity, scale, rate, count in table[:n_kinds].tolist():
        if sensitivity == 0:
            continue
        if scale == 0:
            return float("inf")
        event = _library_event(KINDS[int(kind)], sensitivity, scale)
        with np.errstate(over="ignore"):  # of exp(ε) beyond 10³⁰⁸, whose reciprocal is 0 all the same
            accountant.compose(event if rate == 1 else PoissonSampledDpEvent(rate, event), int(count))
    return float(accountant.get_epsilon(delta))


def _interval(table: NDArray[np.float64]) -> float:
    """Discretisation interval of losses: any choice is sound, a coarser one overstates by less than it each release."""
    noisy = table[(table[:, 2] > 0) & (table[:, 0] != GAUSSIAN)]
    return max(FINEST, float((noisy[:, 4] * noisy[:, 1] / noisy[:, 2]).sum()) / N_PARTS)


@singledispatch
def _key(event: events.Event) -> tuple[list[float] | None, int]:
    """Key by which two events are equal (None: no distribution in the library), and how many events it stands for."""
    return None, 1


@_key.register
def _(event: events.Additive) -> tuple[list[float] | None, int]:
    if event.family not in KINDS:
        return None, 1
    return [KINDS.index(event.family), float(event.sensitivity), float(event.scale), 1.0], 1


@_key.register
def _(event: events.Block) -> tuple[list[float] | None, int]:
    return _key(event.inner)


@_key.register
def _(event: events.Linked) -> tuple[list[float] | None, int]:
    # A sum of shifts under one Gaussian draw is a Gaussian event again; of other noise no distribution is claimed.
    return _key(event.inner) if event.times == 1 and _family(event) == "gaussian" else (None, 1)


@_key.register
def _(event: events.Sampled) -> tuple[list[float] | None, int]:
    # Each part that is sampled by itself is an event of its own share of the sensitivity.
    key, _ = _key(event.inner)
    n_parts = parts_sampled(event)
    if key is None or n_parts == 0 or _family(event) not in ("gaussian", "laplace"):
        return None, 1
    share = np.sqrt(n_parts) if _family(event) == "gaussian" else n_parts
    return [key[0], key[1] / share, key[2], event.rate], n_parts


def _family(event: events.Linked | events.Sampled) -> str | None:
    return event.inner.family if isinstance(event.inner, events.Additive) else None


def _library_event(family: str, sensitivity: float, scale: float) -> Any:
    from dp_accounting import dp_event

    if family == "gaussian":
        return dp_event.GaussianDpEvent(scale / sensitivity)
    if family == "laplace":
        return dp_event.LaplaceDpEvent(scale / sensitivity)
    return dp_event.DiscreteLaplaceDpEvent(1 / scale, int(np.ceil(sensitivity)))
