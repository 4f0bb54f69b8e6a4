"""PeGaSus: exact distribution of groups, their privacy cost, and smoothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from penstock.accountants import get as get_accountant
from penstock.accountants.core.accountant import AccountingFacts
from penstock.accountants.core.charges import concentrated_rho, pure_epsilon
from penstock.accountants.core.renyi import ORDERS, renyi
from penstock.mechanisms import get
from penstock.mechanisms.core.chain import Chain
from penstock.mechanisms.core.concentrated import epsilon_of
from penstock.mechanisms.core.contract import Facts
from penstock.mechanisms.core.events import Linked
from penstock.mechanisms.core.noise import NoiseSource
from penstock.mechanisms.core.noise_keys import NoiseKey
from penstock.mechanisms.core.plugin import ParameterError, UnsupportedEvent
from penstock.mechanisms.core.run import run_mechanism
from penstock.mechanisms.pegasus import GRID, Pegasus, _deviation, middle

EPSILON = 2.0  # of the grouping


class Recorded(Pegasus):
    """Notes how many windows each one is grouped with, itself among them."""

    def _smooth(self, window, noisy, n_similar, state):
        GROUPED.append(n_similar)
        return super()._smooth(window, noisy, n_similar, state)


GROUPED: list[np.ndarray] = []


def grouped_by(counts, seed, max_cells=None, **parameters):
    """Sizes of the groups so far, a row for each window, as the mechanism smooths by them."""
    GROUPED.clear()
    facts = None if max_cells is None else Facts(n_cells=counts.shape[-1], max_cells=max_cells, n_replicas=len(counts))
    run_mechanism(Recorded(**parameters), counts, facts, seed=seed)
    return np.stack(GROUPED)


def deviations(counts):
    """Σ|count − mean| of the first 2, 3, … counts, in parts of GRID."""
    return [int(_deviation(np.array(counts[:n])[:, None], np.ones((n, 1), bool))[0]) for n in range(2, len(counts) + 1)]


def discrete_laplace(scale, reach):
    z = np.arange(-reach, reach + 1)
    p = np.exp(-np.abs(z) / scale) if scale else (z == 0) * 1.0
    return z, p / p.sum()


def group_lengths(counts, threshold_scale=2 * 2 * GRID / EPSILON, question_scale=4 * 2 * GRID / EPSILON, threshold=5.0):
    """Probability that the first group ends after 1, 2, … windows, and last that it goes on: by summing over noise."""
    (z, p), (x, q) = discrete_laplace(threshold_scale, 2000), discrete_laplace(question_scale, 4000)
    below = np.concatenate([[0.0], np.cumsum(q)])  # P[question noise < x_0], …
    limit = threshold * GRID / EPSILON + z
    alive, lengths = p.copy(), []
    for apart in deviations(counts):
        places = np.clip(np.ceil(limit - apart).astype(int) - x[0], 0, len(x))  # noise < limit − apart
        joins = below[places]
        lengths.append((alive * (1 - joins)).sum())
        alive = alive * joins
    return np.array([*lengths, alive.sum()])


def test_groups_end_as_often_as_the_exact_distribution_says():
    counts, n = [10, 12, 10, 16, 11], 40_000
    every = np.broadcast_to(np.array(counts)[:, None], (n, 5, 1))
    alike = grouped_by(every, 3, epsilon=10 * EPSILON, grouping=0.1)[..., 0]
    goes_on = np.cumprod(alike == np.arange(1, 6)[:, None], axis=0)
    seen = np.append(-np.diff(goes_on.mean(1)), goes_on[-1].mean())
    expected = group_lengths(counts)
    assert expected.sum() == pytest.approx(1)
    assert (np.abs(seen - expected) < 4.5 * np.sqrt(expected * (1 - expected) / n)).all()
    # With half of the noise, or none in the threshold, it is another distribution.
    for broken in (group_lengths(counts, 16, 64), group_lengths(counts, 0)):
        assert (np.abs(seen - broken) > 4.5 * np.sqrt(broken * (1 - broken) / n)).any()


def test_every_group_has_a_threshold_of_its_own():
    """One threshold for all groups would be learned from their lengths, and tell more with every group."""
    n = 10_000
    alike = grouped_by(np.full((n, 6, 1), 10), 3, epsilon=10 * EPSILON, grouping=0.1, threshold=0.0)[..., 0]
    [alone, _] = group_lengths([10, 10], threshold=0.0)
    broken = alike[1] == 1  # the group of window 1 ended with window 2, so that window 3 begins the next
    assert (alike[2][broken] == 1).all()
    for chosen in (broken, broken & (alike[3] == 1)):
        number = 3 if chosen is broken else 5
        assert abs((alike[number][chosen] == 1).mean() - alone) < 4.5 * np.sqrt(alone * (1 - alone) / chosen.sum())
    # Thresholds of cells and of replicas are drawn apart, too: those of two cells that go on are no more alike.
    two = grouped_by(np.full((n, 2, 2), 10), 4, epsilon=10 * EPSILON, grouping=0.1, threshold=0.0, max_cells=1)[1]
    both = (two[:, 0] == 1) & (two[:, 1] == 1)
    assert abs(both.mean() - alone**2) < 4.5 * np.sqrt(alone**2 * (1 - alone**2) / n)


def largest_loss(**noise):
    """Largest log-ratio of a group's length with one person more in one of its windows, over several series."""
    actual = 0.0
    # In the last ones the person brings the windows together until one comes that is far from them all.
    series = [([5] * 12, 5), ([0, 1] * 6, 5), ([3, 3, 3, 40, 3, 3], 5)]
    series += [([95, *[101] * n, 0], 10) for n in (3, 11)]
    for counts, threshold in series:
        for place in range(len(counts)):
            changed = [count + (number == place) for number, count in enumerate(counts)]
            both = [group_lengths(one, threshold=threshold, **noise) for one in (counts, changed)]
            # Lengths that end before the changed window do not read it; the rarest are lost in rounding.
            loss = [abs(np.log(a / b)) for a, b in zip(*both) if min(a, b) > 1e-12]
            actual = max(actual, *loss)
    return actual


