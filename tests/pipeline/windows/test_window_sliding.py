"""Sliding windows: an event is in size/period of them, on the wall clock too."""

import numpy as np
import pytest

from penstock.mechanisms.core.plugin import ParameterError
from penstock.pipeline.windows.fixed import Fixed
from penstock.pipeline.windows.sliding import Sliding

MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
AUTUMN = 1_604_203_200_000  # 2020-11-01 00:00 in New York; clocks go back at 02:00


def test_every_event_is_in_size_over_period_windows_once_the_run_is_under_way():
    calendar = Sliding(size=HOUR, period=10 * MINUTE).calendar(0, DAY)
    assert calendar.n_windows == 144
    times = np.random.default_rng(1).integers(HOUR, DAY, 10_000)
    indices = calendar.indices(times)
    assert indices.shape == (10_000, 6)
    starts, ends = calendar.starts(1, 144), calendar.ends(1, 144)
    for column in indices.T:
        assert (starts[column - 1] <= times).all()
        assert (times < ends[column - 1]).all()
    assert (np.diff(indices, axis=1) == 1).all()
    assert calendar.indices(np.array([-1, 0, DAY])).tolist() == [[0] * 6, [0] * 5 + [1], [0] * 6]


def test_a_period_equal_to_the_size_is_a_fixed_window():
    fixed, sliding = (w.calendar(0, DAY) for w in (Fixed(size=HOUR), Sliding(size=HOUR, period=HOUR)))
    assert fixed == sliding
    assert not sliding.overlapping


def test_days_slide_by_six_hours_of_the_clock():
    calendar = Sliding(size=DAY, period=6 * HOUR, time_zone="America/New_York").calendar(AUTUMN)
    assert ((calendar.ends(1, 3) - calendar.starts(1, 3)) // HOUR).tolist() == [25, 24, 24]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"size": HOUR, "period": 25 * MINUTE}, r"size: 3600000 .* multiple of period"),
        ({"size": HOUR, "period": 2 * HOUR}, "multiple of period"),
        ({"size": HOUR, "period": 0}, "period: 0"),
        ({"size": HOUR, "period": 10 * MINUTE, "offset": 10 * MINUTE}, "offset"),
    ],
)
def test_impossible_windows_are_refused(values, message):
    with pytest.raises(ParameterError, match=message):
        Sliding(**values)
