"""Trials of experiments: shared counts, byte equality with a plain run, resumption, failures."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from penstock.mechanisms.core.plugin import ConfigError, DataError
from penstock.pipeline.config.plan import make_plan
from penstock.pipeline.counting.contributions import ContributionRows
from penstock.pipeline.experiments.measures import measure, trial_record
from penstock.pipeline.experiments.pieces import WORKER_DIED, run_tasks
from penstock.pipeline.experiments.runner import run_experiment
from penstock.pipeline.experiments.trial import (
    counts_of,
    read_people,
    reading_config,
    release,
    run_trial,
    write_people,
)
from penstock.pipeline.output import files, manifest
from penstock.pipeline.output.tables import releases_table
from tests.tools.experiment_cases import GRID, experiment_in, values
from tests.tools.small_configuration import run_locally as run


@pytest.fixture
def experiment(tmp_path: Path):
    return experiment_in(tmp_path)


def people_of(config, folder: Path):
    write_people(reading_config(config), folder / "people.parquet")
    return read_people(folder / "people.parquet")


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
    one = experiment(f"name: e\nquestion: q\nbase: base.yaml\nmeasures: [mae]\nseeds: 1\nset: {change}\n").trials[0]
    people = people_of(one.config, tmp_path)
    plain = run(one.config, tmp_path / "plain")
    plan = make_plan(one.config)
    counts = counts_of(plan, people)
    made = [one for batch in release(plan, counts.bounded) for one in batch.releases]
    windows = [plan.grid.windows(one.window, one.window)[0] for one in made]
    table = releases_table(made, windows, plan.space.cells, 0)
    files.write_part(tmp_path, "cell", table)
    # Written and read again as the run's own file is, so that equal tables are equal bytes of values.
    assert pl.read_parquet(tmp_path / "cell.parquet").equals(pl.read_parquet(plain.folder / "public/releases.parquet"))
    truth = pl.read_parquet(plain.folder / "operator/truth.parquet")
    for column, array in (("count", counts.truth), ("bounded", counts.bounded)):
        assert truth[column].to_numpy().tolist() == array.ravel().tolist()
    finished = run_trial(one.config, people)
    for name, value in plain.manifest["utility"].items():
        assert measure(name).compute(finished) == value


def test_figures_of_accountants_are_those_of_the_accounts_file(experiment, tmp_path: Path):
    text = GRID + "set: {accountants: [{type: landmark_budget}, {type: composition, w: 3}]}\n"
    one = experiment(text).trials[0]
    finished = run_trial(one.config, people_of(one.config, tmp_path))
    accounts = pl.read_parquet(run(one.config, tmp_path / "plain").folder / "public/accounts.parquet")
    for name in ("composition/w_event_epsilon", "composition/user_epsilon"):
        accountant, figure = name.split("/")
        rows = accounts.filter(pl.col("accountant") == accountant, pl.col("name") == figure)
        assert measure(name).compute(finished) == rows.filter(pl.col("window").is_null())["value"].item()
        for summary in ("min", "mean", "max"):
            expected = getattr(rows["value"], summary)()
            assert measure(f"{name}/{summary}").compute(finished) == pytest.approx(expected, rel=1e-12)
    in_three = measure("composition/w_event_epsilon").compute(finished)
    assert measure("epsilon_in_3").compute(finished) == pytest.approx(in_three, rel=1e-12)
    last = accounts.filter(pl.col("name") == "landmark_loss").sort("window")["value"][-1]
    assert measure("landmark_budget/landmark_loss").compute(finished) == last
    with pytest.raises(DataError, match="it gave budget_left, budget_spent"):
        measure("landmark_budget/profit").compute(finished)


def test_a_source_is_read_once_for_all_trials_that_share_it(experiment, tmp_path: Path):
    read = []

    def told(done: int, failed: int, n_read: int) -> None:
        read.append(n_read)

    text = GRID.replace('"mechanism[0].epsilon": [1, 9]', "bounding.max_cells: [1, 2]")
    outcome = run_experiment(experiment(text), tmp_path / "out", n_jobs=1, listener=told)
    assert (outcome.exit_code, outcome.manifest["cells"], read[-1]) == (0, 8, 1)
    assert values(outcome.folder)["people"].n_unique() == 1
    # Another source is another file.
    run_experiment(experiment(text, "base.source.n_users=61"), tmp_path / "out", n_jobs=1, listener=told)
    assert read[-1] == 1
    assert len(list((tmp_path / "out" / "people").glob("*.parquet"))) == 2


def test_an_interrupted_experiment_goes_on_and_ends_with_the_same_bytes(experiment, tmp_path: Path, other_code):
    whole = run_experiment(experiment(), tmp_path / "whole", n_jobs=1).folder

    def interrupt(done: int, failed: int, counts: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_experiment(experiment(), tmp_path / "resumed", n_jobs=1, listener=interrupt)
    broken = next((tmp_path / "resumed" / "cells").glob("*.json"))
    broken.write_text(broken.read_text()[:20])  # as a crashed disk might leave it
    done = []

    def told(n_done: int, failed: int, counts: int) -> None:
        done.append(n_done)

    outcome = run_experiment(experiment(), tmp_path / "resumed", n_jobs=1, listener=told)
    assert (outcome.manifest["resumed"], sorted(set(done))) == (2, [*range(2, 9)])
    for name in ("results.parquet", "summary.parquet", "summary.csv"):
        assert (whole / name).read_bytes() == (tmp_path / "resumed" / name).read_bytes()
    done.clear()
    assert run_experiment(experiment(), tmp_path / "resumed", n_jobs=1).manifest["resumed"] == 8
    run_experiment(experiment(GRID, "seeds=3"), tmp_path / "resumed", n_jobs=1, listener=told)
    assert sorted(set(done)) == [*range(8, 13)]  # the new seed of four settings
    other_code()
    again = run_experiment(experiment(), tmp_path / "resumed", n_jobs=1).manifest
    assert again["resumed"] == 0


def test_code_that_decides_is_told_from_code_that_shows(tmp_path: Path):
    def digest() -> str:
        return manifest.code_digest.__wrapped__(tmp_path)

    for name in ("pipeline/run.py", "pipeline/reporting/page.py", "mechanisms/core/a.py", "tests/test.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("one")
    before = digest()
    for other in ("pipeline/reporting/page.py", "tests/test.py", "mechanisms/core/a.pyc"):
        (tmp_path / other).write_text("two")
        assert digest() == before, other
    (tmp_path / "pipeline/run.py").rename(tmp_path / "pipeline/walk.py")
    renamed = digest()
    (tmp_path / "mechanisms/core/a.py").write_text("two")
    assert len({before, renamed, digest()}) == 3
    packages = {file.name for file in manifest.ROOT.iterdir() if (file / "__init__.py").exists()}
    assert set(manifest.CODE) <= packages


def test_parallel_processes_give_the_same_bytes(experiment, tmp_path: Path):
    one = run_experiment(experiment(), tmp_path / "one", n_jobs=1).folder
    two = run_experiment(experiment(), tmp_path / "two", n_jobs=2).folder
    assert (one / "results.parquet").read_bytes() == (two / "results.parquet").read_bytes()


def test_a_failed_cell_is_listed_and_the_others_go_on(experiment, tmp_path: Path):
    text = GRID + "set: {accountants: [{type: landmark_budget, budget: 5}]}\n"
    outcome = run_experiment(experiment(text), tmp_path / "out", n_jobs=1)
    assert outcome.exit_code == 1
    failed = outcome.manifest["failed"]
    assert {tuple(one["values"].values()) for one in failed} == {("uniform", 9), ("adaptive", 9)}
    assert all(one["problem"].startswith("the run was stopped: ") for one in failed)
    assert values(outcome.folder)["mechanism[0].epsilon"].unique().to_list() == [1]
    assert json.loads((outcome.folder / "experiment.json").read_text())["failed"] == failed


def test_a_source_that_cannot_be_read_fails_its_own_trials_only(experiment, tmp_path: Path):
    path = tmp_path / "events.parquet"
    event = {"user": ["a"], "time": ["2024-01-01T00:00:00Z"], "latitude": [37.75], "longitude": [-122.4]}
    pl.DataFrame(event).write_parquet(path)
    times = "from: 2024-01-01T00:00:00Z, until: 2024-01-02T00:00:00Z"
    broken = f"  other: {{source: {{type: parquet, path: {path}, {times}}}}}\n"
    made = experiment(GRID.replace("[1, 9]", "[1]").replace("variants:\n", f"variants:\n{broken}"))
    path.write_bytes(b"PAR1, and no more")
    outcome = run_experiment(made, tmp_path / "out", n_jobs=1)
    failed = outcome.manifest["failed"]
    assert {one["values"]["variant"] for one in failed} == {"other"}
    assert all(one["problem"].startswith(f"reading: {path}: ") for one in failed)
    assert len(failed) == 2
    assert "other" not in values(outcome.folder)["variant"]


def test_a_task_that_kills_its_process_takes_no_other_with_it():
    tasks = dict.fromkeys(range(3), (int, ("1",))) | {3: (os._exit, (9,)), 4: (int, ("x",))}
    ended = dict(run_tasks(tasks, 2))
    assert ended == dict.fromkeys(range(3)) | {3: WORKER_DIED, 4: ended[4]}
    assert ended[4].startswith("ValueError")


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="reads the kernel's list of child processes")
def test_worker_processes_end_with_a_parent_that_is_killed():
    script = """
