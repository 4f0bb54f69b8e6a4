"""The likelihood-ratio attack and true positive rates at low false positive rates."""

from __future__ import annotations

from math import comb

import numpy as np
import pytest
from scipy.stats import norm

from penstock.accountants.online_attack import area_under_curve, exact_interval
from penstock.evaluation.attacks import game as game_module
from penstock.evaluation.attacks.challenge import true_positives
from penstock.evaluation.attacks.game import MembershipGame
from penstock.evaluation.attacks.lira import best_weights, likelihood_ratio_scores, log_likelihood_ratios
from penstock.mechanisms.core.plugin import ParameterError

GAME = {"group_size": 12, "observation": 12, "inference": 12, "n_samples": 300, "seed": 4}


def laplace(scale):
    return lambda counts, seed: counts + np.random.default_rng(seed).laplace(scale=scale, size=counts.shape)


@pytest.fixture(scope="module")
def binary():
    """Thirty people with cells of their own; the first one is alone in the last cell, where nobody else ever is."""
    rng = np.random.default_rng(2)
    presence = rng.random((30, 6, 12)) < rng.gamma(0.5, 0.3, (30, 6, 1))
    presence[:, 5] = False
    presence[0, 5] = True
    return presence.swapaxes(1, 2)


def test_the_ratio_is_that_of_two_gaussians():
    rng = np.random.default_rng(0)
    present, absent, actual = rng.normal(1, 2, (3, 40)), rng.normal(0, 2, (3, 40)), rng.normal(0, 2, (3, 7))
    ratios = log_likelihood_ratios(actual, present, absent)
    for target in range(3):
        means = present[target].mean(), absent[target].mean()
        apart = np.concatenate([present[target] - means[0], absent[target] - means[1]])
        deviation = np.sqrt((apart**2).sum() / 78)
        expected = norm.logpdf(actual[target], means[0], deviation) - norm.logpdf(actual[target], means[1], deviation)
        np.testing.assert_allclose(ratios[target], expected)
        np.testing.assert_allclose(
            log_likelihood_ratios(actual[target], present[target], absent[target]), ratios[target]
        )


def test_what_never_varies_is_evidence_only_if_it_differs():
    ones, actual = np.ones(5), np.array([0.0, 1.0])
    np.testing.assert_array_equal(log_likelihood_ratios(actual, ones, ones), 0)
    messages = log_likelihood_ratios(actual, ones, np.zeros(5))
    assert np.isfinite(messages).all()
    assert messages[1] == -messages[0] > 1e6
    with pytest.raises(ParameterError, match="at least 2"):
        log_likelihood_ratios(actual, np.ones(1), ones)


def test_weights_solve_for_the_shrunk_covariance():
    from sklearn.covariance import ledoit_wolf

    rng = np.random.default_rng(1)
    mixed = rng.normal(size=(60, 20)) @ rng.normal(size=(20, 20)) + 5
    labels, trace = np.arange(60) % 2 == 0, np.arange(20) < 4
    apart = mixed - np.where(labels[:, None], mixed[labels].mean(axis=0), mixed[~labels].mean(axis=0))
    deviation = np.sqrt((apart**2).mean(axis=0))
    covariance, _ = ledoit_wolf(apart / deviation, assume_centered=True)
    expected = np.linalg.solve(covariance, trace / deviation) / deviation
    np.testing.assert_allclose(best_weights(mixed, labels, trace), expected, rtol=1e-8)


def test_who_is_alone_is_always_found(binary):
    actual = MembershipGame(binary, **GAME).attack(0, attack="lira")
    assert actual.auc == 1


def test_noise_that_hides_everything_leaves_guessing(binary):
    game = MembershipGame(binary, **GAME)
    areas = [game.attack(target, attack="lira", defense=laplace(1000.0)).auc for target in range(8)]
    assert np.mean(areas) == pytest.approx(0.5, abs=4.5 * 0.075 / np.sqrt(8))
    nothing = game.attack(0, attack="lira", defense=lambda counts, seed: np.zeros(counts.shape))
    assert nothing.auc == 0.5


