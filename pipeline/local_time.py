"""Civil time: when the clocks of a zone change, and which instants a wall clock shows.

All instants are milliseconds since 1970 UTC; a *wall time* is the reading of a local clock, counted in milliseconds
since it showed 1970-01-01 00:00.
"""

from __future__ import annotations

import difflib
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo, available_timezones

import numpy as np
from numpy.typing import NDArray

from mechanisms.core.errors import ParameterError

DAY = 86_400_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_YEAR = 366 * DAY
#: Zone rules so far ahead are guesses; the last known offset is kept from here on (2400-01-01).
_HORIZON = 13_569_465_600_000


def check_time_zone(field: str, name: str) -> ZoneInfo:
    """The zone of an IANA name; raises `ParameterError` naming ``field``, with a near miss where there is one.

    >>> check_time_zone("time_zone", "Europe/Berlin").key
    'Europe/Berlin'
    """
    try:
        return ZoneInfo(name)
    except (LookupError, ValueError, OSError, TypeError):
        near = difflib.get_close_matches(str(name), available_timezones(), n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise ParameterError(field, name, f"an IANA time zone such as 'Europe/Berlin'{hint}") from None


def utc_offset(time_zone: str, instant: int) -> int:
    """Milliseconds by which the zone's clocks are ahead of UTC at an instant.

    >>> utc_offset("Asia/Kolkata", 0)
    19800000
    """
    local = (_EPOCH + timedelta(milliseconds=min(instant, _HORIZON))).astimezone(ZoneInfo(time_zone))
    offset = local.utcoffset()
    assert offset is not None
    return round(offset.total_seconds() * 1000)


@lru_cache(maxsize=4096)
def _changes_in(time_zone: str, year: int) -> tuple[tuple[int, int], ...]:
    """Clock changes in the ``year``-th stretch of 366 days since 1970: (first instant, new offset)."""
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
    """Every clock change with ``after`` < instant < ``until``, as (instant, new offset), in order.

    Parameters
    ----------
    time_zone
        IANA name.
    after, until
        Range of instants, both exclusive. Two changes within one day of each other count as one.

    Examples
    --------
    >>> clock_changes("Europe/Berlin", 1_583_000_000_000, 1_590_000_000_000)  # spring 2020
    [(1585443600000, 7200000)]
    """
    years = range(after // _YEAR, min(until, _HORIZON) // _YEAR + 1)
    return [change for year in years for change in _changes_in(time_zone, year) if after < change[0] < until]


def wall_time(time_zone: str, instant: int) -> int:
    """What the clock shows at an instant.

    >>> wall_time("America/New_York", 0) == -5 * 3_600_000
    True
    """
    return instant + utc_offset(time_zone, instant)


def segments(time_zone: str, begin: int, end: int) -> list[tuple[int, int, int]]:
    """The stretches of constant UTC offset from ``begin`` to ``end``: (first instant, instant after, offset).

    >>> segments("UTC", 0, 100)
    [(0, 100, 0)]
    """
    changes = [(begin, utc_offset(time_zone, begin)), *clock_changes(time_zone, begin, end)]
    ends = [*(instant for instant, _ in changes[1:]), end]
    return [(start, stop, offset) for (start, offset), stop in zip(changes, ends)]


def instants(time_zone: str, wall: NDArray[np.int64]) -> NDArray[np.int64]:
    """When a clock first shows the given wall times.

    A wall time that a clock change skips becomes the instant of the change; one that is shown twice becomes its first
    occurrence.

    Parameters
    ----------
    time_zone
        IANA name.
    wall
        Wall times, shape (n,).

    Examples
    --------
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
