"""Composition against direct sums, exact formulas and brute force, and the units of its figures."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, LaplaceDpEvent, PoissonSampledDpEvent
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from scipy.optimize import brentq
from scipy.stats import norm

from penstock.accountants.composition import Composition
from penstock.accountants.core.accountant import AccountingFacts
from penstock.accountants.core.charges import concentrated_rho, gaussian_amount, pure_epsilon, replaced
from penstock.accountants.core.privacy_loss import FINEST, KINDS, MAX_DISTINCT, from_loss_distributions, remember
from penstock.accountants.core.renyi import ORDERS, discrete_laplace_losses, from_renyi, renyi
from penstock.mechanisms import get
from penstock.mechanisms.core import events
from penstock.mechanisms.core.concentrated import epsilon_of, epsilon_of_gaussian
from penstock.mechanisms.core.contract import Facts, Release
from penstock.mechanisms.core.plugin import UnsupportedEvent

DELTA = 1e-5


def book(charges):
    state = {"events": np.zeros((MAX_DISTINCT, 5)), "n_kinds": 0}
    for charge in charges:
        state = remember((charge,), state["events"], int(state["n_kinds"]))
    return state["events"], int(state["n_kinds"])


def figures(charges, mechanism=None, windows=None, facts=None, **parameters):
    """Values of the run's final rows by name."""
    accountant = Composition(**{"delta": DELTA, **parameters})
    model, state = accountant.start(facts or AccountingFacts(n_cells=4, max_cells=4, mechanism=mechanism))
    windows = windows or Facts(n_cells=4, n_windows=len(charges)).windows()
    for window, charge in zip(windows, charges):
        release = Release(window=window.index, values=np.zeros(4), charge=charge)
        _, state = accountant.charge(release, window, {}, model, state)
    return {row.name: row.value for row in accountant.finish(model, state)}


def discrete_laplace_pmf(scale, reach=400):
    z = np.arange(-reach, reach + 1)
    weights = np.exp(-np.abs(z) / scale)
    return weights / weights.sum()


def exact_delta(mu, epsilon):
    """Balle and Wang 2018, theorem 8."""
    return norm.cdf(mu / 2 - epsilon / mu) - np.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)


@pytest.mark.parametrize(("scale", "shift"), [(0.5, 1), (2.0, 1), (2.0, 3), (7.0, 4)])
def test_discrete_laplace_renyi_is_the_direct_sum(scale, shift):
    p = discrete_laplace_pmf(scale, int(50 * scale))
    below, above = np.log(p[shift:]), np.log(p[:-shift])
    orders = np.array([1.5, 2.0, 5.0, 10.0])
    direct = [np.log(np.exp(a * below + (1 - a) * above).sum()) / (a - 1) for a in orders]
    actual = [renyi((events.Additive("discrete_laplace", float(shift), scale),))[a == ORDERS].item() for a in orders]
    assert actual == pytest.approx(direct, rel=1e-9)


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.5, 1.0])
def test_one_shifted_coordinate_dominates_every_split_of_the_same_l1(epsilon):
    """Hockey-stick divergence of a shift of 3 in one coordinate against (2, 1) and (1, 1, 1)."""
    scale, reach = 2.0, 24
    p = discrete_laplace_pmf(scale, reach)

    def divergence(split):
        here, there = np.ones(1), np.ones(1)
        for shift in split:
            padded = np.concatenate([p, np.zeros(3)])
            here = np.multiply.outer(here, padded).ravel()
            there = np.multiply.outer(there, np.roll(padded, shift)).ravel()
        return np.maximum(here - np.exp(epsilon) * there, 0).sum()

    single = divergence((3,))
    # What lies beyond the reach is less than this.
    tail = 6 * np.exp(-(reach - 3) / scale)
    for split in ((2, 1), (1, 1, 1)):
        assert divergence(split) <= single + tail * 1e-3
    assert divergence((1, 1, 1)) < single - 1e-3 or epsilon == 0.0


