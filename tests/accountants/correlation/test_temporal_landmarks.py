"""The landmark loss: the published figure, the sound bound against explicit mechanisms, the running form."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from penstock.accountants.correlation.landmark_losses import LandmarkModel, landmark_temporal_privacy_loss
from penstock.accountants.correlation.leakage import LeakageFunction, temporal_privacy_loss
from penstock.accountants.correlation.running import RunningLandmarkLoss
from penstock.accountants.markov import backward_matrix, laplacian_smoothing_matrix, stationary_distribution
from penstock.mechanisms.core.plugin import ParameterError

METHODS = ("paper", "sound")


def published(epsilons, landmarks, backward, forward):
    """Published formula, implemented literally."""
    before, after = LeakageFunction(backward), LeakageFunction(forward)

    def run(charges, leakage):
        loss = 0.0
        for charge in charges:
            loss = leakage(loss) + charge
        return loss

    losses = []
    for t in range(len(epsilons)):
        chosen = sorted({*np.flatnonzero(landmarks).tolist(), t})
        edges = [-1, *chosen, len(epsilons)]
        losses.append(
            sum(
                run(epsilons[left + 1 : i + 1], before) + run(epsilons[i:right][::-1], after) - epsilons[i]
                for left, i, right in zip(edges, chosen, edges[2:])
            )
        )
    return np.array(losses)


def explicit_loss(chain, start, epsilons, known, likelihoods):
    """Largest log ratio of the chance of outcomes over pairs of possible values at the known times.

    A release of epsilon can single out any set of values: an outcome whose likelihood is exp(epsilon) in the set and 1
    outside, up to a factor. `likelihoods` are choices of such sets, shape (n_choices, n_releases, n_states).
    """
    n_steps, n = len(epsilons), len(chain)
    joint = start.reshape(-1, *[1] * (n_steps - 1))
    for t in range(1, n_steps):
        joint = joint * chain.reshape(*[1] * (t - 1), n, n, *[1] * (n_steps - 1 - t))
    weights = np.broadcast_to(joint, (len(likelihoods), *joint.shape))
    for t in range(n_steps):
        messages = np.exp(epsilons[t] * likelihoods[:, t])
        weights = weights * messages.reshape(-1, *[n if axis == t else 1 for axis in range(n_steps)])
    hidden = tuple(t for t in range(n_steps) if t not in known)
    chance = joint.sum(axis=hidden).ravel()
    possible = chance > 0
    messages = weights.sum(axis=tuple(axis + 1 for axis in hidden)).reshape(len(likelihoods), -1)[:, possible]
    messages = messages / chance[possible]
    return float(np.log(messages.max(axis=1) / messages.min(axis=1)).max())


def random_chain(rng, n):
    """Irreducible chain, sometimes with impossible steps."""
    chain = rng.dirichlet(np.full(n, rng.choice([0.1, 0.3, 1.0])), n)
    if rng.random() < 0.4:
        chain *= rng.random((n, n)) < 0.6
        chain[np.arange(n), np.roll(np.arange(n), 1)] += 0.01
    return chain / chain.sum(axis=1, keepdims=True)


def count_violations(n_chains, seed, n_choices, method, stationary=True):
    """In how many random chains explicit mechanisms reveal more than the figure allows at some release.

    A chain that does not start in its stationary distribution has no constant reversal; its landmarks then include
    both ends of the series, and the adversary knows the forward matrix only.
    """
    rng = np.random.default_rng(seed)
    computed = 0
    for _ in range(n_chains):
        n, n_steps = int(rng.integers(2, 4)), int(rng.integers(3, 6))
        chain = random_chain(rng, n)
        epsilons = rng.random(n_steps) * rng.choice([0.5, 3.0])
        landmarks = rng.random(n_steps) < 0.4
        landmarks[[0, -1]] |= not stationary
        start = stationary_distribution(chain) if stationary else rng.dirichlet(np.ones(n))
        backward = backward_matrix(chain) if stationary else None
        losses = landmark_temporal_privacy_loss(epsilons, landmarks, backward, chain, method)
        likelihoods = rng.integers(0, 2, (n_choices, n_steps, n))
        truth = [
            explicit_loss(chain, start, epsilons, {*np.flatnonzero(landmarks).tolist(), t}, likelihoods)
            for t in range(n_steps)
        ]
        computed += bool((np.array(truth) > losses + 1e-9).any())
    return computed


@pytest.mark.parametrize("stationary", [True, False])
def test_the_sound_bound_is_never_beaten(stationary):
    assert count_violations(60, 1, 300, "sound", stationary) == 0


@pytest.mark.slow
@pytest.mark.parametrize("stationary", [True, False])
def test_the_sound_bound_is_never_beaten_on_a_thousand_chains(stationary):
    assert count_violations(1000, 2, 400, "sound", stationary) == 0


def test_explicit_mechanisms_do_beat_the_published_figure():
    assert count_violations(60, 1, 300, "paper") > 0


def test_the_counterexample_to_the_published_figure():
    chain = np.array([[0.99999, 0.00001], [0.97, 0.03]])
    landmarks = np.array([True, False, True])
    every_set = np.array(list(itertools.product([0, 1], repeat=6))).reshape(-1, 3, 2)
    truth = explicit_loss(chain, stationary_distribution(chain), np.ones(3), {0, 2}, every_set) - 2
    loss = {m: landmark_temporal_privacy_loss([1, 1, 1], landmarks, chain, chain, m)[0] - 2 for m in METHODS}
    assert truth == pytest.approx(0.993, abs=5e-4)
    assert loss["paper"] == pytest.approx(0.100, abs=5e-4)
    assert truth <= loss["sound"] <= 1.0


def test_values_that_cannot_be_exchanged_one_at_a_time_cost_the_whole_gap():
    epsilons = [0.5, 0.3, 0.4, 0.5]
    landmarks = [True, False, False, True]
    loss = landmark_temporal_privacy_loss(epsilons, landmarks, np.eye(2), np.eye(2))
    np.testing.assert_allclose(loss, 1.7)
    slow_to_leave = np.array([[0.9, 0.1, 0.0], [0.0, 0.1, 0.9], [0.0, 0.0, 1.0]])
    long_gap = np.array([True, *[False] * 700, True])
    loss = landmark_temporal_privacy_loss(np.where(long_gap, 0.1, 1e-3), long_gap, None, slow_to_leave)
    assert loss[0] <= 0.2 + 700 * 1e-3 + 1e-12


@pytest.mark.parametrize("n_states", [1, 2, 4])
def test_the_published_figure_as_it_is_defined(n_states):
    rng = np.random.default_rng(n_states)
    for _ in range(20):
        backward, forward = rng.dirichlet(np.ones(n_states), (2, n_states))
        epsilons, landmarks = rng.random(12), rng.random(12) < rng.random()
        expected = published(epsilons, landmarks, backward, forward)
        actual = landmark_temporal_privacy_loss(epsilons, landmarks, backward, forward, "paper")
        np.testing.assert_allclose(actual, expected, rtol=1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_special_cases(method):
    rng = np.random.default_rng(3)
    chain = rng.dirichlet(np.ones(3), 3)
    backward, epsilons = backward_matrix(chain), rng.random(8)
    none, every = np.zeros(8, dtype=bool), np.ones(8, dtype=bool)
    total = temporal_privacy_loss(epsilons, backward, chain)[2]
    np.testing.assert_allclose(landmark_temporal_privacy_loss(epsilons, none, backward, chain, method), total)
    everything = landmark_temporal_privacy_loss(epsilons, every, backward, chain, method)
    np.testing.assert_allclose(everything, epsilons.sum())
    independent = landmark_temporal_privacy_loss(epsilons, every & (np.arange(8) == 2), method=method)
    np.testing.assert_allclose(independent, epsilons[2] + np.where(np.arange(8) == 2, 0, epsilons))


def test_time_reversed_series_have_reversed_losses():
    rng = np.random.default_rng(4)
    for _ in range(10):
        chain = random_chain(rng, 3)
        epsilons, landmarks = rng.random(9), rng.random(9) < 0.3
        for method in METHODS:
            ahead = landmark_temporal_privacy_loss(epsilons, landmarks, backward_matrix(chain), chain, method)
            back = landmark_temporal_privacy_loss(
                epsilons[::-1], landmarks[::-1], chain, backward_matrix(chain), method
            )
            np.testing.assert_allclose(ahead, back[::-1], rtol=1e-9)


def test_one_matrix_tells_the_gaps_as_much_as_both():
    rng = np.random.default_rng(5)
    chain = random_chain(rng, 3)
    epsilons, landmarks = rng.random(7), np.arange(7) % 3 == 0
    both = landmark_temporal_privacy_loss(epsilons, landmarks, backward_matrix(chain), chain)
    for backward, forward in ((None, chain), (backward_matrix(chain), None)):
        one = landmark_temporal_privacy_loss(epsilons, landmarks, backward, forward)
        np.testing.assert_allclose(one[landmarks], both[landmarks], rtol=1e-9)
    skewed = 0.9 * chain + 0.1 * np.eye(3)[[1, 2, 0]]
    either = landmark_temporal_privacy_loss(epsilons, landmarks, skewed, chain)
    assert (either >= both - 1e-12)[landmarks].all()


def test_releases_without_guarantee_are_infinite_never_nan():
    full = laplacian_smoothing_matrix(2, 0.5)
    for method in METHODS:
        for at in range(5):
            epsilons = np.where(np.arange(5) == at, math.inf, 0.1)
            loss = landmark_temporal_privacy_loss(epsilons, [False, True, False, True, False], full, full, method)
            assert not np.isnan(loss).any()
            assert math.isinf(loss[at])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("n_states", [1, 2, 3])
@pytest.mark.parametrize("share", [0.0, 0.2, 0.7])
def test_running_equals_the_batch_at_every_prefix(method, n_states, share):
    rng = np.random.default_rng([n_states, int(share * 10)])
    chain = random_chain(rng, n_states)
    backward = backward_matrix(chain)
    epsilons, landmarks = rng.random(30) * rng.integers(0, 2, 30), rng.random(30) < share
    running = RunningLandmarkLoss(LandmarkModel(backward, chain, method))
    state = running.start()
    for t in range(1, 31):
        state, figures = running.step(state, float(epsilons[t - 1]), bool(landmarks[t - 1]))
        batch = landmark_temporal_privacy_loss(epsilons[:t], landmarks[:t], backward, chain, method)
        assert figures.now == pytest.approx(batch[-1], abs=1e-11)
        assert figures.largest == pytest.approx(batch.max(), abs=1e-11)
        assert all(isinstance(array, np.ndarray) and array.dtype != object for array in state.values())


def test_a_gap_that_grows_too_long_is_cut_on_the_safe_side():
    rng = np.random.default_rng(6)
    chain = random_chain(rng, 2)
    epsilons, landmarks = rng.random(40), np.arange(40) == 3
    state = (running := RunningLandmarkLoss(LandmarkModel(chain, chain), longest_gap=5)).start()
    for t in range(1, 41):
        state, figures = running.step(state, float(epsilons[t - 1]), bool(landmarks[t - 1]))
        batch = landmark_temporal_privacy_loss(epsilons[:t], landmarks[:t], chain, chain)
        assert figures.largest >= batch.max() - 1e-12
        assert len(state["charges"]) <= 5


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: landmark_temporal_privacy_loss([1.0], [1]), "landmarks"),
        (lambda: landmark_temporal_privacy_loss([1.0], [True, False]), "landmarks"),
        (lambda: landmark_temporal_privacy_loss([[1.0]], [[True]]), "epsilons"),
        (lambda: landmark_temporal_privacy_loss([-1.0], [True]), "epsilons"),
        (lambda: landmark_temporal_privacy_loss([1.0], [True], method="best"), "method"),
        (lambda: landmark_temporal_privacy_loss([1.0], [True], forward=LeakageFunction([[1.0]])), "forward"),
        (lambda: landmark_temporal_privacy_loss([1.0], [True], np.eye(2), np.eye(3)), "shape of forward"),
        (lambda: landmark_temporal_privacy_loss([1.0], [True], backward=[[0.5]]), "row 0 with sum 0.5"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ParameterError, match=message):
        call()
