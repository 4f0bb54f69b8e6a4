"""Units of privacy and the largest total charge to any one unit."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from penstock.mechanisms.core.plugin import ParameterError, check_choice

Amounts = NDArray[np.float64]
Slots = NDArray[np.int64]
#: Numbers of the periods of the slots from one to another, both inclusive, and a mask of the landmarks.
SlotFacts = Callable[[int, int], tuple[Slots, NDArray[np.bool_]]]

#: Kinds of units; ``length`` belongs to the last two.
WINDOW_KINDS = ("window", "landmarks", "period", "run")
LENGTH_KINDS = ("stretch", "block")


@dataclass(frozen=True)
class Unit:
    """A unit of privacy: everything about one person that a guarantee protects jointly.

    ``window``: one window. ``stretch``: any ``length`` successive windows. ``landmarks``: all landmark windows of a
    budget period and any one other window of it. ``period``: a whole budget period. ``block``: ``length`` windows,
    counted from window 1, that are released together. ``run``: all windows.

    >>> str(Unit.stretch(24)), Unit.of("stretch(24)") == Unit.stretch(24)
    ('stretch(24)', True)
    >>> Unit.stretch(2).cost([1.0, 0.0, 2.0, 3.0])
    5.0
    """

    kind: str = "window"
    length: int = 1

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, WINDOW_KINDS + LENGTH_KINDS)
        if not hasattr(self.length, "__index__") or self.length < 1 or (self.length > 1 and self.kind in WINDOW_KINDS):
            raise ParameterError("length", self.length, "a whole number of at least 1, and 1 unless a stretch or block")

    @classmethod
    def stretch(cls, length: int) -> Unit:
        """Return the stretch unit, which is any ``length`` successive windows."""
        return cls("stretch", length)

    @classmethod
    def block(cls, length: int) -> Unit:
        """Return the block unit of ``length`` windows. The first block starts at window 1."""
        return cls("block", length)

    @classmethod
    def of(cls, text: str) -> Unit:
        """Parse a unit from its string form."""
        matched = re.fullmatch(r"([a-z]+)(?:\(([0-9]+)\))?", text)
        if matched is None:
            raise ParameterError("unit", text, "a kind of unit, with its length in brackets, such as stretch(24)")
        return cls(matched[1], int(matched[2] or 1))

    def __str__(self) -> str:
        return f"{self.kind}({self.length})" if self.kind in LENGTH_KINDS else self.kind

    @property
    def n_bounded(self) -> int:
        """The number of windows over which contributions are bounded: the length of a block, or 1 for other units."""
        return self.length if self.kind == "block" else 1

    @property
    def reads(self) -> tuple[str, ...]:
        """The configuration keys among ``landmarks`` and ``budget_period`` that define the unit."""
        return {"landmarks": ("landmarks", "budget_period"), "period": ("budget_period",)}.get(self.kind, ())

    @property
    def has_periods(self) -> bool:
        """Return whether the unit depends on budget periods."""
        return self.kind in ("landmarks", "period")

    def cost(
        self,
        charges: ArrayLike,
        landmark: ArrayLike | None = None,
        period: ArrayLike | None = None,
        *,
        first: ArrayLike | None = None,
        last: ArrayLike | None = None,
        part: ArrayLike | None = None,
    ) -> float:
        """Return the total charge to the most expensive unit.

        Charges of windows add up in a unit that holds them (sequential composition, in ε or in ρ). A charge of several
        windows, such as that of a block or of a period, from ``first`` to ``last`` (0-based), counts in every unit that
        meets any of its windows; ``part`` is what it counts for in a unit that holds only some: more where contribution
        bounding counts others of a person's events in place of those that go (`sensitivity.price_of_replacement`).

        ``landmark``, ``period``: facts of the windows, shape (n_windows,); unset: no landmarks, one period.
        """
        amounts = np.asarray(charges, np.float64)
        begins = np.arange(len(amounts)) if first is None else np.asarray(first, np.int64)
        ends = begins if last is None else np.asarray(last, np.int64)
        partly = amounts if part is None else np.asarray(part, np.float64)
        if not len(amounts):
            return 0.0
        given = [np.asarray(facts) for facts in (period, landmark) if facts is not None]
        n_windows = max(int(ends.max()) + 1, *map(len, given), 1)
        numbers, marks = one_period(1, n_windows)
        if self.kind == "block":
            numbers = np.arange(n_windows) // self.length
        elif period is not None and self.kind != "run":
            numbers = np.asarray(period, np.int64)
        if landmark is not None:
            marks = np.asarray(landmark, bool)
        unit = replace(self, length=min(self.length, n_windows))
        costs = UnitCosts(unit, lambda begin, end: (numbers[begin : end + 1], marks[begin : end + 1]))
        for charge in zip(begins.tolist(), ends.tolist(), amounts.tolist(), partly.tolist()):
            costs.add(SlotCharge(*charge))
        return costs.spent(0, n_windows - 1)

    def words(self, length: str | None = None, period: str = "a budget period") -> str:
        """Describe the unit as prose, with the given text in place of its length or period."""
        n = f"{self.length}" if length is None else length
        where = {
            "window": "one window",
            "stretch": f"any {n} successive windows",
            "block": "one block of " + (f"{n} windows" if n else "windows"),
            "run": "all windows",
            "period": period,
            "landmarks": f"the landmark windows of {period} and in any one other window of it",
        }
        return f"one user's events in {where[self.kind]}"


#: Slots whose numbers are kept together: time between charges that are far apart takes no memory.
CHUNK = 4096


class SlotArray:
    """A sparse array with one number per slot, 0 by default. Chunks are allocated on the first write.

    >>> array = SlotArray()
    >>> array.add(5, 8, 1.5)
    >>> array.add(1_000_000, 1_000_000, 2.0)
    >>> array.highest(1, 6), array.highest(9, 20_000), array.highest(-10, 2_000_000)
    (1.5, 0.0, 2.0)
    """

    def __init__(self) -> None:
        self._chunks: dict[int, Amounts] = {}
        self._first = -(2**62)

    def add(self, first: int, last: int, amount: float, combine: np.ufunc = np.add) -> None:
        """Add an amount to slots ``first`` to ``last``, or ``combine`` it with them. Forgotten slots are skipped."""
        first = max(first, self._first)
        for number in range(first // CHUNK, last // CHUNK + 1):
            if number not in self._chunks:
                self._chunks[number] = np.zeros(CHUNK)
            part = self._chunks[number][_chunk_slice(number, first, last)]
            combine(part, amount, out=part)

    def highest(self, first: int, last: int) -> float:
        """Return the maximum over slots ``first`` to ``last``."""
        numbers = range(first // CHUNK, last // CHUNK + 1)
        chunks = ((number, chunk) for number, chunk in self._chunks.items() if number in numbers)
        return max((float(chunk[_chunk_slice(n, first, last)].max()) for n, chunk in chunks), default=0.0)

    def forget_before(self, slot: int) -> None:
        """Drop every chunk that ends before a slot."""
        self._first = max(self._first, slot // CHUNK * CHUNK)
        self._chunks = {number: chunk for number, chunk in self._chunks.items() if number * CHUNK >= self._first}


def _chunk_slice(number: int, first: int, last: int) -> slice:
    """Return the slice of a chunk that overlaps slots ``first`` to ``last``, which must not be empty."""
    return slice(max(first - number * CHUNK, 0), last - number * CHUNK + 1)


class SlotCharge(NamedTuple):
    """A charge for consecutive slots: ``amount`` for a unit with all of them, ``in_part`` for one with only some.

    The latter is larger where bounding counts others of a person's events in place of those that go.
    """

    first: int
    last: int
    amount: float
    in_part: float


class _Part(NamedTuple):
    """The amount that a charge adds to a range of units. If ``alone`` is set, slots are tracked separately."""

    first: int
    last: int
    alone: tuple[int, int] | None
    amount: float


def one_period(first: int, last: int) -> tuple[Slots, NDArray[np.bool_]]:
    """Return period numbers and landmark masks for slots in a single period without landmarks."""
    return np.zeros(last - first + 1, np.int64), np.zeros(last - first + 1, bool)


class UnitCosts:
    """The accumulated cost per unit for one kind of unit, stored so that a check is a single lookup.

    Units of stretches are numbered by their first slot, others by period. Of a period, whose slots are all landmarks
    unless the unit says so, `_together` has what all of its landmarks cost, `_alone` by slot what any other slot costs,
    and `_most_expensive` the most that one of these does. ``facts`` gives the periods of slots, in ascending order, and
    a mask of landmarks. A charge takes time in proportion to the slots that it covers and the length of a stretch.
    Amounts only ever grow, so that what was refused stays refused.

    >>> costs = UnitCosts(Unit.stretch(2))
    >>> costs.add(SlotCharge(5, 5, 0.5, 0.5))
    >>> costs.total(SlotCharge(6, 6, 0.25, 0.25)), costs.total(SlotCharge(7, 7, 0.25, 0.25))
    (0.75, 0.25)
    """

    def __init__(self, unit: Unit, facts: SlotFacts = one_period) -> None:
        self._is_stretch, self._length = unit.kind in ("window", "stretch"), unit.length
        self._together, self._alone, self._most_expensive = (SlotArray() for _ in range(3))

        @lru_cache(maxsize=16)
        def facts_of_chunk(number: int) -> tuple[Slots, NDArray[np.bool_]]:
            """Return a chunk's periods and landmark mask, which is all True if the unit ignores landmarks."""
            periods, marks = facts(number * CHUNK, (number + 1) * CHUNK - 1)
            return periods, marks if unit.kind == "landmarks" else np.ones_like(marks)

        self._facts_of_chunk = facts_of_chunk

    def total(self, charge: SlotCharge) -> float:
        """Return the largest cost of any unit after the charge."""
        return sum(self.costliest_unit(charge))

    def costliest_unit(self, charge: SlotCharge) -> tuple[float, float]:
        """Return the current cost of the unit that would cost most after the charge, and the amount charged to it."""
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
        """Return the largest cost of any unit that overlaps the slots."""
        if self._is_stretch:
            return self.total(SlotCharge(first, last, 0.0, 0.0))
        periods = range(self.period(first), self.period(last) + 1)
        return max(self._most(_Part(n, n, None, 0.0)) for n in periods)

    def forget_before(self, slot: int) -> None:
        """Drop charges whose units all end before ``slot``."""
        if self._is_stretch:
            self._together.forget_before(slot - self._length)
            return
        self._alone.forget_before(slot)
        for of_periods in (self._together, self._most_expensive):
            of_periods.forget_before(self.period(slot))

    def period(self, slot: int) -> int:
        """Return a slot's period number."""
        return int(self._slot_facts(slot, slot)[0][0])

    def _slot_facts(self, first: int, last: int) -> tuple[Slots, NDArray[np.bool_]]:
        """Return each slot's period in a range, and a landmark mask that is all True if the unit ignores landmarks."""
        numbers = range(first // CHUNK, last // CHUNK + 1)
        facts = [self._facts_of_chunk(number) for number in numbers]
        periods, marks = facts[0] if len(facts) == 1 else map(np.concatenate, zip(*facts))
        wanted = slice(first - numbers[0] * CHUNK, last - numbers[0] * CHUNK + 1)
        return periods[wanted], marks[wanted]

    def _most(self, part: _Part) -> float:
        """Return the largest cost of any unit in a part."""
        units = part.first, part.last
        others = self._most_expensive.highest(*units) if part.alone is None else self._alone.highest(*part.alone)
        return self._together.highest(*units) + others

    def _parts(self, charge: SlotCharge) -> Iterator[_Part]:
        """Yield the ranges of units affected by a charge, with the amount added to each unit."""
        first, last = charge.first, charge.last
        if self._is_stretch:
            low, holding = (slot - self._length + 1 for slot in (first, last))
            contains_all = holding <= first
            cuts = [low, holding, first + 1, last + 1] if contains_all else [low, last + 1]
            for number, (begin, end) in enumerate(pairwise(cuts)):
                if begin < end:
                    yield _Part(begin, end - 1, None, charge.amount if contains_all and number == 1 else charge.in_part)
            return
        periods, marks = self._slot_facts(first, last)
        cuts = [0, *(1 + np.flatnonzero(np.diff(periods))).tolist(), len(periods)]
        is_held = len(periods) == 1 or (len(cuts) == 2 and marks.all())
        for begin, end in pairwise(cuts):
            number = int(periods[begin])
            alone = None if marks[begin:end].any() else (first + begin, first + end - 1)
            yield _Part(number, number, alone, charge.amount if is_held else charge.in_part)


#: Sums of shares such as 3 · (ε/3) may pass a budget by rounding alone.
ROUNDING = 1e-9


def exceeds(spent: float, budget: float) -> bool:
    """Return whether spending exceeds a budget by more than rounding error or is NaN."""
    return not spent <= budget * (1 + ROUNDING)


#: The unit of most mechanisms.
WINDOW = Unit()
LANDMARKS = Unit("landmarks")
PERIOD = Unit("period")
RUN = Unit("run")
