"""The paper's preparation of check-ins, on the Gowalla extract (not the paper's size)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray
from scipy.stats import spearmanr

from penstock.accountants.inference.estimators import attack_success
from penstock.accountants.inference.success_bounds import success_upper_bound
from penstock.accountants.markov import estimate_prior, spectral_gap
from reproductions.visits import visit_trajectories
from tests.tools.real_data import data_folder as data_folder

pytestmark = pytest.mark.data
DAYS = 20


@pytest.fixture(scope="module")
def trajectories(data_folder: Callable[[str], Path]) -> NDArray[np.intp]:
    file = data_folder("gowalla") / "gowalla_events.csv.gz"
    names = ["user", "time", "latitude", "longitude", "place"]
    events = pl.read_csv(file, separator="\t", has_header=False, new_columns=names).unique(maintain_order=True)
    time = events["time"].str.to_datetime("%Y-%m-%dT%H:%M:%SZ")
    window = (time - time.min().replace(hour=0, minute=0, second=0)).dt.total_days().to_numpy() // DAYS
    actual, _, _ = visit_trajectories(
        events["user"].to_numpy(), window, events["place"].to_numpy(), int(window.max()) + 1, 100, 10
    )
    return actual


def test_the_papers_filter_leaves_a_few_dozen_users(trajectories: NDArray[np.intp]) -> None:
    assert 35 <= len(trajectories) <= 50
    assert ((trajectories < 100).sum(axis=1) >= 10).all()


def test_bounds_and_attacks_on_real_trajectories(trajectories: NDArray[np.intp]) -> None:
    rng = np.random.default_rng(1)
    sensors = [{int(cell)} for cell in rng.integers(0, 100, 5)]
    tight, best, hits = [], [], []
    for path in trajectories:
        prior = estimate_prior(path[:-5], 101)
        tight.append(success_upper_bound(prior, sensors, 1, bound="tight"))
        best.append(success_upper_bound(prior, sensors, 1, n_samples=0))
        hits.append(attack_success("map", prior, sensors, 1, 0, rng, trajectories=path[None, -5:])[0])
    assert np.all(np.array(best) <= np.array(tight) * (1 + 1e-9))
    assert 0 < np.mean(best) < np.mean(tight) < 1
    assert 0 < np.mean(hits) < 1


def test_who_moves_slowly_is_easier_to_follow(trajectories: NDArray[np.intp]) -> None:
    """Figure 4 of the paper. It takes some smoothing: 23 windows alone give chains that are nearly deterministic."""
    sensors = [{int(cell)} for cell in np.random.default_rng(1).integers(0, 100, 5)]
    priors = [estimate_prior(path[:-5], 101, smoothing=1.0) for path in trajectories]
    gaps = [spectral_gap(prior.transition) for prior in priors]
    tight = [success_upper_bound(prior, sensors, 1, bound="tight") for prior in priors]
    assert spearmanr(gaps, tight).statistic < -0.3


def test_trajectories_from_visits() -> None:
    users = [3, 3, 3, 3, 8, 8, 1, 8]
    windows = [0, 0, 0, 2, 0, 1, 5, -1]
    places = [10, 20, 20, 30, 10, 10, 10, 10]
    trajectories, people, top = visit_trajectories(users, windows, places, 4, n_top=2, min_windows=1)
    assert top.tolist() == [10, 20]
    assert people.tolist() == [3, 8]
    # user 3: 20 twice beats 10 once; place 30 is elsewhere; user 1 is seen too late
    assert trajectories.tolist() == [[1, 2, 2, 2], [0, 0, 2, 2]]
    assert visit_trajectories(users, windows, places, 4, 2, 2)[1].tolist() == [8]
