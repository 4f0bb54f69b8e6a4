"""Fixed windows at the clock changes of three zones, and their configuration."""

from datetime import datetime
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from penstock.mechanisms.core.plugin import ParameterError
from penstock.pipeline.windows.base import WINDOWS
from penstock.pipeline.windows.fixed import Fixed

MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000


def local(zone: str, *parts: int, fold: int = 0) -> int:
    return round(datetime(*parts, tzinfo=ZoneInfo(zone), fold=fold).timestamp() * 1000)


def lengths(zone: str, size: int, begin: tuple[int, ...], end: tuple[int, ...], **more: int) -> list[float]:
    calendar = Fixed(size=size, time_zone=zone, **more).calendar(local(zone, *begin), local(zone, *end))
    n = calendar.n_windows
    return ((calendar.ends(1, n) - calendar.starts(1, n)) / HOUR).tolist()


@pytest.mark.parametrize(
    ("zone", "day", "hours"),
    [
        ("America/New_York", (2020, 3, 8), 23),
        ("America/New_York", (2020, 11, 1), 25),
        ("Europe/Berlin", (2020, 3, 29), 23),
        ("Europe/Berlin", (2020, 10, 25), 25),
        ("Australia/Lord_Howe", (2020, 10, 4), 23.5),
        ("Australia/Lord_Howe", (2020, 4, 5), 24.5),
        ("America/Havana", (2020, 11, 1), 25),  # midnight is shown twice
        ("America/Sao_Paulo", (2018, 11, 4), 23),  # midnight is skipped
    ],
)
def test_a_local_day_has_the_hours_of_the_zone(zone, day, hours):
    noon_before = local(zone, *day) - 12 * HOUR
    calendar = Fixed(size=DAY, time_zone=zone).calendar(noon_before, noon_before + 3 * DAY)
    assert ((calendar.ends(1, 3) - calendar.starts(1, 3)) / HOUR).tolist() == [24, hours, 24]
    assert calendar.start(2) == local(zone, *day)


def test_hours_in_new_york_are_sixty_minutes_and_the_repeated_hour_is_two_windows():
    assert lengths("America/New_York", HOUR, (2020, 3, 8), (2020, 3, 9)) == [1] * 23
    assert lengths("America/New_York", HOUR, (2020, 11, 1), (2020, 11, 2)) == [1] * 25
    calendar = Fixed(size=HOUR, time_zone="America/New_York").calendar(local("America/New_York", 2020, 11, 1))
    first, second = (local("America/New_York", 2020, 11, 1, 1, 30, fold=fold) for fold in (0, 1))
    assert calendar.index(np.array([first, second])).tolist() == [2, 3]


def test_half_hours_in_new_york_skip_and_repeat():
    assert lengths("America/New_York", 30 * MINUTE, (2020, 3, 8), (2020, 3, 9)) == [0.5] * 46
    assert lengths("America/New_York", 30 * MINUTE, (2020, 11, 1), (2020, 11, 2)) == [0.5] * 50


def test_six_hours_take_the_change():
    assert lengths("Europe/Berlin", 6 * HOUR, (2020, 3, 29), (2020, 3, 30)) == [5, 6, 6, 6]
    assert lengths("Europe/Berlin", 6 * HOUR, (2020, 10, 25), (2020, 10, 26)) == [7, 6, 6, 6]


def test_a_window_that_starts_in_the_skipped_hour_starts_at_the_change():
    # Two hours from 02:00: the clock goes from 01:59 to 03:00, and the window is one hour long.
    assert lengths("America/New_York", 2 * HOUR, (2020, 3, 8), (2020, 3, 8, 8)) == [2, 1, 2, 2]


def test_hours_on_lord_howe_where_clocks_change_by_half_an_hour():
    spring = lengths("Australia/Lord_Howe", HOUR, (2020, 10, 4), (2020, 10, 4, 5))
    assert spring == [1, 1, 0.5, 1, 1]  # 02:00 becomes 02:30
    autumn = lengths("Australia/Lord_Howe", HOUR, (2020, 4, 5), (2020, 4, 5, 5))
    assert autumn == [1, 1.5, 1, 1, 1]  # 02:00 becomes 01:30
    assert lengths("Australia/Lord_Howe", 30 * MINUTE, (2020, 4, 5), (2020, 4, 5, 3)) == [0.5] * 7


