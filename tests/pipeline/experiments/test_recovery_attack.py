"""Trajectory recovery on the command line, compared with an adversary without releases."""

from __future__ import annotations

import json
import re

import numpy as np
import polars as pl
import pytest

from penstock.evaluation.attacks.parameters import AttackListener, RecoveryGame
from penstock.evaluation.attacks.recovery import trajectory_recovery
from penstock.evaluation.attacks.summaries import recovery_text
from penstock.mechanisms.core.plugin import ParameterError
from penstock.pipeline.cli.main import main
from penstock.pipeline.config.plan import make_plan
from penstock.pipeline.config.run import loads
from penstock.pipeline.experiments.attack import knowledge, recovery
from penstock.pipeline.run import run
from tests.tools.experiment_cases import CITY

ONE = "mechanism: {type: discrete_laplace, epsilon: 2.0}\nbounding: {max_cells: 1}\n"


def by_name(outcome):
    return {row["from"]: row for row in outcome.summary["found"]}


def test_the_attack_is_on_what_the_run_releases(tmp_path):
    config = loads(CITY + ONE)
    outcome = recovery(config, folder=tmp_path / "attack")
    run(config, tmp_path / "run", runner="local")
    releases = pl.read_parquet(tmp_path / "run" / "public" / "releases.parquet").sort("window", "cell")
    plan = make_plan(config)
    shown = releases["value"].to_numpy().reshape(plan.grid.n_windows, plan.grid.n_cells)
    raw = plan.people.presence(plan.grid.n_windows).raw
    positions, known = knowledge(plan, range(1, plan.grid.n_windows + 1))
    expected = trajectory_recovery(raw, shown, positions, **known, seed=3)
    actual = by_name(outcome)
    assert actual["the release"]["accuracy"] == expected.recovered.accuracy
    assert actual["without the release"]["distance"] == expected.nothing.distance
    assert actual["the release, shuffled"]["accuracy"] == expected.shuffled.accuracy
    assert outcome.summary["gain"] == expected.gain
    assert actual["raw counts"]["accuracy"] > actual["the release"]["accuracy"]
    assert outcome.summary["game"] == {"people": len(raw), "n_people": len(raw), "windows": 24, "n_windows": 24}
    assert json.loads(outcome.files[0].read_text())["found"] == outcome.summary["found"]


def test_of_exact_counts_the_release_is_the_raw_counts(tmp_path):
    actual = by_name(recovery(loads(CITY + "mechanism: {type: raw}"), folder=tmp_path))
    assert {**actual["the release"], "from": ""} == {**actual["raw counts"], "from": ""}


def test_of_many_people_and_windows_a_part_is_attacked_and_said_so(tmp_path):
    messages = []
    outcome = recovery(
        loads(CITY + ONE),
        RecoveryGame(people=20, windows=6),
        folder=tmp_path,
        listener=AttackListener(begun=lambda *of: messages.append(of)),
    )
    text = recovery_text(outcome.summary)
    game = outcome.summary["game"]
    assert (game["people"], game["windows"]) == (20, 6)
    assert text.startswith(f"trajectory recovery: 20 of {game['n_people']} people in the first 6 of 24 windows\n")
    assert "a sample, drawn by the seed, counted and released alone: no figure here is one of the whole release" in text
    assert messages == [(20, game["n_people"])]
    with pytest.raises(ParameterError, match=r"people: 2001 .* at most 2,000"):
        RecoveryGame(people=2001)


def test_cells_without_a_place_are_no_metres_apart(tmp_path):
    places = "space: {type: places, list: [a, b], elsewhere: true}\n"
    rows = ["user,time,place"]
    rng = np.random.default_rng(0)
    for user in range(8):
        rows += [f"u{user},2024-01-01T{hour:02}:10:00Z,{'ab'[rng.integers(2)]}" for hour in range(4)]
    (tmp_path / "events.csv").write_text("\n".join(rows) + "\n")
    source = (
        f"source: {{type: csv, path: {tmp_path / 'events.csv'}, from: 2024-01-01T00:00:00Z, "
        "until: 2024-01-01T04:00:00Z}\n"
    )
    rest = "name: places\nwindows: {type: fixed, size: 1h}\noutput: {path: unused}\n"
    outcome = recovery(loads(rest + source + places + ONE), folder=tmp_path)
    assert {row["distance"] for row in outcome.summary["found"]} == {None}
    assert "nan" not in recovery_text(outcome.summary)


def test_the_command_plays_it_with_the_others_and_alone(tmp_path, capsys):
    path = tmp_path / "run.yaml"
    path.write_text(CITY + ONE)
    words = ["attack", str(path), "--out", str(tmp_path / "out")]
    assert main([*words, "recovery", "--people", "20"]) == 0
    printed = capsys.readouterr()
    assert "trajectory recovery: 20 of" in printed.out
    assert re.search(r"penstock: recovery: 20 of .*\n(.*\n)*penstock: recovery: about \d+ (s|min)\n", printed.err)
    for wrong in (["recovery", "--minutes", "3"], ["membership", "--people", "20"]):
        with pytest.raises(SystemExit):
            main([*words, *wrong])
    assert main([*words, "recovery", "--people", "1"]) == 2
    assert "--people: 1 is not allowed" in capsys.readouterr().err
    coarse = "mechanism=[{type: temporal_generalization, windows: 2}, {type: raw}]"
    assert main([*words, "recovery", "--set", coarse]) == 2
    assert "to recover trajectories" in capsys.readouterr().err
    assert main([*words, "--set", coarse, "--targets", "3", "--json"]) == 0
    assert "to recover trajectories" in json.loads(capsys.readouterr().out)["left_out"]["recovery"]
