"""Table of alternative readings of the published utility figures."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from penstock.evaluation.papers.pyrgelis_utility import BOXES, SHOWN, differences, main, readings
from penstock.evaluation.utility import mean_relative_error

PEOPLE, GROUP = 130, 90


@pytest.fixture(scope="module")
def presence():
    rng = np.random.default_rng(0)
    busy = rng.random((PEOPLE, 100, 168)) < rng.random((1, 100, 1)) * rng.random((1, 1, 168))
    busy[:, :4] = False  # nobody is ever in the first cells
    return busy


@pytest.fixture(scope="module")
def table(presence):
    return differences(lambda box: presence, group_size=GROUP, n_groups=1)


def row(table, defense, reading="as here"):
    return table.row(by_predicate=(pl.col("defense") == defense) & (pl.col("reading") == reading), named=True)


def test_every_reading_is_measured_once(table):
    assert table.select("defense", "reading").is_unique().all()
    assert table.height == len(list(readings()))
    assert table.select(pl.all_horizontal(pl.col(SHOWN).is_finite())).to_series().all()
    assert {reading.box for reading in readings()} == set(BOXES.values())


def test_true_counts_are_perfect_but_for_cells_that_nobody_visits(table):
    assert row(table, "true counts") == {"defense": "true counts", "reading": "as here"} | dict(
        zip(SHOWN, (0.0, 0.0, 1.0, 1.0, 0.0, pytest.approx(0.96)))
    )


def test_coarse_readings_are_those_of_distinct_people_unless_they_say_otherwise(table, presence):
    group = presence[np.random.default_rng(1).choice(PEOPLE, GROUP, replace=False)]
    days = np.repeat(group.reshape(GROUP, 100, 7, 24).any(axis=3).sum(axis=0), 24, axis=1)
    squares = group.reshape(GROUP, 5, 2, 5, 2, 168).any(axis=(2, 4)).sum(axis=0).repeat(2, axis=0).repeat(2, axis=1)
    for defense, released in (("TG 1 day", days), ("SPG 5x5", squares.reshape(100, 168))):
        assert row(table, defense)["mre"] == pytest.approx(mean_relative_error(group.sum(axis=0), released))
    assert row(table, "SPG 5x5", "sum of the four counts")["mre"] > row(table, "SPG 5x5")["mre"]
    assert (
        row(table, "TG 1 day", "the last 12 hours not released")["js_distance"] > row(table, "TG 1 day")["js_distance"]
    )


def test_the_command_needs_data(capsys, monkeypatch):
    monkeypatch.delenv("PENSTOCK_DATA", raising=False)
    with pytest.raises(SystemExit):
        main([])
    assert "cabspotting" in capsys.readouterr().err
