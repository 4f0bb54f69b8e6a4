"""The running temporal loss equals the batch functions at every prefix; final rows stay valid."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest

from penstock.accountants.correlation.leakage import LeakageFunction, temporal_privacy_loss
from penstock.accountants.correlation.running import RunningTemporalLoss
from penstock.accountants.markov import laplacian_smoothing_matrix
from penstock.mechanisms.core.plugin import ParameterError

MATRICES = {
    "none": (None, None),
    "moderate": (laplacian_smoothing_matrix(2, 0.1), laplacian_smoothing_matrix(2, 0.1)),
    "sticky": ([[0.8, 0.2], [0.0, 1.0]], [[0.7, 0.3], [0.2, 0.8]]),
    "random": tuple(np.random.default_rng(0).dirichlet(np.ones(6), (2, 6))),
    "identity": (np.eye(3), np.eye(3)),
}


def series(seed, n):
    """Charges that change over time, with repeats and skips (0)."""
    rng = np.random.default_rng(seed)
    return rng.random(n) * rng.integers(0, 2, n) * 0.5


@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.parametrize("declared", [0.5, math.inf])
def test_every_prefix_equals_the_batch(name, declared):
    backward, forward = MATRICES[name]
    epsilons = series(1, 120)
    running = RunningTemporalLoss(backward=backward, forward=forward, lag=500, largest_epsilon=declared)
    state, closed = running.start(), 0
    for t in range(1, len(epsilons) + 1):
        state, rows = running.step(state, float(epsilons[t - 1]))
        batch = temporal_privacy_loss(epsilons[:t], backward, forward)
        assert rows.first == closed + 1
        for figure, expected in zip((rows.backward, rows.forward, rows.total), batch):
            np.testing.assert_allclose(figure, expected[closed:], rtol=0, atol=1e-11)
        closed += rows.n_closed
    last = running.finish(state)
    np.testing.assert_allclose(last.total, batch[2][closed:], rtol=0, atol=1e-11)
    assert last.final.all()


@pytest.mark.parametrize("name", ["moderate", "random", "none"])
def test_final_rows_and_bounds_hold_whatever_comes_later(name):
    backward, forward = MATRICES[name]
    epsilons = np.concatenate((series(2, 100), np.full(400, 0.5)))
    whole = temporal_privacy_loss(epsilons, backward, forward)[2]
    running = RunningTemporalLoss(backward=backward, forward=forward, lag=300, largest_epsilon=0.5)
    state, n_final = running.start(), 0
    for epsilon in epsilons[:200].tolist():
        state, rows = running.step(state, epsilon)
        here = whole[rows.first - 1 : rows.first - 1 + len(rows.total)]
        assert (rows.total_bound >= here - 1e-12).all()
        assert (rows.total <= rows.total_bound + 1e-12).all()
        np.testing.assert_allclose(rows.total[rows.final], here[rows.final], rtol=0, atol=1e-9)
        assert (rows.total[rows.final] >= here[rows.final] - 1e-12).all()
        n_final += int(rows.final.sum())
    assert n_final > 30


def test_the_conservative_close_bounds_state_and_is_no_looser_than_the_supremum():
    strong = laplacian_smoothing_matrix(2, 1e-4)
    epsilons = np.full(300, 0.2)
    running = RunningTemporalLoss(backward=strong, forward=strong, lag=5, largest_epsilon=0.3)
    whole = temporal_privacy_loss(np.full(20_000, 0.3), strong, strong)[1].max()
    leakage = LeakageFunction(strong)
    ceiling = 0.2 + leakage(leakage.supremum(0.3))
    state = running.start()
    for epsilon in epsilons.tolist():
        state, rows = running.step(state, epsilon)
        assert len(state["low"]) <= 5
        assert rows.final.sum() == rows.n_closed
        assert (rows.forward[rows.final] <= ceiling).all()
    late = np.concatenate((epsilons[:200], np.full(20_000, 0.3)))
    true_forward = temporal_privacy_loss(late, strong, strong)[1][194]
    assert true_forward <= rows.forward[0] <= ceiling <= whole + 1e-6


def test_without_a_bound_a_row_leaves_unfinished():
    running = RunningTemporalLoss(backward=np.eye(2), forward=np.eye(2), lag=3)
    state = running.start()
    for _ in range(10):
        state, rows = running.step(state, 0.1)
    assert rows.n_closed == 1
    assert not rows.final.any()
    assert np.isinf(rows.total_bound).all()
    assert np.isfinite(rows.total).all()
    assert rows.total.max() == pytest.approx(1.0)


def test_a_matrix_without_zeros_bounds_even_releases_without_guarantee():
    full = [[0.8, 0.2], [0.1, 0.9]]
    running = RunningTemporalLoss(backward=full, forward=full, lag=3)
    epsilons = [0.1, math.inf, 0.1, 0.1]
    batch = temporal_privacy_loss(epsilons, full, full)[2]
    state, _ = running.step(running.start(), epsilons[0])
    state, rows = running.step(state, epsilons[1])
    assert rows.final.tolist() == [True, False]  # what follows an exact release cannot tell more than it
    assert rows.total[0] == pytest.approx(batch[0])
    for epsilon in epsilons[2:]:
        state, rows = running.step(state, epsilon)
    np.testing.assert_allclose(rows.total, batch[1:])
    assert (rows.forward_bound <= np.array(epsilons[1:]) + math.log(8)).all()


def test_a_step_leaves_its_input_alone_and_depends_on_nothing_else():
    running = RunningTemporalLoss(backward=np.eye(2), forward=[[0.8, 0.2], [0.1, 0.9]], lag=10, largest_epsilon=1.0)
    state, _ = running.step(running.start(), 0.3)
    kept = copy.deepcopy(state)
    first, second = running.step(state, 0.4), running.step(state, 0.4)
    for key, array in kept.items():
        np.testing.assert_array_equal(state[key], array)
        np.testing.assert_array_equal(first[0][key], second[0][key])
        assert first[0][key].dtype == array.dtype
        assert first[0][key].ndim == 1


@pytest.mark.parametrize("epsilon", [-0.1, 0.6, math.nan])
def test_a_charge_outside_what_was_declared_is_refused(epsilon):
    running = RunningTemporalLoss(largest_epsilon=0.5)
    with pytest.raises(ParameterError, match="epsilon"):
        running.step(running.start(), epsilon)
