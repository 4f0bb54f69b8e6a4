"""Tables of the paper's membership figures, on synthetic cabs."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from penstock.evaluation.attacks.challenge import privacy_gain
from penstock.evaluation.attacks.game import MembershipGame
from penstock.evaluation.papers import pyrgelis
from penstock.evaluation.papers.pyrgelis import (
    BEGIN,
    RAW,
    Box,
    Piece,
    cab_presence,
    exposure_of,
    gain_table,
    importance_table,
    loadings_table,
    paper_defenses,
    study,
    trade_off_table,
)
from penstock.mechanisms.core.plugin import DataError


@pytest.fixture(scope="module")
def binary():
    rng = np.random.default_rng(3)
    busy = rng.gamma(1.0, 0.1, (40, 1, 1)) * rng.gamma(0.5, 1.0, (1, 100, 1))
    return rng.random((40, 100, 168)) < np.clip(busy, 0.001, 0.9)


def test_cabs_are_placed_in_cells_and_hours(tmp_path):
    rows = [(37.741, -122.469, 0), (37.741, -122.469, 30), (37.819, -122.371, 3601), (37.73, -122.4, 5)]
    lines = [f"{north} {east} 0 {BEGIN + seconds}" for north, east, seconds in rows]
    (tmp_path / "new_a.txt").write_text("\n".join(lines))
    (tmp_path / "new_elsewhere.txt").write_text(f"37.0 -122.4 0 {BEGIN}")
    presence = cab_presence(tmp_path)
    assert presence.shape == (1, 100, 504)
    assert np.argwhere(presence[0]).tolist() == [[0, 0], [99, 1]]
    elsewhere = cab_presence(tmp_path, Box(37.81, 37.83, -122.38, -122.36))
    assert np.argwhere(elsewhere[0]).tolist() == [[44, 1]]
    with pytest.raises(DataError, match=r"no file new_\*\.txt"):
        cab_presence(tmp_path / "nowhere")


def test_every_defense_of_the_paper_releases_something_of_the_right_shape(binary):
    names = set()
    counts = binary.sum(axis=0).T[None]
    for one in paper_defenses():
        presence, defense = one.of(binary, 10, 10)
        assert presence.shape == binary.shape
        released = counts if defense is None else defense(counts, 1)
        assert released.shape == counts.shape
        changed = (presence != binary).any() or (released != counts).any()
        assert changed
        names.add(one.name)
    assert len(names) == len(paper_defenses()) == 53
    assert {one.family for one in paper_defenses()} == set(pyrgelis.EXPERIMENTS)


def test_gains_are_those_of_the_areas():
    raw, defended = np.array([1.0, 0.9, 0.8]), np.array([0.75, 0.45, 0.8])
    areas = {RAW: dict(enumerate(raw)), "SPG 1x1": dict(enumerate(defended))}
    table = gain_table(areas)
    assert table["defense"].to_list() == ["SPG 1x1"]
    assert table["mean"][0] == pytest.approx(privacy_gain(raw, defended).mean())
    assert table["mirrored"][0] == pytest.approx(privacy_gain(raw, [0.75, 0.55, 0.8]).mean())


def test_gains_meet_the_tables_of_utility(tmp_path):
    gains = pl.DataFrame({"defense": ["SSC k = 2", "FPA ε = 1"], "mirrored": [0.25, 0.5]})
    rows = {"variant": ["k = 2", "k = 2", "k = 5"], "measure": ["mre", "pearson", "mre"], "mean": [0.1, 0.8, 0.3]}
    pl.DataFrame(rows).write_csv(tmp_path / "sfc_suppress_small.csv")
    found = trade_off_table(gains, tmp_path)
    assert found.select("metric", "privacy_gain", "utility_loss").rows() == [
        ("mre", 0.25, 0.1),
        ("pearson", 0.25, pytest.approx(0.2)),
    ]


def test_loadings_and_importance(binary):
    day = binary[:, :10, :24]
    game = MembershipGame(day, group_size=12, observation=24, inference=24, n_samples=60, seed=1)
    found = exposure_of({Piece(target, "a"): study({"subset": game}, target) for target in (0, 1)}, ("subset",))
    table_of_loadings = loadings_table(found.loadings, day, {"all": np.array([0, 1]), "one": np.array([1])})
    assert len(table_of_loadings) == 200
    assert table_of_loadings.group_by("targets").agg(pl.col("loading").max())["loading"].to_list() == [1.0, 1.0]
    events = day.sum(axis=(1, 2))
    order = np.argsort(-events)
    table = importance_table(day, order[:5], order[-5:], "random_forest")
    assert table["weight"].sum() == pytest.approx(1.0)
    assert table.filter(feature="events")["most"].item() > table.filter(feature="events")["least"].item()
    assert table.filter(feature="events")["alone"].item() == 1.0


def test_where_no_count_ever_varies_nobody_is_told_from_anybody(binary):
    everywhere = np.ones_like(binary[:, :5, :6])
    for attack in ("pca", "statistics"):
        game = MembershipGame(everywhere, group_size=12, observation=6, inference=6, n_samples=60, seed=1)
        assert game.attack(0, attack=attack).auc == 0.5
