"""Units of privacy, and the largest total charge to any unit."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from penstock.mechanisms.core.plugin import ParameterError

Amounts = NDArray[np.float64]
Slots = NDArray[np.int64]

#: Kinds of units; ``length`` belongs to the last two.
WINDOW_KINDS = ("window", "landmarks", "period", "run")
LENGTH_KINDS = ("stretch", "block")


@dataclass(frozen=True)
class Unit:
    """A unit of privacy: everything about one person that a guarantee protects together.

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
        if self.kind not in WINDOW_KINDS + LENGTH_KINDS:
            raise ParameterError("kind", self.kind, "one of " + ", ".join(WINDOW_KINDS + LENGTH_KINDS))
        if not hasattr(self.length, "__index__") or self.length < 1 or (self.length > 1 and self.kind in WINDOW_KINDS):
            raise ParameterError("length", self.length, "a whole number of at least 1, and 1 unless a stretch or block")

    @classmethod
    def stretch(cls, length: int) -> Unit:
        """Return the unit of any ``length`` successive windows."""
        return cls("stretch", length)

    @classmethod
    def block(cls, length: int) -> Unit:
        """Return the unit of a block of ``length`` windows, counted from window 1."""
        return cls("block", length)

    @classmethod
    def of(cls, text: str) -> Unit:
        """Parse a unit from its text form."""
        matched = re.fullmatch(r"([a-z]+)(?:\(([0-9]+)\))?", text)
        if matched is None:
            raise ParameterError("unit", text, "a kind of unit, with its length in brackets, such as stretch(24)")
        return cls(matched[1], int(matched[2] or 1))

    def __str__(self) -> str:
        return f"{self.kind}({self.length})" if self.kind in LENGTH_KINDS else self.kind

    @property
    def n_bounded(self) -> int:
        """The number of windows over which contributions are bounded: those of a block, or else 1."""
        return self.length if self.kind == "block" else 1

    @property
    def reads(self) -> tuple[str, ...]:
        """The keys ``landmarks`` and ``budget_period`` of a configuration that define the unit."""
        return {"landmarks": ("landmarks", "budget_period"), "period": ("budget_period",)}.get(self.kind, ())

    @property
    def has_periods(self) -> bool:
        """Return whether budget periods define the unit."""
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
        """Return the total of the charges to the most expensive unit.

        Charges of windows add up in a unit that holds them (sequential composition, in ε or in ρ). A charge of several
        windows, such as that of a block or of a period, from ``first`` to ``last`` (0-based), counts in every unit that
        meets any of its windows; ``part`` is what it counts for in a unit that holds only some. It is more where
        contribution bounding chooses among a person's events in all of the charge's windows: when some of them go,
        others are counted instead, a replacement (`sensitivity.Sensitivity.replaced`).

        ``landmark``, ``period``: facts of the windows, shape (n_windows,); unset: no landmarks, one period. O(n_windows
        + n_charges), for landmarks times the periods that a charge meets. Never too little: sums of many amounts are
        rounded like any sum.

        >>> Unit("landmarks").cost([1.0, 2.0, 4.0, 3.0], landmark=[True, False, False, True])
        8.0
        >>> Unit.stretch(2).cost([5.0], first=[1], last=[6], period=[0] * 8, part=[10.0])
        10.0
        """
        amounts = np.asarray(charges, np.float64)
        begins = np.arange(len(amounts)) if first is None else np.asarray(first, np.int64)
        ends = begins if last is None else np.asarray(last, np.int64)
        partly = amounts if part is None else np.asarray(part, np.float64)
        if not len(amounts):
            return 0.0
        if np.isinf(amounts).any() or np.isinf(partly[ends > begins]).any():
            return float("inf")
        facts = next((np.asarray(given) for given in (period, landmark) if given is not None), None)
        n_windows = max(int(ends.max()) + 1, 0 if facts is None else len(facts))
        if self.kind in ("window", "stretch"):
            # A stretch may begin before the first window: place w − 1 stands for a beginning at window 0.
            w = min(self.length, n_windows)
            fits = ends - begins < w
            held = ((amounts - partly)[fits], ends[fits], begins[fits] + w - 1)
            return float(_running(n_windows + w - 1, (partly, begins, ends + w - 1), held).max())
        if self.kind == "block":
            number = np.arange(n_windows) // self.length
        else:
            is_whole = period is None or self.kind == "run"
            number = np.zeros(n_windows, np.int64) if is_whole else np.asarray(period, np.int64)
            number = number - number[0]
        if self.kind != "landmarks":
            first_group, last_group = number[begins], number[ends]
            counted = np.where(first_group == last_group, amounts, partly)
            return float(_running(int(number[-1]) + 1, (counted, first_group, last_group)).max())
        marks = np.zeros(n_windows, bool) if landmark is None else np.asarray(landmark, bool)
        return _of_landmarks(marks, number, amounts, partly, begins, ends)


def _running(length: int, *added: tuple[Amounts, Slots, Slots]) -> Amounts:
    """Return the totals at positions 0 to ``length`` − 1 of amounts for ranges of positions, both ends inclusive."""
    change = np.zeros(length + 1)
    for amounts, begins, ends in added:
        np.add.at(change, begins, amounts)
        np.subtract.at(change, ends + 1, amounts)
    return np.cumsum(change)[:-1]


def _of_landmarks(
    marks: NDArray[np.bool_], number: Slots, amounts: Amounts, partly: Amounts, begins: Slots, ends: Slots
) -> float:
    n_windows, n_periods = len(marks), int(number[-1]) + 1
    limits = np.searchsorted(number, np.arange(n_periods + 1))
    n_before = np.append(0, np.cumsum(marks))
    # A charge is in a unit as a whole if it is one window, or landmarks of one period only.
    all_marks = (n_before[ends + 1] - n_before[begins] == ends + 1 - begins) & (number[begins] == number[ends])
    counted = np.where((begins == ends) | all_marks, amounts, partly)
    # Every charge once for each period that it meets.
    n_met = number[ends] - number[begins] + 1
    charge = np.repeat(np.arange(len(amounts)), n_met)
    met = number[begins][charge] + np.arange(len(charge)) - np.repeat(np.cumsum(n_met) - n_met, n_met)
    low, high = np.maximum(begins[charge], limits[met]), np.minimum(ends[charge], limits[met + 1] - 1)
    on_landmarks = n_before[high + 1] > n_before[low]
    together = np.bincount(met[on_landmarks], counted[charge[on_landmarks]], n_periods)
    rest = ~on_landmarks
    others = _running(n_windows, (counted[charge[rest]], low[rest], high[rest]))
    np.maximum.at(most_expensive := np.zeros(n_periods), number, np.where(marks, 0.0, others))
    return float((together + most_expensive).max())


#: The unit of most mechanisms.
WINDOW = Unit()
LANDMARKS = Unit("landmarks")
PERIOD = Unit("period")
RUN = Unit("run")
