"""The trace experiment, on synthetic traces with known errors."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from penstock.evaluation.papers.katsomallos_traces import (
    ORIGIN,
    PERCENTAGES,
    Sample,
    error_table,
    errors,
    first_points,
    main,
    matched_thresholds,
    mechanisms_compared,
)
from penstock.mechanisms.core.geometry import distance

PLACE = np.array([39.9, 116.4])


@pytest.fixture
def standing():
    """One user who never moves: every error is noise."""
    return Sample(60_000 * np.arange(50), np.tile(PLACE, (50, 1)), np.array([0]))


def events(n_users=4, n=30):
    rng = np.random.default_rng(2)
    walks = [PLACE + np.cumsum(rng.normal(0, 0.002, (n, 2)), axis=0) for _ in range(n_users)]
    return pl.DataFrame(
        {
            "user": np.repeat(np.arange(n_users), n),
            "time": np.tile(120_000 * np.arange(n), n_users),
            "latitude": np.concatenate(walks)[:, 0],
            "longitude": np.concatenate(walks)[:, 1],
        }
    )


def test_plain_mechanisms_have_the_errors_that_theory_gives(standing):
    compared = mechanisms_compared()
    half = np.arange(50) % 2 == 1
    for name, landmarks, expected in (
        ("uniform", np.zeros(50, bool), 2.0),
        ("uniform", half, 2.0 * 26),
        ("uniform", np.ones(50, bool), 2.0 * 50),
        ("skip", half, 2.0),
        ("skip", np.ones(50, bool), float(distance(PLACE, np.array(ORIGIN)))),
    ):
        means, _ = errors(standing, landmarks, compared[name], n_repetitions=400)
        assert means.mean() == pytest.approx(expected, abs=5 * means.std() / 20 + 0.1)
    assert len(set(means)) == 1
    means, published = errors(standing, half, compared["adaptive"], n_repetitions=50)
    assert len(set(means)) == 50
    assert published < 1


def test_adaptive_gains_where_nothing_moves(standing):
    compared = mechanisms_compared()
    landmarks = np.ones(50, bool)
    adaptive, uniform = (errors(standing, landmarks, compared[name], 100)[0].mean() for name in ("adaptive", "uniform"))
    assert adaptive < 0.8 * uniform


def test_first_points_are_distinct_in_order_and_in_the_box():
    table = pl.concat(
        [events(), events().head(3), pl.DataFrame({"user": [0], "time": [1], "latitude": [10.0], "longitude": [10.0]})]
    )
    sample = first_points(table.sample(fraction=1.0, shuffle=True, seed=1), 70)
    assert len(sample.times) == 70
    assert sample.starts.tolist() == [0, 30, 60]
    assert (np.diff(sample.times[:30]) > 0).all()


def test_matched_thresholds_reach_the_percentages_better_than_any_tried():
    sample = first_points(events())
    found = [100 * sample.landmarks(*threshold).mean() for threshold in matched_thresholds(sample)]
    assert found == sorted(found)
    assert found[0] == 0.0
    assert found[-1] == 100.0


def test_the_table_has_every_case_and_intervals_around_its_means(tmp_path):
    compared = {name: mechanism for name, mechanism in mechanisms_compared().items() if name in ("skip", "uniform")}
    table = error_table("tdrive", first_points(events()), 4, compared)
    assert len(table) == 2 * len(PERCENTAGES) * 2 * 2
    assert ((table["low"] <= table["mean"]) & (table["mean"] <= table["high"])).all()
    events(1, 10).write_parquet(tmp_path / "events.parquet")
    main(["--geolife", str(tmp_path / "events.parquet"), "--out", str(tmp_path / "table.csv"), "--repetitions", "2"])
    assert pl.read_csv(tmp_path / "table.csv").columns == table.columns
