"""Window numbers and instants: exact at every clock change, against a minute-by-minute clock."""

import pickle
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.mechanisms.core.plugin import ParameterError
from penstock.pipeline.windows.calendar import Calendar, clock_changes, instants, segments, utc_offset

MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
ZONES = ("UTC", "America/New_York", "Europe/Berlin", "Australia/Lord_Howe", "America/Havana", "Africa/Casablanca")
STEPS = (10, 15, 30, 45, 60, 120, 360, 420, 1440, 2160, 10080)


def utc(text: str) -> int:
    return round(datetime.fromisoformat(text + "Z").timestamp() * 1000)


def wall(zone: str, instant: int) -> int:
    local = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=instant)).astimezone(ZoneInfo(zone))
    return round((local.replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1000)


def starts_by_minutes(zone: str, step: int, anchor: int, begin: int, end: int) -> list[int]:
    """Window starts in [begin, end) by reading the clock every minute from a week before."""
    lead = begin - 8 * DAY
    starts = []
    before = wall(zone, lead - MINUTE)
    reached = (before - anchor) // step
    for instant in range(lead, end, MINUTE):
        now = wall(zone, instant)
        number = (now - anchor) // step
        repeated = before + MINUTE - now
        if number > reached or repeated >= step:
            starts.append(instant)
            reached = number
        before = now
    return [start for start in starts if start >= begin]


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("change", ["spring", "autumn"])
def test_every_step_equals_a_clock_read_minute_by_minute(zone, change):
    begin = utc("2021-01-01T00:00") if change == "spring" else utc("2021-08-01T00:00")
    changes = clock_changes(zone, begin, begin + 150 * DAY) or [(begin + 40 * DAY, 0)]
    begin = changes[0][0] // HOUR * HOUR - 2 * DAY
    for step in STEPS:
        anchor = wall(zone, begin) // DAY * DAY + 30 * MINUTE
        calendar = Calendar(step=step * MINUTE, anchor=anchor, time_zone=zone, from_ms=begin, until_ms=begin + 4 * DAY)
        expected = starts_by_minutes(zone, step * MINUTE, anchor, calendar.start(1), begin + 4 * DAY)
        assert calendar.starts(1, calendar.n_windows).tolist() == expected, step


@settings(max_examples=200, deadline=None)
@given(
    zone=st.sampled_from(ZONES),
    step=st.sampled_from(STEPS) | st.integers(1, 3000),
    begin=st.integers(utc("1975-01-01T00:00"), utc("2090-01-01T00:00")),
    shift=st.integers(0, 7 * DAY),
    length=st.integers(1, 500 * DAY),
)
def test_windows_tile_the_run(zone, step, begin, shift, length):
    parts = {"step": step * MINUTE, "anchor": begin + shift, "time_zone": zone, "from_ms": begin}
    calendar = Calendar(until_ms=begin + length, **parts)
    last = calendar.n_windows
    shown = sorted({1, last, *np.linspace(1, last, 50).astype(int).tolist()})
    starts = np.array([calendar.start(i) for i in shown])
    following = np.array([calendar.start(i + 1) for i in shown])
    assert starts[0] <= begin < following[0]
    assert starts[-1] < begin + length <= following[-1]
    assert (starts < following).all()
    inside = np.clip(np.concatenate([starts, following - 1]), begin, begin + length - 1)
    assert calendar.index(inside).tolist() == shown * 2
    assert [calendar.end(i) for i in shown] == [calendar.start(i + 1) for i in shown]
    endless = Calendar(**parts)
    assert endless.n_windows is None
    assert endless.index(inside).tolist() == shown * 2
    assert [endless.first_from(start) for start in starts.tolist()] == shown
    assert [endless.first_from(start + 1) for start in starts.tolist()] == [i + 1 for i in shown]


def test_starts_do_not_depend_on_how_they_are_asked_for():
    parts = {"step": DAY, "anchor": 0, "time_zone": "Europe/Berlin", "from_ms": utc("2020-01-01T00:00")}
    at_once = Calendar(**parts).starts(1, 5000)
    calendar = Calendar(**parts)
    assert [calendar.start(i) for i in range(1, 5001)] == at_once.tolist()
    assert calendar == Calendar(**parts)
    again = pickle.loads(pickle.dumps(calendar))
    assert again == calendar
    assert again.starts(4000, 6000).tolist() == Calendar(**parts).starts(4000, 6000).tolist()


def test_out_of_time_is_exact_at_both_ends():
    calendar = Calendar(step=10, anchor=3, time_zone="UTC", from_ms=5, until_ms=25)
    assert calendar.index(np.array([2, 3, 4, 5, 12, 13, 22, 23, 24, 25, 26])).tolist() == [
        *(0, 0, 0, 1, 1, 2, 2, 3, 3, 0, 0)
    ]
    assert (calendar.start(1), calendar.n_windows, calendar.end(3)) == (3, 3, 33)
    assert calendar.index(np.array([], np.int64)).tolist() == []
    extremes = np.array([np.iinfo(np.int64).min // 2, np.iinfo(np.int64).max])
    assert calendar.index(extremes).tolist() == [0, 0]


def test_an_endless_calendar_takes_times_far_in_the_future():
    calendar = Calendar(step=HOUR, anchor=0, time_zone="America/New_York", from_ms=0)
    far = utc("9999-12-31T23:00")
    index = calendar.index(np.array([far]))[0]
    assert calendar.start(index) <= far < calendar.end(index)


def test_wrong_ranges_name_the_argument():
    with pytest.raises(ParameterError, match="until"):
        Calendar(step=1, anchor=0, time_zone="UTC", from_ms=5, until_ms=5)
    with pytest.raises(ParameterError, match="first"):
        Calendar(step=1, anchor=0, time_zone="UTC", from_ms=5).start(0)


@pytest.mark.parametrize("zone", ZONES)
def test_segments_are_the_offsets_of_the_zone(zone):
    begin, end = utc("2019-03-01T12:00"), utc("2021-04-01T12:00")
    stretches = segments(zone, begin, end)
    assert (stretches[0][0], stretches[-1][1]) == (begin, end)
    for (_, stop, offset), (start, _, following) in pairwise(stretches):
        assert stop == start
        assert offset != following
        assert (utc_offset(zone, stop - 1), utc_offset(zone, stop)) == (offset, following)
    for start, stop, offset in stretches:
        assert {wall(zone, t) - t for t in range(start, stop, 7 * HOUR)} == {offset}


def test_a_skipped_wall_time_is_the_change_and_a_repeated_one_its_first_occurrence():
    times = ["2020-03-08T01:59", "2020-03-08T02:00", "2020-03-08T02:30", "2020-03-08T03:01", "2020-11-01T01:30"]
    actual = instants("America/New_York", np.array([utc(text) for text in times]))
    expected = ["2020-03-08T06:59", "2020-03-08T07:00", "2020-03-08T07:00", "2020-03-08T07:01", "2020-11-01T05:30"]
    assert actual.tolist() == [utc(text) for text in expected]
    assert instants("UTC", np.array([], np.int64)).tolist() == []
