"""Sensor schedules: public, deterministic, and as configured."""

import pickle

import numpy as np
import polars as pl
import pytest
from scipy import stats

from penstock.mechanisms.core.plugin import DataError, ParameterError
from penstock.pipeline.monitoring.verify import verify
from penstock.pipeline.windows.sensors import Sensors
from tests.tools.small_configuration import published, run_locally

CELLS = tuple(f"c{i}" for i in range(12))


def test_all_sensors_publish_by_default():
    for sensors in (Sensors(), Sensors(active="all")):
        schedule = sensors.prepare(CELLS, seed=1)
        assert schedule.all_active
        assert schedule.masks(3, 5).tolist() == [[True] * 12] * 3


def test_fixed_sensors_publish_in_every_window():
    schedule = Sensors(fixed=("c7", "c2", "c7")).prepare(CELLS, seed=1)
    assert not schedule.all_active
    for mask in schedule.masks(1, 4):
        assert np.flatnonzero(mask).tolist() == [2, 7]


def test_one_random_sensor_is_the_same_for_everybody():
    schedule = Sensors(active="one_random").prepare(CELLS, seed=7)
    masks = schedule.masks(1, 1000)
    assert masks.sum(axis=1).tolist() == [1] * 1000
    assert (schedule.masks(400, 600) == masks[399:600]).all()
    assert (schedule.mask(77) == masks[76]).all()
    assert pickle.loads(pickle.dumps(schedule)) == schedule
    # Fixed for ever: published schedules must stay reproducible.
    assert schedule.random_cells(1, 8).tolist() == [5, 3, 8, 7, 7, 1, 2, 0]
    assert (Sensors(active="one_random").prepare(CELLS, seed=8).masks(1, 1000) != masks).any()


@pytest.mark.parametrize("seed", [0, 1, 7, 2**64 - 1, 2**80 + 3, -1])
def test_random_sensors_are_uniform_and_independent_of_the_window_before(seed):
    cells = Sensors(active="one_random").prepare(CELLS, seed=seed).random_cells(1, 60_000)
    assert stats.chisquare(np.bincount(cells, minlength=12)).pvalue > 1e-6
    pairs = np.bincount(cells[1:] * 12 + cells[:-1], minlength=144)
    assert stats.chisquare(pairs).pvalue > 1e-6


def test_neighbouring_seeds_give_unrelated_schedules():
    one, other = (Sensors(active="one_random").prepare(CELLS, seed=s).random_cells(1, 60_000) for s in (1, 2))
    for lag in range(5):
        same = np.mean(one[lag:] == other[: len(other) - lag])
        assert abs(same - 1 / 12) < 6 * np.sqrt(1 / 12 / 60_000)


def test_a_file_says_which_sensors_publish(tmp_path):
    file = tmp_path / "schedule.csv"
    file.write_text("\ufeffcell,window\nc3,2\nc1,2\nc3,2\nc0,9\n", encoding="utf-8")
    schedule = Sensors(schedule=str(file)).prepare(CELLS, seed=1)
    assert [np.flatnonzero(mask).tolist() for mask in schedule.masks(1, 3)] == [[], [1, 3], []]
    assert np.flatnonzero(schedule.mask(9)).tolist() == [0]
    assert schedule.masks(10, 12).any(axis=1).tolist() == [False] * 3
    file.unlink()
    assert np.flatnonzero(schedule.mask(9)).tolist() == [0]


def test_an_empty_schedule_silences_every_sensor(tmp_path):
    file = tmp_path / "schedule.csv"
    file.write_text("window,cell\n")
    assert not Sensors(schedule=str(file)).prepare(CELLS, seed=1).masks(1, 5).any()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("window;cell\n1;c1\n", ":1: the header must name the columns window and cell"),
        ("", ":1: the header"),
        ("window,cell\n1,c1\n0,c1\n", ":3: window '0' must be a whole number of at least 1"),
        ("window,cell\none,c1\n", ":2: window 'one'"),
        ("window,cell\n1\n", ":2: '' is not a cell"),
        ("window,cell\n1,c13\n", r":2: 'c13' is not a cell of the space \(did you mean 'c3'\?\)"),
    ],
)
def test_a_wrong_file_is_refused_with_its_line(tmp_path, text, message):
    file = tmp_path / "schedule.csv"
    file.write_text(text)
    with pytest.raises(DataError, match=message):
        Sensors(schedule=str(file)).prepare(CELLS, seed=1)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match=r"nothing\.csv"):
        Sensors(schedule=str(tmp_path / "nothing.csv")).prepare(CELLS, seed=1)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"active": "some"}, "active: 'some' .* all, one_random"),
        ({"active": "all", "fixed": ("c1",)}, "fixed: .* left out if active is given"),
        ({"fixed": ("c1",), "schedule": "a.csv"}, "schedule: 'a.csv' .* left out if fixed is given"),
    ],
)
def test_contradictions_are_refused(values, message):
    with pytest.raises(ParameterError, match=message):
        Sensors(**values)


def test_an_unknown_fixed_cell_is_refused_with_the_nearest():
    with pytest.raises(ParameterError, match=r"fixed: 'c111' .*did you mean 'c11'"):
        Sensors(fixed=("c111",)).prepare(CELLS, seed=1)


def test_a_run_is_whole_without_the_windows_in_which_no_sensor_is_active(tmp_path):
    """Such a window has no row; one that had an active sensor, and is missing, is named."""
    file = tmp_path / "schedule.csv"
    file.write_text("window,cell\n1,r00c00\n3,r01c01\n4,r00c01\n6,r01c00\n", encoding="utf-8")
    folder = run_locally(published(tmp_path / "out", "report: false", **{"sensors.schedule": str(file)})).folder
    assert windows_check(folder) == (True, "4 released of 6 planned, in order")
    releases = folder / "public" / "releases.parquet"
    rows = pl.read_parquet(releases)
    rows.filter(pl.col("window") != 2).write_parquet(releases)  # nothing is lost: it has no row
    assert windows_check(folder)[0]
    for lost in (4, 6):
        rows.filter(pl.col("window") != lost).write_parquet(releases)
        passed, detail = windows_check(folder)
        assert not passed
        assert detail.endswith(f"1 of 6 are missing ({lost})")


def windows_check(folder):
    """Run `penstock verify` and return its result for windows."""
    return next((check.passed, check.detail) for check in verify(folder) if check.name == "windows")