def test_a_group_tells_no_more_of_a_person_than_is_charged():
    assert 0.4 * EPSILON < largest_loss() <= EPSILON
    assert largest_loss(threshold_scale=0) > EPSILON, "without noise in the threshold"
    assert largest_loss(threshold_scale=8, question_scale=16) > EPSILON, "with a quarter of the noise"


def test_a_window_is_read_by_one_group_only():
    counts = np.array([[10], [10], [500], [10], [10], [10]])
    # The window that ends a group is one by itself, so that the next begins a new one.
    assert grouped_by(counts, 1, epsilon=1e6)[2:5, 0].tolist() == [1, 1, 2]


def test_groups_are_no_longer_than_the_longest():
    assert grouped_by(np.full((8, 2), 7), 1, epsilon=1e6, longest=3)[:, 0].tolist() == [1, 2, 3, 1, 2, 3, 1, 2]


def test_a_person_in_many_windows_of_a_group_is_covered():
    pegasus = Pegasus(epsilon=1.0, longest=4)
    release = run_mechanism(pegasus, np.zeros((1, 3), int), Facts(n_cells=3, max_cells=2))[0]
    assert pure_epsilon(release.charge) == pytest.approx(1.0)
    linked = [event for event in release.charge if isinstance(event, Linked)]
    assert pure_epsilon(linked) == pytest.approx(0.2)
    for k in range(1, 5):
        # k windows of one group are k·ε-DP together, hence (k·ε)²/2 in ρ: not k times that of one.
        assert k * concentrated_rho(linked) >= (k * 0.2) ** 2 / 2 - 1e-12
        whole = np.minimum(k * 0.2, ORDERS * (k * 0.2) ** 2 / 2)
        assert (k * renyi(tuple(linked)) >= whole - 1e-12).all()
    assert 4 * concentrated_rho(linked) == pytest.approx((4 * 0.2) ** 2 / 2), "no more than that at the longest"


