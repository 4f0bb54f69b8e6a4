"""Sweeps over traces: a trial equals a run; landmarks by share and shape; thinning by time alone."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import polars as pl
import pytest
import yaml

from penstock.mechanisms.core.plugin import ConfigError, DataError
from penstock.pipeline.config.run import loads
from penstock.pipeline.experiments.load import loads_experiment
from penstock.pipeline.experiments.measures import measure
from penstock.pipeline.experiments.runner import run_experiment
from penstock.pipeline.experiments.trial import read_people, reading_config, run_trial, write_people
from penstock.pipeline.releasing.traces import landmark_mask
from penstock.pipeline.windows.landmarks import DrawnLandmarks, Landmarks
from tests.tools.small_configuration import run_locally as run

BASE = """\
name: walks
source: {type: synthetic, seed: 1, n_users: 12, from: 2024-01-01T00:00:00Z, until: 2024-01-01T12:00:00Z}
space: {type: grid, south: 37.74, north: 37.82, west: -122.47, east: -122.37, rows: 3, columns: 3}
windows: {type: timestamps, gap: 10m}
landmarks: {drawn: {share: 0.5}}
mechanism: {type: landmark_uniform, noise: planar_laplace, epsilon: 1}
accountants: [{type: landmark_budget}]
utility: [mae]
output: {path: unused, ledger_source: events}
"""
SWEEP = """\
name: traces
question: which
base: base.yaml
measures: [mae, share_published, share_landmarks, epsilon_stated, landmark_budget/budget_spent/max]
variants:
  uniform: {mechanism: {type: landmark_uniform, noise: planar_laplace, epsilon: 1}}
  skip: {mechanism: {type: landmark_skip, noise: planar_laplace, epsilon: 1}}
grid: {landmarks.drawn.share: [0.25, 1.0]}
seeds: 2
"""


@pytest.fixture
def sweep(tmp_path):
    (tmp_path / "base.yaml").write_text(BASE)
    return loads_experiment(SWEEP, "e.yaml", tmp_path)


def test_a_trial_releases_the_bytes_of_a_plain_run(sweep, tmp_path):
    one = sweep.trials[-1].config
    write_people(reading_config(one), tmp_path / "events")
    finished = run_trial(one, read_people(tmp_path / "events"))
    plain = run(one, tmp_path / "plain")
    released = pl.read_parquet(plain.folder / "public/traces.parquet")
    assert np.array_equal(released.select("latitude", "longitude").to_numpy(), finished.released)
    assert released["landmark"].to_list() == finished.landmarks.tolist()
    assert measure("mae").compute(finished) == plain.manifest["utility"]["mae"]


def test_a_sweep_over_traces_has_measures_and_accounts(sweep, tmp_path):
    result = run_experiment(sweep, tmp_path / "out", n_jobs=1)
    assert result.exit_code == 0
    table = pl.read_csv(tmp_path / "out/summary.csv")
    actual = {
        (variant, share, name): mean
        for variant, share, name, mean in table.select(
            "variant", "landmarks.drawn.share", "measure", "mean"
        ).iter_rows()
    }
    assert actual["uniform", 0.25, "share_landmarks"] == pytest.approx(0.25, abs=0.05)
    assert actual["uniform", 1.0, "share_landmarks"] == 1
    assert actual["skip", 1.0, "share_published"] == 0
    assert actual["skip", 1.0, "mae"] > actual["uniform", 0.25, "mae"] > 0
    assert actual["uniform", 1.0, "landmark_budget/budget_spent/max"] == pytest.approx(1)
    units = dict(table.select("measure", "unit").iter_rows())
    assert units["mae"] == "metres"
    assert len(list((tmp_path / "out/people").glob("*.parquet"))) == 1


def test_measures_of_counts_are_refused_on_traces(sweep, tmp_path):
    write_people(reading_config(sweep.trials[0].config), tmp_path / "events")
    finished = run_trial(sweep.trials[0].config, read_people(tmp_path / "events"))
    for name in ("mre", "guess_mae", "epsilon_sum", "epsilon_in_3"):
        with pytest.raises(DataError, match="traces have the measures"):
            measure(name).compute(finished)


def test_landmarks_are_drawn_by_share():
    lengths = np.array([1000, 3, 500])
    starts = np.cumsum(lengths) - lengths
    n = int(lengths.sum())
    users = np.array([[7, 1], [8, 1], [9, 1]])
    given = ("UTC", np.arange(n), np.zeros((n, 2)), starts, users)
    masks = [landmark_mask(Landmarks(drawn=DrawnLandmarks(share=s)), *given) for s in (0.0, 0.3, 0.6, 1.0)]
    sums = [np.add.reduceat(mask, starts, dtype=int).tolist() for mask in masks]
    assert sums == [[0, 0, 0], [300, 1, 150], [600, 2, 300], [1000, 3, 500]]
    assert all((small <= large).all() for small, large in pairwise(masks))
    alone = landmark_mask(
        Landmarks(drawn=DrawnLandmarks(share=0.3)),
        *("UTC", np.arange(500), np.zeros((500, 2)), np.array([0]), users[2:]),
    )
    assert np.array_equal(alone, masks[1][starts[2] :])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mode": "deployment", "seed": None, "noise_key": "env:KEY", "utility": []}, "drawn.*deployment"),
        (
            {
                "windows": {"type": "fixed", "size": "1h"},
                "mechanism": {"type": "landmark_uniform", "epsilon": 1.0},
                "utility": [],
            },
            "drawn.*counts have no points",
        ),
    ],
)
def test_drawn_landmarks_are_for_simulated_traces(changes, message):
    sections = yaml.safe_load(BASE) | changes
    sections["source"] = sections["source"] | {"from": "2024-01-01T00:00:00Z", "until": "2024-01-01T12:00:00Z"}
    with pytest.raises(ConfigError, match=message):
        loads(json.dumps({name: value for name, value in sections.items() if value is not None}))


def test_thinning_depends_on_times_alone(tmp_path):
    rows = "user,time,lat,lon\n" + "".join(f"a,{t},37.8,-122.4\n" for t in (0, 100, 299, 300, 650, 900))
    (tmp_path / "events.csv").write_text(rows)
    sections = f"""\
name: thin
source:
  type: csv
  path: {tmp_path}/events.csv
  from: 1970-01-01T00:00:00Z
  until: 1970-01-01T01:00:00Z
  columns: {{user: user, time: time, latitude: lat, longitude: lon}}
  time_format: unix_s
space: {{type: grid, south: 37, north: 38, west: -123, east: -122, rows: 1, columns: 1}}
windows: {{type: timestamps, gap: 5m}}
mechanism: {{type: planar_laplace, epsilon: 1}}
output: {{path: {tmp_path}/out, report: false}}
"""
    result = run(loads(sections))
    times = pl.read_parquet(tmp_path / "out/public/traces.parquet")["time"].dt.epoch("s").to_list()
    assert times == [0, 300, 650]
    assert (result.manifest["rows"]["used"], result.manifest["rows"]["duplicates"]) == (6, 3)
