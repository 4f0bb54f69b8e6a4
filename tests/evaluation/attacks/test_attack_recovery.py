"""Trajectory recovery: exact cases, brute force, and chance level where nothing can be recovered."""

from __future__ import annotations

import time
from itertools import permutations

import numpy as np
import pytest

from penstock.evaluation.attacks import recovery
from penstock.evaluation.attacks.recovery import (
    ABSENT,
    compare,
    n_present_of,
    places_of,
    recover,
    seconds_to_recover,
    trajectory_recovery,
)
from penstock.mechanisms.core.plugin import ParameterError

SIDE = 6
GRID = np.stack(np.divmod(np.arange(SIDE * SIDE), SIDE), axis=1) * 1.0


def presence_of(cells, n_cells=SIDE * SIDE):
    """Presence array from one cell per window, or none."""
    return np.asarray(cells)[..., None] == np.arange(n_cells)


def attacked(cells, released=None, positions=GRID, **how):
    presence = presence_of(cells, len(positions))
    return trajectory_recovery(presence, presence.sum(axis=0) if released is None else released, positions, **how)


@pytest.fixture(scope="module")
def walkers():
    """Trajectories of twenty people who mostly stay."""
    rng = np.random.default_rng(5)
    steps = rng.choice([-1, 0, 1], (20, 30), p=[0.1, 0.8, 0.1])
    columns = np.clip(rng.integers(0, SIDE, 20)[:, None] + np.cumsum(steps, axis=1), 0, SIDE - 1)
    return rng.integers(0, SIDE, 20)[:, None] * SIDE + columns


def test_people_far_apart_who_stay_are_recovered_whole():
    result = attacked(np.repeat(np.array([0, 5, 30, 35]), 24).reshape(4, 24))
    assert (result.recovered.accuracy, result.recovered.distance) == (1, 0)
    assert result.shuffled.accuracy < 0.6
    assert result.gain == 1 - result.baseline > 0.4
    assert (result.n_people, result.n_windows) == (4, 24)


def test_people_who_come_and_go_are_recovered_in_the_windows_with_them():
    """One is there all the time, one in the middle, one twice: who left is told by the place that is empty."""
    cells = np.full((3, 8), ABSENT)
    cells[0], cells[1, 2:5], cells[2, [0, 1, 6, 7]] = 0, 20, 35
    presence = presence_of(cells)
    actual = recover(presence.sum(axis=0), GRID, 3, n_present=(cells != ABSENT).sum(axis=0))
    assert sorted(map(tuple, actual)) == sorted(map(tuple, cells))
    result = attacked(cells)
    assert (result.recovered.accuracy, result.recovered.distance) == (1, 0)


def test_figures_are_those_of_the_best_match_by_brute_force():
    rng = np.random.default_rng(3)
    for _ in range(20):
        presence = rng.random((4, 5, 3)) < 0.3
        actual = rng.integers(-1, 3, (4, 5))
        present = presence.any(axis=2)
        if not present.any():
            continue

        def cell(path, window):
            """Where a trajectory is, was last, or else will be first."""
            seen = [c for c in path[: window + 1] if c >= 0][-1:] or [c for c in path if c >= 0][:1]
            return seen[0] if seen else None

        def right(order, presence=presence, actual=actual):
            cells = [[cell(actual[path], window) for window in range(5)] for path in order]
            return sum(
                cells[who][window] is not None and presence[who, window, cells[who][window]]
                for who in range(4)
                for window in range(5)
            )

        best = max(right(order) for order in permutations(range(4)))
        assert compare(actual, presence, np.arange(3.0)[:, None]).accuracy == pytest.approx(best / present.sum())


def test_the_distance_is_to_the_nearest_of_a_persons_cells_from_where_a_trajectory_was_last():
    line = np.array([[0.0], [10.0], [100.0]])
    presence = np.zeros((1, 4, 3), bool)
    presence[0, 0, 1] = presence[0, 1, [0, 2]] = presence[0, 2, 2] = True  # nowhere in the last window
    one = compare(np.array([[ABSENT, 1, ABSENT, 0]]), presence, line)
    # in cell 1 throughout: right at first, then 10 from cell 0, then 90 from cell 2
    assert one.accuracy == pytest.approx(1 / 3)
    assert one.distance == pytest.approx((0 + 10 + 90) / 3)


def test_a_person_in_two_cells_of_a_window_is_right_in_either():
    presence = np.zeros((1, 2, 3), bool)
    presence[0, 0, [0, 2]] = presence[0, 1, 1] = True
    for cell in (0, 2):
        assert compare(np.array([[cell, 1]]), presence, np.eye(3)).accuracy == 1
    assert compare(np.array([[1, 1]]), presence, np.eye(3)).accuracy == 0.5


