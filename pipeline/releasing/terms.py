"""A ledger's terms: slot grid, unit of privacy, measure and budget."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.core.plugin import check_choice
from penstock.mechanisms.core.unit import LANDMARKS, PERIOD, WINDOW, Unit, UnitCosts, one_period
from penstock.pipeline.windows.calendar import DAY, Calendar
from penstock.pipeline.windows.grid import period_calendar
from penstock.pipeline.windows.landmarks import Landmarks

Integers = NDArray[np.int64]

#: Units by the kind that a ledger states; of a stretch one slot.
_KINDS = {"stretch": WINDOW, "period": PERIOD, "landmarks": LANDMARKS}


@dataclass(frozen=True, kw_only=True)
class Terms:
    """The terms recorded in a ledger's first line: grid, unit, measure and budget.

    Slots are the windows of the grid, numbered through from 1970 on, so that every run on it knows the number of each.

    Parameters
    ----------
    source
        Name of the event source.
    step, anchor, time_zone
        The grid, as in `Calendar`.
    measure
        ``epsilon`` or ``rho``: which figure of a charge counts; ``runs`` for traces that have neither.
    budget
        Most that a unit may cost; infinite: nothing is enforced.
    kind
        What the budget protects of one person: events in any ``length`` slots in a row (``stretch``), in all of a
        budget period (``period``), or in all landmarks of a period and any one other slot of it (``landmarks``).
    period, period_begin, period_zone
        Length of a budget period in milliseconds, an instant at which one begins, and the zone of its days; None: all
        time is one.
    times, recurring, listed
        Landmarks, as in `Landmarks`; ``listed`` are slots.
    adjacency
        Which two inputs are compared, in words.
    traces
        What the unit of traces is, in words; empty: the ledger is about counts.

    Examples
    --------
    >>> hour = 3_600_000
    >>> terms = Terms(source="taxis", step=hour, anchor=0, measure="epsilon", budget=1.0, length=24)
    >>> terms.slot(0), terms.start(25) // hour, terms.unit
    (1, 24, "one user's events in any 24 successive windows")
    """

    source: str
    step: int
    anchor: int
    measure: str
    budget: float
    time_zone: str = "UTC"
    kind: str = "stretch"
    length: int = 1
    period: int | None = None
    period_begin: int = 0
    period_zone: str = "UTC"
    times: tuple[str, ...] = ()
    recurring: tuple[str, ...] = ()
    listed: tuple[int, ...] = ()
    adjacency: str = "add or remove one user's events in the unit"
    traces: str = ""

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, _KINDS)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Terms:
        """Restore the terms from the contents of a ledger's first line."""
        read: dict[str, Any] = {n: tuple(value) if isinstance(value, list) else value for n, value in values.items()}
        return cls(**read)

    @cached_property
    def calendar(self) -> Calendar:
        """The grid's calendar from 1970 onward, in which a window's index is its slot."""
        return Calendar(step=self.step, anchor=self.anchor, time_zone=self.time_zone, from_ms=0)

    @cached_property
    def periods(self) -> Calendar | None:
        """The calendar of budget periods, or None if there is only one."""
        if self.period is None:
            return None
        return replace(period_calendar(self.period, self.period_begin, self.period_zone), from_ms=0)

    @cached_property
    def landmarks(self) -> Landmarks:
        """The landmarks of the unit of privacy, with listed windows converted to slots."""
        return Landmarks(windows=self.listed, times=self.times, recurring=self.recurring)

    def slot(self, instant: int) -> int:
        """Return the slot that contains an instant."""
        return int(self.calendar.index(np.array([instant]))[0])

    def start(self, slot: int) -> int:
        """Return the time at which a slot starts."""
        return self.calendar.start(slot)

    @property
    def protected(self) -> Unit:
        """The unit protected by the budget."""
        return Unit.stretch(self.length) if self.kind == "stretch" and self.length > 1 else _KINDS[self.kind]

    @property
    def unit(self) -> str:
        """A description of the unit protected by the budget."""
        period = "all time"
        if self.period is not None:
            days, rest = divmod(self.period, DAY)
            length = f"{days} days" if not rest and days > 1 else f"{self.period / 3_600_000:g} hours"
            period = f"a budget period of {length}"
        return self.traces or self.protected.words(period=period)

    def costs(self) -> UnitCosts:
        """Return the costs of all units before any charge."""
        return UnitCosts(self.protected, self.facts)

    def facts(self, first: int, last: int) -> tuple[Integers, NDArray[np.bool_]]:
        """Return each slot's budget period (0 if there is only one) and the landmark mask for a range of slots."""
        periods, marks = one_period(first, last)
        skipped = max(0, 1 - first)  # slots before 1970
        if first + skipped <= last:
            if self.periods is not None:
                periods[skipped:] = self.periods.index(self.calendar.starts(first + skipped, last))
            if self.kind == "landmarks":
                marks[skipped:] = self.landmarks.mask(self.calendar, first + skipped, last)
        return periods, marks
