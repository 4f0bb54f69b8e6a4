"""Outputs of experiments: provenance, intervals, claims, figures, recommendations."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import yaml

from penstock.pipeline.config.canonical import digest
from penstock.pipeline.config.run import load
from penstock.pipeline.experiments import runner
from penstock.pipeline.experiments.config import Expectation
from penstock.pipeline.experiments.results import interval, limits_of, per_seed
from penstock.pipeline.experiments.runner import run_experiment
from tests.tools.experiment_cases import BASE, GRID, experiment_in, values
from tests.tools.small_configuration import run_locally as run

HAS_PLOTS = importlib.util.find_spec("matplotlib") is not None


@pytest.fixture
def experiment(tmp_path: Path):
    return experiment_in(tmp_path)


def test_every_number_says_where_it_comes_from(experiment, tmp_path: Path):
    made = experiment()
    table = values(run_experiment(made, tmp_path / "out", n_jobs=1).folder)
    assert table.columns == [
        *("variant", "mechanism[0].epsilon", "seed", "measure", "value", "unit", "mean", "low", "high"),
        *("configuration", "inputs", "people", "versions"),
    ]
    assert len(table) == 8 * 5
    for cell, rows in zip(made.trials, table.partition_by(["variant", "mechanism[0].epsilon", "seed"])):
        assert set(rows["configuration"]) == {digest(cell.config).hex()}
        assert set(rows["seed"]) == {cell.seed}
        assert rows.select("inputs", "people", "versions").n_unique() == 1
    assert "numpy" in table["versions"][0]
    units = dict(table.select("measure", "unit").iter_rows())
    assert units["mae"] == "people"
    assert units["landmark_budget/period_loss"] == "nats"
    other = values(run_experiment(experiment(GRID, "base.source.seed=2"), tmp_path / "other", n_jobs=1).folder)
    assert set(other["inputs"]).isdisjoint(table["inputs"])


def test_the_summary_is_mean_and_interval_over_seeds(experiment, tmp_path: Path):
    folder = run_experiment(experiment(GRID, "seeds=4"), tmp_path / "out", n_jobs=1).folder
    summary = pl.read_parquet(folder / "summary.parquet").filter(pl.col("measure") == "mae")
    first = values(folder).filter(pl.col("measure") == "mae")["value"].to_numpy()[:4]
    half = 3.182446305 * first.std(ddof=1) / 2  # Student's quantile with three degrees of freedom
    assert summary["mean"][0] == pytest.approx(first.mean())
    assert [summary["low"][0], summary["high"][0]] == pytest.approx([first.mean() - half, first.mean() + half])
    assert summary["n"].to_list() == [4] * 4
    # Every number has its setting's mean and interval beside it.
    results = values(folder).filter(pl.col("measure") == "mae")
    for side in ("mean", "low", "high"):
        assert results[side].to_list() == summary[side].repeat_by(4).explode().to_list()


EXPECTED = """
expected:
  - says: nine times the budget, a smaller error
    source: arithmetic
    measure: mae
    where: {variant: uniform, "mechanism[0].epsilon": 9}
    over: {"mechanism[0].epsilon": 1}
    at_most: 0.5
  - {says: impossible, source: nobody, measure: mae, where: {variant: uniform}, at_most: -1}
"""


def test_claims_are_held_against_results(experiment, tmp_path: Path):
    folder = run_experiment(experiment(GRID + EXPECTED, "seeds=3"), tmp_path / "out", n_jobs=1).folder
    table = pl.read_csv(folder / "expected.csv")
    assert table["verdict"].to_list() == ["agrees", "differs"]
    mae = values(folder).filter(pl.col("measure") == "mae", pl.col("variant") == "uniform")
    sides = [mae.filter(pl.col("mechanism[0].epsilon") == e)["value"].to_numpy() for e in (9, 1)]
    assert table["value"][0] == pytest.approx((sides[0] / sides[1]).mean(), rel=1e-5)


def test_a_claim_is_held_against_whole_seeds_only():
    claim = Expectation(says="s", source="s", measure="mae", at_most=1.0)
    rows = {"measure": ["mae"] * 3, "seed": [1, 1, 2], "value": [1.0, 3.0, 0.5]}
    assert per_seed(claim, pl.DataFrame(rows)).tolist() == [2.0]


CHOOSE = """
choose:
  at_least: {pearson: 0.3}
  at_most: {epsilon_stated: 20}
