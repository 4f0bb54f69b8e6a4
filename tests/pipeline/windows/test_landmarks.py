"""Landmarks: windows selected by lists, times, ranges and recurring hours."""

from datetime import datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.mechanisms.core.plugin import ParameterError
from penstock.pipeline.windows.calendar import Calendar
from penstock.pipeline.windows.fixed import Fixed
from penstock.pipeline.windows.landmarks import Landmarks

MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
NEW_YORK = "America/New_York"


def local(zone: str, *parts: int, fold: int = 0) -> int:
    return round(datetime(*parts, tzinfo=ZoneInfo(zone), fold=fold).timestamp() * 1000)


def hours(zone: str, day: tuple[int, int, int], n_days: int = 1, size: int = HOUR) -> Calendar:
    begin = local(zone, *day)
    following = datetime(*day) + timedelta(days=n_days)
    return Fixed(size=size, time_zone=zone).calendar(begin, local(zone, *following.timetuple()[:3]))


def actual(landmarks: Landmarks, calendar: Calendar) -> list[int]:
    return (np.flatnonzero(landmarks.mask(calendar, 1, calendar.n_windows)) + 1).tolist()


def test_listed_windows_are_landmarks_wherever_the_mask_begins():
    calendar = hours("UTC", (2020, 1, 1))
    landmarks = Landmarks(windows=(5, 2, 2, 24))
    assert actual(landmarks, calendar) == [2, 5, 24]
    assert landmarks.mask(calendar, 3, 6).tolist() == [False, False, True, False]
    assert landmarks.mask(calendar, 6, 5).tolist() == []
    assert landmarks.count(calendar) == 3


@pytest.mark.parametrize(
    ("entry", "windows"),
    [
        ("2020-01-01T07:00:00Z", [8]),
        ("2020-01-01T06:59:59.999Z", [7]),
        ("2020-01-01T07:59", [8]),
        ("2020-01-01T09:30+02:00", [8]),
        ("2020-01-01T07:00/2020-01-01T09:00", [8, 9]),
        ("2020-01-01T07:59:59/2020-01-01T09:00:01", [8, 9, 10]),
        ("2019-12-31T07:00Z/2020-01-01T01:00Z", [1]),
        ("2020-01-01T23:00Z / 2020-01-05T01:00Z", [24]),
        ("2020-01-01", list(range(1, 25))),
        ("2019-12-31", []),
        ("2019-12-30/2020-01-01", []),
        ("2019-12-30/2020-01-02", list(range(1, 25))),
    ],
)
def test_a_time_or_range_is_every_window_that_it_touches(entry, windows):
    landmarks = Landmarks(times=(entry,))
    assert actual(landmarks, hours("UTC", (2020, 1, 1))) == windows
    assert landmarks.count(hours("UTC", (2020, 1, 1))) == len(windows)


def test_a_time_without_offset_is_on_the_clock_of_the_windows():
    calendar = hours(NEW_YORK, (2020, 7, 4))
    assert actual(Landmarks(times=("2020-07-04T21:00/2020-07-04T23:00",)), calendar) == [22, 23]
    assert actual(Landmarks(times=("2020-07-05T01:00Z",)), calendar) == [22]
    assert len(actual(Landmarks(times=("2020-11-01",)), hours(NEW_YORK, (2020, 10, 31), 3))) == 25


def test_recurring_ranges_follow_days_of_the_week():
    calendar = hours(NEW_YORK, (2020, 3, 2), 14)  # Monday; clocks go forward on Sunday the 8th
    starts = calendar.starts(1, calendar.n_windows).tolist()
    expected = []
    for i, start in enumerate(starts, 1):
        clock = datetime.fromtimestamp(start / 1000, ZoneInfo(NEW_YORK))
        if clock.weekday() < 5 and 7 <= clock.hour < 9:
            expected.append(i)
    assert actual(Landmarks(recurring=("Mon-Fri 07:00-09:00",)), calendar) == expected
    assert len(expected) == 20
    weekend = actual(Landmarks(recurring=("sat,sun",)), calendar)
    assert len(weekend) == 24 + 23 + 48
    assert actual(Landmarks(recurring=("Sat-Sun 00:00-24:00",)), calendar) == weekend
    assert actual(Landmarks(recurring=("Mon, Wed 7:00-7:01",)), calendar) == [8, 56, 175, 223]
    assert actual(Landmarks(recurring=("Fri-Mon", "Tue-Thu")), calendar) == list(range(1, len(starts) + 1))


def test_a_range_across_midnight_belongs_to_the_day_it_begins():
    calendar = hours("UTC", (2020, 1, 4), 3)  # Saturday
    assert actual(Landmarks(recurring=("Sat 22:00-02:00",)), calendar) == [23, 24, 25, 26]
    assert actual(Landmarks(recurring=("Fri 22:00-02:00",)), calendar) == [1, 2]


def test_recurring_ranges_at_clock_changes_are_what_the_clock_shows():
    spring, autumn = hours(NEW_YORK, (2020, 3, 8)), hours(NEW_YORK, (2020, 11, 1))
    assert actual(Landmarks(recurring=("02:00-03:00",)), spring) == []
    assert actual(Landmarks(recurring=("01:30-03:30",)), spring) == [2, 3]
    assert actual(Landmarks(recurring=("01:00-02:00",)), autumn) == [2, 3]
    assert actual(Landmarks(recurring=("00:30-01:00",)), autumn) == [1]


