"""Experiments run: shared counts, resume, failures, provenance, claims, figures and advice."""

from __future__ import annotations

import importlib.util
import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import yaml

from mechanisms.core.errors import ConfigError, DataError
from pipeline import parts
from pipeline.configuration.run import digest, load
from pipeline.experiments import runner
from pipeline.experiments.cell import release, run_cell
from pipeline.experiments.counts import counting_config, read_counts, write_counts
from pipeline.experiments.load import loads_experiment
from pipeline.experiments.measures import measure
from pipeline.experiments.page import experiments_page
from pipeline.experiments.runner import run_experiment
from pipeline.experiments.workers import DIED, Workers
from pipeline.plan import STREAM, make_plan
from pipeline.run import run
from pipeline.tables import releases_table

HAS_PLOTS = importlib.util.find_spec("matplotlib") is not None
BASE = """\
name: small
source: {type: synthetic, seed: 1, n_users: 60, from: 2024-01-01T00:00:00Z, until: 2024-01-02T00:00:00Z}
space: {type: grid, south: 37.74, north: 37.82, west: -122.47, east: -122.37, rows: 3, columns: 3}
windows: {type: fixed, size: 1h}
bounding: {max_cells: 1}
landmarks: {recurring: ["07:00-09:00"]}
mechanism: [{type: landmark_uniform, epsilon: 3}]
accountants: [{type: landmark_budget}, {type: composition, w: 3}]
utility: [mae, pearson]
output: {path: unused}
"""
GRID = """\
name: e
question: which
base: base.yaml
measures: [mae, pearson, landmark_budget/period_loss, composition/w_event_epsilon/max, share_published]
variants:
  uniform: {mechanism: {type: landmark_uniform, epsilon: 1}}
  adaptive: {mechanism: {type: landmark_adaptive, epsilon: 1}}
grid: {"mechanism[0].epsilon": [1, 9]}
seeds: 2
"""


@pytest.fixture
def experiment(tmp_path: Path):
    (tmp_path / "base.yaml").write_text(BASE)

    def go(text: str = GRID, *overrides: str):
        return loads_experiment(text, "e.yaml", tmp_path, overrides)

    return go


def values(folder: Path) -> pl.DataFrame:
    return pl.read_parquet(folder / "results.parquet")


@pytest.mark.parametrize(
    "change",
    [
        "{}",
        "{mechanism: {type: landmark_adaptive, epsilon: 4, sampler: drift}}",
        "{mechanism: {type: w_event_bd, epsilon: 4, w: 5}, landmarks: null}",
        "{sensors: {active: one_random}, mechanism: {type: laplace, epsilon: 2}}",
        "{bounding.keep: most_frequent, mechanism: {type: fpa, epsilon: 2, block: 6, coefficients: 2}}",
        "{mechanism: [{type: sampling, rate: 0.5}, {type: discrete_laplace, epsilon: 2}]}",
    ],
)
def test_a_cell_releases_the_bytes_of_a_plain_run(experiment, tmp_path: Path, change: str):
    cell = experiment(f"name: e\nquestion: q\nbase: base.yaml\nmeasures: [mae]\nseeds: [5]\nset: {change}\n").cells[0]
    write_counts(cell.config, tmp_path / "counts.npz")
    counts = read_counts(tmp_path / "counts.npz")
    plain = run(cell.config, tmp_path / "plain")
    plan = make_plan(cell.config)
    made = [one for batch in release(plan, counts) for one in batch.releases]
    windows = [plan.windows(one.window, one.window)[0] for one in made]
    table = releases_table(made, windows, plan.space.cells, STREAM, 0)
    parts.write_part(tmp_path, "cell", table)
    # Written and read again as the run's own file is, so that equal tables are equal bytes of values.
    assert pl.read_parquet(tmp_path / "cell.parquet").equals(pl.read_parquet(plain.folder / "public/releases.parquet"))
    truth = pl.read_parquet(plain.folder / "operator/truth.parquet")
    for column, array in (("count", counts.truth), ("bounded", counts.bounded)):
        assert truth[column].to_numpy().tolist() == array.ravel().tolist()
    finished = run_cell(cell.config, counts)
    for name, value in plain.manifest["utility"].items():
        assert measure(name).compute(finished) == value