@pytest.mark.parametrize(
    "event",
    [
        events.Additive("laplace", 1.0, 3.0),
        events.Additive("laplace", 2.0, 5.0),
        events.Additive("discrete_laplace", 1.0, 2.0),
        events.Additive("discrete_laplace", 3.0, 10.0),
    ],
)
@pytest.mark.parametrize("n", [1, 4, 50])
def test_pld_is_at_most_renyi_is_at_most_pure(event, n):
    pld = from_loss_distributions(*book([event] * n), DELTA)
    actual = figures([(event,)] * n)
    pure = n * pure_epsilon((event,))
    assert actual["user_epsilon"] == pytest.approx(pure)
    assert actual["user_epsilon_pld"] <= actual["user_epsilon_rdp"] * (1 + 1e-9)
    assert actual["user_epsilon_rdp"] <= pure * (1 + 1e-9)
    assert actual["user_epsilon_pld"] == pytest.approx(min(pld, pure))
    assert actual["user_rho"] == pytest.approx(n * concentrated_rho((event,)))


@pytest.mark.parametrize("n_parts", [500_000, 23_000])
@pytest.mark.parametrize(("scale", "shift", "n"), [(1.3, 1, 300), (2.0, 1, 24), (2.0, 2, 1), (3.0, 4, 29)])
@pytest.mark.parametrize("delta", [1e-3, 1e-6])
def test_integer_losses_are_composed_as_on_their_lattice(n_parts, scale, shift, n, delta):
    log_mass, losses = discrete_laplace_losses(scale, shift)
    mass = np.array([1.0])
    for _ in range(n):
        mass = np.convolve(mass, np.exp(log_mass))
    losses = n * losses[0] - 2 / scale * np.arange(len(mass))
    (more,) = np.nonzero((np.cumsum(mass) > delta) & (losses > 0))
    others = np.cumsum(mass * np.exp(-losses))
    exact = max(np.log((np.cumsum(mass)[more] - delta) / others[more]))
    charges = book([events.Additive("discrete_laplace", shift, scale)] * n)
    figure = from_loss_distributions(*charges, delta, n_parts=n_parts)
    step = max(FINEST, n * shift / scale / n_parts)
    assert exact - 1e-12 <= figure <= exact + 1e-6 + n * step**2


@pytest.mark.parametrize(
    "rows",
    [
        [("laplace", 2.0, 5.0, 1.0, 30)],
        [("laplace", 1.0, 14.0, 0.4, 28), ("gaussian", 2.0, 7.0, 1.0, 9)],
        [("gaussian", 1.0, 3.0, 0.1, 60)],
        [("laplace", 3.0, 8.0, 1.0, 7), ("gaussian", 2.0, 23.0, 0.03, 2), ("laplace", 1.0, 1.5, 1.0, 3)],
    ],
)
@pytest.mark.parametrize("delta", [1e-6, 1e-3])
def test_loss_distributions_are_those_of_the_library(rows, delta):
    accountant, table = PLDAccountant(value_discretization_interval=1e-4), np.zeros((MAX_DISTINCT, 5))
    for i, (family, sensitivity, scale, rate, n) in enumerate(rows):
        event = {"laplace": LaplaceDpEvent, "gaussian": GaussianDpEvent}[family](scale / sensitivity)
        accountant.compose(event if rate == 1 else PoissonSampledDpEvent(rate, event), n)
        table[i] = KINDS.index(family), sensitivity, scale, rate, n
    figure = from_loss_distributions(table, len(rows), delta)
    assert figure == pytest.approx(accountant.get_epsilon(delta), rel=2e-6)


@pytest.mark.parametrize("multiplier", [0.01, 0.3, 1.0, 7.0, 1e4])
def test_the_curve_of_laplace_noise_is_that_of_the_library(multiplier):
    accountant = RdpAccountant(orders=list(ORDERS))
    accountant.compose(LaplaceDpEvent(multiplier))
    assert renyi((events.Additive("laplace", 1.0, multiplier),)) == pytest.approx(accountant.rdp, rel=1e-12)


@pytest.mark.parametrize(("sigma", "n"), [(0.8, 1), (3.0, 10), (12.0, 100)])
def test_gaussian_figures_stand_above_the_exact_formula_and_close_to_it(sigma, n):
    mu = np.sqrt(n) * np.sqrt(2) / sigma
    exact = brentq(lambda e: exact_delta(mu, e) - DELTA, 0, 60)
    actual = figures([(events.Additive("gaussian", np.sqrt(2), sigma),)] * n)
    assert exact <= actual["user_epsilon_pld"] <= exact * 1.002 + 1e-3
    assert actual["user_epsilon_pld"] <= actual["user_epsilon_rdp"] <= exact * 1.15
    assert actual["user_epsilon"] == np.inf
    assert actual["user_rho"] == pytest.approx(mu**2 / 2)