"""


def test_advice_names_the_best_setting_within_the_limits_and_writes_its_configuration(experiment, tmp_path: Path):
    text = GRID.replace("[1, 9]", "[1, 9, 19]").replace("[mae", "[epsilon_stated, mae") + CHOOSE.replace("20", "10")
    outcome = run_experiment(experiment(text), tmp_path / "out", n_jobs=1)
    table = pl.read_csv(outcome.folder / "frontier.csv")
    exact = pl.read_parquet(outcome.folder / "frontier.parquet")["mean pearson"].to_list()
    assert table["mean pearson"].to_list() == [float(f"{value:.6g}") for value in exact] != exact
    assert not table.filter(pl.col("mechanism[0].epsilon") == 19)["allowed"].any()
    best = table.filter(pl.col("best")).row(0, named=True)
    allowed = table.filter(pl.col("allowed"))
    assert best["mean pearson"] == allowed["mean pearson"].max()
    assert best["mean epsilon_stated"] == best["mechanism[0].epsilon"] <= 10
    ready = load(outcome.folder / "best.yaml", [f"output.path={tmp_path / 'best'}"])
    assert (
        ready.mechanism[0].epsilon
        == best["mechanism[0].epsilon"]
        == outcome.manifest["choice"]["best"]["values"]["mechanism[0].epsilon"]
    )
    assert run(ready).exit_code == 0


def test_limits_that_nothing_keeps_give_no_advice(experiment, tmp_path: Path):
    text = GRID.replace("[mae", "[epsilon_stated, mae") + CHOOSE.replace("0.3", "0.9999")
    outcome = run_experiment(experiment(text), tmp_path / "out", n_jobs=1)
    assert outcome.manifest["choice"]["best"] is None
    assert not (outcome.folder / "best.yaml").exists()


def test_a_setting_with_a_failed_seed_is_not_up_for_choice(experiment, tmp_path: Path, monkeypatch):
    (tmp_path / "unlucky.py").write_text(
        "def luck(trial):\n"
        "    step = trial.plan.config.mechanism[0]\n"
        "    if trial.seed == 2 and step.epsilon == 9 and not step.adaptive:\n"
        "        raise ValueError('no such luck')\n"
        "    return 1.0\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    text = GRID.replace("[mae", "[unlucky:luck, epsilon_stated, mae") + CHOOSE
    outcome = run_experiment(experiment(text), tmp_path / "out", n_jobs=1)
    assert len(outcome.manifest["failed"]) == 1
    table = pl.read_csv(outcome.folder / "frontier.csv")
    assert table.select("variant", "mechanism[0].epsilon").rows() == [("uniform", 1), ("adaptive", 1), ("adaptive", 9)]


FIGURES = """
labels: {uniform: "<b> & more"}
figures:
  - {file: line.svg, type: line, x: "mechanism[0].epsilon", y: mae, by: variant, log_x: true}
  - {file: scatter.png, type: scatter, x: landmark_budget/period_loss, y: mae, by: variant}
  - {file: box.svg, type: box, x: variant, y: mae, where: {"mechanism[0].epsilon": 9}}
