"""Transition matrices from files, formulas and training data."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.accountants.correlation.leakage import LeakageFunction
from penstock.accountants.markov import (
    backward_matrix,
    chain_matrix,
    count_transitions,
    estimated_matrix,
    laplacian_smoothing_matrix,
    read_matrix,
    stationary_distribution,
    transition_matrix,
)
from penstock.mechanisms.core.plugin import DataError, ParameterError


def test_files_in_both_formats(tmp_path):
    matrix = np.random.default_rng(0).dirichlet(np.ones(4), 4)
    np.save(tmp_path / "matrix.npy", matrix)
    np.savetxt(tmp_path / "matrix.csv", matrix, delimiter=",")
    np.testing.assert_allclose(read_matrix(tmp_path / "matrix.npy"), matrix, rtol=1e-15)
    np.testing.assert_allclose(read_matrix(str(tmp_path / "matrix.csv")), matrix, rtol=1e-15)


def test_a_file_with_few_digits_is_rescaled(tmp_path):
    (tmp_path / "short.csv").write_text("0.3333333,0.6666667\n0.1428571,0.8571428\n")
    assert read_matrix(tmp_path / "short.csv").sum(axis=1).tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("name", "content", "error", "message"),
    [
        ("words.csv", b"a,b\nc,d\n", DataError, "words.csv: not a readable matrix"),
        ("ragged.csv", b"1,0\n1\n", DataError, "ragged.csv: not a readable matrix"),
        ("broken.npy", b"not numpy", DataError, "broken.npy: not a readable matrix"),
        ("matrix.txt", b"1", DataError, "must end in .npy or .csv"),
        ("sums.csv", b"0.5,0.4\n0,1\n", ParameterError, "sums.csv: 'row 0 with sum 0.9'"),
        ("wide.csv", b"0.5,0.5\n", ParameterError, r"shape \(1, 2\)"),
    ],
)
def test_a_bad_file_is_named_with_what_is_wrong(tmp_path, name, content, error, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(error, match=message):
        read_matrix(tmp_path / name)


def test_pickles_are_never_loaded_and_missing_files_are_named(tmp_path):
    np.save(tmp_path / "objects.npy", np.array([[object()]]), allow_pickle=True)
    with pytest.raises(DataError, match=r"objects\.npy"):
        read_matrix(tmp_path / "objects.npy")
    with pytest.raises(DataError, match=r"missing\.npy"):
        read_matrix(tmp_path / "missing.npy")


def test_laplacian_smoothing_adds_its_share_to_every_step():
    np.testing.assert_allclose(laplacian_smoothing_matrix(2, 0.1), np.array([[1.1, 0.1], [0.1, 1.1]]) / 1.2)
    np.testing.assert_array_equal(laplacian_smoothing_matrix(3, 0.0), np.eye(3))
    assert laplacian_smoothing_matrix(1, 0.5).tolist() == [[1.0]]
    leakage = [LeakageFunction(laplacian_smoothing_matrix(50, s))(1.0) for s in (0.01, 0.1, 1.0)]
    assert leakage == sorted(leakage, reverse=True)


def test_chain_is_a_distance_decay():
    chain = chain_matrix(4, 0.5)
    np.testing.assert_allclose(chain.sum(axis=1), 1.0)
    np.testing.assert_allclose(chain[0] / chain[0, 0], np.exp(-np.arange(4) / 2))


def test_counts_skip_unknown_states():
    states = [[0, 1, -1, 1, 1], [1, 0, 0, -1, -1]]
    np.testing.assert_array_equal(count_transitions(states, 2), [[1, 1], [1, 1]])
    np.testing.assert_array_equal(count_transitions([0, 1, 2], 4)[:3, :3], [[0, 1, 0], [0, 0, 1], [0, 0, 0]])


def test_estimation_recovers_a_long_chain():
    rng = np.random.default_rng(1)
    chain = np.array([[0.7, 0.2, 0.1], [0.3, 0.3, 0.4], [0.05, 0.05, 0.9]])
    states = np.zeros((2000, 100), dtype=int)
    for t in range(1, 100):
        states[:, t] = (rng.random(2000)[:, None] > chain[states[:, t - 1]].cumsum(axis=1)).sum(axis=1)
    estimate = estimated_matrix(count_transitions(states, 3), smoothing=1.0)
    np.testing.assert_allclose(estimate, chain, atol=0.01)
    assert abs(estimated_matrix(count_transitions(states, 3).T, smoothing=1.0) - chain).max() > 0.01


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: laplacian_smoothing_matrix(0, 1.0), "n: 0"),
        (lambda: laplacian_smoothing_matrix(2, -1.0), "s: -1"),
        (lambda: chain_matrix(2, 0.0), "tau: 0"),
        (lambda: count_transitions([[0, 5]], 2), "states"),
        (lambda: count_transitions([[0.5, 1.0]], 2), "states"),
        (lambda: estimated_matrix([[1, 1], [0, 0]], 0.0), "never leaves state 1"),
        (lambda: estimated_matrix([[1, -1], [0, 0]], 1.0), "counts"),
        (lambda: estimated_matrix([[1, 1], [0, 0]], -1.0), "smoothing"),
        (lambda: stationary_distribution(np.eye(2)), "2 closed classes"),
        (lambda: transition_matrix([[2.0]], "forward"), "forward: 'row 0 with sum 2'"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ParameterError, match=message):
        call()


def test_a_state_that_is_never_reached_adds_no_leakage():
    backward = backward_matrix([[0.8, 0.2], [0.0, 1.0]])
    np.testing.assert_allclose(backward, [[0.0, 1.0], [0.0, 1.0]])
    assert LeakageFunction(backward)(3.0) == 0.0
    np.testing.assert_allclose(stationary_distribution([[0.8, 0.2], [0.0, 1.0]]), [0.0, 1.0])
