"""Tables of the paper's membership figures, on synthetic cabs."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from penstock.evaluation.attacks.game import MembershipGame
from penstock.evaluation.attacks.parameters import Game
from penstock.mechanisms.core.plugin import ConfigError
from penstock.pipeline.config.run import loads
from penstock.pipeline.experiments.trial import read_people, reading_config, run_trial, write_people
from reproductions.pyrgelis import (
    GAIN,
    TargetPiece,
    cab_presence,
    exposure_of,
    importance_table,
    loadings_table,
    resampled_gain,
    study,
    trade_off_table,
)
from tests.tools.small_configuration import made_up_events, small_sections

#: Monday, 19 May 2008, 00:00 UTC.
BEGIN = 1_211_155_200


@pytest.fixture(scope="module")
def binary():
    rng = np.random.default_rng(3)
    busy = rng.gamma(1.0, 0.1, (40, 1, 1)) * rng.gamma(0.5, 1.0, (1, 100, 1))
    return (rng.random((40, 100, 168)) < np.clip(busy, 0.001, 0.9)).swapaxes(1, 2)


def test_cabs_are_placed_in_cells_and_hours(tmp_path):
    rows = [(37.741, -122.469, 0), (37.741, -122.469, 30), (37.819, -122.371, 3601), (37.73, -122.4, 5)]
    lines = [f"{north} {east} 0 {BEGIN + seconds}" for north, east, seconds in rows]
    (tmp_path / "new_a.txt").write_text("\n".join(lines))
    (tmp_path / "new_elsewhere.txt").write_text(f"37.0 -122.4 0 {BEGIN}")
    presence = cab_presence(str(tmp_path))
    assert presence.shape == (1, 504, 100)
    assert np.argwhere(presence[0]).tolist() == [[0, 0], [1, 99]]
    with pytest.raises(ConfigError, match="nowhere"):
        cab_presence(str(tmp_path / "nowhere"))


def test_gains_meet_the_tables_of_utility(tmp_path):
    gains = {"variant": ["SSC k = 2", "FPA ε = 1"], "measure": [GAIN] * 2, "mean": [0.25, 0.5]}
    rows = {"variant": ["k = 2", "k = 2", "k = 5"], "measure": ["mre", "pearson", "mre"], "mean": [0.1, 0.8, 0.3]}
    pl.DataFrame(gains).write_csv(tmp_path / "sfc_privacy_gain.csv")
    pl.DataFrame(rows).write_csv(tmp_path / "sfc_suppress_small.csv")
    found = trade_off_table(tmp_path)
    assert found.select("metric", "privacy_gain", "utility_loss").rows() == [
        ("mre", 0.25, 0.1),
        ("pearson", 0.25, pytest.approx(0.2)),
    ]


def test_the_gain_is_of_sampling_drawn_anew(tmp_path):
    sections = small_sections(tmp_path, made_up_events(300), accountants=[], bounding={})
    sections["mechanism"] = [{"type": "sampling", "rate": 0.5}, {"type": "raw"}]
    sections.pop("landmarks", None)
    config = loads(json.dumps(sections))
    write_people(reading_config(config), tmp_path / "people.npz")
    run = replace(
        run_trial(config, read_people(tmp_path / "people.npz", on_points=False)),
        game=Game(targets=3, samples=40, known=1.0, group_size=8, components=20),
    )
    known, unknown = run.attacked.figure("pca", "gain"), resampled_gain(run)
    assert 0 <= known <= 1
    assert 0 <= unknown <= 1


def test_loadings_and_importance(binary):
    day = binary[:, :24, :10]
    game = MembershipGame(day, group_size=12, observation=24, inference=24, n_samples=60, seed=1)
    found = exposure_of({TargetPiece(target, "a"): study({"subset": game}, target) for target in (0, 1)}, ("subset",))
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
    everywhere = np.ones_like(binary[:, :6, :5])
    for attack in ("pca", "statistics"):
        game = MembershipGame(everywhere, group_size=12, observation=6, inference=6, n_samples=60, seed=1)
        assert game.attack(0, attack=attack).auc == 0.5
