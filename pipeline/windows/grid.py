"""Grid of windows: public attributes of each window, known before any data is read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.core.contract import DAY_TYPES, Window, in_periods
from penstock.mechanisms.core.plugin import ParameterError
from penstock.pipeline.windows.calendar import DAY, Calendar, wall_time
from penstock.pipeline.windows.landmarks import Landmarks
from penstock.pipeline.windows.sensors import SensorSchedule

_BLOCK = 1024


#: Attributes of successive windows, by field of `Window`, each of shape (n_windows,); None: not known, for ever.
Columns = dict[str, NDArray[Any] | None]


@dataclass(frozen=True)
class WindowGrid:
    """A run's windows with their landmarks, budget periods, active sensors and deadlines.

    A window belongs to the budget period in which it starts. Periods of whole days begin at local midnight, of the
    day of the run's first window; others follow each other from the start of window 1. Without a period the whole run
    is one. With a declared maximum of landmarks, ``n_landmarks`` is that maximum and ``landmarks_to_come`` what is
    left of it, never below 0: a landmark over the maximum still says that it is one, and the mechanism must not
    publish it.

    Raises `ParameterError` if a listed landmark is not in the run, or a period is shorter than a window's step.

    Notes
    -----
    O(1) amortised a window; memory O(windows in a period), on endless streams too.

    Examples
    --------
    >>> hour = 3_600_000
    >>> calendar = Calendar(step=hour, anchor=0, time_zone="UTC", from_ms=0, until_ms=48 * hour)
    >>> landmarks = Landmarks(recurring=("07:00-09:00",))
    >>> schedule = WindowGrid(calendar=calendar, landmarks=landmarks, budget_period_ms=24 * hour)
    >>> window = schedule.window(32)
    >>> window.landmark, window.period, window.n_landmarks, window.landmarks_to_come, window.regulars_to_come
    (True, 1, 2, 1, 15)
    """

    calendar: Calendar
    landmarks: Landmarks | None = None
    budget_period_ms: int | None = None  # at least one step of the calendar; None: the whole run
    time_zone: str | None = None  # of periods of whole days; None: that of the windows
    lateness_ms: int = 0  # how long after its end a window accepts events
    sensors: SensorSchedule | None = None  # cells that publish in each window; None: nothing is known of cells
    holidays: tuple[str, ...] = ()  # local dates that are as Sundays

    def __post_init__(self) -> None:
        if self.landmarks is not None:
            self.landmarks.check(self.calendar)
        if self.budget_period_ms is not None and self.budget_period_ms < self.calendar.step:
            raise ParameterError(
                "budget_period", self.budget_period_ms, f"at least as long as a window ({self.calendar.step} ms)"
            )

    def __getstate__(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @property
    def n_windows(self) -> int:
        """The number of windows in a finite run. Raises `ValueError` if the run is endless."""
        if self.calendar.n_windows is None:
            raise ValueError("an endless run has no number of windows")
        return self.calendar.n_windows

    @property
    def n_cells(self) -> int:
        """The number of cells, or 0 if there are no sensors."""
        return 0 if self.sensors is None else self.sensors.n_cells

    @property
    def aligns_with_days(self) -> bool:
        """Return whether a window begins at the start of every calendar day, even when clocks change."""
        step, zone = self.calendar.step, self.calendar.time_zone
        stays = zone == "UTC" or DAY // 24 % step == 0  # clocks change by an hour
        return stays and DAY % step == 0 and wall_time(zone, self.calendar.start(1)) % step == 0

    def window(self, index: int) -> Window:
        """Return the public attributes of one window (1-based)."""
        return self.windows(index, index)[0]

    def windows(self, first: int, last: int) -> list[Window]:
        """Return the public attributes of windows ``first`` through ``last``, including masks of inactive sensors."""
        n_windows = self.calendar.n_windows
        if first < 1 or (n_windows is not None and last > n_windows):
            raise ParameterError("window", (first, last), f"windows of the run, from 1 to {n_windows or 'no end'}")
        windows: list[Window] = []
        while first <= last:
            begin, end, facts = self._facts_around(first)
            until = min(last, end)
            columns: dict[str, Iterable[Any]] = {
                "index": range(first, until + 1),
                "start": self.calendar.starts(first, until).tolist(),
                "end": self.calendar.ends(first, until).tolist(),
            }
            for name, column in facts.items():
                columns[name] = repeat(None) if column is None else column[first - begin : until - begin + 1].tolist()
            windows += [Window(**dict(zip(columns, row))) for row in zip(*columns.values())]
            first = until + 1
        if self.sensors is None or self.sensors.all_active or not windows:
            return windows
        masks = self.sensors.masks(windows[0].index, windows[-1].index)
        return [replace(window, active=mask) for window, mask in zip(windows, masks)]

    def periods_of(self, windows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return each given window's 0-based budget period. Windows may be in any order."""
        if self.budget_period_ms is None:
            return np.zeros(len(windows), np.int64)
        return self._periods.index(self.calendar.starts_of(windows)) - 1

    def elapsed(self, windows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the fraction (below 1) of the budget period or run that has elapsed when each window starts."""
        starts = self.calendar.starts_of(windows)
        if self.budget_period_ms is None:
            begin = self.calendar.start(1)
            return np.asarray((starts - begin) / (self.calendar.end(self.n_windows) - begin), np.float64)
        number = self._periods.index(starts)
        minimum, last = int(number.min()), int(number.max())
        begins, ends = (of(minimum, last)[number - minimum] for of in (self._periods.starts, self._periods.ends))
        return np.asarray((starts - begins) / (ends - begins), np.float64)

    def deadline(self, window: int) -> int:
        """Return when a window is final, in milliseconds since 1970: its end plus the allowed lateness."""
        return self.calendar.end(window) + self.lateness_ms

    @property
    def over(self) -> int | None:
        """The time at which the run's last window becomes final, or None if the stream is endless."""
        return None if self.calendar.n_windows is None else self.deadline(self.calendar.n_windows)

    def last_final(self, watermark: int) -> int:
        """Return the last window that is final at a watermark, or 0. This is the inverse of `deadline`."""
        last = max(0, int(self._endless_calendar.index(np.array([watermark - self.lateness_ms]))[0]) - 1)
        return last if self.calendar.n_windows is None else min(last, self.calendar.n_windows)

    def closed(self, times: NDArray[np.int64], watermarks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the last window that was already final when each event arrived, judging by its watermark, shape (n,).

        Windows far from those of the events are left out: an event is late if its window is not above its number here.
        O(n) where events are in order; a binary search for each that is older than its watermark.
        """
        instants = watermarks - self.lateness_ms
        closed = np.zeros(len(times), np.int64)
        window = self.calendar.index(times)
        old = np.flatnonzero((window > 0) & (times < instants))
        if len(old):
            first, last = int(window[old].min()), int(window[old].max())
            closed[old] = first - 1 + np.searchsorted(self.calendar.ends(first, last), instants[old], side="right")
        return closed

    @cached_property
    def _endless_calendar(self) -> Calendar:
        return replace(self.calendar, until_ms=None)

    @cached_property
    def _periods(self) -> Calendar:
        """The calendar of budget periods."""
        assert self.budget_period_ms is not None
        return period_calendar(self.budget_period_ms, self.calendar.start(1), self.time_zone or self.calendar.time_zone)

    def _facts_around(self, index: int) -> tuple[int, int, Columns]:
        """Return the cached facts of a window's budget period, or of a block if the period is endless."""
        known: tuple[int, int, Columns] = self.__dict__.get("_known", (0, -1, {}))
        if known[0] <= index <= known[1]:
            return known
        n_windows = self.calendar.n_windows
        if self.budget_period_ms is None:
            first, last = (index, index + _BLOCK - 1) if n_windows is None else (1, n_windows)
        else:
            ends = np.concatenate([self.calendar.starts(at, at) for at in (index, index + _BLOCK - 1)])
            begin, end = self._periods.index(ends).tolist()
            first = self.calendar.first_from(self._periods.start(begin))
            last = self.calendar.first_from(self._periods.end(end)) - 1
            last = last if n_windows is None else min(last, n_windows)
        self.__dict__["_known"] = known = first, last, self._facts(first, last)
        return known

    def _facts(self, first: int, last: int) -> Columns:
        """Compute the facts for whole budget periods, or for a block of an endless period whose future is unknown."""
        period = self.periods_of(np.arange(first, last + 1))
        landmark = np.zeros(len(period), bool)
        if self.landmarks is not None:
            landmark = self.landmarks.mask(self.calendar, first, last)
        date, time_of_day = np.divmod(self.calendar.wall_times(self.calendar.starts(first, last)), DAY)
        is_holiday = np.isin(date.astype("M8[D]"), np.array(self.holidays, "M8[D]"))
        # 1970-01-01 was a Thursday.
        day_type = np.where(is_holiday, len(DAY_TYPES) - 1, np.maximum((date + 3) % 7 - 4, 0))
        facts: Columns = {"landmark": landmark, "period": period, "day_type": day_type, "time_of_day": time_of_day}
        if self.budget_period_ms is None and self.calendar.n_windows is None:
            n_landmarks = 0 if self.landmarks is None else self.landmarks.declared
            if self.landmarks is not None and n_landmarks is None:
                n_landmarks = self.landmarks.count(self.calendar)
            facts["n_landmarks"] = None if n_landmarks is None else np.full(len(period), n_landmarks)
            return facts | dict.fromkeys(("landmarks_to_come", "regulars_to_come", "n_windows", "period_last"))
        facts |= in_periods(landmark, period - period[0], None if self.landmarks is None else self.landmarks.declared)
        return facts | {"period_last": first - 1 + np.searchsorted(period, period, side="right")}


def period_calendar(length: int, begin: int, time_zone: str) -> Calendar:
    """Return the calendar of budget periods from ``begin`` or, for whole days, from the midnight of its local date."""
    if length % DAY:
        return Calendar(step=length, anchor=begin, time_zone="UTC", from_ms=begin)
    return Calendar(step=length, anchor=wall_time(time_zone, begin) // DAY * DAY, time_zone=time_zone, from_ms=begin)
