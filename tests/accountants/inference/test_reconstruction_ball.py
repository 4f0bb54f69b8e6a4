"""Max balls: brute force, the paper's recursion, and log-space range."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import sparse

from penstock.accountants.inference.success_prior import few_matches, log_ball, max_ball_probability, most_matches
from penstock.accountants.markov import MarkovPrior, chain_prior
from penstock.mechanisms.core.plugin import ParameterError
from tests.tools.reconstruction_oracle import Enumeration, random_prior

BALLS = ("genie", "factorial", "union", "paper", "best")


def paper_matches(prior: MarkovPrior, n_steps: int) -> np.ndarray:
    """f(1) … f(T) by the recursion in the paper's appendix D, for a stationary chain."""
    powers = [np.linalg.matrix_power(prior.transition, k) for k in range(n_steps)]
    f = [prior.initial.max()]
    g = {k: (prior.initial[:, None] * powers[k]).max(axis=0) for k in range(1, n_steps)}
    for m in range(2, n_steps + 1):
        if m > 2:
            g = {
                k: np.max([(g[k - gap][:, None] * powers[gap]).max(axis=0) for gap in range(1, k - m + 3)], axis=0)
                for k in range(m - 1, n_steps)
            }
        f.append(max(value.max() for value in g.values()))
    return np.array(f)


def test_every_ball_bounds_the_exact_one() -> None:
    rng = np.random.default_rng(11)
    over = []
    for _ in range(150):
        n_locations, n_steps = int(rng.integers(2, 5)), int(rng.integers(2, 5))
        prior, tolerance = random_prior(rng, n_locations), int(rng.integers(0, n_steps))
        exact = Enumeration(prior, n_steps).ball(tolerance)
        ball = {bound: max_ball_probability(prior, n_steps, tolerance, bound) for bound in BALLS}
        assert all(value >= exact * (1 - 1e-12) for value in ball.values())
        assert ball["union"] <= ball["paper"] * (1 + 1e-12)
        assert ball["best"] <= min(1, *ball.values()) * (1 + 1e-12)
        over.append(ball["genie"] / exact)
    assert np.median(over) < 1.05


def test_five_locations_over_five_windows() -> None:
    rng = np.random.default_rng(12)
    for tolerance in (0, 2):
        prior = random_prior(rng, 5)
        exact = Enumeration(prior, 5).ball(tolerance)
        assert exact * (1 - 1e-12) <= max_ball_probability(prior, 5, tolerance) <= 2 * exact


@pytest.mark.parametrize("seed", range(4))
def test_matches_equal_the_paper_for_stationary_chains(seed: int) -> None:
    prior = random_prior(np.random.default_rng(seed), 6, stationary=True)
    expected = paper_matches(prior, 9)
    for max_skips in (0, 1, 4, 8):
        assert np.exp(most_matches(prior, 9, max_skips)) == pytest.approx(expected[::-1][: max_skips + 1], rel=1e-9)
    assert np.exp(few_matches(prior, 9, 8)) == pytest.approx(expected[:8], rel=1e-9)


def test_matches_of_a_chain_that_does_not_start_stationary() -> None:
    rng = np.random.default_rng(3)
    for _ in range(20):
        prior = random_prior(rng, 3, stationary=False)
        truth = Enumeration(prior, 4)
        exact = []
        for n_matched in range(1, 5):
            best = 0.0
            for subset in np.ndindex(*(2,) * 4):
                if sum(subset) == n_matched:
                    codes = truth.paths[:, np.flatnonzero(subset)] @ 3 ** np.arange(n_matched)
                    best = max(best, float(np.bincount(codes, truth.weight).max()))
            exact.append(best)
        assert np.exp(most_matches(prior, 4, 3)) == pytest.approx(exact[::-1])
        assert np.exp(few_matches(prior, 4, 3)) == pytest.approx(exact[:3])


def test_values_on_the_published_chain() -> None:
    prior = chain_prior(20, 0.01)
    assert max_ball_probability(prior, 10, 5, "union") == pytest.approx(12.19, abs=0.01)
    assert max_ball_probability(prior, 10, 5, "factorial") == pytest.approx(0.1001, abs=1e-4)
    assert max_ball_probability(prior, 10, 5) == pytest.approx(0.1001, abs=1e-4)
    exact_path = max_ball_probability(chain_prior(100, 0.1), 10, 0, "genie")
    assert max_ball_probability(chain_prior(100, 0.1), 10, 0, "union") == pytest.approx(exact_path, rel=1e-9)


def test_a_thousand_windows_do_not_underflow() -> None:
    prior = MarkovPrior(np.full(4, 0.25), np.full((4, 4), 0.25))
    # hits are Binomial(1000, 1/4): no guess can do anything about it
    assert log_ball(prior, 1000, 0, "genie") == pytest.approx(-1000 * math.log(4), rel=1e-12)
    exactly_one = np.logaddexp(-1000 * math.log(4), math.log(1000) + math.log(3) - 1000 * math.log(4))
    assert log_ball(prior, 1000, 1, "genie") == pytest.approx(exactly_one, rel=1e-12)
    assert log_ball(prior, 1000, 1, "union") == pytest.approx(math.log(1000) - 999 * math.log(4), rel=1e-12)
    assert max_ball_probability(prior, 1000, 0) > 0


def test_sparse_priors_use_their_support() -> None:
    rng = np.random.default_rng(5)
    small = random_prior(rng, 4, stationary=False)
    where = np.array([7, 1234, 5000, 9999])
    rows, columns = np.meshgrid(where, where, indexing="ij")
    matrix = sparse.coo_array((small.transition.ravel(), (rows.ravel(), columns.ravel())), shape=(10_000, 10_000))
    idle = np.setdiff1d(np.arange(10_000), where)
    matrix = matrix + sparse.coo_array((np.ones(idle.size), (idle, idle)), shape=matrix.shape)
    initial = np.zeros(10_000)
    initial[where] = small.initial
    large = MarkovPrior(initial, matrix)
    assert large.reduced[1].tolist() == where.tolist()
    for bound in BALLS:
        expected = max_ball_probability(small, 6, 2, bound)
        assert max_ball_probability(large, 6, 2, bound) == pytest.approx(expected, rel=1e-12)


def test_a_ring_of_ten_thousand_stays_sparse() -> None:
    n = 10_000
    place = np.arange(n)
    ring = sparse.coo_array(
        (np.repeat([0.5, 0.5], n), (np.tile(place, 2), np.concatenate([place, (place + 1) % n]))), shape=(n, n)
    )
    prior = MarkovPrior(np.full(n, 1 / n), ring)
    # every step is a coin, and only the genie learns a wrongly guessed start
    assert log_ball(prior, 1000, 0) == pytest.approx(-math.log(n) - 999 * math.log(2), rel=1e-12)
    assert max_ball_probability(prior, 3, 1, "genie") == pytest.approx(0.25, abs=1e-3)
    # each single place has probability 1 / n: two hits in three windows happen with at most 3 / 2 of that
    assert max_ball_probability(prior, 3, 1) == pytest.approx(1.5 / n, rel=1e-9)


def test_wrong_arguments_are_named() -> None:
    prior = chain_prior(3, 1.0)
    assert max_ball_probability(prior, 3, 3) == 1.0
    for arguments, field in (((0, 0), "n_steps"), ((3, -1), "tolerance"), ((3, 1, "magic"), "bound")):
        with pytest.raises(ParameterError) as caught:
            max_ball_probability(prior, *arguments)
        assert caught.value.field == field