def test_a_night_that_a_clock_change_cuts_is_one_landmark_range():
    night = hours(NEW_YORK, (2020, 3, 7), 2)
    assert actual(Landmarks(recurring=("Sat 22:00-04:00",)), night) == [23, 24, 25, 26, 27]


def test_a_window_that_overlaps_a_little_is_a_landmark():
    day = hours("UTC", (2020, 1, 1), 3, size=DAY)
    assert actual(Landmarks(times=("2020-01-02T23:59:59.999Z",)), day) == [2]


RECURRING = ("07:00-09:00", "Mon-Fri 16:30-18:15", "Sat,Sun", "23:30-00:30", "01:30-02:30", "Sun,Wed 22:00-03:30")


@settings(max_examples=60, deadline=None)
@given(
    zone=st.sampled_from(("UTC", NEW_YORK, "Australia/Lord_Howe")),
    size=st.sampled_from((10, 30, 60, 120, 1440)),
    entries=st.sets(st.sampled_from(RECURRING), min_size=1),
    day=st.integers(0, 700) | st.sampled_from((66, 67, 94, 95, 276, 277, 304, 305)),  # around clock changes
)
def test_recurring_equals_reading_the_clock_every_minute(zone, size, entries, day):
    begin = 1_577_836_800_000 + day * DAY
    calendar = Fixed(size=size * MINUTE, time_zone=zone).calendar(begin, begin + 2 * DAY)
    mask = Landmarks(recurring=tuple(entries)).mask(calendar, 1, calendar.n_windows)
    starts = calendar.starts(1, calendar.n_windows)
    expected = np.zeros(len(starts), bool)
    for instant in range(calendar.start(1), calendar.end(calendar.n_windows), MINUTE):
        clock = datetime.fromtimestamp(instant / 1000, ZoneInfo(zone))
        minute, workday = clock.hour * 60 + clock.minute, clock.weekday() < 5
        shown = {
            "07:00-09:00": 420 <= minute < 540,
            "Mon-Fri 16:30-18:15": workday and 990 <= minute < 1095,
            "Sat,Sun": not workday,
            "23:30-00:30": minute >= 1410 or minute < 30,
            "01:30-02:30": 90 <= minute < 150,
            "Sun,Wed 22:00-03:30": (clock.weekday() in (2, 6) and minute >= 1320)
            or (clock.weekday() in (3, 0) and minute < 210),
        }
        if any(shown[entry] for entry in entries):
            expected[np.searchsorted(starts, instant, "right") - 1] = True
    assert mask.tolist() == expected.tolist()


@settings(max_examples=50, deadline=None)
@given(cuts=st.lists(st.integers(1, 500), max_size=5))
def test_the_mask_does_not_depend_on_how_it_is_cut(cuts):
    calendar = hours(NEW_YORK, (2020, 10, 20), 21)
    n_windows = calendar.n_windows
    landmarks = Landmarks(windows=(1, 300), times=("2020-11-01T01:30/2020-11-02",), recurring=("22:00-01:30",))
    edges = [0, *sorted(cut for cut in cuts if cut < n_windows), n_windows]
    pieces = [landmarks.mask(calendar, a + 1, b) for a, b in pairwise(edges)]
    assert np.concatenate(pieces).tolist() == landmarks.mask(calendar, 1, n_windows).tolist()


def test_an_endless_stream_has_a_number_of_landmarks_only_if_none_recurs():
    calendar = Fixed(size=HOUR).calendar(0)
    assert Landmarks(windows=(3, 500), times=("1970-01-02T00:00Z/1970-01-02T02:00Z",)).count(calendar) == 4
    assert Landmarks(times=("1970-01-02",)).count(calendar) == 24
    assert Landmarks().count(calendar) == 0
    assert Landmarks(recurring=("07:00-09:00",)).count(calendar) is None


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"windows": (0,)}, "windows: 0"),
        ({"windows": (True,)}, "windows: True"),
        ({"windows": (2.5,)}, "windows: 2.5"),
        ({"times": ("yesterday",)}, "times: 'yesterday'"),
        ({"times": ("2020-13-01",)}, "times"),
        ({"times": ("2020-01-02/2020-01-01",)}, "begin before end"),
        ({"times": ("2020-01-01/2020-01-02/2020-01-03",)}, "times"),
        ({"times": ("",)}, "times: ''"),
        ({"times": (5,)}, "times: 5"),
        ({"recurring": ("25:00-26:00",)}, "recurring: '25:00-26:00'"),
        ({"recurring": ("07:00",)}, "recurring"),
        ({"recurring": ("07:60-08:00",)}, "recurring"),
        ({"recurring": ("07:00-07:00",)}, "recurring"),
        ({"recurring": ("24:00-07:00",)}, "recurring"),
        ({"recurring": ("Mon-Foo 07:00-08:00",)}, "recurring"),
        ({"recurring": ("Mon-Tue-Wed",)}, "recurring"),
        ({"recurring": ("Mon,,Tue",)}, "recurring"),
        ({"recurring": ("",)}, "recurring: ''"),
        ({"recurring": (7,)}, "recurring: 7"),
        ({"declared": -1}, "max_per_period: -1"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(values, message):
    with pytest.raises(ParameterError, match=message):
        Landmarks(**values)


def test_a_listed_window_after_the_end_is_refused():
    calendar = hours("UTC", (2020, 1, 1))
    Landmarks(windows=(24,)).check(calendar)
    with pytest.raises(ParameterError, match=r"windows: 25 .* from 1 to 24"):
        Landmarks(windows=(24, 25)).check(calendar)
