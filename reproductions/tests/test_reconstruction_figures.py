"""The paper's figures as tables: bounds above attacks, and the paper's own formulas."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from penstock.mechanisms.core.plugin import DataError
from reproductions.koga import ATTACKS, BOUNDS, Swept, chain_figures, gaps_to_best_attack, trajectories
from reproductions.study import STUDIES
from tests.tools.real_data import data_folder as data_folder


@pytest.mark.parametrize("sigma", [0.0, 1.0])
def test_no_attack_beats_a_bound(sigma):
    for tolerance in (0, 2):
        figures = chain_figures(Swept("locations", 8, 8, 4, tolerance, sigma), 0.1, 2, 400, 200, seed=1)
        kinds = {kind: {} for kind in ("attack", "bound")}
        for name, values in figures.items():
            kind, quantity = name.split()
            kinds[kind][quantity] = values
        bounds = {name: mean for name, (mean, _, _) in kinds["bound"].items()}
        assert sorted(kinds["attack"]) == sorted(ATTACKS)
        assert set(BOUNDS) | {"paper_loose", "paper_tight", "best"} == set(bounds)
        assert min(bounds.values()) >= max(low for _, low, _ in kinds["attack"].values())
        assert bounds["tight"] <= bounds["paper_tight"] * (1 + 1e-9)
        assert bounds["best"] == pytest.approx(min(bounds.values()))


def test_the_table_of_a_chain_has_every_place_and_its_ratios():
    small = {"locations": 6, "windows": 3, "tolerance": 1, "sizes": (6, 8), "lengths": (2,), "sigmas": (1.0,)}
    study = STUDIES.get("reconstruction_chain")(**small, draws=1, trajectories=100, samples=50)
    pieces = study.pieces(None)
    tables = study.tables(None, {piece: study.measure(None, piece) for piece in pieces})
    table, ratios = tables["reconstruction_chain"], tables["reconstruction_chain_ratio"]
    n_quantities = len(BOUNDS) + 3 + len(ATTACKS)
    assert table.height == n_quantities * len(pieces) == n_quantities * (2 + 3 + 1 + 1 + 2)
    assert ratios.height == table.filter(kind="bound").height
    assert ratios["ratio"].min() > 0.5  # of a hundred trajectories
    assert table.filter(sweep="sigma")["figure"].unique().to_list() == [7]


def test_a_ratio_is_to_the_best_attack_of_the_same_place():
    rows = [("a", 1.0, "bound", "x", 0.6), ("a", 1.0, "attack", "y", 0.2), ("a", 1.0, "attack", "z", 0.3)]
    rows += [("a", 2.0, "bound", "x", 0.5), ("a", 2.0, "attack", "y", 0.0)]
    table = pl.DataFrame(rows, schema=["sweep", "at", "kind", "quantity", "mean"], orient="row")
    table = table.with_columns(low=pl.lit(None), high=pl.lit(None))
    assert gaps_to_best_attack(table)["ratio"].to_list() == pytest.approx([2.0, None], nan_ok=True)


def test_trajectories_from_visits():
    days = [20 * window for window in (0, 0, 0, 2, 0, 1, 3)]
    time = np.datetime64("2010-01-01T07:00", "ms") + np.array(days, "timedelta64[D]")
    visits = pl.DataFrame({"user": list("3333889"), "time": time, "place": [10, 20, 20, 30, 10, 10, 10]})
    # user 3: 20 twice beats 10 once; place 30 is elsewhere
    assert trajectories(visits, 1, n_top=2).tolist() == [[1, 2, 2, 2], [0, 0, 2, 2], [2, 2, 2, 0]]
    assert trajectories(visits, 2, n_top=2).tolist() == [[0, 0, 2, 2]]


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
    return folder / "gowalla"


def test_tables_of_people_hold_means_and_bins_only(tmp_path):
    study = STUDIES.get("reconstruction_checkins")(path=str(made_up(tmp_path)), uniform=(), sigmas=(), draws=1)
    data = study.data()
    tables = study.tables(data, {piece: study.measure(data, piece) for piece in study.pieces(data)})
    assert set(tables) == {"reconstruction_gowalla", "reconstruction_gowalla_ratio", "reconstruction_gowalla_bins"}
    for table in tables.values():
        assert table["people"].unique().to_list() == [14]
    bins = tables["reconstruction_gowalla_bins"]
    for figure in (3, 4):
        # every person is in one range, and ranges of a few people say nothing about them
        selected = bins.filter(figure=figure)
        assert selected.group_by("bound").agg(pl.col("n").sum())["n"].to_list() == [14, 14]
        few = selected.filter(pl.col("n") < 10)
        assert few["median"].null_count() == few.height
        assert selected.filter(pl.col("n") >= 10)["median"].null_count() == 0
    swept = tables["reconstruction_gowalla"].filter(figure=6, quantity="map").sort("at")
    success = swept["mean"].to_list()
    assert len(success) == 5
    assert success == sorted(success, reverse=True)


def test_a_folder_without_check_ins_is_refused(tmp_path):
    for name in ("gowalla", "foursquare"):
        with pytest.raises(DataError):
            STUDIES.get("reconstruction_checkins")(path=str(tmp_path), data_set=name).data()


@pytest.mark.data
@pytest.mark.parametrize(("name", "expected", "least"), [("gowalla", 42, 10), ("foursquare", 183, 3)])
def test_how_many_people_the_filters_leave(data_folder, name, expected, least):
    study = STUDIES.get("reconstruction_checkins")(path=str(data_folder(name)), data_set=name, min_windows=least)
    paths = study.data()
    assert len(paths) == expected
    assert ((paths < 100).sum(axis=1) >= least).all()