def test_it_is_no_weaker_than_a_classifier_of_the_same_groups(binary):
    game = MembershipGame(binary, **GAME)
    classifier, ratio = (
        np.mean([game.attack(target, attack=attack, defense=laplace(1.0)).auc for target in range(6)])
        for attack in ("pca", "lira")
    )
    assert ratio > classifier + 0.03


def test_a_person_who_is_not_who_is_looked_for_is_not_found(binary):
    """The trace of somebody else tells nothing, and the sign of the evidence matters."""
    game = MembershipGame(binary, **GAME)
    samples = game.samples(0)
    released = game.space.counts(samples, np.arange(300)).reshape(300, -1) * 1.0
    trace = game.space.presence(np.array([0]), 0)[0] > 0
    labels = samples.labels[samples.n_train :]
    right = likelihood_ratio_scores(released, samples.labels, trace, samples.n_train)
    nobody = likelihood_ratio_scores(released, samples.labels, np.zeros_like(trace), samples.n_train)
    swapped = likelihood_ratio_scores(released, ~samples.labels, trace, samples.n_train)
    assert area_under_curve(labels, right) == 1
    assert area_under_curve(labels, nobody) == 0.5
    assert area_under_curve(labels, swapped) == 0
    assert ((right > 0) == labels).all()  # evidence has its zero at the right place


def test_a_trace_in_other_windows_is_refused(binary):
    options = GAME | {"observation": (0, 6), "inference": (6, 12)}
    for attack in ("lira", "zero_knowledge"):
        with pytest.raises(ParameterError, match="the challenged windows themselves"):
            MembershipGame(binary, **options).attack(0, attack=attack)
    with pytest.raises(ParameterError, match="one of pca, statistics, lira, zero_knowledge"):
        MembershipGame(binary, **GAME).attack(0, attack="lyra")
    assert set(game_module.CLASSIFIERS) < set(game_module.ATTACKS)


def test_scores_are_those_that_an_attack_judges(binary):
    game = MembershipGame(binary, **GAME)
    for attack in ("pca", "lira"):
        for defense in (None, laplace(1.0)):
            labels, scores = game.scores(3, attack=attack, defense=defense)
            assert area_under_curve(labels, scores) == game.attack(3, attack=attack, defense=defense).auc


@pytest.mark.parametrize(("n_found", "n"), [(0, 4), (2, 4), (4, 4), (3, 9)])
def test_exact_limits_have_their_level(n_found, n):
    low, high = exact_interval(n_found, n, 0.9)

    def tail(share, ways):
        return sum(comb(n, k) * share**k * (1 - share) ** (n - k) for k in ways)

    assert low == 0 if n_found == 0 else tail(low, range(n_found, n + 1)) == pytest.approx(0.05)
    assert high == 1 if n_found == n else tail(high, range(n_found + 1)) == pytest.approx(0.05)


def test_rates_by_hand():
    labels = np.r_[np.ones(4, bool), np.zeros(100, bool)]
    scores = np.r_[99.5, 98.5, 98.0, 0.0, np.arange(100)]
    assert true_positives(labels, scores, 0.01) == 2  # above 98, the second highest; the tie is not found
    assert true_positives(labels, np.zeros(104), 0.01) == 0
    assert true_positives(labels, scores, 0.009) is None
    with pytest.raises(ParameterError, match="above 0"):
        true_positives(labels, scores, 0.0)


def test_a_target_comes_with_the_number_of_true_positives(binary):
    game = MembershipGame(binary, **(GAME | {"n_samples": 1000}))
    assert game.attack(0, attack="lira").found == 100
    assert MembershipGame(binary, **GAME).attack(0, attack="lira").found is None
