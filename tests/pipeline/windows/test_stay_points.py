"""Stay points against the published algorithm, and landmarks of traces."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.mechanisms.core.geometry import distance, moved, offsets_between, stay_points
from penstock.pipeline.releasing.traces import landmark_mask
from penstock.pipeline.windows.landmarks import Landmarks, StayPoints

PLACE = np.array([39.9, 116.4])


def by_the_book(times, points, max_distance, min_time):
    """Li et al. 2008, one point after the other; a trace that ends in a stay has it."""
    n, mask, i = len(times), np.zeros(len(times), bool), 0
    while i < n:
        j = i + 1
        while j < n and distance(points[i], points[j]) <= max_distance:
            j += 1
        if j - 1 > i and times[j - 1] - times[i] >= min_time:
            mask[i:j] = True
            i = j
        else:
            i += 1
    return mask


def test_stay_points_of_many_traces_are_those_of_each_by_the_book():
    rng = np.random.default_rng(1)
    for max_distance, min_time in ((0.0, 0), (100.0, 5), (300.0, 20), (1e6, 3)):
        traces = [PLACE + np.cumsum(rng.normal(0, 0.0007, (int(rng.integers(1, 60)), 2)), axis=0) for _ in range(40)]
        times = [np.cumsum(rng.integers(0, 4, len(trace))) for trace in traces]
        starts = np.cumsum([0, *map(len, traces[:-1])])
        actual = stay_points(np.concatenate(times), np.concatenate(traces), starts, max_distance, min_time)
        expected = [by_the_book(t, p, max_distance, min_time) for t, p in zip(times, traces)]
        assert np.array_equal(actual, np.concatenate(expected))


def test_one_trace_never_ends_a_stay_of_the_next():
    points = np.tile(PLACE, (4, 1))
    times = np.array([0, 100, 0, 1])
    assert stay_points(times, points, np.array([0, 2]), 50.0, 50).tolist() == [True, True, False, False]
    assert not stay_points(times[:0], points[:0], np.zeros(0, int), 50.0, 50).size


def test_landmarks_of_traces_come_from_numbers_times_and_stays():
    times = np.array([0, 60_000, 120_000, 0, 3_600_000])
    points = np.concatenate([np.tile(PLACE, (3, 1)), [[39.9, 116.4], [39.9, 117.4]]])
    starts = np.array([0, 3])

    def mask(**sections):
        return landmark_mask(Landmarks(**sections), "UTC", times, points, starts).tolist()

    assert mask(windows=(2, 3)) == [False, True, True, False, True]
    assert mask(recurring=("01:00-02:00",)) == [False] * 4 + [True]
    assert mask(times=("1970-01-01T00:01:00Z",)) == [False, True, False, False, False]
    assert mask(stay_points=StayPoints(distance=10.0, time=60_000)) == [True] * 3 + [False] * 2
    assert landmark_mask(None, "UTC", times, points, starts).sum() == 0


@pytest.mark.parametrize("metres", [0.0, 1e-3, 1.0, 1e5, 1.9e7])
def test_offsets_lead_there_and_back_and_have_the_length_of_the_way(metres):
    rng = np.random.default_rng(2)
    points = np.column_stack([rng.uniform(-89.9, 89.9, 500), rng.uniform(-180, 180, 500)])
    turn = rng.uniform(0, 2 * np.pi, 500)
    offsets = metres * np.column_stack([np.sin(turn), np.cos(turn)])
    there = moved(points, offsets)
    assert (np.abs(there) <= [90, 180]).all()
    assert distance(points, there) == pytest.approx(np.full(500, metres), rel=1e-6, abs=1e-6)
    assert offsets_between(points, there) == pytest.approx(offsets, rel=1e-5, abs=1e-5 + metres * 1e-6)
