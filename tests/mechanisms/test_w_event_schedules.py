"""w-event schedules: any w successive releases cost at most ε, on random and adversarial data."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.accountants.composition import Composition
from penstock.accountants.core.accountant import AccountingFacts
from penstock.accountants.core.charges import concentrated_rho, pure_epsilon, replaced
from penstock.mechanisms import get
from penstock.mechanisms.core.concentrated import rho_of
from penstock.mechanisms.core.contract import Facts
from penstock.mechanisms.core.plugin import ParameterError
from penstock.mechanisms.core.run import run_mechanism
from penstock.mechanisms.w_event_ba import WEventBa
from penstock.mechanisms.w_event_bd import WEventBd

EPSILON = 2.0
SCHEDULES = ("w_event_uniform", "w_event_sample", "w_event_bd", "w_event_ba")


class NoNoise:
    """Noise source of zeros, so that decisions depend on the counts alone."""

    def discrete_laplace(self, scale, shape):
        return np.zeros(shape, np.int64)

    laplace = discrete_gaussian = gaussian = discrete_laplace


def stretches(epsilons, w):
    """Sums over every w successive windows, shorter ones at the beginning."""
    total = np.concatenate([[0.0], np.cumsum(epsilons)])
    return [total[end] - total[max(0, end - w)] for end in range(1, len(total))]


def spent(mechanism, counts, noise=None):
    """Cost of every window, in the unit of the mechanism's budget."""
    price = concentrated_rho if mechanism.guarantee.concentrated else pure_epsilon
    facts = Facts(n_cells=counts.shape[1], n_windows=len(counts))
    if noise is None:
        return np.array([price(r.charge) for r in run_mechanism(mechanism, counts, facts, seed=6)])
    state, epsilons = mechanism.start(facts), []
    for window, vector in zip(facts.windows(), counts):
        [release], state = mechanism.step(window, vector, state, noise)
        epsilons.append(price(release.charge))
    return np.array(epsilons)


IN_EPSILON = {"epsilon": EPSILON}
IN_RHO = tuple({"rho": EPSILON, "noise": noise} for noise in ("gaussian", "discrete_gaussian"))


@pytest.mark.parametrize("budget", [IN_EPSILON, *IN_RHO])
@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("w", [1, 2, 3, 10, 40])
def test_successive_releases_of_random_data_keep_the_budget(name, w, budget):
    counts = np.random.default_rng(w).poisson(3, (120, 4)).cumsum(axis=0)
    assert max(stretches(spent(get(name)(w=w, **budget), counts), w)) <= EPSILON * (1 + 1e-9)


@given(
    name=st.sampled_from(("w_event_bd", "w_event_ba")),
    w=st.integers(1, 6),
    spikes=st.lists(st.booleans(), min_size=18, max_size=18),
    budget=st.sampled_from((IN_EPSILON, *IN_RHO)),
)
@settings(max_examples=300, deadline=None)
def test_an_adversary_chooses_which_windows_publish(name, w, spikes, budget):
    # A jump from one window to the next publishes wherever the schedule allows it; no jump never does.
    counts = (np.cumsum(spikes) % 2 * 10**9)[:, None]
    epsilons = spent(get(name)(w=w, **budget), counts, NoNoise())
    assert max(stretches(epsilons, w)) <= EPSILON * (1 + 1e-9)


@pytest.mark.parametrize("name", ["w_event_bd", "rescue_dp"])
def test_a_run_of_fewer_windows_than_w_keeps_to_its_budget_and_remembers_no_more_of_them(name):
    counts, mechanism = (np.arange(40) % 2 * 10**6)[:, None] * np.ones(4, int), get(name)(w=1_000_000, epsilon=EPSILON)
    assert 0 < spent(mechanism, counts).sum() <= EPSILON * (1 + 1e-9)
    assert mechanism.start(Facts(n_cells=4, n_windows=40, n_replicas=3))["spent"].shape == (3, 40)
    assert mechanism.start(Facts(n_cells=4))["spent"].shape == (1_000_000,)