def test_figures_of_the_books_are_those_of_the_accounts_file(experiment, tmp_path: Path):
    cell = experiment().cells[-1]
    write_counts(cell.config, tmp_path / "counts.npz")
    finished = run_cell(cell.config, read_counts(tmp_path / "counts.npz"))
    accounts = pl.read_parquet(run(cell.config, tmp_path / "plain").folder / "public/accounts.parquet")
    for name in ("composition/w_event_epsilon", "composition/user_epsilon"):
        accountant, figure = name.split("/")
        rows = accounts.filter(pl.col("accountant") == accountant, pl.col("name") == figure)
        assert measure(name).compute(finished) == rows.filter(pl.col("window").is_null())["value"].item()
        for summary in ("min", "mean", "max"):
            expected = getattr(rows["value"], summary)()
            assert measure(f"{name}/{summary}").compute(finished) == pytest.approx(expected, rel=1e-12)
    last = accounts.filter(pl.col("name") == "landmark_loss").sort("window")["value"][-1]
    assert measure("landmark_budget/landmark_loss").compute(finished) == last
    with pytest.raises(DataError, match="it gave budget_left, budget_spent"):
        measure("landmark_budget/profit").compute(finished)


def test_counts_are_made_once_for_all_cells_that_share_them(experiment, tmp_path: Path):
    outcome = run_experiment(experiment(), tmp_path / "out", n_jobs=1)
    assert (outcome.exit_code, outcome.manifest["cells"], outcome.manifest["counted"]) == (0, 8, 2)  # one for each seed
    assert values(outcome.folder)["counts"].n_unique() == 2
    # Without a keyed hash in the bounding, seeds share them too.
    text = GRID.replace("seeds: 2", "seeds: 2\nset: {bounding.keep: most_frequent}")
    assert run_experiment(experiment(text), tmp_path / "shared", n_jobs=1).manifest["counted"] == 1
    # What changes the counts is never shared.
    text = text.replace("set: {", "set: {source.n_users: 61, ")
    assert run_experiment(experiment(text), tmp_path / "shared", n_jobs=1).manifest["counted"] == 1


def test_what_decides_counts_is_in_their_name(experiment):
    config = experiment().cells[0].config
    assert counting_config(config) == counting_config(
        replace(config, mechanism=experiment().cells[-1].config.mechanism)
    )
    bounding = replace(config.bounding, max_block_cells=3)
    over_blocks = [replace(one.config, bounding=bounding) for one in (experiment().cells[0], experiment().cells[-2])]
    assert counting_config(over_blocks[0]) != counting_config(over_blocks[1])
    for part in ("source", "space", "windows", "sensors"):
        assert getattr(counting_config(config), part) == getattr(config, part)


