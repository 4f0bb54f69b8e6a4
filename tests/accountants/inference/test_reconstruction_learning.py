"""Priors: construction, stationary behaviour, estimation from trajectories."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from penstock.accountants.markov import MarkovPrior, chain_prior, estimate_prior, spectral_gap, stationary_distribution
from penstock.mechanisms.core.plugin import ParameterError
from tests.tools.reconstruction_oracle import random_prior


def test_chain_prior_is_stationary() -> None:
    prior = chain_prior(30, 0.1)
    assert prior.initial @ prior.transition == pytest.approx(prior.initial, rel=1e-12)
    assert prior.transition[3, 7] / prior.transition[3, 3] == pytest.approx(np.exp(-4 / 3))


def test_stationary_distribution_keeps_tiny_probabilities() -> None:
    matrix = np.array([[1 - 1e-13, 1e-13, 0], [0.5, 0, 0.5], [0, 1, 0]])
    # balance: π_1 / 2 = 1e-13 π_0 and π_2 = π_1 / 2
    expected = np.array([1, 2e-13, 1e-13])
    assert stationary_distribution(matrix) == pytest.approx(expected / expected.sum(), rel=1e-12)


def test_stationary_distribution_of_chains_with_several_ends() -> None:
    matrix = np.array([[0.0, 0.3, 0.7, 0.0], [0, 1, 0, 0], [0, 0, 0.5, 0.5], [0, 0, 0.5, 0.5]])
    start = np.array([1.0, 0, 0, 0])
    for form in (matrix, sparse.csr_array(matrix)):
        assert stationary_distribution(form, start) == pytest.approx([0, 0.3, 0.35, 0.35])
    assert stationary_distribution(np.array([[0.0, 1.0], [1.0, 0.0]])) == pytest.approx([0.5, 0.5])


def test_large_sparse_chains() -> None:
    n = 1000
    place = np.arange(n)
    up, down = np.minimum(place + 1, n - 1), np.maximum(place - 1, 0)
    matrix = sparse.coo_array(
        (np.repeat([0.3, 0.4, 0.3], n), (np.tile(place, 3), np.concatenate([up, place, down]))), shape=(n, n)
    ).tocsr()
    assert stationary_distribution(matrix) == pytest.approx(np.full(n, 1 / n), rel=1e-6)
    small = matrix[:100][:, :100].toarray()
    small[-1, -1] += 1 - small[-1].sum()
    assert spectral_gap(small) == pytest.approx(0.6 * (1 - np.cos(np.pi / 100)), rel=1e-6)


def test_spectral_gap_of_extremes() -> None:
    assert spectral_gap(np.eye(3)) == 0.0
    assert spectral_gap(np.full((3, 3), 1 / 3)) == pytest.approx(1.0)
    assert spectral_gap(np.array([[0.0, 1.0], [1.0, 0.0]])) == pytest.approx(0.0)
    assert spectral_gap(np.ones((1, 1))) == 1.0


def test_sampling_follows_the_prior() -> None:
    prior = random_prior(np.random.default_rng(1), 4, stationary=False)
    for form in (prior, MarkovPrior(prior.initial, sparse.csr_array(prior.transition))):
        paths = form.sample(40_000, 3, np.random.default_rng(2))
        for step, marginal in enumerate(prior.marginals(3)):
            share = np.bincount(paths[:, step], minlength=4) / len(paths)
            assert share == pytest.approx(marginal, abs=5 * 0.5 / 200)
            assert not share[marginal == 0].any()
        joint = np.zeros((4, 4))
        np.add.at(joint, (paths[:, 0], paths[:, 1]), 1 / len(paths))
        assert joint == pytest.approx(prior.initial[:, None] * prior.transition, abs=0.0125)


def test_reduced_priors_keep_the_marginals() -> None:
    prior = MarkovPrior([0, 0.5, 0.5, 0], [[0.5, 0.5, 0, 0], [0, 0.5, 0.5, 0], [0, 1, 0, 0], [1, 0, 0, 0]])
    small, where = prior.reduced
    assert where.tolist() == [1, 2]
    assert prior.marginals(5)[:, where] == pytest.approx(small.marginals(5))
    assert chain_prior(5, 0.1).reduced[0].n_locations == 5


@pytest.mark.parametrize(
    ("initial", "transition", "field"),
    [
        ([0.5, 0.6], np.eye(2), "initial"),
        ([[1.0]], np.eye(1), "initial"),
        ([1.0, 0.0], np.eye(3), "transition"),
        ([1.0, 0.0], [[1.1, -0.1], [0, 1]], "transition"),
        ([1.0, 0.0], [[0.5, 0.4], [0, 1]], "transition"),
        ([1.0, 0.0], [[np.nan, 1.0], [0, 1]], "transition"),
    ],
)
def test_a_prior_that_is_none_is_refused(initial: object, transition: object, field: str) -> None:
    for form in (transition, sparse.csr_array(np.asarray(transition, dtype=float))):
        with pytest.raises(ParameterError) as caught:
            MarkovPrior(initial, form)
        assert caught.value.field == field


def test_estimates_count_moves() -> None:
    paths = [[0, 1, 1, 2], [1, 1, -1, 2]]
    bare = estimate_prior(paths, 4)
    # from 1: twice to 1, once to 2; the unknown window breaks the second sequence; 2 and 3 never leave: visits
    visits = np.array([1, 4, 2, 0]) / 7
    expected = np.array([[0, 1, 0, 0], [0, 2 / 3, 1 / 3, 0], visits, visits])
    assert bare.transition == pytest.approx(expected)
    smooth = estimate_prior(paths, 4, smoothing=2.0, initial="empirical")
    assert smooth.transition[1] == pytest.approx((np.array([0, 2, 1, 0]) + 0.5) / 5)
    assert smooth.transition[3] == pytest.approx(np.full(4, 0.25))
    assert smooth.initial == pytest.approx((np.array([1, 4, 2, 0]) + 0.5) / 9)
    population = np.tile([0.1, 0.2, 0.3, 0.4], (4, 1))
    towards = estimate_prior(paths, 4, smoothing=2.0, towards=population)
    assert towards.transition[0] == pytest.approx((np.array([0, 1, 0, 0]) + 2 * population[0]) / 3)
    assert towards.initial @ towards.transition == pytest.approx(towards.initial)


def test_estimates_approach_the_truth() -> None:
    prior = random_prior(np.random.default_rng(4), 3, stationary=True)
    paths = prior.sample(200, 200, np.random.default_rng(5))
    actual = estimate_prior(paths, 3, smoothing=0.1)
    used = prior.initial > 0.05
    assert actual.transition[used] == pytest.approx(prior.transition[used], abs=0.03)
    assert actual.initial == pytest.approx(prior.initial, abs=0.05)


def test_wrong_training_data_is_refused() -> None:
    for paths in ([[0, 3]], [[-1, -1]], []):
        with pytest.raises(ParameterError, match="trajectories"):
            estimate_prior(paths, 3)
    with pytest.raises(ParameterError, match="smoothing"):
        estimate_prior([0, 1], 3, smoothing=-1)
    with pytest.raises(ParameterError, match="towards"):
        estimate_prior([0, 1], 3, smoothing=1, towards=np.ones(3))