def test_a_person_in_all_windows_loses_what_groups_lose():
    """Against groups of the longest length: each is one draw of 4·ε, and only groups compose."""
    n_windows, pegasus = 400, Pegasus(epsilon=0.01, longest=4)
    facts = Facts(n_cells=1, n_windows=n_windows)
    composition = get_accountant("composition")(delta=1e-6)
    model, state = composition.start(AccountingFacts(n_cells=1, max_cells=1, n_windows=n_windows, mechanism=pegasus))
    for release, window in zip(run_mechanism(pegasus, np.zeros((n_windows, 1), int), facts), facts.windows()):
        _, state = composition.charge(release, window, {}, model, state)
    rows = {row.name: row.value for row in composition.finish(model, state)}
    groups = 100 * (4 * 0.002) ** 2 / 2
    assert rows["user_rho"] == pytest.approx(groups + 400 * 0.008**2 / 2)
    assert epsilon_of(groups, 1e-6) < rows["user_epsilon_rdp"] < rows["user_epsilon"]
    assert rows["user_epsilon"] == pytest.approx(4.0)
    assert "user_epsilon_pld" not in rows


def test_who_follows_single_windows_refuses_linked_ones():
    pegasus = Pegasus(epsilon=1.0)
    [release] = run_mechanism(pegasus, np.zeros((1, 3), int))
    facts = AccountingFacts(n_cells=3, max_cells=1, n_windows=1, mechanism=pegasus)
    temporal = get_accountant("temporal").examples()[0]
    model, state = temporal.start(facts)
    with pytest.raises(UnsupportedEvent, match="read window 1"):
        temporal.charge(release, Facts(n_cells=3, n_windows=1).windows()[0], {}, model, state)


@pytest.mark.parametrize("by", ["median", "mean"])
def test_smoothing_takes_the_windows_that_are_alike(by):
    """Released values against those of the noisy counts of the same run; one sensor is off in a window."""
    facts, counts = Facts(n_cells=4, n_windows=10), np.random.default_rng(2).poisson(50, (10, 4))
    windows = facts.windows()
    windows[6] = replace(windows[6], active=np.array([True, False, True, True]))
    parameters = {"epsilon": 2.0, "threshold": 30.0, "longest": 5}

    def values(pegasus):
        """Released values under fixed noise."""
        GROUPED.clear()
        return np.array([r.values for r in run_mechanism(pegasus, counts, facts, windows=windows, source=SameNoise())])

    noisy, alike = values(Recorded(**parameters)), np.array(GROUPED)
    smooth, middle_of = values(Recorded(**parameters, smoothing=by)), {"median": np.median, "mean": np.mean}[by]
    assert (np.array(GROUPED) == alike).all()
    assert (alike.max(), np.isnan(smooth).sum()) == (5, 1)
    for t, cell in np.ndindex(10, 4):
        past = noisy[: t + 1, cell][~np.isnan(noisy[: t + 1, cell])]
        if not np.isnan(noisy[t, cell]):
            assert smooth[t, cell] == pytest.approx(middle_of(past[-alike[t, cell] :]))


class SameNoise:
    """A source whose noise depends on the window alone."""

    def at(self, start, end, step, counts, state, n_replicas=None):
        source = NoiseSource(NoiseKey.from_seed(1), configuration=b"")
        return source.at(start, end, step, np.zeros_like(counts), {}, n_replicas)


def test_the_middle_is_of_the_newest_that_are_alike():
    newest_first = np.array([[11.0, 1.0], [16.0, 2.0], [10.0, 3.0], [90.0, 4.0]])
    assert middle(newest_first, np.array([3, 9]), "median").tolist() == [11.0, 2.5]
    assert middle(newest_first, np.array([2, 1]), "mean").tolist() == [13.5, 1.0]


def test_smoothing_helps_where_counts_hardly_change():
    counts = np.full((60, 200), 300)
    pegasus = Pegasus(epsilon=0.5, threshold=20.0, smoothing="median")
    errors = [
        np.mean(
            [np.abs(release.values - 300).mean() for release in run_mechanism(one, counts, Facts(n_cells=200), seed=5)]
        )
        for one in (get("discrete_laplace")(epsilon=0.5), pegasus)
    ]
    assert errors[1] < 0.7 * errors[0]


def test_smoothed_counts_are_not_filtered_as_noisy_ones():
    with pytest.raises(ParameterError, match="smoothing: none leaves them"):
        Chain.of([Pegasus(epsilon=1.0, smoothing="mean"), get("filter")()])
    assert Chain.of([Pegasus(epsilon=1.0), get("filter")()]).after


def test_one_membership_is_in_several_questions():
    with pytest.raises(ParameterError, match="without sampling before it"):
        Chain.of([get("sampling")(rate=0.1), Pegasus(epsilon=1.0)])
