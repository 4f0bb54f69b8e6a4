"""Other readings of the published utility tables, and that the experiments say why their figures differ."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from experiments_page import differences_table, explained, far_figures, measured

from evaluation.papers.pyrgelis_utility import BOXES, SHOWN, differences, main, readings
from evaluation.utility import mean_relative_error
from pipeline.config.yaml import parse, plain

ROOT = Path(__file__).parent.parent
PEOPLE, GROUP = 130, 90
FILES = (ROOT / "configs" / "experiments").glob("sfc_*.yaml")
#: Sweeps; studies have no such tables.
EXPERIMENTS = sorted(path.stem for path in FILES if "\nbase: " in path.read_text(encoding="utf-8"))


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


def test_a_cell_that_nobody_visits_costs_much_and_can_be_left_out(table):
    own, without = row(table, "random guess"), row(table, "random guess", "cells that nobody visited left out")
    assert without["mre"] < own["mre"]
    assert row(table, "random guess", "600 m further east")["mre"] == own["mre"]  # here all boxes show the same


def test_groups_are_drawn_among_the_most_active(presence):
    seen = presence.copy()
    seen[12:, :, 1:] = False
    own = next(reading for reading in readings() if reading.defense == "TG 1 week")
    among = replace(own, most_active=12)
    found, alone = differences(lambda box: seen, [among], 12, 1), differences(lambda box: seen[:12], [own], 12, 1)
    assert found["mre"][0] == pytest.approx(alone["mre"][0])
    assert found["mre"][0] != pytest.approx(differences(lambda box: seen, [own], 12, 1)["mre"][0])


def test_smaller_groups_differ_more(table):
    few = row(table, "TG 1 day", "groups of 100")  # here the larger ones
    assert few["js_distance"] < row(table, "TG 1 day")["js_distance"]


def test_the_command_needs_data(capsys, monkeypatch):
    monkeypatch.delenv("PENSTOCK_DATA", raising=False)
    with pytest.raises(SystemExit):
        main([])
    assert "cabspotting" in capsys.readouterr().err


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_experiments_say_why_figures_are_not_the_paper_s(name):
    root, _ = parse((ROOT / "configs" / "experiments" / f"{name}.yaml").read_text(encoding="utf-8"), name)
    experiment = plain(root)
    results = ROOT / "docs" / "results"
    far = far_figures(measured(pl.read_csv(results / f"{name}.csv")), experiment.get("published") or {"rows": {}})
    told = [explained(difference, far) for difference in experiment.get("differences", ())]
    assert all(told), "a difference that is none any more"
    about = {pair for pairs in told for pair in pairs}
    assert set(far) <= about, "figures that differ without a reason"
    if (results / f"{name}-expected.csv").exists():
        verdicts = pl.read_csv(results / f"{name}-expected.csv")["verdict"].to_list()
        for claim, verdict in zip(experiment["expected"], verdicts):
            assert verdict == "agrees" or (claim["where"]["variant"], claim["measure"]) in about


def test_a_table_of_differences():
    summary = pl.DataFrame({"variant": ["a", "b"], "measure": ["mae"] * 2, "mean": [1.0, 3.14159]})
    experiment = {
        "labels": {"mae": "error"},
        "published": {"measures": ["mae"], "rows": {"a": [1.05], "b": [2.0]}},
        "differences": [
            {"measures": ["mae"], "why": "nobody\nknows"},
            {"measures": ["mae"], "settings": ["a"], "paper": "about 9", "why": "|Y| of it"},
        ],
    }
    assert differences_table(summary, experiment)[4:6] == [
        "| error: b | 2 | 3.14 | nobody knows |",
        "| error: a | about 9 | 1 | \\|Y\\| of it |",
    ]
    assert differences_table(summary, {}) == []
