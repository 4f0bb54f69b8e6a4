"""Defenses of the membership game: the mechanisms themselves, one independent run a sample."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.evaluation.attacks.defenses import mechanism_defense, random_guess
from penstock.evaluation.attacks.game import MembershipGame
from penstock.evaluation.utility import METRICS
from penstock.mechanisms import get
from penstock.mechanisms.core.chain import Chain
from penstock.mechanisms.core.plugin import ParameterError
from penstock.mechanisms.core.run import run_mechanism


@pytest.fixture
def counts():
    return np.random.default_rng(0).poisson(4.0, (7, 12, 5))


def by_hand(mechanism, counts, seed=0):
    return np.array([[release.values for release in run_mechanism(mechanism, one, seed=seed)] for one in counts])


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("suppress_small", {"threshold": 4}),
        ("fixed_ranges", {"width": 3}),
        ("adaptive_ranges", {"parts": 3, "block": 4}),
    ],
)
def test_without_noise_every_sample_is_what_the_mechanism_releases_of_it(counts, name, parameters):
    mechanism = get(name)(**parameters)
    defense = mechanism_defense(mechanism)
    np.testing.assert_array_equal(defense(counts, 3), by_hand(mechanism, counts))


def test_noise_is_bound_to_the_seed(counts):
    defense = mechanism_defense(get("discrete_laplace")(epsilon=1.0))
    np.testing.assert_array_equal(defense(counts, 5), defense(counts, 5))
    assert (defense(counts, 5) != defense(counts, 6)).any()


def test_noise_has_the_scale_of_the_mechanism_and_is_independent_between_samples_and_windows():
    noise = mechanism_defense(get("discrete_laplace")(epsilon=0.5))(np.zeros((40, 50, 10), int), 5)
    a = np.exp(-0.5)
    assert noise.var() == pytest.approx(2 * a / (1 - a) ** 2, rel=0.1)
    for rows in (noise.reshape(40, -1), noise.transpose(1, 0, 2).reshape(50, -1)):
        correlation = np.corrcoef(rows)[np.triu_indices(len(rows), 1)]
        assert np.abs(correlation).max() < 5 / np.sqrt(rows.shape[1])


def test_equal_samples_get_different_noise_also_in_different_batches():
    released = []

    def defense(counts, seed):
        released.append(mechanism_defense(get("laplace")(epsilon=1.0))(0 * counts, seed))
        return released[-1]

    binary = np.random.default_rng(0).random((30, 24, 1000)) < 0.2
    MembershipGame(binary, group_size=10, observation=24, inference=24, n_samples=120).attack(3, defense=defense)
    assert len({len(batch) for batch in released}) > 1
    assert max(batch.size for batch in released) < 2_000_000
    assert len(np.unique(np.concatenate(released))) == 120 * 24 * 1000


def test_a_block_of_windows_is_released_whole(counts):
    examples = get("fpa").examples()
    for mechanism in examples:
        released = mechanism_defense(mechanism)(counts, 0)
        assert released.shape == counts.shape
        assert np.isfinite(released).all()


def test_what_follows_the_reader_is_applied(counts):
    noise, small = get("discrete_laplace")(epsilon=0.5), get("suppress_small")(threshold=4)
    alone = mechanism_defense(noise)(counts, 2)
    both = mechanism_defense([noise, small])(counts, 2)
    assert ((both == 0) | (both >= 4)).all()
    assert (both >= 4).any()
    assert (alone[alone < 4] != 0).any()


def test_counts_that_nothing_changes_need_no_defense():
    sampling, longer = get("sampling")(rate=0.5), get("temporal_generalization")(windows=2)
    assert mechanism_defense(get("raw")()) is None
    assert mechanism_defense([sampling]) is None
    assert mechanism_defense(sampling) is None
    assert mechanism_defense([longer, get("raw")()]) is None


def test_windows_that_are_not_released_are_refused():
    class Silent(get("raw")):
        def step(self, window, counts, state, noise):
            releases, state = super().step(window, counts, state, noise)
            return ([] if window.index == 2 else releases), state

    chain = Chain(reader=Silent(), after=(get("suppress_small")(threshold=1),))
    with pytest.raises(ParameterError, match="every window"):
        mechanism_defense(chain)(np.ones((1, 3, 2), int), 0)


def test_a_random_guess_is_worth_nothing():
    truth = np.random.default_rng(0).poisson(np.geomspace(0.2, 40, 40)[:, None], (40, 300))  # (n_cells, n_windows)
    guess = random_guess(truth.T, 1).T
    assert guess.min() == 0
    assert guess.max() <= truth.max()
    assert random_guess(truth.T, 1, largest=500).max() == 500
    assert abs(METRICS["pearson"].scores(truth.T, guess.T)[1].mean()) < 0.05
    assert abs(METRICS["hotspot_f1"].scores(truth.T, guess.T)[1].mean() - 0.1) < 0.05


def test_an_adversary_loses_what_a_mechanism_hides():
    binary = np.random.default_rng(0).random((30, 24, 5)) < 0.2
    game = MembershipGame(binary, group_size=10, observation=24, inference=24, n_samples=400, seed=1)
    weak = game.attack(3, defense=mechanism_defense(get("laplace")(epsilon=20.0))).auc
    strong = game.attack(3, defense=mechanism_defense(get("laplace")(epsilon=0.01))).auc
    nothing = game.attack(3, defense=mechanism_defense(get("suppress_small")(threshold=11))).auc
    assert weak > 0.9
    assert abs(strong - 0.5) < 0.2
    assert nothing == 0.5