@pytest.mark.parametrize("spikes", ["1" * 20, "10" * 10, "0001" * 5, "00000111110000011111", "0" * 9 + "1" * 11])
def test_distribution_and_absorption_follow_the_published_algorithms(spikes):
    w = 4
    counts = (np.cumsum([s == "1" for s in spikes]) % 2 * 10**9)[:, None]
    for name, expected in (("w_event_bd", distribution), ("w_event_ba", absorption)):
        # Every window's dissimilarity query costs ε/(2w); the rest is for publications.
        actual = spent(get(name)(epsilon=EPSILON, w=w), counts, NoNoise()) - EPSILON / (2 * w)
        assert actual == pytest.approx(expected(counts[:, 0], w), abs=1e-12)


def distribution(counts, w):
    """Kellaris et al. 2014, algorithm 1: ε₂ of every timestamp, where only a change of the counts is worth it."""
    spent, last = [], 0
    for count in counts:
        offer = (EPSILON / 2 - sum(spent[-(w - 1) :] if w > 1 else [])) / 2
        publishes = abs(count - last) > 1 / offer
        spent.append(offer if publishes else 0.0)
        last = count if publishes else last
    return spent


def absorption(counts, w):
    """Kellaris et al. 2014, algorithm 2, in its own words: l the last publication, t_N to nullify, t_A to absorb."""
    share = EPSILON / (2 * w)
    spent, last, latest, latest_spent = [], 0, 0, share
    for t, count in enumerate(counts, start=1):
        t_nullified = latest_spent / share - 1
        if t - latest <= t_nullified + 1e-9:
            spent.append(0.0)
            continue
        offer = share * min(t - (latest + t_nullified), w)
        publishes = abs(count - last) > 1 / offer
        spent.append(offer if publishes else 0.0)
        if publishes:
            last, latest, latest_spent = count, t, offer
    return spent


class ForgetsTheStretch(WEventBd):
    """Publication budget: always half of everything."""

    def amount(self, window, state):
        return np.full(state["spent"].shape[:-1], self.epsilon / 4)


class NeverPauses(WEventBa):
    """Absorbs without paying back."""

    def record(self, window, offer, after):
        return super().record(window, offer, after) | {"pause": np.zeros_like(after["pause"])}


@pytest.mark.parametrize("broken", [ForgetsTheStretch, NeverPauses])
def test_the_sums_would_notice(broken):
    spikes = [0, 0, 0, 1, 1, 1, 1, 1]
    counts = (np.cumsum(spikes) % 2 * 10**9)[:, None]
    assert max(stretches(spent(broken(epsilon=EPSILON, w=4), counts, NoNoise()), 4)) > 1.1 * EPSILON


def test_a_budget_too_small_for_any_noise_is_no_publication():
    # Every window jumps by more than any noise: halving would go on until no sampler serves the scale.
    counts = (np.arange(100) % 2 * 10**15)[:, None]
    epsilons = spent(get("w_event_bd")(epsilon=EPSILON, w=100), counts, NoNoise()) - EPSILON / 200
    assert 30 < np.count_nonzero(epsilons > 1e-15) < 45
    assert max(stretches(epsilons, 100)) <= EPSILON / 2


def test_sample_publishes_the_first_of_w_windows():
    releases = run_mechanism(get("w_event_sample")(epsilon=1.0, w=3), np.full((7, 1), 4), seed=1)
    assert [r.repeats for r in releases] == [None, 1, 1, None, 4, 4, None]


def test_quiet_data_is_rarely_published_and_a_jump_at_once():
    counts = np.repeat([100, 900], 40)[:, None] * np.ones((1, 50), int)
    for name in ("w_event_bd", "w_event_ba"):
        releases = run_mechanism(get(name)(epsilon=2.0, w=10), counts, Facts(n_cells=50), seed=8)
        published = [release.window for release in releases if release.action == "published"]
        assert published[0] == 1
        assert 41 in published
        assert len(published) < 30


