"""Correlated noise against the dense strategy matrix, its sensitivity by enumeration of contributions."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest

from penstock.accountants import get as get_accountant
from penstock.accountants.core.accountant import AccountingFacts
from penstock.accountants.core.charges import concentrated_rho
from penstock.mechanisms import get
from penstock.mechanisms.core.chain import Chain
from penstock.mechanisms.core.concentrated import epsilon_of, rho_of
from penstock.mechanisms.core.contract import Facts
from penstock.mechanisms.core.plugin import ParameterError
from penstock.mechanisms.core.run import run_mechanism
from penstock.mechanisms.core.sensitivity import of_mixtures
from penstock.mechanisms.correlated import GRID, Correlated, strategy
from tests.tools.cases import slow
from tests.tools.distinguishing import best_bound, correlated_evidence, dense


def noise_of(mechanism, n_windows=12, n_cells=20_000, seed=1):
    counts = np.zeros((n_windows, n_cells), int)
    releases = run_mechanism(mechanism, counts, Facts(n_cells=n_cells), seed=seed)
    return np.stack([release.values for release in releases]), releases


@pytest.mark.parametrize("noise", ["gaussian", "discrete_gaussian"])
@pytest.mark.parametrize("band", [1, 2, 5, 30])
def test_the_noise_is_that_of_the_dense_matrix(band, noise):
    n_windows, n_cells = 12, 20_000
    mechanism = Correlated(rho=0.5, band=band, noise=noise)
    actual, releases = noise_of(mechanism, n_windows, n_cells)
    sigma = np.sqrt(of_mixtures(strategy(band), 1).l2_squared) / GRID
    inverse = np.linalg.inv(dense(band, n_windows))
    covariance = sigma**2 * inverse @ inverse.T
    # Six standard errors of a covariance.
    errors = np.sqrt((np.outer(np.diag(covariance), np.diag(covariance)) + covariance**2) / n_cells)
    assert (np.abs(actual @ actual.T / n_cells - covariance) < 6 * errors).all()
    np.testing.assert_allclose([float(release.scale) for release in releases], np.sqrt(np.diag(covariance)))
    # Mixed again it is white.
    white = dense(band, n_windows) @ actual
    assert np.abs(np.corrcoef(white)[np.triu_indices(n_windows, 1)]).max() < 6 / np.sqrt(n_cells)


def test_counts_and_pauses_come_through():
    rng = np.random.default_rng(3)
    counts = rng.integers(0, 1000, (40, 6))
    facts = Facts(n_cells=6, max_cells=3)
    mechanism = Correlated(rho=1e12, band=7, noise="gaussian")
    released = np.stack([release.values for release in run_mechanism(mechanism, counts, facts)])
    np.testing.assert_allclose(released, counts, atol=1e-3)


def test_sums_are_nearly_as_good_as_without_a_band():
    """Mean squared error of all prefix sums of 256 windows, one window protected, of the dense matrices."""

    def error(band, n=256):
        sigma_squared = of_mixtures(strategy(band), 1).l2_squared / GRID**2
        sums = np.tril(np.ones((n, n))) @ np.linalg.inv(dense(band, n))
        return sigma_squared * (sums**2).sum(1).mean()

    whole = error(256)
    assert error(1) > 15 * whole, "independent noise"
    assert error(24) < 1.7 * whole
    # No factorisation of so many sums has less than this (Henzinger, Upadhyay, Upadhyay 2023: within a constant).
    assert whole < (1 + np.log(2 * 256) / np.pi) ** 2


def contributions(n_windows, n_cells, max_cells):
    """All that one person can add, at most so many cells in a window."""
    rows = [row for row in product((0, 1), repeat=n_cells) if sum(row) <= max_cells]
    return (np.array(rows_of) for rows_of in product(rows, repeat=n_windows))


@pytest.mark.parametrize(
    ("band", "w", "n_cells", "max_cells"), [(3, 3, 3, 2), (2, 5, 2, 1), (4, 4, 2, 2), (1, 3, 3, 2)]
)
def test_the_sensitivity_is_the_worst_of_all_contributions(band, w, n_cells, max_cells):
    matrix = dense(band, w + band) * GRID  # with the windows after the last one
    worst = max(((matrix[:, :w] @ one) ** 2).sum() for one in contributions(w, n_cells, max_cells))
    assert worst == pytest.approx(max_cells * of_mixtures(strategy(band), w).l2_squared)
    for fewer, shorter in ((strategy(band)[:-1], w), (strategy(band), w - 1)):
        assert max_cells * of_mixtures(np.append(fewer, 0.0), shorter).l2_squared < worst, "off by one"


@pytest.mark.parametrize("band", [1, 2, 4, 9])
def test_charges_cover_every_set_of_windows(band):
    mechanism, n_windows = Correlated(rho=0.5, w=2, band=band), 9
    _, [release, *_] = noise_of(mechanism, n_windows, 2)
    sigma = np.sqrt(of_mixtures(strategy(band), 2).l2_squared)
    matrix = dense(band, n_windows + band) * GRID
    for size in range(1, n_windows + 1):
        losses = [(matrix[:, list(some)].sum(1) ** 2).sum() / (2 * sigma**2) for some in combinations(range(9), size)]
        assert max(losses) <= size * concentrated_rho(release.charge) * (1 + 1e-12)
        if size <= 2:
            assert max(losses) <= 0.5 * (1 + 1e-12)


def figures(mechanism, w, n_windows=6):
    releases = run_mechanism(mechanism, np.zeros((n_windows, 3), int), Facts(n_cells=3))
    facts = AccountingFacts(n_cells=3, max_cells=1, n_windows=n_windows, mechanism=mechanism)
    composition = get_accountant("composition")(w=w, delta=1e-6)
    model, state = composition.start(facts)
    for release, window in zip(releases, Facts(n_cells=3, n_windows=n_windows).windows()):
        _, state = composition.charge(release, window, {}, model, state)
    rows = composition.finish(model, state)
    assert len({row.name for row in rows}) == len(rows)
    return {row.name: row.value for row in rows}


def test_composition_states_the_promise_for_its_own_stretch_and_sums_for_others():
    mechanism = Correlated(epsilon=2.0, delta=1e-6, w=3, band=5)
    rho = rho_of(2.0, 1e-6)
    charged = mechanism.guarantee.charged / 3
    matching, longer = figures(mechanism, 3), figures(mechanism, 4)
    assert matching["w_event_rho"] == pytest.approx(rho)
    assert matching["w_event_epsilon_rdp"] == pytest.approx(2.0, rel=1e-3)
    assert "w_event_rho" not in longer
    assert longer["w_event_epsilon_rdp"] == pytest.approx(epsilon_of(4 * charged, 1e-6), rel=0.02)
    assert matching["user_rho"] == pytest.approx(6 * charged)
    assert matching["w_event_epsilon"] == np.inf


def audited(present_windows, mechanism, claimed=0.02, n_replicas=12_000):
    inputs = [np.full((n_replicas, 9, 1), 5) for _ in range(2)]
    inputs[1][:, present_windows] += 1
    scored = []
    for counts in inputs:
        run = run_mechanism(mechanism, counts, Facts(n_cells=1), seed=4)
        scored.append((correlated_evidence(mechanism.band, run, *inputs), [""] * n_replicas))
    return best_bound(*scored, delta=claimed)


@pytest.mark.parametrize("noise", ["gaussian", *slow(["discrete_gaussian"])])
def test_nobody_finds_more_than_the_promise_and_nearly_half_is_found(noise):
    mechanism = Correlated(rho=0.5, w=3, band=3, noise=noise)
    assert 0.45 * epsilon_of(0.5, 0.02) < audited([1, 2, 3], mechanism) <= epsilon_of(0.5, 0.02)


class OneWindowAtATime(Correlated):
    """Mutant that adds ρ over windows."""

    __doc__ = Correlated.__doc__

    def _sigma(self, state):
        return float(np.sqrt(self.w * of_mixtures(strategy(self.band), 1).l2_squared / (2 * self.budget)))


@pytest.mark.slow
def test_a_sensitivity_that_is_too_small_is_convicted():
    kinds = (Correlated, OneWindowAtATime)
    actual = [audited([0, 1, 2, 3, 4], kind(rho=0.1, w=5, band=6), n_replicas=30_000) for kind in kinds]
    assert actual[0] <= epsilon_of(0.1, 0.02) < actual[1]


def test_steps_that_need_independent_noise_are_refused():
    for step in (get("filter")(), get("kalman")()):
        with pytest.raises(ParameterError, match="not independent from window to window"):
            Chain.of([Correlated(rho=0.5), step])
    Chain.of([Correlated(rho=0.5), get("fixed_ranges")(width=5)])
    with pytest.raises(ParameterError, match="without sampling before it"):
        Chain.of([get("sampling")(rate=0.1), Correlated(rho=0.5)])


def test_a_budget_is_given_once():
    for given in ({}, {"rho": 0.5, "epsilon": 1.0, "delta": 1e-6}, {"epsilon": 1.0}, {"rho": 0.5, "delta": 1e-6}):
        with pytest.raises(ParameterError, match=r"rho|delta"):
            Correlated(**given)