def test_a_day_that_starts_at_four_keeps_starting_at_four():
    zone = "Europe/Berlin"
    calendar = Fixed(size=DAY, offset=4 * HOUR, time_zone=zone).calendar(local(zone, 2020, 3, 28, 4))
    expected = [local(zone, 2020, 3, 28, 4), local(zone, 2020, 3, 29, 4), local(zone, 2020, 3, 30, 4)]
    assert calendar.starts(1, 3).tolist() == expected


def test_a_run_may_begin_in_the_repeated_hour():
    zone = "America/New_York"
    begin = local(zone, 2020, 11, 1, 1, 30, fold=1)
    calendar = Fixed(size=2 * HOUR, time_zone=zone).calendar(begin)
    assert calendar.start(1) == local(zone, 2020, 11, 1)
    assert calendar.index(np.array([begin])).tolist() == [1]
    assert calendar.index(np.array([begin, begin + HOUR // 2])).tolist() == [1, 2]


def test_window_1_contains_the_begin_of_the_run():
    zone = "America/New_York"
    begin = local(zone, 2020, 6, 1, 10, 17)
    for size, offset, start in ((HOUR, 0, (10,)), (HOUR, 30 * MINUTE, (9, 30)), (DAY, 0, (0,))):
        calendar = Fixed(size=size, offset=offset, time_zone=zone).calendar(begin, begin + 1)
        assert calendar.start(1) == local(zone, 2020, 6, 1, *start)
        assert calendar.n_windows == 1
        assert calendar.index(np.array([begin - 1, begin, begin + 1])).tolist() == [0, 1, 0]


def test_the_run_covers_every_window_that_starts_before_its_end():
    windows = Fixed(size=HOUR)
    assert windows.calendar(0, 3 * HOUR).n_windows == 3
    assert windows.calendar(0, 3 * HOUR + 1).n_windows == 4
    assert windows.calendar(0, 3 * HOUR - 1).n_windows == 3


def test_a_week_starts_at_the_origin():
    zone = "Europe/Berlin"
    monday = local(zone, 2020, 3, 23)
    windows = Fixed(size=7 * DAY, time_zone=zone, origin=monday)
    calendar = windows.calendar(local(zone, 2020, 4, 1), local(zone, 2020, 4, 20))
    assert calendar.starts(1, 3).tolist() == [
        local(zone, 2020, 3, 30),
        local(zone, 2020, 4, 6),
        local(zone, 2020, 4, 13),
    ]
    assert calendar.n_windows == 3
    assert windows.calendar(None).start(1) == monday


def test_san_francisco_hours_are_the_hours_of_the_paper():
    begin = local("UTC", 2008, 5, 19)
    calendar = Fixed(size=HOUR).calendar(begin, local("UTC", 2008, 6, 9))
    assert calendar.n_windows == 504
    assert calendar.index(np.array([begin + 168 * HOUR - 1])).tolist() == [168]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"size": 0}, "size: 0"),
        ({"size": HOUR, "offset": HOUR}, "offset: 3600000"),
        ({"size": HOUR, "offset": -1}, "offset: -1"),
        ({"size": HOUR, "allowed_lateness": -1}, "allowed_lateness: -1"),
        ({"size": HOUR, "time_zone": "Europe/Berlim"}, "did you mean 'Europe/Berlin'"),
        ({"size": HOUR, "time_zone": "../etc/passwd"}, "time_zone"),
        ({"size": HOUR, "time_zone": ""}, "time_zone"),
    ],
)
def test_impossible_windows_are_refused(values, message):
    with pytest.raises(ParameterError, match=message):
        Fixed(**values)


def test_a_run_without_begin_is_refused():
    with pytest.raises(ParameterError, match="from: None"):
        Fixed(size=HOUR).calendar(None, 5)
    with pytest.raises(ParameterError, match="until"):
        Fixed(size=HOUR).calendar(5, 5)


def test_windows_are_found_by_name():
    assert {"fixed", "timestamps"} <= set(WINDOWS.names())
    assert WINDOWS.get("fixed") is Fixed
