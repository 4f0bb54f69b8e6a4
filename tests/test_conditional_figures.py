"""Figure 2 of Meehan and Chaudhuri as tables, against dense linear algebra and the divergence of the releases."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from penstock.evaluation.papers.meehan import SECRET, TIMES, losses, main


def parts(length_scale):
    """Prior covariance, indices of secret and of other points, regression of the others on the secret ones."""
    times = np.array(TIMES, float)
    prior = np.exp(-(np.subtract.outer(times, times) ** 2) / (2 * length_scale**2))
    secret, rest = np.array(SECRET), np.setdiff1d(times.astype(int), SECRET)
    regression = prior[np.ix_(rest, secret)] @ np.linalg.inv(prior[np.ix_(secret, secret)])
    return prior, secret, rest, regression


def test_losses_are_those_of_dense_inverses():
    table = losses()
    for noise, length_scale, loss, independent, ratio in table.iter_rows():
        prior, secret, rest, regression = parts(length_scale)
        left = prior[np.ix_(rest, rest)] - regression @ prior[np.ix_(secret, rest)] + noise * np.eye(len(rest))
        worst = np.linalg.eigvalsh(regression.T @ np.linalg.inv(left) @ regression).max()
        assert loss == pytest.approx(len(SECRET) * (worst + 1 / noise), rel=1e-8)
        assert independent == pytest.approx(len(SECRET) / noise)
        assert ratio == pytest.approx(loss / independent)
    # the paper: half as much again at a correlation of 0.6 between neighbours
    assert table.filter(length_scale=1.0, noise_variance=0.25)["ratio"].item() > 1.5


def test_the_command_writes_both_tables(tmp_path, capsys):
    main(["--out", str(tmp_path)])
    assert str(tmp_path) in capsys.readouterr().out
    assert pl.read_csv(tmp_path / "conditional_inferential_losses.csv").height == losses().height
    assert pl.read_csv(tmp_path / "conditional_inferential_hypotheses.csv")["time"].to_list() == list(TIMES)
