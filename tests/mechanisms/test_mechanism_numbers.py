"""Mechanisms with little or no noise: exact values and their guarantees."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import ks_1samp, laplace

from penstock.accountants.core.charges import pure_epsilon
from penstock.mechanisms import get
from penstock.mechanisms.core.contract import Facts
from penstock.mechanisms.core.plugin import ParameterError
from penstock.mechanisms.core.run import run_mechanism


def shown(mechanism, counts, **facts):
    counts = np.asarray(counts)
    releases = run_mechanism(mechanism, counts, Facts(n_cells=counts.shape[1], **facts), seed=2)
    return np.array([release.values for release in releases])


@pytest.mark.parametrize("name", ["suppress_small", "crowd_blending"])
def test_small_counts_are_suppressed(name):
    assert shown(get(name)(threshold=5), [[0, 1, 4, 5, 6]]).tolist() == [[0, 0, 0, 5, 6]]


def test_suppression_reproduces_a_threshold_of_one():
    counts = [[0, 1, 2]]
    assert shown(get("suppress_small")(threshold=1), counts).tolist() == counts


@pytest.mark.parametrize("name", ["perturb_small", "crowd_blending"])
def test_only_small_counts_are_perturbed(name):
    mechanism = get(name)(threshold=20, epsilon=0.5, noise="laplace")
    counts = np.tile([7, 19, 20, 300], (1, 5000))
    values = shown(mechanism, counts)
    assert np.array_equal(values[counts >= 20], counts[counts >= 20])
    noise = (values - counts)[counts < 20]
    assert ks_1samp(noise, laplace(scale=2).cdf).pvalue > 1e-6
    assert ks_1samp(noise, laplace(scale=2.6).cdf).pvalue < 1e-6


def test_crowd_blending_is_the_other_two_by_another_name():
    counts = np.random.default_rng(1).poisson(5, (6, 40))
    pairs = [
        (get("crowd_blending")(threshold=4), get("suppress_small")(threshold=4)),
        (get("crowd_blending")(threshold=4, epsilon=1.0), get("perturb_small")(threshold=4, epsilon=1.0)),
    ]
    for alias, named in pairs:
        assert np.array_equal(shown(alias, counts), shown(named, counts))


@pytest.mark.parametrize(
    ("width", "expected"), [(1, [0, 1, 9, 124]), (2, [1, 1, 9, 125]), (5, [2, 2, 7, 122]), (10, [5, 5, 5, 125])]
)
def test_fixed_ranges_show_their_middle(width, expected):
    assert shown(get("fixed_ranges")(width=width), [[0, 1, 9, 124]]).tolist() == [expected]


def test_a_range_over_everything_hides_everything():
    counts = np.random.default_rng(1).integers(0, 250, (5, 8))
    assert np.unique(shown(get("fixed_ranges")(width=250), counts)).tolist() == [125]


def adaptive(counts, parts):
    """The paper's rule, cell by cell and window by window."""
    out = np.empty(counts.shape)
    for c in range(counts.shape[1]):
        low, high = counts[:, c].min(), counts[:, c].max()
        edges = np.linspace(low, high, parts + 1)
        for t, y in enumerate(counts[:, c]):
            j = min(int(np.searchsorted(edges, y, side="right")) - 1, parts - 1)
            out[t, c] = y if low == high else (edges[j] + edges[j + 1]) / 2
    return out


@pytest.mark.parametrize("parts", [1, 2, 4, 8])
def test_adaptive_ranges_of_a_block_are_the_papers(parts):
    counts = np.random.default_rng(parts).poisson(30, (24, 6))
    counts[:, 0] = 7
    counts[0, 1], counts[1, 1] = 0, 64  # binary fractions, so that edges are exact
    mechanism = get("adaptive_ranges")(parts=parts, block=24)
    np.testing.assert_allclose(shown(mechanism, counts), adaptive(counts, parts))


@pytest.mark.parametrize("fraction", [0.0, 0.2, 0.4, 0.8, 1.0])
def test_least_popular_cells_and_windows_are_suppressed(fraction):
    counts = np.random.default_rng(1).permutation(200).reshape(10, 20)
    values = shown(get("suppress_unpopular")(fraction=fraction, block=10), counts)
    cells = np.argsort(counts.sum(0))[int(fraction * 20 + 1e-9) :]
    windows = np.argsort(counts.sum(1))[int(fraction * 10 + 1e-9) :]
    expected = np.zeros_like(counts)
    expected[np.ix_(windows, cells)] = counts[np.ix_(windows, cells)]
    assert np.array_equal(values, expected)
    both = shown(get("suppress_unpopular")(fraction=fraction, block=10, where="both"), counts)
    expected = counts.copy()
    expected[np.ix_(np.setdiff1d(np.arange(10), windows), np.setdiff1d(np.arange(20), cells))] = 0
    assert np.array_equal(both, expected)


@pytest.mark.parametrize(
    "name", ["suppress_small", "perturb_small", "fixed_ranges", "adaptive_ranges", "suppress_unpopular"]
)
def test_none_of_them_has_a_guarantee(name):
    for example in get(name).examples():
        assert not example.guarantee.exists
        releases = run_mechanism(example, np.zeros((6, 2), int))
        assert sum(pure_epsilon(release.charge) for release in releases) == np.inf


def test_sampling_keeps_its_share():
    sampling, hashes = get("sampling")(rate=0.3), np.random.default_rng(1).integers(0, 2**64, 100_000, np.uint64)
    kept = sampling.keep(hashes, hashes, Facts(n_cells=1, n_windows=1).windows()[0], hashes)
    assert abs(kept.mean() - 0.3) < 5 * np.sqrt(0.21 / 100_000)
    everything = get("sampling")(rate=1.0)
    assert everything.keep(hashes, hashes, None, np.array([0, 2**64 - 1], np.uint64)).all()
    with pytest.raises(ParameterError):
        get("sampling")(rate=0.0)


def test_clipping_bounds_and_rounds_what_is_released():
    values = np.array([-3.0, -0.4, 0.5, 2.6, np.nan, 40.0])
    assert get("clip")().transform(values).tolist()[:4] == [0.0, 0.0, 0.5, 2.6]
    shown = get("clip")(least=0.5, most=9.5, whole=True).transform(values)
    np.testing.assert_array_equal(shown, [1.0, 1.0, 1.0, 3.0, np.nan, 9.0])
    unbounded = get("clip")(least=None, whole=True).transform(values)
    np.testing.assert_array_equal(unbounded, [-3.0, 0.0, 0.0, 3.0, np.nan, 40.0])
    with pytest.raises(ParameterError, match="most: 1 is not allowed; it must be at least 2"):
        get("clip")(least=2, most=1)
    for bound in (np.inf, -np.inf, 1e308):
        with pytest.raises(ParameterError, match="it must be null, or at most 1,000,000,000,000 in size"):
            get("clip")(least=bound)
