"""Published mechanisms compared with the filter: FAST with its Kalman filter, and the hierarchy."""

from __future__ import annotations

import json
from itertools import combinations

import numpy as np
import pytest

from penstock.accountants.core.charges import pure_epsilon
from penstock.mechanisms import get
from penstock.mechanisms.core.chain import Chain
from penstock.mechanisms.core.contract import Facts, Release
from penstock.mechanisms.core.plugin import ConfigError, ParameterError
from penstock.mechanisms.core.run import run_mechanism
from penstock.mechanisms.core.sensitivity import of_tree
from penstock.mechanisms.fast import Fast
from penstock.mechanisms.hierarchy import Hierarchy, reconciled
from penstock.mechanisms.kalman import Kalman
from penstock.pipeline.config.run import loads
from tests.tools.small_configuration import made_up_events, small_sections

FAST = Fast(epsilon=3.0, publications=3)


@pytest.mark.parametrize("scene", ["steady", "wild"])
def test_fast_never_passes_the_budget_of_a_period(scene):
    rng = np.random.default_rng(4)
    counts = np.full((60, 3), 500) if scene == "steady" else rng.integers(0, 5000, (60, 3))
    releases = run_mechanism(FAST, counts, Facts(n_cells=3, max_cells=2, budget_period=12), seed=2)
    spent = np.array([pure_epsilon(release.charge) for release in releases]).reshape(5, 12)
    assert spent[:, 0] == pytest.approx(3.0), "a period is charged once, with its first window"
    assert not spent[:, 1:].any()
    published = np.array([release.action == "published" for release in releases]).reshape(5, 12).sum(1)
    assert (published <= 3).all()
    assert (published == 3).all() or scene == "steady"
    # Each publication has the noise of all three: 3 · 2 memberships.
    assert {release.scale for release in releases if release.action == "published"} == {2.0}


def test_fast_publishes_more_where_releases_surprise():
    steady = np.full((40, 50), 4000)
    growing = np.round(steady * 1.5 ** np.arange(40)[:, None] / 1e3).astype(np.int64)
    often = Fast(epsilon=40.0, publications=40)
    published = [
        sum(release.action == "published" for release in run_mechanism(often, counts, Facts(n_cells=50), seed=3))
        for counts in (steady, growing)
    ]
    assert published[0] < 15 < 35 < published[1]


def test_the_kalman_filter_is_the_posterior_of_a_random_walk():
    # Against the dense normal distribution of a walk of 6 steps, observed at 4 of them.
    rng = np.random.default_rng(5)
    q, sigma, seen = 3.0, 2.0, [0, 1, 3, 4]
    y = rng.normal(20, 5, 6)
    walk = 1e9 + q * np.minimum.outer(np.arange(6), np.arange(6))
    state, actual = Kalman(process_variance=q).start(Facts(n_cells=1)), []
    for t in range(6):
        action = "published" if t in seen else "repeated"
        release = Release(window=t + 1, values=y[t : t + 1], noise="gaussian", scale=sigma, action=action)
        release, state = Kalman(process_variance=q).process(release, state)
        actual.append((release.values[0], release.standard_deviation[0]))
        at = [s for s in seen if s <= t]
        gain = np.linalg.solve(walk[np.ix_(at, at)] + sigma**2 * np.eye(len(at)), walk[at, t])
        assert actual[-1][0] == pytest.approx(gain @ y[at], rel=1e-6)
        assert actual[-1][1] ** 2 == pytest.approx(walk[t, t] - gain @ walk[at, t], rel=1e-5)


def tree(n_cells, fan_out):
    """Incidence of nodes and cells, level by level."""
    levels = [np.eye(n_cells)]
    while len(levels[-1]) > 1:
        rows = levels[-1]
        levels.append(np.stack([rows[i : i + fan_out].sum(0) for i in range(0, len(rows), fan_out)]))
    return levels


@pytest.mark.parametrize(("n_cells", "fan_out"), [(1, 2), (7, 2), (9, 8), (13, 3), (20, 4)])
def test_the_hierarchy_is_least_squares_over_all_nodes(n_cells, fan_out):
    levels = tree(n_cells, fan_out)
    measured = [np.random.default_rng(1).normal(size=len(level)) for level in levels]
    every = np.concatenate(levels)
    estimates, variances = reconciled(measured, fan_out)
    np.testing.assert_allclose(estimates, np.linalg.lstsq(every, np.concatenate(measured))[0], atol=1e-12)
    np.testing.assert_allclose(variances, np.diag(np.linalg.inv(every.T @ every)), atol=1e-12)
    for n_own in range(1, min(n_cells, 4) + 1):
        most = max((every[:, list(cells)].sum(1) ** 2).sum() for cells in combinations(range(n_cells), n_own))
        assert of_tree(n_cells, n_own, fan_out).l2_squared == most


def test_sums_of_many_cells_are_better_than_sums_of_noisy_cells():
    counts = np.full((200, 256), 30)
    releases = run_mechanism(Hierarchy(rho=0.5, noise="gaussian"), counts, Facts(n_cells=256), seed=6)
    totals = np.array([release.values.sum() for release in releases]) - counts.sum(1)
    flat = np.sqrt(256 * 1 / (2 * 0.5))
    assert 0.05 * flat < totals.std() < 0.3 * flat


def test_nothing_is_claimed_for_a_sample_below_the_hierarchy():
    with pytest.raises(ParameterError, match="without sampling before it"):
        Chain.of([get("sampling")(rate=0.1), Hierarchy(sigma=3.0)])


@pytest.mark.parametrize("step", [{"type": "pegasus", "epsilon": 1.0}, {"type": "correlated", "rho": 1.0, "w": 2}])
def test_temporal_loss_is_refused_before_a_linked_release(tmp_path, step):
    accountants = [{"type": "composition"}, {"type": "temporal", "correlation": {"estimate": "first", "windows": 4}}]
    value = small_sections(tmp_path, made_up_events(50), mechanism=step, landmarks=None, accountants=accountants)
    with pytest.raises(ConfigError, match=rf"accountants\[1\].type: .*releases of {step['type']} read other windows"):
        loads(json.dumps(value))
