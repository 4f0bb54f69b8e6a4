"""The schedule: landmarks and budget period of each window."""

import pickle
from dataclasses import replace
from datetime import datetime
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.mechanisms.core.contract import Facts, Window
from penstock.mechanisms.core.plugin import ParameterError
from penstock.pipeline.windows.calendar import Calendar
from penstock.pipeline.windows.fixed import Fixed
from penstock.pipeline.windows.grid import WindowGrid
from penstock.pipeline.windows.landmarks import Landmarks

HOUR, DAY = 3_600_000, 86_400_000
NEW_YORK = "America/New_York"


def local(zone: str, *parts: int) -> int:
    return round(datetime(*parts, tzinfo=ZoneInfo(zone)).timestamp() * 1000)


def clock(calendar: Calendar, index: int) -> datetime:
    """Local wall time at the start of a window."""
    return datetime.fromtimestamp(calendar.start(index) / 1000, ZoneInfo(calendar.time_zone))


def by_hand(calendar: Calendar, landmarks: Landmarks | None, period_of: list[int]) -> list[Window]:
    """Every fact from its definition, window by window."""
    n = len(period_of)
    mask = [False] * n if landmarks is None else landmarks.mask(calendar, 1, n).tolist()
    declared = None if landmarks is None else landmarks.declared
    windows = []
    for i in range(n):
        same = [j for j in range(n) if period_of[j] == period_of[i]]
        listed = sum(mask[j] for j in same)
        so_far = sum(mask[j] for j in same if j <= i)
        allowed = listed if declared is None else declared
        windows.append(
            Window(
                index=i + 1,
                start=calendar.start(i + 1),
                end=calendar.end(i + 1),
                landmark=mask[i],
                landmarks_to_come=max(0, allowed - so_far),
                regulars_to_come=sum(not mask[j] for j in same if j > i),
                period=period_of[i],
                n_landmarks=allowed,
                n_windows=len(same),
                period_last=same[-1] + 1,
                day_type=max(0, clock(calendar, i + 1).weekday() - 4),
                time_of_day=1000 * (3600 * clock(calendar, i + 1).hour + 60 * clock(calendar, i + 1).minute),
            )
        )
    return windows