def test_discrete_gaussian_costs_what_gaussian_costs_and_has_no_distribution_figure():
    actual = figures([(events.Additive("discrete_gaussian", 1.0, 2.0),)] * 5)
    same = figures([(events.Additive("gaussian", 1.0, 2.0),)] * 5)
    assert actual["user_rho"] == same["user_rho"] == 5 / 8
    assert same["user_epsilon_rdp"] == epsilon_of_gaussian(5 / 8, DELTA)
    assert same["user_epsilon_rdp"] == pytest.approx(same["user_epsilon_pld"], rel=1e-3)  # exactly, and on dots
    # At twice the amount the exact ε of discrete noise is above that by Rényi DP, which stays.
    assert epsilon_of(5 / 8, DELTA) <= actual["user_epsilon_rdp"] < epsilon_of_gaussian(5 / 4, DELTA)
    assert "user_epsilon_pld" not in actual


def test_two_releases_against_all_outputs():
    """ε at δ of two different discrete Laplace releases, from all pairs of outputs."""
    p, q = discrete_laplace_pmf(2.0, 200), discrete_laplace_pmf(5.0, 200)
    here = np.multiply.outer(p[1:], q[1:]).ravel()
    there = np.multiply.outer(p[:-1], q[:-1]).ravel()
    delta = 0.05
    exact = brentq(lambda e: np.maximum(here - np.exp(e) * there, 0).sum() - delta, 0, 2)
    charges = [(events.Additive("discrete_laplace", 1.0, 2.0),), (events.Additive("discrete_laplace", 1.0, 5.0),)]
    actual = figures(charges, delta=delta)
    assert exact <= actual["user_epsilon_pld"] <= exact + 1e-3
    assert actual["user_epsilon_rdp"] >= exact


def test_pure_events_cost_at_most_randomised_response():
    epsilon = 0.7
    p = np.exp(epsilon) / (1 + np.exp(epsilon))
    a = 3.0
    direct = np.log(p**a * (1 - p) ** (1 - a) + (1 - p) ** a * p ** (1 - a)) / (a - 1)
    assert renyi((events.PureDP(epsilon),))[a == ORDERS].item() == pytest.approx(direct)
    assert (renyi((events.Additive("laplace", 1.0, 1 / epsilon),)) <= renyi((events.PureDP(epsilon),)) + 1e-12).all()


def test_w_event_and_event_figures_are_the_largest_sums():
    rng = np.random.default_rng(3)
    epsilons = rng.uniform(0.01, 1.0, 30)
    charges = [(events.PureDP(e),) for e in epsilons]
    for w in (1, 3, 30, 50):
        actual = figures(charges, w=w)
        sums = [epsilons[max(0, end - w) : end].sum() for end in range(1, 31)]
        assert actual["w_event_epsilon"] == pytest.approx(max(sums))
        assert actual["event_epsilon"] == pytest.approx(epsilons.max())
        assert actual["w_event_epsilon_rdp"] <= actual["w_event_epsilon"] * (1 + 1e-12)


