"""Schedule of windows: the public facts of each, known before any data is read (landmarks, budget periods)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.core.contract import Window
from penstock.mechanisms.core.plugin import ParameterError
from penstock.pipeline.windows.calendar import CLOCK_CHANGE, DAY, Calendar, wall_time
from penstock.pipeline.windows.landmarks import Landmarks

_BLOCK = 1024


@dataclass(frozen=True)
class PeriodFacts:
    """Public facts of some whole budget periods (or of a block of an endless period), as arrays over windows."""

    first: int
    last: int
    landmark: NDArray[np.bool_]
    landmarks_to_come: list[Any]
    regulars_to_come: list[Any]
    period: list[int]
    n_landmarks: list[Any]
    n_windows: list[Any]


@dataclass(frozen=True)
class WindowSchedule:
    """Windows with their landmarks and budget periods.

    A window belongs to the budget period in which it starts. Periods of whole days begin at local midnight, of the
    day of the run's first window; others follow each other from the start of window 1. Without a period the whole run
    is one. With a declared maximum of landmarks, ``n_landmarks`` is that maximum and ``landmarks_to_come`` what is
    left of it, never below 0: a landmark over the maximum still says that it is one, and the mechanism must not
    publish it.

    Parameters
    ----------
    calendar
        The windows.
    landmarks
        Which of them are landmarks; None: none.
    budget_period_ms
        Length of a budget period in milliseconds, at least one step of the calendar; None: the whole run.
    time_zone
        IANA time zone of periods of whole days; None: that of the windows.

    Raises
    ------
    ParameterError
        If a listed landmark is not in the run, or a period is shorter than a window's step.

    Notes
    -----
    O(1) amortised a window; memory O(windows in a period), on endless streams too.

    Examples
    --------
    >>> hour = 3_600_000
    >>> calendar = Calendar(step=hour, anchor=0, time_zone="UTC", from_ms=0, until_ms=48 * hour)
    >>> landmarks = Landmarks(recurring=("07:00-09:00",))
    >>> schedule = WindowSchedule(calendar=calendar, landmarks=landmarks, budget_period_ms=24 * hour)
    >>> window = schedule.window(32)
    >>> window.landmark, window.period, window.n_landmarks, window.landmarks_to_come, window.regulars_to_come
    (True, 1, 2, 1, 15)
    """

    calendar: Calendar
    landmarks: Landmarks | None = None
    budget_period_ms: int | None = None
    time_zone: str | None = None

    def __post_init__(self) -> None:
        if self.landmarks is not None:
            self.landmarks.check(self.calendar)
        if self.budget_period_ms is not None and self.budget_period_ms < self.calendar.step:
            raise ParameterError(
                "budget_period", self.budget_period_ms, f"at least as long as a window ({self.calendar.step} ms)"
            )

    def __getstate__(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def window(self, index: int) -> Window:
        """Facts of one window (1-based)."""
        first, block = self.__dict__.get("_block", (1, []))
        if not first <= index < first + len(block):
            first, last = index, index + _BLOCK - 1
            if self.calendar.n_windows is not None:
                last = max(index, min(last, self.calendar.n_windows))
            block = self.windows(first, last)
            self.__dict__["_block"] = (first, block)
        window: Window = block[index - first]
        return window

    def windows(self, first: int, last: int) -> list[Window]:
        """Facts of the windows ``first`` to ``last``, both inclusive."""
        n_windows = self.calendar.n_windows
        if first < 1 or (n_windows is not None and last > n_windows):
            raise ParameterError("window", (first, last), f"windows of the run, from 1 to {n_windows or 'no end'}")
        found: list[Window] = []
        while first <= last:
            facts = self._facts_of(first)
            until = min(last, facts.last)
            found += self._cut(facts, first, until)
            first = until + 1
        return found

    def _cut(self, facts: PeriodFacts, first: int, last: int) -> list[Window]:
        piece = slice(first - facts.first, last - facts.first + 1)
        columns: dict[str, Iterable[Any]] = {
            "index": range(first, last + 1),
            "start": self.calendar.starts(first, last).tolist(),
            "end": self.calendar.ends(first, last).tolist(),
            "landmark": facts.landmark[piece].tolist(),
        }
        for name in ("landmarks_to_come", "regulars_to_come", "period", "n_landmarks", "n_windows"):
            columns[name] = getattr(facts, name)[piece]
        return [Window(**dict(zip(columns, row))) for row in zip(*columns.values())]

    @cached_property
    def _periods(self) -> Calendar:
        """The budget periods as a calendar of their own."""
        assert self.budget_period_ms is not None
        return period_calendar(self.budget_period_ms, self.calendar.start(1), self.time_zone or self.calendar.time_zone)

    def period_lengths(self) -> tuple[int, int, bool]:
        """Windows of the shortest budget period between two others, of the longest one, and whether there is only one.

        On an endless run, of whose periods some may hold a clock change: a lower and an upper bound.
        """
        n_windows, length = self.calendar.n_windows, self.budget_period_ms
        if length is None:
            if n_windows is None:
                raise ParameterError("budget_period", None, "given: an endless run has no last window")
            return n_windows, n_windows, True
        if n_windows is None:
            change = 0 if length % DAY or self._periods.time_zone == "UTC" else CLOCK_CHANGE
            least, most = (max(1, -(-(length + by) // self.calendar.step)) for by in (-change, change))
            return max(1, least - 1), most, False
        n_inside = np.unique(self._periods.index(self.calendar.starts(1, n_windows)), return_counts=True)[1]
        longest = int(n_inside.max())
        return int(n_inside[1:-1].min(initial=longest)), longest, len(n_inside) == 1

    @cached_property
    def _n_landmarks(self) -> int | None:
        """Landmarks of a run that is a single period."""
        if self.landmarks is None:
            return 0
        declared = self.landmarks.max_per_period
        return self.landmarks.count(self.calendar) if declared is None else declared

    def _facts_of(self, index: int) -> PeriodFacts:
        """Facts of the periods around a window; those of the latest call are cached."""
        known: PeriodFacts | None = self.__dict__.get("_known")
        if known is None or not known.first <= index <= known.last:
            known = self._make_facts(index)
            self.__dict__["_known"] = known
        return known

    def _make_facts(self, index: int) -> PeriodFacts:
        n_windows = self.calendar.n_windows
        if self.budget_period_ms is None:
            if n_windows is None:
                return self._endless(index)
            return self._whole(np.zeros(n_windows, np.int64), 1)
        first = self.calendar.first_from(self._period_bounds(index)[0])
        last = self.calendar.first_from(self._period_bounds(index + _BLOCK - 1)[1]) - 1
        last = last if n_windows is None else min(last, n_windows)
        return self._whole(self._periods.index(self.calendar.starts(first, last)) - 1, first)

    def _period_bounds(self, index: int) -> tuple[int, int]:
        """Start and end of the budget period of a window."""
        period = int(self._periods.index(self.calendar.starts(index, index))[0])
        return self._periods.start(period), self._periods.end(period)

    def _mask(self, first: int, last: int) -> NDArray[np.bool_]:
        if self.landmarks is None:
            return np.zeros(last - first + 1, bool)
        return self.landmarks.mask(self.calendar, first, last)

    def _whole(self, period: NDArray[np.int64], first: int) -> PeriodFacts:
        """Facts of whole periods; ``period`` holds the number of each window's."""
        n = len(period)
        landmark = self._mask(first, first + n - 1)
        begins = np.flatnonzero(np.diff(period, prepend=-1))
        lengths = np.diff(begins, append=n)
        listed = np.add.reduceat(landmark, begins, dtype=np.int64)
        seen = np.cumsum(landmark) - np.repeat(np.cumsum(listed) - listed, lengths)
        position = np.arange(1, n + 1) - np.repeat(begins, lengths)
        n_windows, left = np.repeat(lengths, lengths), np.repeat(listed, lengths) - seen
        regulars = n_windows - position - left
        declared = None if self.landmarks is None else self.landmarks.max_per_period
        if declared is not None:
            listed, left = np.full_like(listed, declared), np.maximum(declared - seen, 0)
        return PeriodFacts(
            first=first,
            last=first + n - 1,
            landmark=landmark,
            landmarks_to_come=left.tolist(),
            regulars_to_come=regulars.tolist(),
            period=period.tolist(),
            n_landmarks=np.repeat(listed, lengths).tolist(),
            n_windows=n_windows.tolist(),
        )

    def _endless(self, index: int) -> PeriodFacts:
        """A block of an endless stream without budget periods."""
        unknown = [None] * _BLOCK
        return PeriodFacts(
            first=index,
            last=index + _BLOCK - 1,
            landmark=self._mask(index, index + _BLOCK - 1),
            landmarks_to_come=unknown,
            regulars_to_come=unknown,
            period=[0] * _BLOCK,
            n_landmarks=[self._n_landmarks] * _BLOCK,
            n_windows=unknown,
        )


def period_calendar(length: int, begin: int, time_zone: str) -> Calendar:
    """Budget periods as a calendar: from ``begin`` on, or from its midnight in the zone if they are whole days long."""
    if length % DAY:
        return Calendar(step=length, anchor=begin, time_zone="UTC", from_ms=begin)
    return Calendar(step=length, anchor=wall_time(time_zone, begin) // DAY * DAY, time_zone=time_zone, from_ms=begin)
