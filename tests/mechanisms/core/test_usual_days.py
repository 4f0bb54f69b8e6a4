"""Usual days: what the means and their patterns are, exactly and under noise."""

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from penstock.mechanisms.core.contract import Facts
from penstock.mechanisms.core.usual_days import Noisy, learned, start, usual

SLOTS, CELLS = 4, 30


def taught(truth, n_days, variance, seed=1):
    """State after ``n_days`` days of each row of ``truth``, seen through noise."""
    rng, state = np.random.default_rng(seed), start(Facts(n_cells=CELLS, windows_per_day=SLOTS), SLOTS)
    for _ in range(n_days):
        for row, counts in enumerate(truth):
            noisy = counts + rng.normal(0.0, np.sqrt(variance), CELLS)
            seen = Noisy(noisy, np.full(CELLS, variance), np.ones(CELLS, bool))
            state |= learned(row, seen, np.zeros(CELLS), np.array(variance), SLOTS, state)
    return state


def truths(seed=2):
    """Usual counts of each row, shape (12, CELLS): weekdays, then two days of the weekend that are alike."""
    rng = np.random.default_rng(seed)
    rhythm, size = rng.gamma(4.0, 1.0, (2, SLOTS, 1)), rng.gamma(2.0, 10.0, (2, 1, CELLS))
    weekday, weekend = rhythm * size
    return np.concatenate([weekday, weekend, weekend])


def test_means_without_noise_are_exact_in_as_many_patterns_as_there_are():
    truth = 1e6 * truths()  # so large that people come and go less than patterns differ
    state = taught(truth, 3, variance=1e-9)
    assert state["means"] == pytest.approx(truth, rel=1e-9)
    assert usual(range(12), state) == pytest.approx(truth, rel=1e-3)


def test_patterns_are_nearer_to_the_truth_than_means_and_days_that_are_alike_share_what_they_know():
    truth = truths()
    state = taught(truth, 4, variance=400.0)
    error = np.abs(usual(range(12), state) - truth).mean(-1)
    of_means = np.abs(state["means"] - truth).mean(-1)
    assert error.mean() < 0.8 * of_means.mean()
    # A Saturday and a Sunday have the data of both.
    assert error[SLOTS:].mean() < 0.95 * error[:SLOTS].mean()


def test_without_any_difference_days_have_what_noise_leaves_of_a_single_type():
    flat = np.tile(np.random.default_rng(4).gamma(2.0, 20.0, (SLOTS, 1)) * np.ones(CELLS), (3, 1))
    state = taught(flat, 2, variance=100.0)
    rows = usual(range(12), state).reshape(3, SLOTS, CELLS)
    assert np.abs(rows - rows.mean(0)).max() < 4.0
    assert np.abs(state["means"].reshape(3, SLOTS, CELLS) - rows.mean(0)).max() > 15.0


def test_a_type_of_day_that_was_never_seen_is_as_the_others():
    state = taught(truths()[:SLOTS], 2, variance=1.0)
    assert np.array_equal(usual(range(SLOTS, 2 * SLOTS), state), usual(range(2 * SLOTS, 3 * SLOTS), state))
    assert usual(range(SLOTS, 2 * SLOTS), state) == pytest.approx(usual(range(SLOTS), state), rel=0.05)


def test_patterns_of_many_times_of_day_have_the_same_bits_with_any_number_of_threads():
    rng, slots = np.random.default_rng(5), 96
    state = start(Facts(n_cells=200, windows_per_day=slots), slots)
    state["means"] = np.einsum("ik,kj->ij", rng.gamma(1.0, 1.0, (3 * slots, 5)), rng.gamma(1.0, 20.0, (5, 200)))
    state["variances"] = np.ones_like(state["means"])
    seen = Noisy(state["means"][7], np.ones(200), np.ones(200, bool))

    def patterns() -> bytes:
        return learned(7, seen, np.zeros(200), np.array(1.0), slots, state)["patterns"].tobytes()

    with threadpool_limits(1):
        alone = patterns()
    assert patterns() == alone