def test_a_release_of_nothing_gains_nothing(walkers):
    result = attacked(walkers, np.zeros((30, SIDE * SIDE)))
    assert result.recovered == result.nothing
    assert result.gain <= 0


def test_days_are_joined_by_habits_and_not_by_place():
    """Whoever begins a day in another cell is told by the cells of the day before."""
    first, second = [0, 1, 2, 3], [20, 21, 22, 23]
    truth = np.array([[*first, *first[::-1]], [*second, *second[::-1]]])
    moved = truth[:, [0, 1, 2, 3, 7, 6, 5, 4]]
    for trajectories in (truth, moved):
        assert attacked(trajectories, day=4).recovered.accuracy == 1


def test_noise_makes_it_worse_and_in_the_end_worse_than_a_release_of_nothing(walkers):
    counts, rng = presence_of(walkers).sum(axis=0), np.random.default_rng(0)
    exact, some, much = (
        attacked(walkers, counts + rng.laplace(scale=scale, size=counts.shape)) for scale in (1e-6, 0.3, 100.0)
    )
    assert exact.recovered.accuracy > some.recovered.accuracy > much.recovered.accuracy
    assert exact.recovered.distance < some.recovered.distance < much.recovered.distance
    assert exact.gain > 0.2 > 0 > much.gain


def test_exact_counts_are_kept_to(walkers):
    counts = presence_of(walkers).sum(axis=0)
    np.testing.assert_array_equal(presence_of(recover(counts, GRID, 20, day=10)).sum(axis=0), counts)


def test_a_cost_that_is_wrong_is_noticed(walkers):
    """With cells at other places the continuation is no longer the nearest."""
    wrong = attacked(walkers, positions=np.random.default_rng(1).permutation(GRID))
    assert attacked(walkers).recovered.accuracy > wrong.recovered.accuracy + 0.05


def test_cells_without_a_place_are_all_alike_apart():
    """Who stays is told from who moves, also where nothing is known of distances."""
    cells = np.array([[0, 0, 0, 0], [1, 2, 3, 4]])
    assert attacked(cells, positions=np.eye(5)).recovered.accuracy == 1


def test_by_day_people_go_on_as_they_went():
    crossing = np.array([[0, 1, 2, 3, 4], [4, 3, 2, 1, 0]])
    line = np.column_stack([np.arange(5.0), np.zeros(5)])
    by_day = attacked(crossing, positions=line, night=np.zeros(5, bool))
    at_night = attacked(crossing, positions=line, night=np.ones(5, bool))
    assert by_day.recovered.accuracy == 1 >= at_night.recovered.accuracy


@pytest.mark.parametrize("released", [np.zeros(3), -np.ones(3), np.full(3, np.nan), np.array([5.0, 9.0, -2.0])])
def test_places_are_as_many_as_people(released):
    assert places_of(released, 7).size == 7


def test_totals_say_how_many_are_present_and_none_shown_says_nothing():
    released = np.array([[3.4, np.nan], [-5.0, 1.0], [90.0, 9.0]])
    np.testing.assert_array_equal(n_present_of(released, 7), [3, 0, 7])
    np.testing.assert_array_equal(n_present_of(-released[1:2], 7), [4])
    np.testing.assert_array_equal(n_present_of(np.full((2, 3), np.nan), 7), [7, 7])


def test_wrong_shapes_are_refused(walkers):
    counts = presence_of(walkers).sum(axis=0)
    with pytest.raises(ParameterError, match="coordinates for each"):
        recover(counts, GRID[:4], 20)
    with pytest.raises(ParameterError, match="of the windows and cells of presence"):
        attacked(walkers, counts[:3])
    with pytest.raises(ParameterError, match="at least 1"):
        recover(counts, GRID, 0)
    with pytest.raises(ParameterError, match="n_present"):
        recover(counts, GRID, 20, n_present=np.full(30, 21))
    with pytest.raises(ParameterError, match="of at least one person"):
        compare(walkers, np.zeros((20, 30, 36), bool), GRID)


def test_the_time_of_a_recovery_is_estimated_from_two_windows(monkeypatch):
    read = []

    def recover_and_wait(counts, *_, day, **__):
        read.append(counts.tolist())
        time.sleep(0.02 if day is None else 0.05)

    monkeypatch.setattr(recovery, "recover", recover_and_wait)
    counts = np.array([[1.0], [2.0], [5.0], [4.0]])
    # Two windows take 20 ms, and to join two days takes 30 ms.
    assert 0.04 + 0.03 <= seconds_to_recover(counts, np.eye(1), 5, day=2) < 0.2
    assert 0.04 <= seconds_to_recover(counts, np.eye(1), 5, day=None) < 0.06
    assert read == [[[2.0], [5.0]]] * 6
