"""Figures over landmark share and distribution: exact values, and drawing."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from penstock.accountants.correlation.leakage import LeakageFunction, temporal_privacy_loss
from penstock.accountants.markov import laplacian_smoothing_matrix
from reproductions.katsomallos import CORRELATIONS, landmark_distance, landmark_table, single_losses
from reproductions.plots import draw
from reproductions.studies.landmark_sets import LandmarkSets


@pytest.fixture(scope="module")
def losses():
    return pl.concat(landmark_table(name, 5, (0, 20, 60, 100)) for name in CORRELATIONS)


def chosen(table, **key):
    """Mean of the rows with these keys."""
    return table.filter(*(pl.col(name) == value for name, value in key.items()))["mean"].to_numpy()


def test_without_landmarks_the_loss_is_the_temporal_one_and_with_nothing_else_the_budget(losses):
    for name, strength in CORRELATIONS.items():
        matrix = laplacian_smoothing_matrix(2, strength)
        total = temporal_privacy_loss(np.ones(100), matrix, matrix)[2]
        for method in ("sound", "paper"):
            np.testing.assert_allclose(chosen(losses, correlation=name, method=method, percentage=0), total.max())
            np.testing.assert_allclose(chosen(losses, correlation=name, method=method, percentage=100), 1.0)
        np.testing.assert_allclose(chosen(losses, correlation=name, method="single", percentage=0), total.mean())
        np.testing.assert_allclose(chosen(losses, correlation=name, method="single", percentage=100), 0.01)


def test_single_losses_end_at_landmarks():
    rng = np.random.default_rng(3)
    matrix = laplacian_smoothing_matrix(2, 0.1)
    epsilons, landmarks = rng.random(30), rng.random(30) < 0.2
    actual = single_losses(epsilons, landmarks, LeakageFunction(matrix))
    at = np.flatnonzero(landmarks)
    for t in range(30):
        first = max((i + 1 for i in at if i < t), default=0)
        stop = min((i for i in at if i > t), default=30)
        total = temporal_privacy_loss(epsilons[first:stop], matrix, matrix)[2]
        assert actual[t] == pytest.approx(total[t - first], rel=1e-12)


def test_distances_are_those_of_a_plain_search():
    rng = np.random.default_rng(4)
    for share in (0.0, 0.1, 0.5, 1.0):
        landmarks = rng.random(40) < share
        anchors = [-1, *np.flatnonzero(landmarks), 40]
        expected = [0 if landmarks[t] else min(abs(t - a) for a in anchors) for t in range(40)]
        assert landmark_distance(landmarks).tolist() == expected


def test_the_study_has_the_rows_of_both_tables():
    study = LandmarkSets(sets=3, percentages=(0, 20, 100))
    figures = {piece: study.measure(None, piece) for piece in study.pieces(None)}
    tables = study.tables(None, figures)
    assert tables["landmark_loss"].equals(pl.concat(landmark_table(name, 3, (0, 20, 100)) for name in CORRELATIONS))
    assert tables["landmark_distance"].equals(landmark_table("distance", 3, (0, 20, 100)))
    assert tables["landmark_loss"].height == 3 * 3 * 5 * 3


def test_both_tables_are_drawn(tmp_path, losses):
    pytest.importorskip("matplotlib")
    drawn = draw({"landmark_loss": losses, "landmark_distance": landmark_table("distance", 2)}, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {f"{name}.svg" for name in drawn}
    assert len(drawn) == 2
