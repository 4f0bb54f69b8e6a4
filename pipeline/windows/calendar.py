"""Calendar of windows: their numbering, boundaries and local times.

All instants are milliseconds since 1970 UTC; a *wall time* is the reading of a local clock, counted in milliseconds
since it showed 1970-01-01 00:00.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property, lru_cache
from itertools import pairwise
from zoneinfo import ZoneInfo, available_timezones

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.core.plugin import ParameterError, nearest

DAY = 86_400_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_YEAR = 366 * DAY
#: Zone rules so far ahead are guesses; the last known offset is kept from here on (2400-01-01).
_HORIZON = 13_569_465_600_000


def check_time_zone(field: str, name: str) -> ZoneInfo:
    """Return an IANA time zone. If it is unknown, raise `ParameterError` for ``field`` and suggest a similar name.

    >>> check_time_zone("time_zone", "Europe/Berlin").key
    'Europe/Berlin'
    """
    try:
        return ZoneInfo(name)
    except (LookupError, ValueError, OSError, TypeError):
        near = nearest(str(name), sorted(available_timezones()))
        hint = f" (did you mean {near!r}?)" if near else ""
        raise ParameterError(field, name, f"an IANA time zone such as 'Europe/Berlin'{hint}") from None


def format_time(milliseconds: int) -> str:
    """Format milliseconds since 1970 UTC as an ISO 8601 time in UTC.

    >>> format_time(1211155200000), format_time(1211155200250)
    ('2008-05-19T00:00:00Z', '2008-05-19T00:00:00.250Z')
    """
    moment = _EPOCH + timedelta(milliseconds=milliseconds)
    precision = "milliseconds" if milliseconds % 1000 else "seconds"
    return moment.isoformat(timespec=precision).replace("+00:00", "Z")


def utc_offset(time_zone: str, instant: int) -> int:
    """Return a time zone's UTC offset in milliseconds at a given time. It is positive if local clocks are ahead of UTC.

    >>> utc_offset("Asia/Kolkata", 0)
    19800000
    """
    local = (_EPOCH + timedelta(milliseconds=min(instant, _HORIZON))).astimezone(ZoneInfo(time_zone))
    offset = local.utcoffset()
    assert offset is not None
    return round(offset.total_seconds() * 1000)


@lru_cache(maxsize=4096)
def _changes_in(time_zone: str, year: int) -> tuple[tuple[int, int], ...]:
    """Return clock changes in the ``year``-th span of 366 days since 1970: pairs (instant, new offset)."""
    start = year * _YEAR
    if time_zone == "UTC" or start >= _HORIZON:
        return ()
    changes: list[tuple[int, int]] = []
    known = utc_offset(time_zone, start - 1)
    for day in range(start, start + _YEAR, DAY):
        new = utc_offset(time_zone, day + DAY - 1)
        if new != known:
            low, high = day - 1, day + DAY - 1
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if utc_offset(time_zone, middle) == known else (low, middle)
            changes.append((high, new))
            known = new
    return tuple(changes)


def clock_changes(time_zone: str, after: int, until: int) -> list[tuple[int, int]]:
    """Return all clock changes with ``after`` < instant < ``until`` as sorted pairs (instant, new offset).

    >>> clock_changes("Europe/Berlin", 1_583_000_000_000, 1_590_000_000_000)  # spring 2020
    [(1585443600000, 7200000)]
    """
    years = range(after // _YEAR, min(until, _HORIZON) // _YEAR + 1)
    return [change for year in years for change in _changes_in(time_zone, year) if after < change[0] < until]


def wall_time(time_zone: str, instant: int) -> int:
    """Return the local wall-clock time at a given instant.

    >>> wall_time("America/New_York", 0) == -5 * 3_600_000
    True
    """
    return instant + utc_offset(time_zone, instant)


def segments(time_zone: str, begin: int, end: int) -> list[tuple[int, int, int]]:
    """Split ``begin`` to ``end`` into segments of constant UTC offset: (first instant, end, offset).

    >>> segments("UTC", 0, 100)
    [(0, 100, 0)]
    """
    changes = [(begin, utc_offset(time_zone, begin)), *clock_changes(time_zone, begin, end)]
    ends = [*(instant for instant, _ in changes[1:]), end]
    return [(start, stop, offset) for (start, offset), stop in zip(changes, ends)]


def instants(time_zone: str, wall: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the first instant at which the local clock shows each wall-clock time.

    A wall time that a clock change skips becomes the instant of the change; one that is shown twice becomes its first
    occurrence.

    >>> shown_twice = np.array([1_604_194_200_000])  # 2020-11-01 01:30
    >>> (shown_twice - instants("America/New_York", shown_twice)) // 3_600_000  # summer time is 4 hours behind UTC
    array([-4])
    """
    wall = np.asarray(wall, np.int64)
    if wall.size == 0:
        return wall.copy()
    stretches = segments(time_zone, int(wall.min()) - 2 * DAY, int(wall.max()) + 2 * DAY)
    starts, ends, offsets = (np.array(column, np.int64) for column in zip(*stretches))
    segment = np.searchsorted(ends + offsets, wall, "right")
    shown: NDArray[np.int64] = np.maximum(wall - offsets[segment], starts[segment])
    return shown


