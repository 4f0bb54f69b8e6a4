"""The attack without a reference group: synthetic people, exact cases, chance level."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.evaluation.attacks import zero_knowledge
from penstock.evaluation.attacks.game import MembershipGame
from penstock.evaluation.attacks.zero_knowledge import (
    Population,
    fitted_population,
    shadows,
    zero_knowledge_scores,
)
from penstock.mechanisms.core.plugin import ParameterError

GAME = {"group_size": 12, "observation": 12, "inference": 12, "n_samples": 200, "seed": 4}


@pytest.fixture(scope="module")
def binary():
    """Thirty people; the first one is in the last cell, where hardly anybody else ever is."""
    rng = np.random.default_rng(2)
    presence = rng.random((30, 6, 12)) < rng.gamma(0.5, 0.3, (30, 6, 1))
    presence[:, 5] = rng.random((30, 12)) < 0.02
    presence[0, 5] = True
    return presence.swapaxes(1, 2)


def laplace(scale):
    return lambda counts, seed: counts + np.random.default_rng(seed).laplace(scale=scale, size=counts.shape)


def test_synthetic_people_have_the_marginals():
    population = Population(np.array([0.5, 0.3, 0.2, 0.0]), np.array([0.1, 0.9]), visits=0.5)
    made = population.traces(40_000, np.random.default_rng(0)).toarray().reshape(-1, 2, 4)
    assert set(np.unique(made)) == {0, 1}
    total = made.sum()
    # few visits hardly coincide; an exponential number rounded down has the mean 1/(e² − 1)
    np.testing.assert_allclose(made.sum(axis=(0, 1)) / total, population.cells, atol=0.02)
    np.testing.assert_allclose(made.sum(axis=(0, 2)) / total, population.windows, atol=0.02)
    assert made.sum() / 40_000 == pytest.approx(1 / (np.exp(2) - 1), rel=0.06)


def test_a_trace_has_few_cells():
    population = Population(np.full(40, 1 / 40), np.array([1.0]), visits=200.0)
    made = population.traces(50, np.random.default_rng(0)).toarray()
    assert made.sum(axis=1).max() <= zero_knowledge.N_PLACES


def test_marginals_of_noise_are_shares():
    actual = Population.of(np.array([[3.0, -5.0], [1.0, -1.0]]), 2)
    assert actual.cells.tolist() == [1.0, 0.0]
    assert Population.of(-np.ones((2, 2)), 2).windows.tolist() == [0.5, 0.5]
    assert Population.of(-np.ones((2, 2)), 2).visits > 0


@pytest.mark.parametrize("threshold", [0, 6])
def test_the_mean_is_corrected_for_what_a_mechanism_suppresses(threshold):
    rng = np.random.default_rng(3)
    people = Population(np.array([0.5, 0.3, 0.2]), np.full(8, 1 / 8), visits=6.0)
    counts = people.traces(100, rng).sum(axis=0).reshape(8, 3)
    hide = lambda counts, seed: np.where(counts < threshold, 0, counts)  # noqa: E731
    fitted = fitted_population(hide(counts, 0) * 1.0, 100, hide, rng)
    assert fitted.visits == pytest.approx(6.0, rel=0.35)
    assert fitted.visits > Population.of(hide(counts, 0), 100).visits  # coincidences and rounding down


def test_pairs_share_all_but_one_person_and_the_noise():
    population = Population(np.array([0.5, 0.5]), np.array([0.5, 0.5]), visits=1.0)
    trace = np.array([[True, False], [False, True]])
    made = shadows(population, trace, 5, laplace(10.0), np.random.default_rng(0), n_pairs=40, n_traces=100)
    apart = (made[:40] - made[40:]).round(9)
    assert set(np.unique(apart)) <= {-1.0, 0.0, 1.0}
    assert (apart[:, trace.ravel()] >= 0).all()
    assert (apart[:, ~trace.ravel()] <= 0).all()
    assert made.std() > 5


def test_who_is_alone_is_found(binary):
    game = MembershipGame(binary, **GAME)
    assert game.attack(0, attack="zero_knowledge").auc == 1
    assert game.attack(0, attack="zero_knowledge", defense=laplace(0.2)).auc > 0.9


def test_noise_that_hides_everything_leaves_guessing(binary):
    game = MembershipGame(binary, **GAME)
    areas = [game.attack(target, attack="zero_knowledge", defense=laplace(1000.0)).auc for target in range(6)]
    assert np.mean(areas) == pytest.approx(0.5, abs=4.5 * 0.092 / np.sqrt(6))
    nothing = game.attack(0, attack="zero_knowledge", defense=lambda counts, seed: np.zeros(counts.shape))
    assert nothing.auc == 0.5


def test_she_needs_to_know_nobody(binary):
    """The people whom others would learn from may be anybody: only the challenges decide."""
    game = MembershipGame(binary, **GAME)
    others = MembershipGame(np.concatenate([binary, ~binary]), **(GAME | {"known": np.arange(30)}))
    actual = [one.scores(3, attack="zero_knowledge")[1] for one in (game, others)]
    np.testing.assert_array_equal(*actual)


def unchanged(counts, seed):
    """A mechanism that releases counts as they are; the adversary does not know that they are exact."""
    return counts


def test_exact_counts_exclude_who_would_be_counted_where_nobody_is():
    trace = np.array([[True, False, False]])
    released = np.array([[[0.0, 2.0, 1.0]], [[1.0, 3.0, 1.0]], [[1.0, 2.0, 1.0]], [[0.0, 2.0, 2.0]]])
    settings = {"n_trainings": 1, "seed": [0]}
    messages = zero_knowledge_scores(released, trace, 3, defense=None, **settings)
    assert np.isneginf(messages).tolist() == [
        True,
        True,
        False,
        True,
    ]  # the second: everybody is where the target is not
    assert np.isfinite(zero_knowledge_scores(released, trace, 3, defense=unchanged, **settings)).all()


def test_a_training_serves_releases_with_and_without_the_target(monkeypatch):
    asked = []
    fitted = zero_knowledge.fitted_population
    monkeypatch.setattr(zero_knowledge, "fitted_population", lambda one, *a: asked.append(one[0, 0]) or fitted(one, *a))
    released = np.random.default_rng(0).poisson(3.0, (10, 2, 2)) * 1.0
    released[:, 0, 0] = np.arange(10)
    trace = np.eye(2, dtype=bool)
    for n_trainings, expected in ((4, 4), (99, 10)):
        asked.clear()
        scores = zero_knowledge_scores(released, trace, 9, defense=unchanged, n_trainings=n_trainings, seed=[1])
        assert asked == list(range(expected))
        assert np.isfinite(scores).all()
    with pytest.raises(ParameterError, match="n_trainings"):
        zero_knowledge_scores(released, trace, 9, defense=unchanged, n_trainings=0, seed=[1])


def test_an_adversary_who_looks_for_the_opposite_is_noticed(binary):
    """The trace turned round has the evidence against it."""
    game = MembershipGame(binary, **GAME)
    samples = game.samples(0).challenges
    released = game.space.counts(samples, np.arange(samples.labels.size)) * 1.0
    trace = game.space.presence(np.array([0]), 0)[0].reshape(game.space.shape) > 0
    settings = {"defense": unchanged, "n_trainings": 2, "seed": [0]}
    right = zero_knowledge_scores(released, trace, 12, **settings)
    wrong = zero_knowledge_scores(released, ~trace, 12, **settings)
    labels = samples.labels
    assert right[labels].mean() > right[~labels].mean()
    assert wrong[labels].mean() < wrong[~labels].mean()