@pytest.mark.parametrize("family", ["laplace", "discrete_laplace", "gaussian", "discrete_gaussian"])
@pytest.mark.parametrize("max_cells", [1, 2, 3])
def test_the_question_moves_by_no_more_than_it_is_charged_for(family, max_cells):
    """Every way in which one user, or one in place of another, can change a vector of four cells."""
    amount = {"rho": 0.5} if "gaussian" in family else {"epsilon": 1.0}
    mechanism, rng = get("w_event_ba")(w=3, noise=family, **amount), np.random.default_rng(1)
    facts = Facts(n_cells=4, max_cells=max_cells, n_windows=1)
    window, state = facts.windows()[0], mechanism.start(facts)
    event = mechanism.worst_charge(window, state)[0]
    assert pure_epsilon([event]) == pytest.approx(1 / 6 if "laplace" in family else (2 * 0.5 / 6) ** 0.5)
    signs = np.array(list(itertools.product((-1, 0, 1), repeat=4)))
    added = signs[((signs >= 0).all(axis=1)) & (signs.sum(axis=1) <= max_cells)]
    swapped = signs[((signs > 0).sum(axis=1) <= max_cells) & ((signs < 0).sum(axis=1) <= max_cells)]
    moved = {"added": 0.0, "swapped": 0.0}
    for _ in range(200):
        last = rng.normal(0, 5, 4) if family in ("laplace", "gaussian") else np.rint(rng.normal(0, 5, 4))
        base = rng.integers(0, 8, 4) if rng.random() < 0.8 else np.rint(last).astype(int)

        def answers(counts, last=last):
            rows = {name: np.repeat(value[None], len(counts), 0) for name, value in (state | {"last": last}).items()}
            return 4 * mechanism.ask(window, counts, rows, NoNoise())

        before = answers(base[None, :])
        for name, ways in (("added", added), ("swapped", swapped)):
            moved[name] = max(moved[name], np.abs(answers(base + ways) - before).max())
    assert 0.9 * event.sensitivity < moved["added"] <= event.sensitivity * (1 + 1e-9)
    assert moved["swapped"] <= replaced(event).sensitivity * (1 + 1e-9)


def test_what_an_adaptive_schedule_in_rho_promises_is_the_budget_bounded_beforehand():
    mechanism = get("w_event_bd")(epsilon=2.0, delta=1e-6, w=3, noise="discrete_gaussian")
    facts = AccountingFacts(n_cells=4, max_cells=4, mechanism=mechanism)
    accountant = Composition(delta=1e-6)
    rows = {row.name: row for row in accountant.finish(*accountant.start(facts))}
    assert rows["w_event_epsilon_rdp"].value == pytest.approx(2.0)
    assert rows["w_event_rho"].value == pytest.approx(rho_of(2.0, 1e-6))
    assert "Feldman, Zrnic 2021" in rows["w_event_rho"].adjacency
    assert "Feldman and Zrnic 2021" in mechanism.guarantee.theorem
    assert "ε = 2 at δ = 1e-06" in mechanism.guarantee.words.statement
    longer = Composition(delta=1e-6, w=4)
    assert "w_event_rho" not in {row.name for row in longer.finish(*longer.start(facts))}


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"noise": "gaussian"}, "rho"),
        ({"noise": "gaussian", "rho": 1.0, "epsilon": 1.0}, "rho"),
        ({"noise": "gaussian", "epsilon": 1.0}, "delta"),
        ({"noise": "gaussian", "rho": 1.0, "delta": 1e-6}, "delta"),
        ({"noise": "discrete_laplace", "epsilon": 1.0, "delta": 1e-6}, "delta"),
        ({"noise": "discrete_laplace", "rho": 1.0}, "rho"),
        ({"rho": 1.0, "delta": 1e-6}, "delta"),
        ({"delta": 1e-6}, "rho"),
        ({}, "epsilon"),
    ],
)
def test_budgets_that_make_no_sense_are_refused(given, field):
    for name in SCHEDULES:
        with pytest.raises(ParameterError) as caught:
            get(name)(w=2, **given)
        assert caught.value.field == field


def test_what_fast_promises_in_rho_is_the_budget_of_a_period():
    mechanism = get("fast")(epsilon=2.0, delta=1e-6, publications=3, noise="discrete_gaussian")
    facts = AccountingFacts(n_cells=4, max_cells=1, mechanism=mechanism)
    accountant = Composition(delta=1e-6)
    rows = {row.name: row for row in accountant.finish(*accountant.start(facts))}
    assert rows["period_rho"].value == pytest.approx(rho_of(2.0, 1e-6))
    assert rows["period_epsilon_rdp"].value == pytest.approx(2.0)
    assert "in one budget period" in rows["period_rho"].adjacency
    pure = replace(facts, mechanism=get("fast")(epsilon=2.0, publications=3))
    assert "period_rho" not in {row.name for row in accountant.finish(*accountant.start(pure))}
