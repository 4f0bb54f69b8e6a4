"""Backward, forward and total loss, and planned epsilons."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from penstock.accountants.correlation.leakage import LeakageFunction, temporal_privacy_loss
from penstock.accountants.correlation.planning import largest_epsilon
from penstock.accountants.markov import backward_matrix, laplacian_smoothing_matrix, stationary_distribution
from penstock.mechanisms.core.plugin import ParameterError

STICKY = [[0.8, 0.2], [0.0, 1.0]]


def test_the_ten_steps_of_the_paper():
    backward, forward, total = temporal_privacy_loss(np.full(10, 0.1), STICKY, STICKY)
    expected = [0.10, 0.18, 0.25, 0.30, 0.35, 0.39, 0.42, 0.45, 0.48, 0.50]
    np.testing.assert_array_equal(backward.round(2), expected)
    np.testing.assert_array_equal(forward.round(2), expected[::-1])
    np.testing.assert_array_equal(total.round(2), [0.50, 0.56, 0.60, 0.62, 0.64, 0.64, 0.62, 0.60, 0.56, 0.50])


def test_no_correlation_leaves_every_release_alone():
    for figure in temporal_privacy_loss([0.1, 0.0, 2.0]):
        assert figure.tolist() == [0.1, 0.0, 2.0]


def test_identity_adds_everything_up():
    backward, forward, total = temporal_privacy_loss([0.1, 0.0, 0.4], np.eye(3), np.eye(3))
    np.testing.assert_allclose(backward, [0.1, 0.1, 0.5])
    np.testing.assert_allclose(forward, [0.5, 0.4, 0.4])
    np.testing.assert_allclose(total, [0.5, 0.5, 0.5])


def test_one_direction_of_correlation_leaks_one_way_only():
    backward, forward, total = temporal_privacy_loss([0.1, 0.1], backward=np.eye(2))
    np.testing.assert_allclose(backward, [0.1, 0.2])
    np.testing.assert_allclose(forward, [0.1, 0.1])
    np.testing.assert_allclose(total, [0.1, 0.2])


def test_a_release_without_guarantee_costs_infinity_and_its_neighbours_what_the_matrix_lets_through():
    full = [[0.8, 0.2], [0.1, 0.9]]
    backward, forward, total = temporal_privacy_loss([0.1, math.inf, 0.1], full, full)
    np.testing.assert_allclose(backward, [0.1, math.inf, 0.1 + math.log(8)])
    np.testing.assert_allclose(forward, [0.1 + math.log(8), math.inf, 0.1])
    np.testing.assert_allclose(total, [0.1 + math.log(8), math.inf, 0.1 + math.log(8)])
    assert not np.isnan(temporal_privacy_loss([math.inf, math.inf], np.eye(2), np.eye(2))).any()


def test_leading_axes_are_independent_series():
    rng = np.random.default_rng(0)
    epsilons = rng.random((2, 3, 20))
    matrix = rng.dirichlet(np.ones(4), 4)
    stacked = temporal_privacy_loss(epsilons, matrix, matrix)
    for at in itertools.product(range(2), range(3)):
        for whole, single in zip(stacked, temporal_privacy_loss(epsilons[at], matrix, matrix)):
            np.testing.assert_allclose(whole[at], single, rtol=1e-13)


def test_an_empty_series_has_no_losses():
    assert [figure.shape for figure in temporal_privacy_loss([], STICKY, STICKY)] == [(0,)] * 3


@pytest.mark.parametrize("epsilons", [[-0.1], [0.1, math.nan]])
def test_a_charge_that_is_none_is_refused(epsilons):
    with pytest.raises(ParameterError, match="epsilons"):
        temporal_privacy_loss(epsilons)


def true_loss(chain, epsilon, n_steps, t):
    """Largest log likelihood ratio about x_t over every sequence of sets that such releases can single out."""
    n = len(chain)
    before = backward_matrix(chain)
    likelihoods = np.exp(epsilon * np.array(list(itertools.product([0, 1], repeat=n))[:-1]))

    def messages(length, matrix):
        """All likelihoods, given the value at t, of `length` releases that follow one another away from t."""
        reported = np.ones((1, n))
        for _ in range(length):
            reported = (likelihoods[:, None] * reported).reshape(-1, n) @ matrix.T
        return reported

    past, future = messages(t, before), messages(n_steps - 1 - t, chain)
    worst = 0.0
    for likelihood in likelihoods:
        reported = (past[:, None] * future[None] * likelihood).reshape(-1, n)
        worst = max(worst, float(np.log(reported.max(axis=1) / reported.min(axis=1)).max()))
    return worst


def test_total_loss_is_never_below_what_explicit_mechanisms_reveal():
    rng = np.random.default_rng(2)
    for _ in range(20):
        chain = rng.dirichlet(np.ones(3), 3)
        total = temporal_privacy_loss(np.full(4, 0.7), backward_matrix(chain), chain)[2]
        truth = [true_loss(chain, 0.7, 4, t) for t in range(4)]
        assert (total >= np.array(truth) - 1e-12).all()


def test_total_loss_is_reached_by_a_mechanism_between_two_states():
    chain = np.array([[0.8, 0.2], [0.1, 0.9]])
    total = temporal_privacy_loss(np.full(5, 0.4), backward_matrix(chain), chain)[2]
    np.testing.assert_allclose(total, [true_loss(chain, 0.4, 5, t) for t in range(5)], rtol=1e-12)


MATRICES = {
    "weak": laplacian_smoothing_matrix(2, 1.0),
    "strong": laplacian_smoothing_matrix(2, 0.01),
    "sticky": np.array(STICKY),
    "random": np.random.default_rng(4).dirichlet(np.ones(5), 5),
}


@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.parametrize("goal", [0.01, 1.0, 20.0])
def test_the_largest_constant_epsilon_meets_the_goal_and_a_larger_one_does_not(name, goal):
    matrix = MATRICES[name]
    endless = largest_epsilon(goal, matrix, matrix)
    leakage = LeakageFunction(matrix)
    assert 2 * leakage.supremum(endless) - endless == pytest.approx(goal, rel=1e-9)
    for horizon in (1, 2, 7, 200):
        epsilon = largest_epsilon(goal, matrix, matrix, horizon)
        assert epsilon >= endless
        assert temporal_privacy_loss(np.full(horizon, epsilon), matrix, matrix)[2].max() <= goal
        too_much = np.full(horizon, epsilon * (1 + 1e-9))
        assert temporal_privacy_loss(too_much, matrix, matrix)[2].max() > goal


def test_plans_without_correlation_or_without_forgetting():
    assert largest_epsilon(1.5) == 1.5
    assert largest_epsilon(1.0, np.eye(2)) == 0.0
    assert largest_epsilon(1.0, np.eye(2), np.eye(2), horizon=5) == pytest.approx(0.2, rel=1e-9)
    assert largest_epsilon(1.0, STICKY, STICKY, horizon=1) == 1.0


@pytest.mark.parametrize(("goal", "horizon"), [(0.0, None), (math.inf, None), (math.nan, 3), (1.0, 0), (1.0, 2.5)])
def test_a_plan_without_sense_is_refused(goal, horizon):
    with pytest.raises(ParameterError, match=r"goal|horizon"):
        largest_epsilon(goal, STICKY, STICKY, horizon)


def test_stationary_distribution_and_reversal():
    rng = np.random.default_rng(5)
    for n in (1, 2, 7, 40):
        chain = rng.dirichlet(np.ones(n), n)
        stationary = stationary_distribution(chain)
        np.testing.assert_allclose(stationary @ chain, stationary, atol=1e-14)
        joint = stationary[:, None] * chain
        np.testing.assert_allclose(stationary[:, None] * backward_matrix(chain), joint.T, atol=1e-14)
        np.testing.assert_allclose(backward_matrix(backward_matrix(chain)), chain, atol=1e-12)