@dataclass(frozen=True)
class Pieces:
    """All window starts up to a time, as a few evenly spaced segments. A clock change may start a new one."""

    starts: NDArray[np.int64]  # first window start of every segment, shape (n_pieces,)
    indices: NDArray[np.int64]  # its 1-based index
    n_windows: int  # windows that start before ``until``
    until: int  # instant up to which the starts are known
    offset: int  # UTC offset at ``until``
    reached: int  # latest multiple of the step that the clock has shown


@dataclass(frozen=True, kw_only=True)
class Calendar:
    """A run's windows, numbered from 1: window t starts at ``start(t)`` and ends just before ``end(t)``.

    A window starts whenever the wall clock of the time zone shows ``anchor`` plus a multiple of ``step``. Where a
    clock change skips such a time, the window starts at the change (several skipped starts are one window). Where a
    change repeats a stretch of time at least as long as the step, its windows are windows of their own; a shorter
    one lengthens the window it falls in. So a local day has 23, 24 or 25 hours and an hour always 60 minutes.

    Window 1 contains ``from_ms``, the last window is the last one to start before ``until_ms`` (None: endless). An
    event outside is out of time, also where its window is not.

    Notes
    -----
    O(1) a window or event; memory two numbers for every clock change passed. Immutable in value, picklable, safe to
    share between threads.

    Examples
    --------
    >>> hour = 3_600_000
    >>> calendar = Calendar(step=24 * hour, anchor=0, time_zone="UTC", from_ms=0, until_ms=60 * hour)
    >>> calendar.n_windows, calendar.start(3) // hour, calendar.end(3) // hour
    (3, 48, 72)
    >>> calendar.index(np.array([-1, 0, 25 * hour, 60 * hour]))
    array([0, 1, 2, 0])
    """

    step: int  # distance between the starts of two windows, in milliseconds
    anchor: int  # wall time of one window start
    time_zone: str  # IANA name
    from_ms: int
    until_ms: int | None = None

    def __post_init__(self) -> None:
        if self.until_ms is not None and self.until_ms <= self.from_ms:
            raise ParameterError("until", self.until_ms, f"later than from ({self.from_ms})")

    @cached_property
    def n_windows(self) -> int | None:
        """The number of windows in the run, or None if the stream is endless."""
        if self.until_ms is None:
            return None
        return int(self.index(np.array([self.until_ms - 1]))[0])

    @property
    def per_day(self) -> int:
        """The number of windows that begin within 24 hours, or 1 if windows are longer than a day."""
        return max(1, round(DAY / self.step))

    def start(self, index: int) -> int:
        """Return a window's start time."""
        return int(self.starts(index, index)[0])

    def end(self, index: int) -> int:
        """Return a window's exclusive end time."""
        return int(self.ends(index, index)[0])

    def starts(self, first: int, last: int) -> NDArray[np.int64]:
        """Return the start times of windows ``first`` through ``last``, shape (last − first + 1,)."""
        if first < 1 or last < first - 1:
            raise ParameterError("first", first, f"at least 1 and at most last ({last})")
        pieces = self._pieces
        while pieces.n_windows < last:
            pieces = self._grow(pieces, pieces.until + (last - pieces.n_windows) * self.step)
        index = np.arange(first, last + 1)
        piece = np.searchsorted(pieces.indices, index, "right") - 1
        starts: NDArray[np.int64] = pieces.starts[piece] + (index - pieces.indices[piece]) * self.step
        return starts

    def starts_of(self, windows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return each given window's start time. Windows may be in any order."""
        first = int(windows.min())
        return self.starts(first, int(windows.max()))[windows - first]

    def ends(self, first: int, last: int) -> NDArray[np.int64]:
        """Return the exclusive end times of windows ``first`` through ``last``, shape (last − first + 1,)."""
        return self.starts(first + 1, last + 1)

    def index(self, times: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the index of the window that contains each instant, or 0 for instants outside the run."""
        times = np.asarray(times, np.int64)
        if times.size == 0:
            return np.zeros(0, np.int64)
        first, last = int(times.min()), int(times.max())
        latest = last if self.until_ms is None else min(last, self.until_ms - 1)
        pieces = self._pieces
        if latest >= pieces.until:
            pieces = self._grow(pieces, latest + 1)
        if len(pieces.starts) == 1:
            index: NDArray[np.int64] = times - pieces.starts[0]
            index //= self.step
            index += 1
            np.minimum(index, pieces.n_windows, out=index)
        else:
            piece = np.searchsorted(pieces.starts, times, "right") - 1
            index = pieces.indices[piece] + (times - pieces.starts[piece]) // self.step
            np.minimum(index, np.append(pieces.indices[1:] - 1, pieces.n_windows)[piece], out=index)
        if first < self.from_ms:
            index[times < self.from_ms] = 0
        if last > latest:
            index[times > latest] = 0
        return index

    def whole_days(self, windows: NDArray[np.int64]) -> NDArray[np.datetime64]:
        """Return each window's local date, or NaT unless all windows of that date are in the run and are given.

        A window belongs to the date on which it starts, also where it ends on the next. The run holds a window if it
        begins no later and ends no earlier. ``windows``: different window numbers, ascending.
        """
        if self.step > DAY:
            raise ParameterError("windows", f"{self.step} ms", "at most a day long, to add up to days")
        if not len(windows):
            return np.array([], "M8[D]")
        # The windows of those days, whether they are in the run or not.
        begin, end = self.start(int(windows[0])), self.end(int(windows[-1]))
        around = replace(self, from_ms=begin - 2 * DAY, until_ms=end + 2 * DAY)
        starts = around.starts(1, around.n_windows or 0)
        begins = self.starts_of(windows)
        dates, days = ((self.wall_times(times) // DAY).astype("M8[D]") for times in (starts, begins))
        inside = begins >= self.from_ms
        if self.until_ms is not None:
            inside &= self.starts_of(windows + 1) <= self.until_ms
        held = np.isin(starts, begins[inside])
        days[np.isin(days, dates[~held])] = np.datetime64("NaT")
        return days

    def wall_times(self, instants_: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the wall-clock times of a non-empty, ascending array of instants."""
        stretches = segments(self.time_zone, int(instants_[0]), int(instants_[-1]) + 1)
        begins, _, offsets = (np.array(column, np.int64) for column in zip(*stretches))
        wall: NDArray[np.int64] = instants_ + offsets[np.searchsorted(begins, instants_, "right") - 1]
        return wall

    def first_from(self, instant: int) -> int:
        """Return the index of the first window that starts at or after a given instant."""
        if instant <= self.start(1):
            return 1
        index = int(replace(self, until_ms=None).index(np.array([max(instant, self.from_ms)]))[0])
        return index + (self.start(index) < instant)

    @property
    def _pieces(self) -> Pieces:
        """The window starts known so far. Initially, they extend to just after ``from_ms``, which lies in window 1."""
        if "_known" in self.__dict__:
            known: Pieces = self.__dict__["_known"]
            return known
        begin = self.from_ms - self.step - 3 * DAY  # early enough to have left any repeated stretch behind
        offset = utc_offset(self.time_zone, begin)
        reached = (begin + offset - self.anchor) // self.step
        origin = Pieces(np.array([begin]), np.array([1]), 1, begin, offset, reached)
        pieces = self._extend(origin, self.from_ms + 1)
        # Drop what ended before the run.
        piece = int(np.searchsorted(pieces.starts, self.from_ms, "right")) - 1
        skipped = min(
            (self.from_ms - int(pieces.starts[piece])) // self.step, pieces.n_windows - int(pieces.indices[piece])
        )
        first = int(pieces.indices[piece]) + skipped
        starts, indices = pieces.starts[piece:].copy(), np.maximum(pieces.indices[piece:] - first + 1, 1)
        starts[0] += skipped * self.step
        known = replace(pieces, starts=starts, indices=indices, n_windows=pieces.n_windows - first + 1)
        self.__dict__["_known"] = known  # one assignment of an immutable value: safe between threads
        return known

    def _grow(self, pieces: Pieces, until: int) -> Pieces:
        self.__dict__["_known"] = grown = self._extend(pieces, until + _YEAR)
        return grown

    def _extend(self, pieces: Pieces, until: int) -> Pieces:
        """Extend the known window starts up to ``until``."""
        starts, indices = pieces.starts.tolist(), pieces.indices.tolist()
        n_windows, reached, offset = pieces.n_windows, pieces.reached, pieces.offset
        changes = clock_changes(self.time_zone, pieces.until, until)
        segments = [(pieces.until, offset), *changes, (until, 0)]

        def add(start: int, count: int) -> None:
            """Append evenly spaced windows, starting a new segment unless they continue the last one."""
            nonlocal n_windows
            if start != starts[-1] + (n_windows + 1 - indices[-1]) * self.step:
                starts.append(start)
                indices.append(n_windows + 1)
            n_windows += count

        for (instant, new_offset), (next_instant, _) in pairwise(segments):
            shown = (instant + new_offset - self.anchor) // self.step
            if shown > reached or offset - new_offset >= self.step:
                add(instant, 1)
                reached = shown
            offset = new_offset
            following = self.anchor + (reached + 1) * self.step - offset
            if following < next_instant:
                count = (next_instant - 1 - following) // self.step + 1
                add(following, count)
                reached += count
        return Pieces(np.array(starts), np.array(indices), n_windows, until, offset, reached)
