"""Challenges of people unknown to the adversary."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.evaluation.attacks.game import MembershipGame
from penstock.evaluation.membership import membership_auc
from penstock.mechanisms.core.plugin import ParameterError

GAME = {"group_size": 10, "observation": 24, "inference": 24, "n_samples": 400, "seed": 1}


@pytest.fixture(scope="module")
def binary():
    return np.random.default_rng(0).random((40, 24, 6)) < 0.15


def test_challenges_of_others_hold_nobody_known_but_the_target(binary):
    samples = MembershipGame(binary, **GAME, known=20, challenges="others").samples(7)
    trained, challenged = samples.members[: samples.n_train], samples.members[samples.n_train :]
    assert samples.users.tolist() == list(range(40))
    both = trained.any(axis=0) & challenged.any(axis=0)
    assert np.flatnonzero(both).tolist() == [7]
    assert trained.any(axis=0).sum() == 20
    for members, rows in ((trained, slice(None, samples.n_train)), (challenged, slice(samples.n_train, None))):
        assert (members.sum(axis=1) == 10).all()
        assert (members[:, 7] == samples.labels[rows]).all()


def test_user_space_equals_the_dense_attack(binary):
    game = MembershipGame(binary, **GAME, known=20, challenges="others")
    fast, dense = game.attack(7), game.attack(7, defense=lambda counts, seed: counts)
    assert fast.auc == pytest.approx(dense.auc, abs=1e-6)
    assert fast.n_features == dense.n_features


def test_others_are_harder_to_tell_apart_than_known_ones(binary):
    given = GAME | {"n_components": 600, "known": 12, "observation": 4, "inference": 4}
    known = [membership_auc(binary, target, **given, axes="windows_cells") for target in range(4)]
    others = [membership_auc(binary, target, **given, challenges="others", axes="windows_cells") for target in range(4)]
    assert np.mean(known) > 0.99
    assert 0.55 < np.mean(others) < np.mean(known) - 0.02


def test_what_cannot_be_challenged(binary):
    with pytest.raises(ParameterError, match="challenges: 'strangers' is not allowed"):
        MembershipGame(binary, **GAME, challenges="strangers")
    past = GAME | {"observation": (0, 12), "inference": (12, 24)}
    with pytest.raises(ParameterError, match="challenges: 'others' is not allowed"):
        MembershipGame(binary, **past, prior="same_groups", challenges="others")
    few = MembershipGame(binary, **GAME, known=35, challenges="others")
    with pytest.raises(ParameterError, match="group_size: 10 is not allowed"):
        few.attack(3)
