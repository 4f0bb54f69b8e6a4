"""Attacks as measures of an experiment: named, checked before anything runs, and the same as the attack by itself."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from experiment_cases import experiment_in, values

from penstock.accountants.online_attack import area_under_curve
from penstock.mechanisms.core.plugin import ConfigError, ParameterError
from penstock.pipeline.config.plan import make_plan
from penstock.pipeline.experiments.attack_measures import Attacked
from penstock.pipeline.experiments.measures import measure
from penstock.pipeline.experiments.membership_attack import Game, membership_game, targets_of
from penstock.pipeline.experiments.runner import run_experiment

HEAD = "name: e\nquestion: which\nbase: base.yaml\n"
GAME = "attack: {targets: 3, samples: 40, known: 0.5, group_size: 8}\n"
SETTINGS = """\
variants:
  exact: {landmarks: null, accountants: [], mechanism: {type: raw}}
  noisy: {landmarks: null, accountants: [], mechanism: {type: discrete_laplace, epsilon: 0.001}}
"""
MEASURES = "measures: [mae, attack/lira/auc, attack/pca/auc, attack/lira/tpr_1]\n"


@pytest.fixture
def load(tmp_path):
    return experiment_in(tmp_path)


def test_a_run_measures_what_an_attack_finds(load, tmp_path):
    experiment = load(HEAD + GAME + SETTINGS + MEASURES)
    outcome = run_experiment(experiment, tmp_path / "out", 1)
    assert outcome.manifest["failed"] == []
    found = {(row["variant"], row["measure"]): row["value"] for row in values(tmp_path / "out").iter_rows(named=True)}
    assert found["exact", "attack/lira/auc"] > 0.9
    assert found["noisy", "attack/lira/auc"] < 0.85
    assert math.isnan(found["exact", "attack/lira/tpr_1"])  # 12 challenges without a target do not support 1 %
    game = experiment.config.played
    for trial, variant in zip(experiment.trials, ("exact", "noisy")):
        plan = make_plan(trial.config)
        own, defense = membership_game(plan, Attacked(plan, game).presence, game, released=True)
        targets = targets_of(Attacked(plan, game).presence, game, trial.seed)
        areas = [area_under_curve(*own.scores(target, defense=defense, attack="lira")) for target in targets]
        assert found[variant, "attack/lira/auc"] == pytest.approx(np.mean(areas))


def test_another_game_is_another_trial(load, tmp_path):
    text = HEAD + SETTINGS.replace("  noisy", "  # noisy") + "measures: [attack/lira/auc]\n"
    assert run_experiment(load(text + GAME), tmp_path / "out", 1).manifest["resumed"] == 0
    assert run_experiment(load(text + GAME), tmp_path / "out", 1).manifest["resumed"] == 1
    other = GAME.replace("samples: 40", "samples: 60")
    assert run_experiment(load(text + other), tmp_path / "out", 1).manifest["resumed"] == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("measures: [attack/lyra/auc]\n", "the name out of pca, statistics, lira, zero_knowledge"),
        ("measures: [attack/lira/mean]\n", "the figure out of auc, tpr_1, tpr_01"),
        ("measures: [attack/lira/auc/max]\n", "attack/name/figure"),
        ("measures: [mae]\n" + GAME, "no measure is attack/name/figure"),
        ("measures: [attack/pca/auc]\nattack: {attack: lira}\n", "measures name the attacks"),
        ("measures: [attack/lira/auc]\nattack: {prior: same_groups}\n", "subset with the attack lira"),
        ("measures: [attack/lira/auc]\nattack: {target: 3}\n", "did you mean 'targets'"),
    ],
)
def test_a_wrong_measure_or_game_is_told_before_it_runs(load, text, said):
    with pytest.raises((ConfigError, ParameterError), match=said):
        load(HEAD + SETTINGS + text)


def test_less_is_better_and_shares_have_limits():
    one = measure("attack/zero_knowledge/tpr_01")
    assert one.higher_is_better is False
    assert one.limits == (0.0, 1.0)


def test_an_attack_is_made_once_for_all_its_figures(load, monkeypatch):
    [trial, _] = load(HEAD + SETTINGS + "measures: [mae]\n").trials
    attacked = Attacked(make_plan(trial.config), Game(targets=3, samples=40, known=0.5))
    made = []
    own = Attacked._attack
    monkeypatch.setattr(Attacked, "_attack", lambda self, attack: made.append(attack) or own(self, attack))
    for name in ("auc", "tpr_1", "tpr_01"):
        attacked.figure("statistics", name)
    assert made == ["statistics"]
    assert replace(attacked).presence is not attacked.presence
