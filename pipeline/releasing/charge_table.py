"""Charges of a ledger by time slot, and the total cost to every unit of privacy that overlaps them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.core.plugin import ParameterError
from penstock.pipeline.windows.calendar import DAY, Calendar
from penstock.pipeline.windows.grid import period_calendar
from penstock.pipeline.windows.landmarks import Landmarks

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

#: Slots whose numbers are kept together: time between charges that are far apart takes no memory.
CHUNK = 4096

#: Kinds of units that a budget can protect.
KINDS = ("stretch", "period", "landmarks")


@dataclass(frozen=True, kw_only=True)
class Terms:
    """The terms in a ledger's first line: grid, unit, measure and budget.

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
    (1, 24, "one user's events in any 24 windows in a row")
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
        if self.kind not in KINDS:
            raise ParameterError("kind", self.kind, "one of " + ", ".join(KINDS))

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Terms:
        """Restore terms from the values of a ledger's first line."""
        read: dict[str, Any] = {n: tuple(value) if isinstance(value, list) else value for n, value in values.items()}
        return cls(**read)

    @cached_property
    def calendar(self) -> Calendar:
        """The calendar of the grid from 1970 onward, in which the index of a window is its slot."""
        return Calendar(step=self.step, anchor=self.anchor, time_zone=self.time_zone, from_ms=0)

    @cached_property
    def periods(self) -> Calendar | None:
        """The calendar of budget periods, or None if there is only one."""
        if self.period is None:
            return None
        return replace(period_calendar(self.period, self.period_begin, self.period_zone), from_ms=0)

    @cached_property
    def landmarks(self) -> Landmarks:
        """The landmarks of the unit of privacy. Listed landmarks are given as slots."""
        return Landmarks(windows=self.listed, times=self.times, recurring=self.recurring)

    def slot(self, instant: int) -> int:
        """Return the slot that contains a given time."""
        return int(self.calendar.index(np.array([instant]))[0])

    def start(self, slot: int) -> int:
        """Return the time at which a slot starts."""
        return self.calendar.start(slot)

    @property
    def unit(self) -> str:
        """The unit that the budget protects, described in words."""
        if self.traces:
            return self.traces
        if self.kind == "stretch":
            windows = f"any {self.length:,} windows in a row" if self.length > 1 else "any one window"
            return f"one user's events in {windows}"
        within = "all time"
        if self.period is not None:
            days, rest = divmod(self.period, DAY)
            length = f"{days} days" if not rest and days > 1 else f"{self.period / 3_600_000:g} hours"
            within = f"a budget period of {length}"
        if self.kind == "period":
            return f"one user's events in {within}"
        return f"one user's events in all landmarks of {within} and in any one other window of it"


