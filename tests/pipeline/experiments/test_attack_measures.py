"""Attacks as measures of an experiment: names, checks before the run, equality with the attack alone."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from penstock.accountants.online_attack import area_under_curve
from penstock.evaluation.attacks.game import MembershipGame
from penstock.evaluation.attacks.membership import RECOVERY_FIGURES, MembershipAttack
from penstock.evaluation.attacks.parameters import Game
from penstock.evaluation.attacks.recovery import trajectory_recovery
from penstock.mechanisms.core.plugin import ConfigError, ParameterError
from penstock.pipeline.config.plan import make_plan
from penstock.pipeline.experiments.attack import attacked_run, positions_of, recovered
from penstock.pipeline.experiments.measures import measure, recovery_figure
from penstock.pipeline.experiments.runner import run_experiment
from penstock.pipeline.experiments.trial import run_trial
from penstock.pipeline.spaces.places import Places
from tests.tools.experiment_cases import experiment_in, values

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
    actual = {(row["variant"], row["measure"]): row["value"] for row in values(tmp_path / "out").iter_rows(named=True)}
    assert actual["exact", "attack/lira/auc"] > 0.9
    assert actual["noisy", "attack/lira/auc"] < 0.85
    assert math.isnan(actual["exact", "attack/lira/tpr_1"])  # 12 challenges without a target do not support 1 %
    game = experiment.config.played
    for trial, variant in zip(experiment.trials, ("exact", "noisy")):
        played = MembershipAttack(attacked_run(make_plan(trial.config), 24), game)
        one, defense = played.games[True]
        areas = [area_under_curve(*one.scores(target, defense=defense, attack="lira")) for target in played.targets]
        assert actual[variant, "attack/lira/auc"] == pytest.approx(np.mean(areas))


def test_another_game_is_another_trial(load, tmp_path):
    text = HEAD + SETTINGS.replace("  noisy", "  # noisy") + "measures: [attack/lira/auc]\n"
    assert run_experiment(load(text + GAME), tmp_path / "out", 1).manifest["resumed"] == 0
    assert run_experiment(load(text + GAME), tmp_path / "out", 1).manifest["resumed"] == 1
    other = GAME.replace("samples: 40", "samples: 60")
    assert run_experiment(load(text + other), tmp_path / "out", 1).manifest["resumed"] == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("measures: [attack/lyra/auc]\n", "the name out of pca, statistics, lira, zero_knowledge"),
        ("measures: [attack/lira/mean]\n", "the figure out of auc, tpr_1, tpr_01"),
        ("measures: [attack/lira/auc/max]\n", "attack/name/figure"),
        ("measures: [mae]\n" + GAME, "no measure is an attack on membership"),
        ("measures: [attack/pca/auc]\nattack: {attack: lira}\n", "measures name the attacks"),
        ("measures: [attack/lira/auc]\nattack: {prior: same_groups}\n", "subset with the attack lira"),
        ("measures: [attack/lira/auc]\nattack: {target: 3}\n", "did you mean 'targets'"),
    ],
)
def test_a_wrong_measure_or_game_is_told_before_it_runs(load, text, message):
    with pytest.raises((ConfigError, ParameterError), match=message):
        load(HEAD + SETTINGS + text)


def test_less_is_better_and_shares_have_limits():
    one = measure("attack/zero_knowledge/tpr_01")
    assert one.higher_is_better is False
    assert one.limits == (0.0, 1.0)


def test_an_attack_is_made_once_for_all_its_figures(load, monkeypatch):
    [trial, _] = load(HEAD + SETTINGS + "measures: [mae]\n").trials
    attacked = MembershipAttack(attacked_run(make_plan(trial.config), 24), Game(targets=3, samples=40, known=0.5))
    made = []
    scores = MembershipGame.scores
    monkeypatch.setattr(MembershipGame, "scores", lambda *a, **named: made.append(a[1]) or scores(*a, **named))
    for name in ("auc", "tpr_1", "tpr_01"):
        attacked.figure("statistics", name)
    assert len(made) == 3
    assert 0 <= attacked.figure("statistics", "gain") <= 1
    assert len(made) == 6  # and once on raw counts


RECOVERY = (
    "measures: [attack/recovery/accuracy, attack/recovery/baseline, attack/recovery/gain, attack/recovery/distance]\n"
)


def test_trajectories_are_recovered_of_a_trial_beside_the_baseline(load, tmp_path):
    outcome = run_experiment(load(HEAD + SETTINGS + RECOVERY), tmp_path / "out", 1)
    assert outcome.manifest["failed"] == []
    table = values(tmp_path / "out").iter_rows(named=True)
    actual = {(row["variant"], row["measure"].rpartition("/")[2]): row for row in table}
    exact, noisy = (
        {name: actual[variant, name]["value"] for name in RECOVERY_FIGURES} for variant in ("exact", "noisy")
    )
    assert exact["accuracy"] > noisy["accuracy"]
    assert exact["distance"] < noisy["distance"]
    assert exact["gain"] > 0 > noisy["gain"]
    for game_of_trial in (exact, noisy):
        assert game_of_trial["gain"] == pytest.approx(game_of_trial["accuracy"] - game_of_trial["baseline"])
    assert actual["exact", "distance"]["unit"] == "metres"


def test_a_recovery_is_what_the_attack_by_itself_finds(load):
    [trial, _] = load(HEAD + SETTINGS + RECOVERY).trials
    plan = make_plan(trial.config)
    presence = plan.people.presence(plan.grid.n_windows).raw
    counts = presence.sum(axis=0)
    by_measure = recovered(plan, counts.astype(float), range(1, 25))
    night = np.arange(24) < 6
    assert by_measure == trajectory_recovery(
        presence, counts, positions_of(plan.space), night=night, day=24, seed=trial.seed
    )


def test_places_of_cells_are_metres_apart(load):
    [trial, _] = load(HEAD + SETTINGS + RECOVERY).trials
    actual = positions_of(make_plan(trial.config).space).reshape(3, 3, 2)
    np.testing.assert_allclose(np.diff(actual[..., 1], axis=0), 0.08 / 3 * 111_195, rtol=1e-3)
    assert np.abs(actual.mean(axis=(0, 1))).max() < 10


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("group_size: 20\n" + RECOVERY, "left out with attack/recovery: trajectories are recovered of everybody"),
        (GAME + RECOVERY, "no measure is an attack on membership"),
        ("measures: [attack/recovery/auc]\n", "the figure out of accuracy, baseline, gain, distance"),
    ],
)
def test_a_recovery_that_makes_no_sense_is_refused_before_it_runs(load, text, message):
    with pytest.raises((ConfigError, ParameterError), match=message):
        load(HEAD + SETTINGS + text)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("mechanism=[{type: temporal_generalization, windows: 2}, {type: raw}]", "without coarse cells and windows"),
        ("source={type: citibike, path: %s, from: 2024-01-01T00:00:00Z, until: 2024-01-02T00:00:00Z}", "every trip is"),
    ],
)
def test_a_release_without_trajectories_is_refused_before_it_runs(load, change, message, tmp_path):
    (tmp_path / "1-tripdata.csv").write_text("started_at\n")
    plain = ["base.landmarks=null", "base.accountants=[]", "base.mechanism=[{type: raw}]"]
    with pytest.raises(ConfigError, match=message):
        load(HEAD + RECOVERY, *plain, f"base.{change.replace('%s', str(tmp_path))}")


def test_too_many_people_are_refused_and_a_space_without_places_has_no_distance(load):
    [trial, _] = load(HEAD + SETTINGS + RECOVERY).trials
    plan = make_plan(trial.config)
    actual = run_trial(trial.config, plan.people.memberships(24))
    nowhere = replace(trial.config, space=Places(list_=tuple(map(str, range(9))), elsewhere=False))
    with pytest.raises(ParameterError, match="whose cells have a place"):
        recovery_figure(replace(actual, plan=make_plan(nowhere)), "distance")
    assert recovery_figure(actual, "gain") == actual.recovered.gain
    with pytest.raises(ParameterError, match="at most 10 people"):
        recovered(plan, np.zeros((24, 9)), range(1, 25), n=10)