"""


@pytest.mark.skipif(not HAS_PLOTS, reason="matplotlib is not installed")
def test_figures_show_what_is_asked_for_and_are_the_same_every_time(experiment, tmp_path: Path):
    from xml.etree import ElementTree

    outcome = run_experiment(experiment(GRID + FIGURES), tmp_path / "out", n_jobs=1)
    written = [one["file"] for one in outcome.manifest["figures"]]
    assert written == ["figures/line.svg", "figures/scatter.png", "figures/box.svg"]
    line = (outcome.folder / "figures/line.svg").read_text()
    assert {"<b> & more", "adaptive", "mae (people)"} <= set(ElementTree.fromstring(line).itertext())
    assert (outcome.folder / "figures/scatter.png").read_bytes()[:4] == b"\x89PNG"
    again = run_experiment(experiment(GRID + FIGURES), tmp_path / "out", n_jobs=1)
    assert (again.folder / "figures/line.svg").read_text() == line


def test_an_experiment_goes_on_without_the_plotting_library(experiment, tmp_path: Path, without):
    chosen = experiment(GRID.replace("[mae", "[epsilon_stated, mae") + CHOOSE + FIGURES)
    without("matplotlib")
    outcome = run_experiment(chosen, tmp_path / "out", n_jobs=1)
    assert (outcome.exit_code, outcome.manifest["figures"]) == (0, [])
    assert "penstock[plot]" in runner.summary(outcome)
    written = sorted(path.name for path in (outcome.folder / "figures").iterdir())
    assert written == ["box.csv", "line.csv", "scatter.csv"]
    assert (outcome.folder / "best.yaml").exists()
    assert (outcome.folder / "report.html").exists()


def test_attacks_and_other_functions_are_measures(experiment, tmp_path: Path, monkeypatch):
    (tmp_path / "own_attack.py").write_text(
        "def advantage(trial):\n    return trial.released.shape[0] + trial.seed / 10\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    text = GRID.replace("measures: [", "measures: [own_attack:advantage, ")
    table = values(run_experiment(experiment(text), tmp_path / "out", n_jobs=1).folder)
    actual = table.filter(pl.col("measure") == "own_attack:advantage").sort("seed")["value"].unique().to_list()
    assert np.allclose(sorted(actual), [24.1, 24.2])


def test_the_command_line(experiment, tmp_path: Path, capsys):
    from penstock.pipeline.cli.main import main

    (tmp_path / "base.yaml").write_text(BASE)
    (tmp_path / "e.yaml").write_text(GRID + "reduced: {seeds: 1}\n")
    words = ["experiment", str(tmp_path / "e.yaml"), "--out", str(tmp_path / "out"), "--jobs", "1", "--reduced"]
    assert main(words) == 0
    assert "4: 4 done (0 of them before), 0 failed" in capsys.readouterr().out
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["resumed"] == 4
    assert main([*words, "--set", "measures=[mea]"]) == 2
    assert "measures" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main([*words[:-3], "--jobs", "0"])
    assert "must be a number at least 1" in capsys.readouterr().err
    assert yaml.safe_load((tmp_path / "out" / "experiment.json").read_text())["name"] == "e"


def test_an_experiment_of_which_nothing_came_out_is_saved_too(experiment, tmp_path: Path):
    too_little = GRID + "set: {accountants: [{type: landmark_budget, budget: 0.5}]}\n"
    outcome = run_experiment(experiment(too_little), tmp_path / "out", n_jobs=1)
    assert (outcome.exit_code, len(outcome.manifest["failed"])) == (1, 8)


@pytest.mark.parametrize("limits", [(0.0, 1.0), (-1.0, 1.0)])
def test_an_interval_stays_within_the_limits_of_its_measure(limits):
    least, most = limits
    near = [most - 0.001, most, most - 0.04]
    assert interval(near)["high"] > most  # Student's leaves them
    actual = interval(near, limits)
    assert least < actual["low"] < actual["mean"] < actual["high"] < most
    # Far from the limits it is Student's.
    values = [0.5, 0.501, 0.502]
    plain, bounded = interval(values), interval(values, limits)
    for side in ("low", "high"):
        assert bounded[side] == pytest.approx(plain[side], abs=2e-5)
    # At a limit there is no spread, and no logit.
    assert interval([most] * 3, limits)["low"] == most


def test_measures_with_limits_say_so():
    assert limits_of("hotspot_f1", "") == limits_of("coverage", "") == (0.0, 1.0)
    assert limits_of("pearson", "") == (-1.0, 1.0)
    assert limits_of("membership/membership_auc", "area under the curve") == (0.0, 1.0)
    assert limits_of("reconstruction/best_bound/mean", "probability") == (0.0, 1.0)
    assert limits_of("mae", "people") is None
