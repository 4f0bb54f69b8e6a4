"""Crowd-blending after sampling: brute force, sampled events, and the accountant's figures."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom

from penstock.accountants.core.accountant import AccountingFacts
from penstock.accountants.core.charges import parts_sampled, pure_epsilon
from penstock.accountants.core.privacy_loss import MAX_DISTINCT, from_loss_distributions, remember
from penstock.accountants.core.renyi import from_renyi, renyi
from penstock.accountants.crowd_blending import CrowdBlending, amplified_delta, amplified_epsilon
from penstock.mechanisms import get
from penstock.mechanisms.core import events
from penstock.mechanisms.core.chain import Chain
from penstock.mechanisms.core.contract import Facts
from penstock.mechanisms.core.plugin import ParameterError
from penstock.mechanisms.core.run import run_mechanism


@pytest.mark.parametrize(("k", "p", "delta"), [(20, 0.2, 9.5e-5), (20, 0.5, 6.0e-4), (5, 0.2, 9.5e-3)])
def test_published_figures(k, p, delta):
    assert amplified_delta(amplified_epsilon(0.0, p), k, 0.0, p) == pytest.approx(delta, rel=0.01)


def suppressed(n, p, k):
    """Distribution of the released count of a sample of n people."""
    mass = binom.pmf(np.arange(n + 1), n, p)
    return np.append([mass[:k].sum()], mass[k:]), k


def hockey_stick(p, q, epsilon):
    size = max(len(p), len(q))
    p, q = (np.pad(x, (0, size - len(x))) for x in (p, q))
    return np.maximum(p - np.exp(epsilon) * q, 0).sum()


def exact_delta(epsilon, k, p, most=120):
    """The δ of suppression, over every number of other people and both directions."""
    actual = 0.0
    for n in range(most):
        without, joined = suppressed(n, p, k)[0], suppressed(n + 1, p, k)[0]
        actual = max(actual, hockey_stick(joined, without, epsilon), hockey_stick(without, joined, epsilon))
    return actual


@pytest.mark.parametrize("k", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("p", [0.1, 0.2, 0.5, 0.8])
@pytest.mark.parametrize("more", [0.0, 0.3, 1.5])
def test_delta_is_that_of_suppression(k, p, more):
    least = max(-np.log1p(-p), 0.0)
    epsilon = least + more
    bound, exact = amplified_delta(epsilon, k, 0.0, p), exact_delta(epsilon, k, p)
    assert exact <= bound * (1 + 1e-9)
    assert bound <= exact * 1.3 + 1e-12


def test_the_papers_epsilon_is_where_the_ratio_is_its_own():
    for p in (0.2, 0.5):
        epsilon = amplified_epsilon(0.4, p)
        assert (np.exp(epsilon) - 1 + p) / (p * np.exp(0.4)) == pytest.approx((2 - p) / (1 - p))


@pytest.mark.parametrize("crowd_epsilon", [0.3, 1.0])
@pytest.mark.parametrize("p", [0.2, 0.5])
def test_delta_covers_perturbation(crowd_epsilon, p):
    """Discrete Laplace noise below the threshold, worked out on a grid of outcomes that is wide enough."""
    k, reach = 4, 80
    z = np.arange(-reach, reach + 1)
    noise = np.tanh(crowd_epsilon / 2) * np.exp(-crowd_epsilon * np.abs(z))

    def shown(n):
        out = np.zeros(2 * reach + 61)
        for count, mass in enumerate(binom.pmf(np.arange(n + 1), n, p)):
            if count < k:
                out[count : count + len(z)] += mass * noise
            else:
                out[count + reach] += mass
        return out

    for epsilon in (amplified_epsilon(crowd_epsilon, p), amplified_epsilon(crowd_epsilon, p) + 0.5):
        bound = amplified_delta(epsilon, k, crowd_epsilon, p)
        for n in range(40):
            assert hockey_stick(shown(n + 1), shown(n), epsilon) <= bound + 1e-12
            assert hockey_stick(shown(n), shown(n + 1), epsilon) <= bound + 1e-12


def test_what_the_theorem_does_not_cover_is_refused():
    with pytest.raises(ParameterError, match="epsilon"):
        amplified_delta(0.1, 5, 0.0, 0.5)
    with pytest.raises(ParameterError, match="epsilon"):
        amplified_delta(0.7, 5, 3.0, 0.5)


def test_nothing_is_gained_when_everybody_is_counted():
    assert amplified_delta(1.0, 5, 0.0, 1.0) == 1.0


def figures(steps, max_cells=1, **parameters):
    chain = Chain.of(steps)
    facts = AccountingFacts(n_cells=6, max_cells=max_cells, n_windows=3, mechanism=chain.reader, steps=tuple(steps))
    accountant = CrowdBlending(**parameters)
    model, state = accountant.start(facts)
    rows, windows = [], Facts(n_cells=6, n_windows=3).windows()
    for release, window in zip(run_mechanism(chain, np.full((3, 6), 9)), windows):
        made, state = accountant.charge(release, window, {}, model, state)
        rows += made
    return {row.name: row for row in [*rows, *accountant.finish(model, state)]}


def test_crowds_alone_are_no_differential_privacy():
    actual = figures([get("perturb_small")(threshold=7, epsilon=0.4)])
    assert (actual["crowd_size"].value, actual["crowd_epsilon"].value) == (7, 0.4)
    for name in ("window_epsilon", "event_epsilon", "user_epsilon"):
        assert actual[name].value == np.inf
        assert "no differential privacy guarantee" in actual[name].adjacency


def test_sampling_amplifies_one_window_and_never_a_run():
    steps = [get("sampling")(rate=0.2), get("suppress_small")(threshold=20)]
    actual = figures(steps, max_cells=3)
    one = amplified_epsilon(0.0, 0.2)
    assert actual["window_epsilon"].value == pytest.approx(3 * one)
    assert actual["window_delta"].value == pytest.approx(3 * amplified_delta(one, 20, 0.0, 0.2))
    assert actual["user_epsilon"].value == np.inf


def test_people_in_several_counts_who_are_sampled_as_a_whole_are_not_claimed():
    steps = [get("sampling")(rate=0.2, unit="user"), get("suppress_small")(threshold=20)]
    assert figures(steps, max_cells=2)["window_epsilon"].value == np.inf
    assert figures(steps, max_cells=1)["window_epsilon"].value < 1


def test_noise_on_every_count_costs_its_own_epsilon_and_no_crowd_helps():
    actual = figures([get("laplace")(epsilon=0.5)])
    assert actual["event_epsilon"].value == pytest.approx(0.5)
    assert actual["user_epsilon"].value == pytest.approx(1.5)
    assert "crowd_size" not in actual


def exact_sampled_loss(rate, scale, n_memberships, together, reach=200):
    """Largest log-ratio between one user with so many memberships and none, of discrete Laplace counts."""
    z = np.arange(-reach, reach + 1)
    noise = np.exp(-np.abs(z) / scale)
    moved = np.exp(-np.abs(z - 1) / scale)
    if not together:
        ratio = np.log((rate * moved + (1 - rate) * noise) / noise)
        return n_memberships * np.abs(ratio).max()
    extreme = [np.log(rate * np.exp(s * n_memberships / scale) + 1 - rate) for s in (1, -1)]
    return np.abs(extreme).max()


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("scale", [0.5, 2.0, 10.0])
@pytest.mark.parametrize("unit", ["membership", "user"])
def test_amplified_pure_epsilon_is_the_exact_loss(rate, scale, unit):
    event = events.Sampled(events.Additive("discrete_laplace", 3.0, scale), rate, unit)
    exact = exact_sampled_loss(rate, scale, 3, unit == "user")
    assert pure_epsilon([event]) == pytest.approx(exact)


def loss_at(event, delta=1e-6):
    book = remember((event,), np.zeros((MAX_DISTINCT, 5)), 0)
    return from_loss_distributions(book["events"], int(book["n_kinds"]), delta)


def exact_gaussian_delta(epsilon, rate, sigma):
    """δ of one count with a sampled membership, on a fine grid."""
    x = np.linspace(-12 * sigma, 12 * sigma + 1, 400_001)
    density = np.exp(-(x**2) / (2 * sigma**2)) / (sigma * np.sqrt(2 * np.pi))
    moved = np.exp(-((x - 1) ** 2) / (2 * sigma**2)) / (sigma * np.sqrt(2 * np.pi))
    mixed = rate * moved + (1 - rate) * density
    step = x[1] - x[0]
    return max(
        (np.maximum(mixed - np.exp(epsilon) * density, 0) * step).sum(),
        (np.maximum(density - np.exp(epsilon) * mixed, 0) * step).sum(),
    )


@pytest.mark.parametrize("rate", [0.2, 0.7])
def test_sampled_gaussian_is_the_exact_figure_for_one_count(rate):
    event = events.Sampled(events.Additive("gaussian", 1.0, 2.0), rate)
    epsilon = loss_at(event)
    assert exact_gaussian_delta(epsilon, rate, 2.0) <= 1e-6 * (1 + 1e-6)
    assert exact_gaussian_delta(epsilon * 0.99, rate, 2.0) > 1e-6
    assert from_renyi(renyi((event,)), 1e-6) >= epsilon


def test_memberships_that_are_sampled_one_by_one_cost_less_than_all_or_nothing():
    """24 counts of one person at a rate of 0.2: 0.78 where all or nothing gives 2.45."""
    scale, delta = np.sqrt(24), 1e-5
    one_by_one = events.Sampled(events.Additive("gaussian", np.sqrt(24), scale), 0.2)
    together = events.Sampled(events.Additive("gaussian", np.sqrt(24), scale), 0.2, "user")
    assert parts_sampled(one_by_one) == 24
    assert loss_at(together, delta) == pytest.approx(2.45, abs=0.005)
    assert loss_at(one_by_one, delta) == pytest.approx(0.78, abs=0.005)
    assert loss_at(together, delta) < loss_at(one_by_one.inner, delta)


def test_nothing_is_claimed_for_blocks_of_sampled_memberships():
    fpa = get("fpa")(epsilon=1.0, coefficients=3, block=4)
    counts = np.zeros((4, 2), int)
    plain = pure_epsilon(run_mechanism(fpa, counts)[0].charge)
    by_membership = Chain.of([get("sampling")(rate=0.5), fpa])
    by_user = Chain.of([get("sampling")(rate=0.5, unit="user"), fpa])
    assert pure_epsilon(run_mechanism(by_membership, counts)[0].charge) == pytest.approx(plain)
    assert pure_epsilon(run_mechanism(by_user, counts)[0].charge) == pytest.approx(np.log1p(0.5 * np.expm1(1.0)))


def test_nothing_is_claimed_for_other_events_on_sampled_memberships():
    """Memberships of one person may all have been kept, or none: amplification needs them one by one."""
    assert pure_epsilon((events.Sampled(events.PureDP(1.0), 0.5),)) == 1.0
    assert pure_epsilon((events.Sampled(events.PureDP(1.0), 0.5, "user"),)) == pytest.approx(
        np.log1p(0.5 * np.expm1(1.0))
    )


def test_what_nobody_can_move_costs_nothing_without_noise():
    assert pure_epsilon((events.Additive("laplace", 0.0, 0.0),)) == 0.0
    assert pure_epsilon((events.Additive("laplace", 1.0, 0.0),)) == np.inf


def test_several_questions_to_one_sample_are_not_amplified():
    sampling = get("sampling")(rate=0.5)
    charge = (events.Additive("laplace", 1.0, 1.0), events.Additive("laplace", 1.0, 1.0))
    assert sampling.sampled(charge) == charge
    assert sampling.sampled((events.Exact(),)) == (events.Exact(),)
    assert sampling.sampled((events.Additive("laplace", 1.0, 1.0), events.Repeated(1)))[0].rate == 0.5


@pytest.mark.parametrize("noise", ["discrete_laplace", "laplace"])
def test_noise_is_on_counts_below_the_threshold_and_on_no_other(noise):
    counts = np.array([[4] * 50 + [5] * 50])
    for name in ("perturb_small", "crowd_blending"):
        (release,) = run_mechanism(get(name)(threshold=5, epsilon=0.01, noise=noise), counts, seed=1)
        assert (release.values[:50] != 4).mean() > 0.9
        assert (release.values[50:] == 5).all()
