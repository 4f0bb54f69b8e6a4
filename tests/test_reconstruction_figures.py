"""The paper's figures as tables: bounds above attacks, the paper's own formulas, and nobody's own row."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from penstock.accountants.inference.prior import chain_prior
from penstock.evaluation.papers.koga import (
    ATTACKS,
    BOUNDS,
    PREPARATIONS,
    chain_table,
    gaps_to_best_attack,
    people,
    real_tables,
)


@pytest.mark.parametrize("sigma", [None, 1.0])
def test_no_attack_beats_a_bound(sigma):
    settings = [("locations", 8.0, chain_prior(8, 0.1), 4, s, sigma) for s in (0, 2)]
    settings = [(f"{name} {s}", *rest) for s, (name, *rest) in zip((0, 2), settings)]
    table = chain_table(settings, n_draws=2, n_trajectories=400, n_samples=200)
    assert table.filter(pl.col("kind") == "attack")["quantity"].unique().sort().to_list() == sorted(ATTACKS)
    for (sweep,), part in table.partition_by("sweep", as_dict=True).items():
        attacked = part.filter(pl.col("kind") == "attack")["low"].max()
        bounds = dict(part.filter(pl.col("kind") == "bound").select("quantity", "mean").iter_rows())
        assert set(BOUNDS) | {"paper_loose", "paper_tight", "best"} == set(bounds), sweep
        assert min(bounds.values()) >= attacked
        assert bounds["tight"] <= bounds["paper_tight"] * (1 + 1e-9)
        assert bounds["best"] == pytest.approx(min(bounds.values()))
    ratios = gaps_to_best_attack(table)
    assert ratios["ratio"].min() > 0.9
    assert ratios.height == table.filter(pl.col("kind") == "bound").height


def made_up(folder: Path) -> Path:
    """Check-ins of 14 people in Gowalla's format over 280 days, each mostly at one place."""
    rng = np.random.default_rng(1)
    days = np.arange(0, 280, 4)
    lines = []
    for user in range(14):
        for day in days:
            place = user % 3 if rng.random() < 0.8 else int(rng.integers(6))
            time = np.datetime64("2010-01-01T12:00:00") + np.timedelta64(int(day), "D")
            lines.append(f"{user}\t{time}Z\t40.7\t-74.0\t{place}")
    (folder / "gowalla").mkdir(parents=True)
    (folder / "gowalla" / "gowalla_events.csv.gz").write_bytes(gzip.compress(("\n".join(lines) + "\n").encode()))
    return folder


def test_tables_of_people_hold_means_and_bins_only(tmp_path):
    tables = real_tables(made_up(tmp_path), [(0.1, "own")], n_draws=1, seed=1)
    assert set(tables) == {"figure3", "figure4", "figure6", "figure8"}
    for table in tables.values():
        assert table["people"].unique().to_list() == [14]
    for figure in ("figure3", "figure4"):
        # every person is in one range, and ranges of a few people say nothing about them
        assert tables[figure].group_by("bound").agg(pl.col("n").sum())["n"].to_list() == [14, 14]
        few = tables[figure].filter(pl.col("n") < 10)
        assert few["median"].null_count() == few.height
        assert tables[figure].filter(pl.col("n") >= 10)["median"].null_count() == 0
    success = tables["figure6"].filter(pl.col("quantity") == "map").sort("at")["mean"].to_list()
    assert success == sorted(success, reverse=True)


@pytest.mark.data
@pytest.mark.parametrize(("name", "expected"), [("gowalla", 42), ("foursquare", 183)])
def test_how_many_people_the_filters_leave(data_folder, name, expected):
    known = people(data_folder(name).parent, name, 0.01)
    assert known.n_people == expected
    assert ((known.trajectories < 100).sum(axis=1) >= PREPARATIONS[name]).all()
