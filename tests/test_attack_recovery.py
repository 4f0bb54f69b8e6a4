"""Trajectory recovery: cases in which everything is recovered, and chance where nothing can be."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.evaluation.attacks.recovery import places_of, recover, share_recovered, trajectory_recovery
from penstock.mechanisms.core.plugin import ParameterError

SIDE = 6
GRID = np.stack(np.divmod(np.arange(SIDE * SIDE), SIDE), axis=1) * 1.0


def counts_of(truth, n_cells=SIDE * SIDE):
    return np.stack([np.bincount(cells, minlength=n_cells) for cells in truth.T])


@pytest.fixture(scope="module")
def walkers():
    """Twenty who mostly stay, else step to a neighbour in their row."""
    rng = np.random.default_rng(5)
    steps = rng.choice([-1, 0, 1], (20, 30), p=[0.1, 0.8, 0.1])
    columns = np.clip(rng.integers(0, SIDE, 20)[:, None] + np.cumsum(steps, axis=1), 0, SIDE - 1)
    return rng.integers(0, SIDE, 20)[:, None] * SIDE + columns


def test_people_far_apart_who_stay_are_recovered_whole():
    truth = np.repeat(np.array([0, 5, 30, 35]), 24).reshape(4, 24)
    found = trajectory_recovery(truth, counts_of(truth), GRID)
    assert found.accuracy == 1
    assert found.chance < 0.6
    assert (found.n_people, found.n_windows) == (4, 24)


def test_days_are_joined_by_habits_and_not_by_place():
    """Whoever begins a day in another cell is told by the cells of the day before."""
    first, second = [0, 1, 2, 3], [20, 21, 22, 23]
    truth = np.array([[*first, *first[::-1]], [*second, *second[::-1]]])
    moved = truth[:, [0, 1, 2, 3, 7, 6, 5, 4]]
    for own in (truth, moved):
        assert trajectory_recovery(own, counts_of(own), GRID, day=4).accuracy == 1


def test_noise_makes_it_worse_and_in_the_end_chance(walkers):
    counts, rng = counts_of(walkers), np.random.default_rng(0)
    exact, some, much = (
        trajectory_recovery(walkers, counts + rng.laplace(scale=scale, size=counts.shape), GRID)
        for scale in (1e-6, 0.3, 100.0)
    )
    assert exact.accuracy > some.accuracy > much.accuracy
    assert exact.accuracy > exact.chance + 0.2
    assert much.accuracy == pytest.approx(much.chance, abs=0.05)


def test_exact_counts_are_kept_to(walkers):
    counts = counts_of(walkers)
    np.testing.assert_array_equal(counts_of(recover(counts, GRID, 20, day=10)), counts)


def test_a_cost_that_is_wrong_is_noticed(walkers):
    """With cells at other places the continuation is no longer the nearest."""
    counts = counts_of(walkers)
    right = trajectory_recovery(walkers, counts, GRID).accuracy
    wrong = trajectory_recovery(walkers, counts, np.random.default_rng(1).permutation(GRID)).accuracy
    assert right > wrong + 0.05


def test_by_day_people_go_on_as_they_went():
    crossing = np.array([[0, 1, 2, 3, 4], [4, 3, 2, 1, 0]])
    line = np.column_stack([np.arange(5.0), np.zeros(5)])
    by_day = trajectory_recovery(crossing, counts_of(crossing, 5), line, night=np.zeros(5, bool))
    at_night = trajectory_recovery(crossing, counts_of(crossing, 5), line, night=np.ones(5, bool))
    assert by_day.accuracy == 1 >= at_night.accuracy


def test_the_match_of_people_is_the_best():
    truth = np.array([[0, 0, 0], [1, 1, 1], [2, 2, 2]])
    assert share_recovered(truth[[2, 0, 1]], truth) == 1
    assert share_recovered(np.array([[0, 0, 1], [1, 1, 2], [2, 2, 0]]), truth) == pytest.approx(2 / 3)


@pytest.mark.parametrize("released", [np.zeros(3), -np.ones(3), np.full(3, np.nan), np.array([5.0, 9.0, -2.0])])
def test_places_are_as_many_as_people(released):
    assert places_of(released, 7).size == 7


def test_wrong_shapes_are_refused(walkers):
    with pytest.raises(ParameterError, match="two coordinates"):
        recover(counts_of(walkers), GRID[:4], 20)
    with pytest.raises(ParameterError, match="a row for each"):
        trajectory_recovery(walkers, counts_of(walkers)[:3], GRID)
    with pytest.raises(ParameterError, match="at least 1"):
        recover(counts_of(walkers), GRID, 0)
