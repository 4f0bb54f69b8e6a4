"""Figure 2 of Meehan and Chaudhuri as tables, against dense linear algebra and the divergence of the releases."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from penstock.accountants.gaussian_process.kernels import GaussianProcess
from penstock.accountants.gaussian_process.loss import worst_pair
from reproductions.studies.conditional_trace import loss_table, worst_hypothesis
from reproductions.study import STUDIES

TIMES, SECRET = tuple(range(10)), (0, 2, 4, 6, 8)


def made():
    """Both tables of the study."""
    study = STUDIES.get("conditional_trace")()
    return study.tables(None, {piece: study.measure(None, piece) for piece in study.pieces(None)})


def parts(length_scale):
    """Prior covariance, indices of secret and of other points, regression of the others on the secret ones."""
    times = np.array(TIMES, float)
    prior = np.exp(-(np.subtract.outer(times, times) ** 2) / (2 * length_scale**2))
    secret, rest = np.array(SECRET), np.setdiff1d(times.astype(int), SECRET)
    regression = prior[np.ix_(rest, secret)] @ np.linalg.inv(prior[np.ix_(secret, secret)])
    return prior, secret, rest, regression


def test_losses_are_those_of_dense_inverses():
    table = made()["conditional_losses"]
    for noise, length_scale, loss, independent, ratio in table.iter_rows():
        prior, secret, rest, regression = parts(length_scale)
        left = prior[np.ix_(rest, rest)] - regression @ prior[np.ix_(secret, rest)] + noise * np.eye(len(rest))
        worst = np.linalg.eigvalsh(regression.T @ np.linalg.inv(left) @ regression).max()
        assert loss == pytest.approx(len(SECRET) * (worst + 1 / noise), rel=1e-8)
        assert independent == pytest.approx(len(SECRET) / noise)
        assert ratio == pytest.approx(loss / independent)
    # the paper: half as much again at a correlation of 0.6 between neighbours
    assert table.filter(length_scale=1.0, noise_variance=0.25)["ratio"].item() > 1.5


def test_under_the_worst_hypothesis_the_secret_points_are_a_radius_away():
    points = made()["conditional_hypotheses"]
    secret = points.filter(pl.col("is_secret"))
    assert points["time"].to_list() == list(TIMES)
    assert secret["time"].to_list() == list(SECRET)
    assert (secret["truth"] == secret["trace"]).all()
    apart = (secret["hypothesis"] - secret["truth"]).to_numpy()
    assert np.sqrt((apart**2).mean()) == pytest.approx(1.0)


def test_the_worst_hypothesis_moves_the_rest_by_the_conditional_mean():
    times, secret = np.arange(4.0), [0, 2]
    direction = worst_pair(times, secret, 1.0, 1.2)
    model = GaussianProcess(length_scale=1.2)
    truth, hypothesis = worst_hypothesis(times, [0.0, 1.0, 2.0, 3.0], secret, direction, 0.5, model)
    prior = np.exp(-(np.subtract.outer(times, times) ** 2) / (2 * 1.2**2))
    a = prior[np.ix_([1, 3], secret)] @ np.linalg.inv(prior[np.ix_(secret, secret)])
    assert truth[secret] == pytest.approx([0.0, 2.0])
    assert truth[[1, 3]] == pytest.approx(a @ [0.0, 2.0])
    assert (hypothesis - truth)[secret] == pytest.approx(0.5 * np.sqrt(2) * direction)
    assert (hypothesis - truth)[[1, 3]] == pytest.approx(a @ (0.5 * np.sqrt(2) * direction))


def test_figure_2_of_the_paper():
    table = loss_table(np.linspace(0.1, 4.0, 40), (0.01, 1.0, 2.0, 4.0), TIMES, SECRET)
    losses, ratio = table["loss"].reshape(4, 40), table["ratio"].reshape(4, 40)
    assert (np.diff(losses, axis=1) < 0).all()  # more noise, less loss
    assert ratio[0] == pytest.approx(1.0)  # no dependence left
    assert (np.diff(losses, axis=0) > 0).all()  # longer is worse, on this trace
    # "a 50 % increase even for the length scale with a correlation of 0.6 between neighbours"
    assert 1.4 < ratio[1].min() < ratio[1].max() < 2.0