class SlotArray:
    """A sparse array with one number per slot, 0 by default. Memory is allocated only for chunks that have been written
    to.

    >>> array = SlotArray()
    >>> array.add(5, 8, 1.5)
    >>> array.add(1_000_000, 1_000_000, 2.0)
    >>> array.highest(1, 6), array.highest(9, 20_000), array.highest(-10, 2_000_000)
    (1.5, 0.0, 2.0)
    """

    def __init__(self) -> None:
        self._chunks: dict[int, Floats] = {}
        self._first = -(2**62)

    def add(self, first: int, last: int, amount: float, combine: np.ufunc = np.add) -> None:
        """Add an amount to the slots ``first`` to ``last``, skipping forgotten ones, or ``combine`` it with them."""
        first = max(first, self._first)
        for number in range(first // CHUNK, last // CHUNK + 1):
            if number not in self._chunks:
                self._chunks[number] = np.zeros(CHUNK)
            part = self._chunks[number][_chunk_slice(number, first, last)]
            combine(part, amount, out=part)

    def highest(self, first: int, last: int) -> float:
        """Return the maximum over the slots ``first`` to ``last``."""
        numbers = range(first // CHUNK, last // CHUNK + 1)
        chunks = ((number, chunk) for number, chunk in self._chunks.items() if number in numbers)
        return max((float(chunk[_chunk_slice(n, first, last)].max()) for n, chunk in chunks), default=0.0)

    def forget_before(self, slot: int) -> None:
        """Drop every chunk that lies entirely before a slot."""
        self._first = max(self._first, slot // CHUNK * CHUNK)
        self._chunks = {number: chunk for number, chunk in self._chunks.items() if number * CHUNK >= self._first}


def _chunk_slice(number: int, first: int, last: int) -> slice:
    """Return the slice of a chunk that covers the slots ``first`` to ``last``, which must overlap the chunk."""
    return slice(max(first - number * CHUNK, 0), last - number * CHUNK + 1)


class SlotCharge(NamedTuple):
    """The amount charged to consecutive slots, where all of them are in a unit; ``in_part`` where only some are.

    That is more where contribution bounding chooses among a person's events in all of them, so that others are counted
    in place of those that go.
    """

    first: int
    last: int
    amount: float
    in_part: float


class _Part(NamedTuple):
    """The amount that a charge adds to a range of units, for each slot of ``alone`` separately if that is set."""

    first: int
    last: int
    alone: tuple[int, int] | None
    amount: float


class ChargeTable:
    """The accumulated cost of every unit of a ledger, stored as one number per unit so that a check needs only a
    look-up.

    Units of stretches are numbered by their first slot, others by period. Of a period, whose slots are all landmarks if
    it is the unit, `_together` has what all of its landmarks cost, `_alone` by slot what any other slot costs, and
    `_most_expensive` the most that one of these does.

    Notes
    -----
    A charge takes time in proportion to the slots that it covers and the length of a stretch, whatever was charged
    before. Amounts only ever grow, so that what was refused stays refused. Chunks that no later charge can meet are
    dropped (`forget_before`).

    Examples
    --------
    >>> table = ChargeTable(Terms(source="", step=1, anchor=0, measure="epsilon", budget=1.0, length=2))
    >>> table.add(SlotCharge(5, 5, 0.5, 0.5))
    >>> table.total(SlotCharge(6, 6, 0.25, 0.25)), table.total(SlotCharge(7, 7, 0.25, 0.25))
    (0.75, 0.25)
    """

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self._together, self._alone, self._most_expensive = (SlotArray() for _ in range(3))
        self._facts_of_chunk = lru_cache(maxsize=16)(self._read_chunk)

    def total(self, charge: SlotCharge) -> float:
        """Return the largest cost that any unit would have after the charge."""
        return sum(self.costs(charge))

    def costs(self, charge: SlotCharge) -> tuple[float, float]:
        """Return the current cost and the charged amount for the unit whose total would be largest."""
        return max(((self._most(part), part.amount) for part in self._parts(charge)), key=sum)

    def add(self, charge: SlotCharge) -> None:
        """Add a charge to every unit that it affects."""
        for part in self._parts(charge):
            if part.alone is None:
                self._together.add(part.first, part.last, part.amount)
            else:
                self._alone.add(*part.alone, part.amount)
                self._most_expensive.add(part.first, part.last, self._alone.highest(*part.alone), np.maximum)

    def spent(self, first: int, last: int) -> float:
        """Return the largest cost of any unit that overlaps one of the slots."""
        if self.terms.kind == "stretch":
            return self.total(SlotCharge(first, last, 0.0, 0.0))
        periods = range(self.period(first), self.period(last) + 1)
        return max(self._most(_Part(n, n, None, 0.0)) for n in periods)

    def period(self, slot: int) -> int:
        """Return the index of the budget period in which a slot begins, or 0 if there is only one period."""
        periods, _ = self._facts_of(slot, slot)
        return int(periods[0])

    def forget_before(self, slot: int) -> None:
        """Drop charges that cannot share a unit with any slot from ``slot`` onward."""
        is_stretch = self.terms.kind == "stretch"
        self._together.forget_before(slot - self.terms.length if is_stretch else self.period(slot))
        self._alone.forget_before(slot)
        self._most_expensive.forget_before(self.period(slot))

    def _most(self, part: _Part) -> float:
        """Return the largest cost among the units of a part."""
        units = part.first, part.last
        others = self._most_expensive.highest(*units) if part.alone is None else self._alone.highest(*part.alone)
        return self._together.highest(*units) + others

    def _parts(self, charge: SlotCharge) -> Iterator[_Part]:
        """Yield the ranges of units that a charge affects, with the amount that it adds to each unit."""
        first, last = charge.first, charge.last
        if self.terms.kind == "stretch":
            low, holding = (slot - self.terms.length + 1 for slot in (first, last))
            holds_all = holding <= first
            cuts = [low, holding, first + 1, last + 1] if holds_all else [low, last + 1]
            for number, (begin, end) in enumerate(pairwise(cuts)):
                if begin < end:
                    yield _Part(begin, end - 1, None, charge.amount if holds_all and number == 1 else charge.in_part)
            return
        periods, marks = self._facts_of(first, last)
        cuts = [0, *(1 + np.flatnonzero(np.diff(periods))).tolist(), len(periods)]
        is_held = len(periods) == 1 or (len(cuts) == 2 and marks.all())
        for begin, end in pairwise(cuts):
            number = int(periods[begin])
            alone = None if marks[begin:end].any() else (first + begin, first + end - 1)
            yield _Part(number, number, alone, charge.amount if is_held else charge.in_part)

    def _facts_of(self, first: int, last: int) -> tuple[Integers, NDArray[np.bool_]]:
        """Return the budget period of each slot in a range, and a mask of the landmarks (all in a period's unit)."""
        numbers = range(first // CHUNK, last // CHUNK + 1)
        facts = [self._facts_of_chunk(number) for number in numbers]
        periods, marks = facts[0] if len(facts) == 1 else map(np.concatenate, zip(*facts))
        wanted = slice(first - numbers[0] * CHUNK, last - numbers[0] * CHUNK + 1)
        return periods[wanted], marks[wanted]

    def _read_chunk(self, number: int) -> tuple[Integers, NDArray[np.bool_]]:
        terms, first = self.terms, number * CHUNK
        marks, periods = np.full(CHUNK, terms.kind == "period"), np.zeros(CHUNK, np.int64)
        skipped = max(0, 1 - first)  # slots before 1970
        if skipped < CHUNK:
            slots = (first + skipped, first + CHUNK - 1)
            if terms.periods is not None:
                periods[skipped:] = terms.periods.index(terms.calendar.starts(*slots))
            if terms.kind == "landmarks":
                marks[skipped:] = terms.landmarks.mask(terms.calendar, *slots)
        return periods, marks
