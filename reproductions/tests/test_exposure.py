"""Importance of features, loadings of the principal components, and whom an attack finds."""

import numpy as np
import polars as pl
import pytest

from penstock.evaluation.attacks.game import MembershipGame
from reproductions.exposure import component_loadings, feature_importance, importance_table, loadings_table


@pytest.fixture(scope="module")
def binary():
    """Presence, (n_people, n_windows, n_cells)."""
    return (np.random.default_rng(0).random((30, 5, 24)) < np.linspace(0.02, 0.3, 30)[:, None, None]).swapaxes(1, 2)


@pytest.mark.parametrize("method", ["random_forest", "logistic_regression"])
def test_importance_finds_the_feature_that_matters(method):
    rng = np.random.default_rng(0)
    features = {"noise": rng.normal(size=40), "signal": np.repeat([2.0, 0.0], 20) + rng.normal(size=40) * 0.3}
    noise, signal = feature_importance(features, np.arange(20), np.arange(20, 40), method)
    assert abs(signal) > 5 * abs(noise)
    assert noise + signal == pytest.approx(1.0) if method == "random_forest" else signal < 0


@pytest.mark.parametrize("prior", ["subset", "same_groups"])
def test_loadings_are_correlations_with_the_scores(binary, prior):
    periods = {"observation": (0, 24), "inference": (0, 24)}
    if prior != "subset":
        periods = {"observation": (0, 16), "inference": (16, 24)}
    game = MembershipGame(binary, **periods, prior=prior, group_size=10, n_samples=300, n_components=8)
    samples, n = game.samples(20), game.samples(20).n_train
    counts = game.space.counts(samples, np.arange(n)).reshape(n, -1).astype(float)
    scaled = (counts - counts.mean(axis=0)) / np.where(counts.std(axis=0) > 0, counts.std(axis=0), 1)
    left, values, _ = np.linalg.svd(scaled, full_matrices=False)
    scores = left[:, :8] * values[:8]
    with np.errstate(invalid="ignore"):
        correlations = np.abs(np.nan_to_num(np.corrcoef(scores.T, counts.T)[:8, 8:]))
    # All eight components: the choice of the top ones cannot matter.
    expected = correlations.sum(axis=0).reshape(-1, 5)
    np.testing.assert_allclose(component_loadings(game, 20, n_top=8), expected, atol=1e-6)
    one = component_loadings(game, 20, n_top=1)
    assert one.max() <= 1 + 1e-9
    assert (one <= expected + 1e-6).all()


def test_loadings_point_to_the_cells_of_the_target():
    binary = np.random.default_rng(4).random((40, 10, 4)) < 0.05
    binary[7, :, 2] = True
    game = MembershipGame(binary, group_size=15, observation=10, inference=10, n_samples=600)
    assert component_loadings(game, 7, n_top=1).sum(axis=0).argmax() == 2


def test_loadings_are_in_tenths_by_popularity():
    binary = np.random.default_rng(3).random((40, 24, 10)) < np.linspace(0.05, 0.5, 10)
    table = loadings_table({0: binary.sum(axis=0), 1: np.ones((24, 10))}, binary, {"both": [0, 1], "one": [0]})
    assert len(table) == 200
    assert table.group_by("targets").agg(pl.col("loading").max())["loading"].to_list() == [1.0, 1.0]
    for axis in ("cells", "windows"):
        means = table.filter(targets="one").group_by(axis).agg(pl.col("loading").mean()).sort(axis)
        assert means["loading"].diff().min() > 0


def test_importance_is_beside_the_paper_s(binary):
    order = np.argsort(-binary.sum(axis=(1, 2)))
    table = importance_table(binary, order[:5], order[-5:], "random_forest")
    assert table["weight"].sum() == pytest.approx(1.0)
    events = table.filter(feature="events")
    assert (events["paper"].item(), events["alone"].item()) == (0.17, 1.0)
    assert events["most"].item() > events["least"].item()