def test_an_interrupted_experiment_goes_on_and_ends_with_the_same_bytes(experiment, tmp_path: Path, monkeypatch):
    whole = run_experiment(experiment(), tmp_path / "whole", n_jobs=1).folder

    def interrupt(done: int, failed: int, counts: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_experiment(experiment(), tmp_path / "resumed", n_jobs=1, listener=interrupt)
    broken = next((tmp_path / "resumed" / "cells").glob("*.json"))
    broken.write_text(broken.read_text()[:20])  # as a crashed disk might leave it
    ran = []
    monkeypatch.setattr(runner, "cell_record", lambda *a, own=runner.cell_record: ran.append(a) or own(*a))
    outcome = run_experiment(experiment(), tmp_path / "resumed", n_jobs=1)
    assert (outcome.manifest["resumed"], len(ran)) == (2, 6)
    for name in ("results.parquet", "summary.parquet", "summary.csv"):
        assert (whole / name).read_bytes() == (tmp_path / "resumed" / name).read_bytes()
    ran.clear()
    assert run_experiment(experiment(), tmp_path / "resumed", n_jobs=1).manifest["resumed"] == 8
    run_experiment(experiment(GRID, "seeds=3"), tmp_path / "resumed", n_jobs=1)
    assert len(ran) == 4  # the new seed of four settings


def test_parallel_processes_give_the_same_bytes(experiment, tmp_path: Path):
    one = run_experiment(experiment(), tmp_path / "one", n_jobs=1).folder
    two = run_experiment(experiment(), tmp_path / "two", n_jobs=2).folder
    assert (one / "results.parquet").read_bytes() == (two / "results.parquet").read_bytes()


def test_a_failed_cell_is_listed_and_the_others_go_on(experiment, tmp_path: Path):
    text = (
        GRID.replace("accountants", "accountants")
        + "set: {accountants: [{type: landmark_budget, budget: 5}, {type: composition, w: 3}]}\n"
    )
    outcome = run_experiment(experiment(text), tmp_path / "out", n_jobs=1)
    assert outcome.exit_code == 1
    failed = outcome.manifest["failed"]
    assert {tuple(one["values"].values()) for one in failed} == {("uniform", 9), ("adaptive", 9)}
    assert all(one["problem"].startswith("the run was stopped: ") for one in failed)
    assert values(outcome.folder)["mechanism[0].epsilon"].unique().to_list() == [1]
    assert json.loads((outcome.folder / "experiment.json").read_text())["failed"] == failed


def test_an_input_that_cannot_be_counted_fails_its_own_cells_only(experiment, tmp_path: Path, monkeypatch):
    def broken(config, path):
        if config.seed == 2:
            raise DataError("no such luck")
        write_counts(config, path)

    monkeypatch.setattr(runner, "write_counts", broken)
    outcome = run_experiment(experiment(), tmp_path / "out", n_jobs=1)
    assert [(one["seed"], one["problem"]) for one in outcome.manifest["failed"]] == [(2, "counting: no such luck")] * 4
    assert values(outcome.folder)["seed"].unique().to_list() == [1]


def test_a_task_that_kills_its_process_takes_no_other_with_it():
    workers = Workers(2)
    for name in "abc":
        workers.submit(name, (int, ("1",)))
    workers.submit("killer", (os._exit, (9,)))
    workers.submit("d", (int, ("x",)))
    found = dict(workers.results())
    assert found == dict.fromkeys("abc") | {"killer": DIED, "d": found["d"]}
    assert found["d"].startswith("ValueError")


def test_every_number_says_where_it_comes_from(experiment, tmp_path: Path):
    made = experiment()
    table = values(run_experiment(made, tmp_path / "out", n_jobs=1).folder)
    assert table.columns == [
        *("variant", "mechanism[0].epsilon", "seed", "measure", "value", "unit"),
        *("configuration", "inputs", "counts", "versions"),
    ]
    assert len(table) == 8 * 5
    for cell, rows in zip(made.cells, table.partition_by(["variant", "mechanism[0].epsilon", "seed"])):
        assert set(rows["configuration"]) == {digest(cell.config).hex()}
        assert set(rows["seed"]) == {cell.seed}
        assert rows.select("inputs", "counts", "versions").n_unique() == 1
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


def test_a_folder_with_other_files_is_left_alone(experiment, tmp_path: Path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("")
    with pytest.raises(ConfigError, match="holds files that no experiment wrote"):
        run_experiment(experiment(), tmp_path / "mine", n_jobs=1)


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


def test_claims_are_held_against_results_and_shown_in_the_documentation(experiment, tmp_path: Path):
    folder = run_experiment(experiment(GRID + EXPECTED, "seeds=3"), tmp_path / "out", n_jobs=1).folder
    table = pl.read_csv(folder / "expected.csv")
    assert table["verdict"].to_list() == ["agrees", "differs"]
    mae = values(folder).filter(pl.col("measure") == "mae", pl.col("variant") == "uniform")
    sides = [mae.filter(pl.col("mechanism[0].epsilon") == e)["value"].to_numpy() for e in (9, 1)]
    assert table["value"][0] == pytest.approx((sides[0] / sides[1]).mean())
    for source, target in (("summary.csv", "e.csv"), ("expected.csv", "e-expected.csv")):
        (tmp_path / target).write_bytes((folder / source).read_bytes())
    configs = tmp_path / "configs"
    configs.mkdir()
    (configs / "e.yaml").write_text(GRID + EXPECTED)
    (configs / "f.yaml").write_text(GRID.replace("name: e", "name: f"))
    page = experiments_page(configs, tmp_path)
    assert "## e\n\nwhich" in page
    assert "| variant | 1 | 9 |" in page
    assert "impossible; mae: uniform | nobody | ≤ -1 |" in page
    assert "| **differs** |" in page
    assert page.endswith("No full run is saved.\n")


CHOOSE = """
choose:
  at_least: {pearson: 0.3}
  at_most: {landmark_budget/period_loss: 20}
"""


@pytest.mark.skipif(not HAS_PLOTS, reason="matplotlib is not installed")
def test_advice_names_the_best_setting_within_the_limits_and_writes_its_configuration(experiment, tmp_path: Path):
    text = GRID.replace("[1, 9]", "[1, 9, 19]") + CHOOSE.replace("20", "10")
    outcome = run_experiment(experiment(text), tmp_path / "out", n_jobs=1)
    table = pl.read_csv(outcome.folder / "frontier.csv")
    assert (table["mechanism[0].epsilon"] == 19).to_list() == (~table["allowed"]).to_list() or (
        not table.filter(pl.col("mechanism[0].epsilon") == 19)["allowed"].any()
    )
    best = table.filter(pl.col("best")).row(0, named=True)
    allowed = table.filter(pl.col("allowed"))
    assert best["mean pearson"] == allowed["mean pearson"].max()
    assert best["mean landmark_budget/period_loss"] <= 10
    ready = load(outcome.folder / "best.yaml", [f"output.path={tmp_path / 'best'}"])
    assert (
        ready.mechanism[0].epsilon
        == best["mechanism[0].epsilon"]
        == outcome.manifest["choice"]["best"]["values"]["mechanism[0].epsilon"]
    )
    assert run(ready).exit_code == 0
    assert (outcome.folder / "figures" / "frontier.svg").read_text().startswith("<?xml")


@pytest.mark.skipif(not HAS_PLOTS, reason="matplotlib is not installed")
def test_limits_that_nothing_keeps_give_no_advice(experiment, tmp_path: Path):
    text = GRID + CHOOSE.replace("0.3", "0.9999")
    outcome = run_experiment(experiment(text), tmp_path / "out", n_jobs=1)
    assert outcome.manifest["choice"]["best"] is None
    assert not (outcome.folder / "best.yaml").exists()


FIGURES = """
figures:
  - {file: line.svg, type: line, x: "mechanism[0].epsilon", y: mae, by: variant, log_x: true, title: "<b> & more"}
  - {file: scatter.png, type: scatter, x: landmark_budget/period_loss, y: mae, by: variant}
  - {file: box.svg, type: box, x: variant, y: mae, where: {"mechanism[0].epsilon": 9}}
  - {file: heat.svg, type: heat_map, x: "mechanism[0].epsilon", y: variant, value: mae}
"""


@pytest.mark.skipif(not HAS_PLOTS, reason="matplotlib is not installed")
def test_figures_show_what_is_asked_for_and_are_the_same_every_time(experiment, tmp_path: Path):
    from xml.etree import ElementTree

    outcome = run_experiment(experiment(GRID + FIGURES), tmp_path / "out", n_jobs=1)
    written = [one["file"] for one in outcome.manifest["figures"]]
    assert written == ["figures/line.svg", "figures/scatter.png", "figures/box.svg", "figures/heat.svg"]
    line = (outcome.folder / "figures/line.svg").read_text()
    assert {"uniform", "adaptive", "mae (people)", "<b> & more"} <= set(ElementTree.fromstring(line).itertext())
    assert (outcome.folder / "figures/scatter.png").read_bytes()[:4] == b"\x89PNG"
    again = run_experiment(experiment(GRID + FIGURES), tmp_path / "out", n_jobs=1)
    assert (again.folder / "figures/line.svg").read_text() == line


def test_a_missing_plotting_library_is_told_before_anything_runs(experiment, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"penstock\[plot\]"):
        run_experiment(experiment(GRID + FIGURES), tmp_path / "out", n_jobs=1)
    assert not (tmp_path / "out").exists()


def test_attacks_and_other_functions_are_measures(experiment, tmp_path: Path, monkeypatch):
    (tmp_path / "own_attack.py").write_text(
        "def advantage(cell):\n    return cell.released.shape[1] + cell.seed / 10\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    text = GRID.replace("measures: [", "measures: [own_attack:advantage, ")
    table = values(run_experiment(experiment(text), tmp_path / "out", n_jobs=1).folder)
    found = table.filter(pl.col("measure") == "own_attack:advantage").sort("seed")["value"].unique().to_list()
    assert np.allclose(sorted(found), [24.1, 24.2])


def test_the_command_line(experiment, tmp_path: Path, capsys):
    from pipeline.cli import main

    (tmp_path / "base.yaml").write_text(BASE)
    (tmp_path / "e.yaml").write_text(GRID + "reduced: {seeds: 1}\n")
    words = ["experiment", str(tmp_path / "e.yaml"), "--out", str(tmp_path / "out"), "--jobs", "1", "--reduced"]
    assert main(words) == 0
    assert "4: 4 done (0 of them before), 0 failed; 1 counts made" in capsys.readouterr().out
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["resumed"] == 4
    assert main([*words, "--set", "measures=[mea]"]) == 2
    assert "measures" in capsys.readouterr().err
    assert main([*words[:-3], "--jobs", "0"]) == 2
    assert yaml.safe_load((tmp_path / "out" / "experiment.json").read_text())["name"] == "e"