import time
from penstock.pipeline.experiments.pieces import run_tasks
if __name__ == "__main__":
    for number, _ in run_tasks({0: (int, ("1",)), 1: (time.sleep, (300,)), 2: (time.sleep, (300,))}, 2):
        print(number, flush=True)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as parent:
        assert parent.stdout.readline() == b"0\n"  # a worker has run a task
        children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
        assert len(children) >= 2
        parent.kill()
        parent.wait()
        until = time.monotonic() + 60
        while left := [child for child in children if _runs(child)]:
            assert time.monotonic() < until, left
            time.sleep(0.05)


def _runs(process: str) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_folder_with_other_files_is_left_alone(experiment, tmp_path: Path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("")
    with pytest.raises(ConfigError, match="holds files that no experiment wrote"):
        run_experiment(experiment(), tmp_path / "mine", n_jobs=1)


def test_trials_count_random_groups_of_the_stated_size(experiment, tmp_path: Path):
    text = """\
name: e
question: which
base: base.yaml
measures: [mae, guess_mae]
set: {bounding.max_cells: null, landmarks: null, accountants: []}
variants:
  raw: {mechanism: {type: raw}}
  ranges: {mechanism: {type: fixed_ranges, width: 4}}
  sampled: {mechanism: [{type: sampling, rate: 0.5}, {type: raw}]}
seeds: 3
"""
    actual = experiment(text + "group_size: 20\n")
    outcome = run_experiment(actual, tmp_path / "out", n_jobs=1)
    assert (outcome.exit_code, len(list((outcome.folder / "people").glob("*.parquet")))) == (0, 1)
    people = people_of(actual.trials[0].config, tmp_path)
    groups = set()
    for one in actual.trials:
        plan = make_plan(one.config)
        counts = counts_of(plan, people, 20)
        assert 0 < counts.truth.max() <= 20
        if one.values["variant"] == "sampled":
            assert 0.4 < counts.bounded.sum() / counts.truth.sum() < 0.6
            assert (counts.bounded <= counts.truth).all()
        else:
            assert (counts.bounded == counts.truth).all()
        groups.add((one.seed, counts.truth.tobytes()))
    assert len(groups) == 3  # a group for each seed, the same for every variant
    table = values(tmp_path / "out").filter(measure="mae")
    assert (table.filter(variant="raw")["value"] == 0).all()
    assert (table.filter(variant="ranges")["value"] > 0).all()
    # Everybody is a group, too: what it counts is what a plain run counts.
    plan = make_plan(actual.trials[0].config)
    everybody, plain = counts_of(plan, people, 60), counts_of(plan, people)
    assert (everybody.truth == plain.truth).all()
    assert (everybody.bounded == plain.bounded).all()
    too_many = run_experiment(experiment(text + "group_size: 61\n"), tmp_path / "few", n_jobs=1)
    assert too_many.exit_code == 1
    assert "group_size: 61 people are not to be had; the source shows 60" in too_many.manifest["failed"][0]["problem"]


def test_intervals_are_measured_where_they_are_stated_and_accounts_where_they_are_read(experiment):
    text = GRID.replace(
        "  adaptive:", "  filtered: {mechanism: [{type: laplace, epsilon: 1}, {type: filter}]}\n  adaptive:"
    )
    trials = {one.values["variant"]: one.config for one in experiment(text).trials}
    # Fifty people in each cell, who never move.
    user, window = (axis.ravel() for axis in np.indices((450, 24)))
    people = ContributionRows(user[:, None], window + 1, user % 9)
    names = ("coverage", "interval_width", "interval_score", "mae")
    actual = {
        name: {row["measure"]: float(row["value"]) for row in trial_record(config, people, names)["measures"]}
        for name, config in trials.items()
    }
    assert all(math.isnan(actual["uniform"][name]) for name in names[:3])
    assert 0.8 < actual["filtered"]["coverage"] <= 1
    assert actual["filtered"]["interval_score"] >= actual["filtered"]["interval_width"] > 0
    assert not run_trial(trials["uniform"], people, ()).accounts
    assert run_trial(trials["uniform"], people, ("landmark_budget",)).accounts.keys() == {"landmark_budget"}


def test_a_key_that_only_some_trials_read_is_shared_and_one_that_none_reads_is_refused(experiment):
    head = "name: e\nquestion: q\nbase: base.yaml\nmeasures: [mae]\nset: {budget_period: 2h}\nvariants:\n"
    uniform = "  a: {mechanism: {type: landmark_uniform, epsilon: 1}}\n"
    laplace = "  b: {mechanism: {type: laplace, epsilon: 1}, landmarks: null, accountants: []}\n"
    assert {trial.config.budget_period for trial in experiment(head + uniform + laplace).trials} == {7_200_000}
    with pytest.raises(ConfigError, match=r":5: set\.budget_period: must be left out: no mechanism and no accountant"):
        experiment(head + laplace)
