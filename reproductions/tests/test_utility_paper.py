"""Utility of two defenses on the San Francisco cabs, against tables 14 and 18 of the paper."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import polars as pl
import pytest

from penstock.evaluation.utility import METRICS
from tests.tools.real_data import data_folder as data_folder

NAMES = ("mre", "mre_top", "hotspot_f1", "hotspot_rank_tau", "js_distance", "pearson")
SUPPRESS = {  # table 14, by threshold k; the rows in which few windows are empty
    2: (0.007, 0.000, 1.000, 0.998, 0.034, 0.815),
    5: (0.015, 0.000, 0.999, 0.992, 0.087, 0.710),
    10: (0.021, 0.000, 0.995, 0.964, 0.150, 0.610),
    20: (0.029, 0.001, 0.978, 0.885, 0.269, 0.503),
    40: (0.041, 0.005, 0.869, 0.769, 0.468, 0.324),
}
SAMPLE = {  # table 18, by the share w of memberships that is dropped
    0.2: (0.011, 0.012, 0.931, 0.329, 0.040, 0.922),
    0.4: (0.021, 0.024, 0.894, 0.208, 0.066, 0.849),
    0.6: (0.032, 0.036, 0.846, 0.145, 0.099, 0.751),
    0.8: (0.042, 0.048, 0.761, 0.099, 0.160, 0.594),
}
# Other groups of cabs, and another numbering of the cells, which the τ of index lists depends on.
TOLERANCES = (0.003, 0.003, 0.025, 0.1, 0.02, 0.04)


@pytest.fixture(scope="module")
def presence(data_folder):
    """Cab × cell × window, first week of the paper's three."""
    frames = []
    for path in sorted(data_folder("cabspotting").glob("new_*.txt")):
        rows = pl.scan_csv(path, separator=" ", has_header=False, new_columns=["lat", "lon", "occupied", "time"])
        frames.append(
            rows.select(
                row=((pl.col("lat") - 37.74) * 125).floor().cast(pl.Int64),
                column=((pl.col("lon") + 122.47) * 100).floor().cast(pl.Int64),
                window=(pl.col("time") - 1_211_155_200) // 3600,
            )
            .filter(pl.all_horizontal(pl.col("row", "column").is_between(0, 9), pl.col("window").is_between(0, 167)))
            .unique()
        )
    cabs = pl.collect_all(frames)
    binary = np.zeros((len(cabs), 100, 168), dtype=bool)
    for cab, rows in enumerate(cabs):
        row, column, window = rows.to_numpy().T
        binary[cab, 10 * row + column, window] = True
    return binary[binary.any(axis=(1, 2))]


def mean_scores(presence: np.ndarray, defend: Callable[[np.ndarray, np.random.Generator], np.ndarray]) -> np.ndarray:
    rng = np.random.default_rng(7)
    scores = []
    for _ in range(4):
        group = presence[rng.choice(len(presence), 250, replace=False)]
        truth = group.sum(axis=0)
        released = defend(group, rng)
        scores.append([METRICS[name].function(truth, released) for name in NAMES])
    return np.mean(scores, axis=0)


@pytest.mark.data
@pytest.mark.parametrize("threshold", SUPPRESS)
def test_suppressing_small_counts(presence, threshold):
    def suppress(group, rng):
        truth = group.sum(axis=0)
        return np.where(truth < threshold, 0, truth)

    assert (np.abs(mean_scores(presence, suppress) - SUPPRESS[threshold]) <= TOLERANCES).all()


@pytest.mark.data
@pytest.mark.parametrize("share", SAMPLE)
def test_sampling(presence, share):
    def sample(group, rng):
        return (group & (rng.random(group.shape) >= share)).sum(axis=0)

    assert (np.abs(mean_scores(presence, sample) - SAMPLE[share]) <= TOLERANCES).all()
