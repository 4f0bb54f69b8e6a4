"""Landmarks: windows publicly known to be significant, specified as windows, times, recurring ranges or stay points."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.core.plugin import Checked, ParameterError, duration, parameter
from penstock.pipeline.windows.calendar import DAY, Calendar, instants, segments


@dataclass(frozen=True, kw_only=True)
class StayPoints(Checked):
    """Landmarks at each trace's stay points, which are detected in the data offline. For simulations only.

    Examples
    --------
    >>> StayPoints(distance=200.0, time=1_800_000).distance
    200.0
    """

    distance: float = parameter(doc="largest distance of a stay from its first point", at_least=0, unit="metres")
    time: int = duration(doc="minimum duration of a stay")


@dataclass(frozen=True, kw_only=True)
class DrawnLandmarks(Checked):
    """Landmarks sampled without replacement from each trace's points. For experiments only.

    The person's identity and the seed of the run decide the draw, so that a larger share holds a smaller one.

    Examples
    --------
    >>> DrawnLandmarks(share=0.6).share
    0.6
    """

    share: float = parameter(doc="of the points of a trace", at_least=0, at_most=1)


@dataclass(frozen=True, kw_only=True)
class HiddenLandmarks(Checked):
    """Private landmarks hidden among the listed windows, and the privacy loss incurred by choosing those windows.

    >>> HiddenLandmarks(number=3, epsilon=2.0).whole_epsilon(8)
    6.0
    """

    number: int = parameter(doc="number of private landmarks", at_least=1)
    epsilon: float = parameter(doc="loss about each of them by the choice of windows", at_least=0, unit="nats")

    def whole_epsilon(self, n_windows: int) -> float:
        """Return the privacy loss that choosing ``n_windows`` windows incurs for all private landmarks together."""
        return self.epsilon * min(self.number, n_windows)


_WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_RANGE = re.compile(
    r"(?:(?P<days>[a-z,\s-]+?))?\s*(?:(?P<begin>\d{1,2}:\d\d)\s*-\s*(?P<end>\d{1,2}:\d\d))?", re.IGNORECASE
)
_TIMES = "an ISO 8601 timestamp or date, or two of them as begin/end with begin before end"
_RECURRING = "a range of the day such as '07:00-09:00', with days as in 'Mon-Fri 07:00-09:00' or 'Sat,Sun'"
_EPOCH = datetime(1970, 1, 1)
_EPOCH_WEEKDAY = 3  # 1970-01-01 was a Thursday

Intervals = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Landmarks(Checked):
    """The landmark windows: those that are listed, contain a listed time or overlap a listed range.

    Times are read in the time zone of the windows unless they carry an offset of their own. A range is half-open; a
    date alone is that whole local day. A recurring range that crosses midnight belongs to the day on which it begins;
    a part of it that a clock change skips does not exist, one that is shown twice counts twice.

    Parameters
    ----------
    windows
        1-based numbers of windows.
    times
        Timestamps, dates, or ranges of them as ``begin/end``.
    recurring
        Parts of the day, as ``07:00-09:00`` or ``Mon-Fri 07:00-09:00``; ``Sat,Sun`` are whole days.
    stay_points
        On traces, where windows are numbers of points: the stay points of every trace.
    drawn
        On traces: a share of the points of every trace, drawn at random.
    declared
        Declared maximum per budget period (in YAML ``max_per_period``), in place of the number listed; landmarks over
        it are not published.
    hidden
        Private landmarks that hide among ``windows``, which ``penstock plan --landmarks`` has chosen.

    Examples
    --------
    >>> calendar = Calendar(step=3_600_000, anchor=0, time_zone="UTC", from_ms=0, until_ms=86_400_000)
    >>> landmarks = Landmarks(windows=(1,), recurring=("07:00-09:00",), times=("1970-01-01T23:10:00Z",))
    >>> (np.flatnonzero(landmarks.mask(calendar, 1, 24)) + 1).tolist()
    [1, 8, 9, 24]
    """

    windows: tuple[int, ...] = parameter((), doc="1-based numbers of landmark windows")
    times: tuple[str, ...] = parameter((), doc="timestamps, dates or begin/end ranges")
    recurring: tuple[str, ...] = parameter((), doc="parts of the day, with weekdays if wanted")
    stay_points: StayPoints | None = parameter(None, doc="on traces: the stay points of every trace (simulation only)")
    drawn: DrawnLandmarks | None = parameter(None, doc="on traces: a random share of every trace (simulation only)")
    declared: int | None = parameter(None, key="max_per_period", at_least=0, doc="declared maximum per budget period")
    hidden: HiddenLandmarks | None = parameter(None, doc="private landmarks that hide among the listed windows")

    def __post_init__(self) -> None:
        super().__post_init__()
        for number in self.windows:
            if isinstance(number, bool) or not isinstance(number, int) or number < 1:
                raise ParameterError("windows", number, "a whole number of at least 1")
        for entry in self.times:
            _interval(entry, "UTC")
        for entry in self.recurring:
            _daily_range(entry)
        others = (self.times, self.recurring, self.stay_points, self.drawn, self.declared is not None)
        if self.hidden is not None and (not self.windows or any(others)):
            raise ParameterError("hidden", self.hidden.number, "left out, unless windows, and nothing else, are given")

    @property
    def endless(self) -> bool:
        """True if the number of landmarks in an endless stream is infinite."""
        return bool(self.recurring)

    def check(self, calendar: Calendar) -> None:
        """Raise `ParameterError` if a listed window is outside the run."""
        n_windows = calendar.n_windows
        if n_windows is not None and max(self.windows, default=0) > n_windows:
            raise ParameterError("windows", max(self.windows), f"a window of the run, from 1 to {n_windows}")

    def mask(self, calendar: Calendar, first: int, last: int) -> NDArray[np.bool_]:
        """Return a mask of the landmarks among windows ``first`` through ``last``, shape (last − first + 1,).

        O(windows + landmarks among them), vectorised; independent of how the windows are cut into calls.
        """
        starts, ends = calendar.starts(first, last), calendar.ends(first, last)
        mask = np.zeros(len(starts), bool)
        if not len(starts):
            return mask
        listed = self._numbers[np.searchsorted(self._numbers, first) : np.searchsorted(self._numbers, last, "right")]
        mask[listed - first] = True
        for begins, stops in self._intervals(calendar.time_zone, int(starts[0]), int(ends[-1])):
            low, high = np.searchsorted(ends, begins, "right"), np.searchsorted(starts, stops, "left")
            inside = low < high
            opened, closed = (np.bincount(ends[inside], minlength=len(mask) + 1) for ends in (low, high))
            mask |= np.cumsum((opened - closed)[:-1]) > 0
        return mask

    def contains(self, times: NDArray[np.int64], time_zone: str) -> NDArray[np.bool_]:
        """Return a mask of the instants (milliseconds since 1970, shape (n,)) in a listed or recurring range.

        Examples
        --------
        >>> Landmarks(recurring=("00:00-00:01",)).contains(np.array([0, 60_000]), "UTC").tolist()
        [True, False]
        """
        mask = np.zeros(len(times), bool)
        if not len(times):
            return mask
        for begins, stops in self._intervals(time_zone, int(times.min()), int(times.max()) + 1):
            mask |= np.searchsorted(np.sort(begins), times, "right") > np.searchsorted(np.sort(stops), times, "right")
        return mask

    def count(self, calendar: Calendar) -> int | None:
        """Return the number of landmarks in the whole run, or None if it is infinite."""
        last = calendar.n_windows
        if last is None:
            if self.endless:
                return None
            latest = max((_interval(entry, calendar.time_zone)[1] for entry in self.times), default=0)
            last = max([calendar.first_from(latest), *self.windows])
        return int(self.mask(calendar, 1, last).sum())

    @cached_property
    def _numbers(self) -> NDArray[np.int64]:
        return np.array(sorted(set(self.windows)), np.int64)

    def _intervals(self, time_zone: str, begin: int, end: int) -> list[tuple[Intervals, Intervals]]:
        """Return the listed ranges that may overlap [begin, end) as one pair of start and end arrays per kind."""
        listed = [_interval(entry, time_zone) for entry in self.times]
        pairs = [tuple(np.array(column, np.int64) for column in zip(*listed))] if listed else []
        for start, stop, offset in segments(time_zone, begin, end) if self.recurring else ():
            for weekdays, first, last in map(_daily_range, self.recurring):
                days = np.arange((start + offset) // DAY - 1, (stop + offset) // DAY + 1)
                days = days[np.isin((days + _EPOCH_WEEKDAY) % 7, weekdays)] * DAY - offset
                begins, stops = np.maximum(days + first, start), np.minimum(days + last, stop)
                pairs.append((begins[begins < stops], stops[begins < stops]))
        return pairs  # type: ignore[return-value]


def _interval(entry: str, time_zone: str) -> tuple[int, int]:
    """Convert a timestamp, a date or a range of either to a half-open interval of instants."""
    parts = entry.split("/") if isinstance(entry, str) else []
    try:
        points = [_point(part.strip(), time_zone) for part in parts]
    except ValueError:
        points = []
    if len(points) == 1:
        return points[0]
    if len(points) != 2 or points[0][0] >= points[1][0]:
        raise ParameterError("times", entry, _TIMES)
    return points[0][0], points[1][0]


def _point(text: str, time_zone: str) -> tuple[int, int]:
    """Convert a timestamp to an interval of one millisecond, or a date to the interval of that local day."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is not None:
        instant = (moment - datetime.fromisoformat("1970-01-01T00:00:00Z")).total_seconds()
        return round(instant * 1000), round(instant * 1000) + 1
    wall = round((moment - _EPOCH).total_seconds() * 1000)
    begin, next_day = instants(time_zone, np.array([wall, wall + DAY])).tolist()
    return begin, begin + 1 if len(text) > len("2024-01-01") else next_day


def _daily_range(entry: str) -> tuple[list[int], int, int]:
    """Parse a recurring range into weekdays (Monday is 0), begin and end. The end may fall on the next day."""
    match = _RANGE.fullmatch(entry.strip()) if isinstance(entry, str) else None
    if match is None or not entry.strip():
        raise ParameterError("recurring", entry, _RECURRING)
    clock = [int(part) for text in (match["begin"] or "00:00", match["end"] or "24:00") for part in text.split(":")]
    begin, end = (60_000 * (60 * hour + minute) for hour, minute in (clock[:2], clock[2:]))
    if max(clock[1], clock[3]) > 59 or max(begin, end) > DAY or begin in (end, DAY):
        raise ParameterError("recurring", entry, _RECURRING)
    days: set[int] = set()
    for part in (match["days"] or "mon-sun").split(","):
        names = [name.strip().lower() for name in part.split("-")]
        if len(names) > 2 or any(name not in _WEEKDAYS for name in names):
            raise ParameterError("recurring", entry, _RECURRING)
        first, last = _WEEKDAYS.index(names[0]), _WEEKDAYS.index(names[-1])
        days.update((first + k) % 7 for k in range((last - first) % 7 + 1))
    return sorted(days), begin, end if begin < end else end + DAY
