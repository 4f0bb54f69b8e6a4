"""RescueDP: remaining budget of w windows, sensitivity of groups, and decisions from releases alone."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from penstock.accountants.core.charges import concentrated_rho, pure_epsilon
from penstock.mechanisms.core.contract import Facts
from penstock.mechanisms.core.noise import NoiseSource
from penstock.mechanisms.core.noise_keys import NoiseKey
from penstock.mechanisms.core.run import run_mechanism
from penstock.mechanisms.core.sensitivity import of_groups
from penstock.mechanisms.rescue_dp import RescueDp
from penstock.testing import Subject
from penstock.testing.checks import (
    charges_stay_within_worst_charge,
    every_window_is_released_once,
    leaves_inputs_alone,
    replicas_equal_separate_runs,
    resumes_from_encoded_state,
    state_does_not_grow,
)
from tests.tools.plugin_checks import failing

GROUPED = [
    RescueDp(epsilon=50.0, w=3, group_below=60.0),
    RescueDp(rho=20.0, w=3, group_below=60.0, noise="discrete_gaussian"),
]


@pytest.mark.parametrize("mechanism", GROUPED, ids=lambda one: one.noise)
@pytest.mark.parametrize(
    "check",
    [
        charges_stay_within_worst_charge,
        every_window_is_released_once,
        leaves_inputs_alone,
        replicas_equal_separate_runs,
        resumes_from_encoded_state,
        state_does_not_grow,
    ],
)
def test_groups_keep_the_contract(mechanism, check):
    assert failing(Subject(mechanism), [check]) == {}


@pytest.mark.parametrize("scene", ["steady", "wild"])
@pytest.mark.parametrize("noise", ["discrete_laplace", "discrete_gaussian"])
def test_no_w_windows_cost_more_than_the_budget(scene, noise):
    rng = np.random.default_rng(4)
    counts = np.full((60, 8), 20) if scene == "steady" else rng.integers(0, 5000, (60, 8))
    budget = {"epsilon": 3.0} if noise == "discrete_laplace" else {"rho": 3.0}
    releases = run_mechanism(RescueDp(**budget, w=6, noise=noise), counts, Facts(n_cells=8, max_cells=2), seed=2)
    price = pure_epsilon if noise == "discrete_laplace" else concentrated_rho
    spent = np.array([price(release.charge) for release in releases])
    sums = np.convolve(spent, np.ones(6), "valid")
    assert 1.0 < sums.max() <= 3.0 * (1 + 1e-12)


@pytest.mark.parametrize("w", [2, 3, 6])
def test_what_is_left_is_that_of_exactly_w_windows(w):
    """A publication may spend what the w − 1 windows before it left, neither more nor less."""
    mechanism, facts = RescueDp(epsilon=2.0, w=w), Facts(n_cells=2)
    window = facts.windows(w + 1)[w]
    state = mechanism.start(facts) | {"interval": np.asarray(1e6), "last_window": np.asarray(1)}
    for before in range(1, w):  # 1 is the window just before
        spent = np.zeros(w)
        spent[before - 1] = 2.0 - 1e-3
        assert mechanism.amount(window, state | {"spent": spent}) == pytest.approx(0.6 * 1e-3)
    spent = np.zeros(w)
    spent[w - 1] = 2.0  # w windows before it
    assert mechanism.amount(window, state | {"spent": spent}) == pytest.approx(0.2 * 2.0)
    # What a step spends is the newest, and moves on window by window.
    windows, counts, spent = facts.windows(3 * w), np.array([5, 9]), []
    state, source = mechanism.start(facts), NoiseSource(NoiseKey.from_seed(1), configuration=b"")
    for number, window in enumerate(windows):
        noise = source.at(window.start, window.end, "step", counts * (number + 1) ** 3, state, None)
        [release], state = mechanism.step(window, counts * (number + 1) ** 3, state, noise)
        spent.insert(0, pure_epsilon(release.charge))
        assert state["spent"] == pytest.approx((spent + [0.0] * w)[:w])
        assert sum(spent[:w]) <= 2.0 * (1 + 1e-12)


def test_small_counts_are_released_as_means_of_groups():
    counts = np.tile([3, 500, 4, 5, 600, 3], (4, 1))
    releases = run_mechanism(RescueDp(epsilon=1e6, w=4, growth=0), counts, Facts(n_cells=6), seed=1)
    assert releases[0].values.tolist() == [3, 500, 4, 5, 600, 3], "of the first window nothing is known yet"
    np.testing.assert_allclose(releases[1].values, [3.75, 500, 3.75, 3.75, 600, 3.75])
    assert np.unique(np.round(releases[1].scale / releases[1].scale.max(), 9)).tolist() == [0.25, 1.0]
    few = run_mechanism(RescueDp(epsilon=1e6, w=4, growth=0, group_below=8.0), counts, Facts(n_cells=6), seed=1)
    # In the order of predictions 3, 3, 4, 5: the running sum passes 8 with the third, and 15 is below 16.
    np.testing.assert_allclose(few[1].values, [3, 500, 4.5, 4.5, 600, 3])


@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (4,), (3, 2, 1), (2, 2, 2)])
def test_a_user_moves_the_sums_by_no_more_than_is_priced(sizes):
    n_cells = sum(sizes)
    incidence = np.repeat(np.eye(len(sizes)), sizes, axis=1)
    padded = np.zeros(n_cells, int)
    padded[: len(sizes)] = sizes
    for max_cells in range(1, n_cells + 1):
        worst = max(
            (incidence[:, list(columns)].sum(1) ** 2).sum() for columns in combinations(range(n_cells), max_cells)
        )
        assert of_groups(padded, max_cells).l2_squared == worst


def test_rescue_dp_publishes_less_often_where_releases_stay():
    steady = np.full((40, 50), 4000)
    growing = np.round(steady * 1.5 ** np.arange(40)[:, None] / 1e3).astype(np.int64)
    published = [
        sum(release.action == "published" for release in run_mechanism(mechanism, counts, Facts(n_cells=50), seed=3))
        for mechanism in [RescueDp(epsilon=400.0, w=4, growth=3.0)]
        for counts in (steady, growing)
    ]
    assert published[0] < published[1] == 40


def test_groups_help_where_counts_are_small():
    counts = np.random.default_rng(5).poisson(3, (30, 200))
    errors = [
        np.mean([np.abs(one.values - truth).mean() for one, truth in zip(releases, counts)])
        for releases in (
            run_mechanism(RescueDp(epsilon=1.0, w=5, group_below=below), counts, Facts(n_cells=200), seed=7)
            for below in (0.0, 300.0)
        )
    ]
    assert errors[1] < 0.5 * errors[0]