def test_a_block_counts_in_every_stretch_that_touches_it():
    """Blocks of three windows, charged at their first: a stretch of two windows touches two of them at a border."""
    charges = [
        (events.Block(events.PureDP(1.0), first, first + 2),) if first % 3 == 1 else () for first in range(1, 10)
    ]
    for w in (1, 2, 3, 4, 5):
        touched = max(len({(t - 1) // 3 for t in range(s, s + w)}) for s in range(1, 11 - w))
        assert figures(charges, w=w)["w_event_epsilon"] == touched
    assert figures(charges)["event_epsilon"] == 1.0
    assert figures(charges)["user_epsilon"] == 3.0


def test_charges_inside_a_block_are_never_lost():
    charges = [
        (events.PureDP(1.0), *([events.Block(events.PureDP(1.0), 1, 9)] if t == 1 else [])) for t in range(1, 10)
    ]
    for w in (1, 2, 4):
        assert figures(charges, w=w)["w_event_epsilon"] >= w + 1


def test_adaptive_amounts_have_pure_figures_only():
    mechanism = get("w_event_ba")(epsilon=1.0, w=3)
    actual = figures([(events.Additive("laplace", 1.0, 2.0),)] * 4, mechanism=mechanism)
    assert set(actual) == {"event_epsilon", "w_event_epsilon", "user_epsilon"}
    accountant = Composition()
    model, state = accountant.start(AccountingFacts(n_cells=4, mechanism=mechanism))
    assert all("not a bound fixed in advance" in row.adjacency for row in accountant.finish(model, state))


def test_exact_releases_cost_everything_and_nothing_costs_nothing():
    assert set(figures([(events.Exact(),)]).values()) == {np.inf}
    nothing = figures([(events.Repeated(0),), (events.Covered(1),), ()])
    assert set(nothing.values()) == {0.0}


def test_too_many_kinds_close_the_book():
    charges = [(events.Additive("laplace", 1.0, 1.0 + i),) for i in range(MAX_DISTINCT + 1)]
    assert "user_epsilon_pld" in figures(charges[:-1])
    assert "user_epsilon_pld" not in figures(charges)


@pytest.mark.parametrize("price", [pure_epsilon, concentrated_rho, renyi])
def test_every_event_of_the_family_is_priced_or_refused(price):
    examples = {
        events.Sampled: events.Sampled(events.Additive("laplace", 1.0, 2.0), 0.5),
        events.Block: events.Block(events.Additive("gaussian", 1.0, 2.0), 1, 3),
        events.Linked: events.Linked(events.Additive("laplace", 1.0, 2.0), 3.0),
        events.Additive: events.Additive("discrete_gaussian", 1.0, 2.0),
        events.Exact: events.Exact(),
    }
    for kind in events.EVENTS:
        event = examples.get(kind) or kind(*[1.0, 2.0][: len(vars(kind).get("__match_args__", ()))])
        assert np.min(price((event,))) >= 0
    with pytest.raises(UnsupportedEvent):
        price((type("Unknown", (events.Event,), {})(),))


def test_a_step_of_stated_rho_is_priced_as_gaussian_noise_of_that_rho_and_no_more_is_known_of_it():
    stated, noise = events.ConcentratedDP(0.5), events.Additive("gaussian", 1.0, 1.0)
    assert concentrated_rho((stated,)) == concentrated_rho((noise,)) == 0.5
    assert renyi((stated,)).tolist() == renyi((noise,)).tolist()
    assert pure_epsilon((stated,)) == gaussian_amount((stated,)) == np.inf
    assert replaced(stated) == events.ConcentratedDP(2.0)  # for Gaussian noise alone it would double only
    nothing = events.ConcentratedDP(0.0)
    assert pure_epsilon((nothing,)) == concentrated_rho((nothing,)) == 0


def test_replacement_is_twice_add_remove_and_exactly_that():
    p = discrete_laplace_pmf(3.0)
    moved = [np.log(p[a] / p[a - 1]) + np.log(p[b] / p[b + 1]) for a, b in itertools.product(range(300, 500), repeat=2)]
    charge = (events.Additive("discrete_laplace", 1.0, 3.0),)
    assert pure_epsilon(charge, "replacement") == pytest.approx(max(moved))


@pytest.mark.parametrize(
    "event",
    [
        events.Additive("laplace", 2.0, 3.0),
        events.Additive("discrete_laplace", 2.0, 3.0),
        events.Additive("gaussian", np.sqrt(2), 3.0),
        events.Additive("discrete_gaussian", np.sqrt(2), 3.0),
        events.PureDP(0.4),
        events.Block(events.Additive("laplace", 2.0, 3.0), 1, 4),
        events.Linked(events.Additive("laplace", 2.0, 3.0), 3.0),
        events.Linked(events.Additive("discrete_gaussian", np.sqrt(2), 3.0)),
        events.Sampled(events.Additive("discrete_laplace", 2.0, 3.0), 0.3),
        events.Sampled(events.Additive("gaussian", np.sqrt(2), 3.0), 0.3),
        events.Sampled(events.Additive("discrete_laplace", 2.0, 3.0), 0.3, "user"),
        events.Sampled(events.Additive("gaussian", np.sqrt(2), 3.0), 0.3, "user"),
        events.Exact(),
        events.Repeated(3),
    ],
    ids=lambda event: type(event).__name__,
)
def test_a_replaced_event_costs_a_replacement(event):
    anew = replaced(event)
    assert pure_epsilon((anew,)) == pytest.approx(pure_epsilon((event,), "replacement"))
    assert concentrated_rho((anew,)) >= 2 * concentrated_rho((event,)) * (1 - 1e-9)
    assert (renyi((anew,)) >= renyi((event,)) - 1e-12).all()


def test_the_conversion_of_nothing_and_of_everything():
    assert from_renyi(np.zeros(len(ORDERS)), DELTA) == 0.0
    assert from_renyi(np.full(len(ORDERS), np.inf), DELTA) == np.inf


# What one wrong sign in the sums would understate.


def in_periods(charges, length=2, **facts):
    """Final figures where budget periods have so many windows."""
    windows = [
        replace(window, period=(window.index - 1) // length, period_last=-(-window.index // length) * length)
        for window in Facts(n_cells=4, n_windows=len(charges)).windows()
    ]
    known = AccountingFacts(n_cells=4, max_cells=4, n_windows=len(charges), **facts)
    known = replace(known, windows=lambda first, last: windows[first - 1 : last])
    return figures(charges, windows=windows, facts=known)


@pytest.mark.parametrize("last", [3, 4])
def test_a_charge_that_reaches_into_the_next_period_counts_in_both(last):
    spanning = events.Block(events.PureDP(1.0), 2, last)
    values = in_periods([(events.PureDP(0.125),), (spanning,), (events.PureDP(0.25),), ()])
    assert values["period_epsilon"] == 1.25  # of the second period; 1.125 of the first


def test_a_part_of_a_block_in_a_period_is_a_replacement():
    spanning = (events.Block(events.PureDP(1.0), 2, 3),)
    inside = (events.Block(events.PureDP(1.0), 1, 2),)
    other = (events.PureDP(0.5),)
    for charges, expected in (([other, spanning, (), ()], 2.5), ([other, inside, (), ()], 1.5)):
        assert in_periods(charges, max_windows=1)["period_epsilon"] == expected
        assert in_periods(charges)["period_epsilon"] == 1.5


def test_one_event_of_a_window_that_gives_way_to_another_is_a_replacement():
    charges = [(events.PureDP(0.5),), (events.PureDP(0.25),)]
    one_cell = figures(charges, w=2, facts=AccountingFacts(n_cells=4, max_cells=1))
    all_cells = figures(charges, w=2, facts=AccountingFacts(n_cells=4, max_cells=4))
    assert (one_cell["event_epsilon"], one_cell["w_event_epsilon"]) == (1.0, 0.75)
    assert (all_cells["event_epsilon"], all_cells["w_event_epsilon"]) == (0.5, 0.75)


def test_the_newest_charge_takes_the_place_of_one_that_counts_no_longer():
    charges = [(events.PureDP(epsilon),) for epsilon in (1.0, 2.0, 4.0)]
    assert figures(charges, w=2)["w_event_epsilon"] == 6.0
    block = (events.Block(events.PureDP(1.0), 1, 5),)
    crowded = figures([block, (events.PureDP(0.5),), (events.PureDP(0.75),)])
    assert crowded["event_epsilon"] >= 1.75  # the block and the charge of window 3


@pytest.mark.parametrize(("w", "is_bounded"), [(2, True), (3, True), (4, False)])
def test_a_bound_beforehand_is_one_for_so_many_windows_and_no_more(w, is_bounded):
    mechanism = get("w_event_bd")(epsilon=1.0, w=3, noise="gaussian", delta=DELTA)
    values = figures([()], mechanism=mechanism, w=w)
    assert ("w_event_rho" in values) == is_bounded


@pytest.mark.parametrize("family", ["laplace", "gaussian", "discrete_laplace", "discrete_gaussian"])
@pytest.mark.parametrize("is_sampled", [False, True])
def test_noise_without_end_tells_nothing_at_any_order(family, is_sampled):
    """Replicas that publish nothing have noise of infinite scale."""
    event = events.Additive(family, 1.0, scale=np.inf)
    assert not renyi((events.Sampled(event, 0.5) if is_sampled else event,)).any()