@settings(max_examples=80, deadline=None)
@given(
    zone=st.sampled_from(("UTC", NEW_YORK, "Australia/Lord_Howe")),
    size=st.sampled_from((1, 2, 6, 24)),
    days=st.sampled_from((None, 1, 2, 7)),
    begin=st.integers(0, 400 * 24),
    length=st.integers(1, 200),
    listed=st.sets(st.integers(1, 200)),
    maximum=st.none() | st.integers(0, 5),
)
def test_facts_equal_their_definitions(zone, size, days, begin, length, listed, maximum):
    start = 1_577_836_800_000 + begin * HOUR
    calendar = Fixed(size=size * HOUR, time_zone=zone).calendar(start, start + length * size * HOUR)
    n = calendar.n_windows
    landmarks = Landmarks(
        windows=tuple(i for i in listed if i <= n), recurring=("Mon-Fri 07:00-09:00",), declared=maximum
    )
    period_of = [0] * n
    if days is not None:
        day = [datetime.fromtimestamp(s / 1000, ZoneInfo(zone)).toordinal() for s in calendar.starts(1, n).tolist()]
        period_of = [(d - day[0]) // days for d in day]
    schedule = WindowGrid(calendar, landmarks, None if days is None else days * DAY)
    expected = by_hand(calendar, landmarks, period_of)
    assert schedule.windows(1, n) == expected
    assert [schedule.window(i) for i in range(1, n + 1)] == expected
    assert pickle.loads(pickle.dumps(schedule)) == schedule


@settings(max_examples=50, deadline=None)
@given(
    n=st.integers(1, 60),
    listed=st.sets(st.integers(1, 60)),
    period=st.none() | st.integers(1, 70),
    maximum=st.none() | st.integers(0, 4),
)
def test_the_schedule_says_what_the_plain_loop_says(n, listed, period, maximum):
    listed = tuple(sorted(i for i in listed if i <= n))
    facts = Facts(n_cells=1, n_windows=n, landmarks=listed, budget_period=period, max_landmarks=maximum)
    calendar = Fixed(size=HOUR).calendar(0, n * HOUR)
    landmarks = Landmarks(windows=listed, declared=maximum)
    schedule = WindowGrid(calendar, landmarks, None if period is None else period * HOUR)
    # The plain loop knows times of day, but no dates.
    assert [replace(window, day_type=0) for window in schedule.windows(1, n)] == facts.windows()


def test_a_day_of_budget_has_as_many_windows_as_the_local_day_has_hours():
    begin = local(NEW_YORK, 2020, 10, 31, 18)
    calendar = Fixed(size=HOUR, time_zone=NEW_YORK).calendar(begin, local(NEW_YORK, 2020, 11, 3))
    windows = WindowGrid(calendar, None, DAY).windows(1, calendar.n_windows)
    assert [sum(w.period == p for w in windows) for p in range(3)] == [6, 25, 24]
    assert {w.period: w.n_windows for w in windows} == {0: 6, 1: 25, 2: 24}


def test_days_of_budget_may_follow_another_zone_than_the_windows():
    calendar = Fixed(size=HOUR).calendar(0, 3 * DAY)
    windows = WindowGrid(calendar, None, DAY, NEW_YORK).windows(1, 72)
    assert [sum(w.period == p for w in windows) for p in range(4)] == [5, 24, 24, 19]


def test_a_period_that_is_no_whole_day_begins_with_the_run():
    calendar = Fixed(size=HOUR).calendar(5 * HOUR, 40 * HOUR)
    windows = WindowGrid(calendar, None, 10 * HOUR).windows(1, 35)
    assert [w.period for w in windows] == [i // 10 for i in range(35)]


def test_a_window_belongs_to_the_period_in_which_it_starts():
    calendar = Fixed(size=10 * HOUR, origin=0).calendar(0, 50 * HOUR)
    assert [w.period for w in WindowGrid(calendar, None, DAY).windows(1, 5)] == [0, 0, 0, 1, 1]


def test_landmarks_over_the_declared_maximum_stay_landmarks():
    calendar = Fixed(size=HOUR).calendar(0, DAY)
    windows = WindowGrid(calendar, Landmarks(windows=(2, 3, 4), declared=2), DAY).windows(1, 5)
    assert [w.landmark for w in windows] == [False, True, True, True, False]
    assert [w.landmarks_to_come for w in windows] == [2, 1, 0, 0, 0]
    assert [w.regulars_to_come for w in windows] == [20, 20, 20, 20, 19]
    assert {w.n_landmarks for w in windows} == {2}


def test_an_endless_stream_with_periods_knows_everything():
    landmarks = Landmarks(recurring=("07:00-09:00",))
    windows = Fixed(size=HOUR, time_zone=NEW_YORK)
    begin = local(NEW_YORK, 2020, 1, 1)
    endless = WindowGrid(windows.calendar(begin), landmarks, DAY)
    finite = WindowGrid(windows.calendar(begin, local(NEW_YORK, 2021, 1, 1)), landmarks, DAY)
    assert endless.windows(1, 366 * 24) == finite.windows(1, 366 * 24)
    assert endless.window(5_000_000).n_landmarks == 2


def test_an_endless_stream_without_period_knows_its_landmarks_if_none_recurs():
    calendar = Fixed(size=HOUR).calendar(0)
    window = WindowGrid(calendar, Landmarks(windows=(3, 3000))).window(2)
    assert (window.landmarks_to_come, window.regulars_to_come, window.n_landmarks, window.n_windows) == (
        *(None, None, 2, None),
    )
    assert WindowGrid(calendar, Landmarks(windows=(3, 3000))).window(3000).landmark
    assert WindowGrid(calendar, Landmarks(recurring=("07:00-09:00",))).window(8).n_landmarks is None
    declared = WindowGrid(calendar, Landmarks(recurring=("07:00-09:00",), declared=9)).window(8)
    assert (declared.landmark, declared.n_landmarks) == (True, 9)
    assert WindowGrid(calendar).window(8).n_landmarks == 0


def test_memory_is_bounded_on_an_endless_stream():
    schedule = WindowGrid(Fixed(size=HOUR, time_zone=NEW_YORK).calendar(0), Landmarks(recurring=("07:00-09:00",)), DAY)
    sizes = []
    for end in (20_000, 40_000, 60_000):
        for index in range(end - 5000, end):
            schedule.window(index)
        sizes.append(len(pickle.dumps(schedule.__dict__)))
    assert sizes[2] < 1.1 * sizes[0]
    assert len(pickle.dumps(schedule)) < 5000


def test_windows_in_any_order_are_the_same():
    calendar = Fixed(size=HOUR, time_zone=NEW_YORK).calendar(0, 300 * DAY)
    schedule = WindowGrid(calendar, Landmarks(recurring=("07:00-09:00",), windows=(5,)), 7 * DAY)
    in_order = schedule.windows(1, 7200)
    for index in np.random.default_rng(1).integers(1, 7201, 50).tolist():
        assert schedule.window(index) == in_order[index - 1]
    assert schedule.windows(7, 6) == []


def test_wrong_schedules_are_refused():
    calendar = Fixed(size=HOUR).calendar(0, DAY)
    with pytest.raises(ParameterError, match="windows: 25"):
        WindowGrid(calendar, Landmarks(windows=(25,)))
    with pytest.raises(ParameterError, match="budget_period: 60000"):
        WindowGrid(calendar, None, 60_000)
    for first, last in ((0, 3), (3, 25)):
        with pytest.raises(ParameterError, match="from 1 to 24"):
            WindowGrid(calendar).windows(first, last)


def test_days_are_of_types_by_the_local_calendar_and_holidays_are_sundays():
    windows = Fixed(size=6 * HOUR, time_zone=NEW_YORK, holidays=("2024-11-28",))
    begin = local(NEW_YORK, 2024, 11, 1)
    grid = WindowGrid(windows.calendar(begin, begin + 30 * DAY), None, DAY, holidays=windows.holidays)
    facts = {}
    for window in grid.windows(1, grid.n_windows):
        at = clock(grid.calendar, window.index)
        facts.setdefault(at.day, (window.day_type, []))[1].append(window.time_of_day // HOUR)
        assert window.day_type == facts[at.day][0]
    assert [facts[day][0] for day in range(1, 11)] == [0, 1, 2, 0, 0, 0, 0, 0, 1, 2]
    assert facts[28][0] == 2
    assert facts[27][0] == facts[29][0] == 0
    # The clocks go back on the 3rd: its windows begin at the same times of day as all others.
    assert all(hours == [0, 6, 12, 18] for _, hours in facts.values())
    with pytest.raises(ParameterError, match=r"holidays.*a date such as"):
        Fixed(size=HOUR, holidays=("25.12.2024",))
