"""Landmark schedules: the sum over L ∪ {t} never exceeds ε, for any landmarks, periods and events."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.accountants.core.charges import pure_epsilon
from penstock.accountants.landmark_budget import landmark_allocation, landmark_loss
from penstock.mechanisms import get
from penstock.mechanisms.core.contract import Facts
from penstock.mechanisms.core.noise_family import NOISE_FAMILIES
from penstock.mechanisms.core.plugin import ParameterError
from penstock.mechanisms.core.run import run_mechanism
from penstock.mechanisms.core.schedules import LandmarkSchedule
from penstock.mechanisms.landmark_adaptive import LandmarkAdaptive

EPSILON = 2.0
SCHEDULES = ("landmark_uniform", "landmark_skip", "landmark_adaptive")


def subsets(n):
    return itertools.chain.from_iterable(itertools.combinations(range(1, n + 1), k) for k in range(n + 1))


class Coins:
    """Noise source with coins chosen by the test and zero noise."""

    def __init__(self, coins):
        self.coins = list(coins)

    def uniform(self, shape):
        return np.broadcast_to(np.where(self.coins.pop(0), 0.0, 1.0), shape)

    def discrete_laplace(self, scale, shape):
        return np.zeros(shape, np.int64)

    laplace = discrete_gaussian = gaussian = discrete_laplace


def spent(mechanism, facts, coins):
    """ε or ρ of every window (and replica) when the adversary decides which windows publish."""
    state, noise, epsilons = mechanism.start(facts), Coins(coins), []
    for window in facts.windows():
        [release], state = mechanism.step(window, np.zeros((*facts.shape, facts.n_cells), int), state, noise)
        ratios = [(e.is_gaussian, e.sensitivity / e.scale) for e in release.charge if hasattr(e, "scale")]
        priced = [np.broadcast_to(ratio**2 / 2 if is_rho else ratio, facts.shape) for is_rho, ratio in ratios]
        epsilons.append(np.sum([np.zeros(facts.shape), *priced], axis=0))
    return np.array(epsilons)


def losses(epsilons, facts):
    """Largest sum over L ∪ {t} of each period."""
    windows = facts.windows()
    marks = np.array([window.landmark for window in windows])
    periods = np.array([window.period for window in windows])
    return [landmark_loss(epsilons[periods == p], marks[periods == p]).max() for p in np.unique(periods)]


IN_EPSILON, IN_RHO = {"epsilon": EPSILON}, {"rho": EPSILON, "noise": "discrete_gaussian"}


@pytest.mark.parametrize(
    ("n_windows", "budget"), [*((n, IN_EPSILON) for n in range(1, 9)), *((n, IN_RHO) for n in (1, 2, 5, 7))]
)
@pytest.mark.parametrize("name", SCHEDULES)
def test_all_landmark_sets_and_all_courses_of_publications(name, n_windows, budget):
    courses = np.array(list(itertools.product((True, False), repeat=n_windows)))
    mechanism = get(name)(**budget)
    for landmarks in subsets(n_windows):
        facts = Facts(n_cells=1, n_windows=n_windows, landmarks=landmarks, n_replicas=len(courses))
        epsilons = spent(mechanism, facts, courses.T)
        marks = np.array([window.landmark for window in facts.windows()])
        over_landmarks = epsilons[marks].sum(axis=0)
        over_others = epsilons[~marks].max(axis=0, initial=0.0)
        worst = (over_landmarks + over_others).max()
        assert worst <= EPSILON * (1 + 1e-9)
        # Nothing is left unused either, but for Skip, which shows nothing if all are landmarks.
        assert worst == pytest.approx(0.0 if name == "landmark_skip" and marks.all() else EPSILON)


@given(
    landmarks=st.sets(st.integers(1, 8)),
    period=st.integers(1, 8),
    declared=st.none() | st.integers(0, 5),
    coins=st.lists(st.booleans(), min_size=8, max_size=8),
    name=st.sampled_from(SCHEDULES),
    budget=st.sampled_from((IN_EPSILON, IN_RHO)),
)
@settings(max_examples=200, deadline=None)
def test_periods_and_declared_maxima(landmarks, period, declared, coins, name, budget):
    facts = Facts(n_cells=1, n_windows=8, landmarks=tuple(landmarks), budget_period=period, max_landmarks=declared)
    assert max(losses(spent(get(name)(**budget), facts, coins), facts)) <= EPSILON * (1 + 1e-9)


class SharesWithoutTheRegular(LandmarkAdaptive):
    """Forgets the + 1: hands a landmark's share to the landmarks to come only."""

    def record(self, window, offer, after):
        recorded = super().record(window, offer, after)
        handed = np.where(window.landmark & ~offer.publish, offer.amount / max(window.landmarks_to_come, 1), 0.0)
        return recorded | {"bonus": offer.state["bonus"] + handed}


class SharesByLandmarksOnly(LandmarkSchedule):
    """Forgets the regular window: ε/|L| each."""

    def amount(self, window, state):
        return self.epsilon / max(window.n_landmarks, 1)


@pytest.mark.parametrize("broken", [SharesWithoutTheRegular, SharesByLandmarksOnly])
def test_the_sums_would_notice(broken):
    facts = Facts(n_cells=1, n_windows=4, landmarks=(1, 2))
    sums = [
        max(losses(spent(broken(epsilon=EPSILON), facts, coins), facts))
        for coins in itertools.product((True, False), repeat=4)
    ]
    assert max(sums) > 1.2 * EPSILON


@pytest.mark.parametrize(("name", "at_none", "at_all"), [("uniform", 1, 6), ("skip", 1, np.inf), ("adaptive", 1, 6)])
def test_no_landmark_is_event_level_and_only_landmarks_is_user_level(name, at_none, at_all):
    mechanism = get(f"landmark_{name}")(epsilon=EPSILON)
    none, everything = (Facts(n_cells=1, n_windows=6, landmarks=tuple(range(1, k + 1))) for k in (0, 6))
    always = [True] * 6
    assert spent(mechanism, none, always).tolist() == pytest.approx([EPSILON / at_none] * 6)
    assert spent(mechanism, everything, always).tolist() == pytest.approx([EPSILON / at_all] * 6)


def test_skip_repeats_its_constant_where_everything_is_a_landmark():
    facts = Facts(n_cells=2, landmarks=(1, 2, 3))
    releases = run_mechanism(get("landmark_skip")(epsilon=1.0), np.full((3, 2), 9), facts)
    assert [(r.action, r.repeats, r.values.tolist()) for r in releases] == [("repeated", 0, [0.0, 0.0])] * 3


def test_adaptive_skips_where_nothing_is_a_landmark():
    releases = run_mechanism(get("landmark_adaptive")(epsilon=1.0), np.full((40, 50), 7), Facts(n_cells=50), seed=2)
    actions = [release.action for release in releases]
    assert "repeated" in actions
    assert {pure_epsilon(r.charge) for r in releases if r.action == "published"} == {1.0}


def test_uniform_is_the_allocation_of_the_paper():
    mask = np.array([False, True, True, False, True])
    facts = Facts(n_cells=1, n_windows=5, landmarks=(2, 3, 5))
    actual = spent(get("landmark_uniform")(epsilon=EPSILON), facts, [True] * 5)
    assert actual == pytest.approx(landmark_allocation("uniform", mask, EPSILON))


def test_the_first_landmark_over_the_maximum_is_refused_and_the_next_period_starts_afresh():
    facts = Facts(n_cells=1, landmarks=(1, 2, 3, 5), budget_period=4, max_landmarks=2)
    for name in ("landmark_uniform", "landmark_adaptive"):
        releases = run_mechanism(get(name)(epsilon=3.0), np.full((8, 1), 5), facts, seed=3)
        assert [r.window for r in releases if r.action == "refused"] == [3]
        assert pure_epsilon(releases[2].charge) == 0
        assert np.array_equal(releases[2].values, releases[releases[2].repeats - 1].values)


def test_an_endless_stream_without_a_maximum_is_refused():
    facts = Facts(n_cells=1, n_windows=2)
    [window, _] = facts.windows()
    object.__setattr__(window, "n_landmarks", None)
    mechanism = get("landmark_uniform")(epsilon=1.0)
    with pytest.raises(ParameterError, match="max_per_period"):
        mechanism.step(window, np.zeros(1, int), mechanism.start(facts), Coins([]))


def rates_of(**parameters):
    """Sampling rate after each of four published windows, of which the last brings news."""
    mechanism, facts = get("landmark_adaptive")(epsilon=1.0, **parameters), Facts(n_cells=1, n_windows=4)
    state, rates, noise = mechanism.start(facts), [], Coins([True] * 4)
    for window, count in zip(facts.windows(), (10, 10, 10, 90)):
        _, state = mechanism.step(window, np.array([count]), state, noise)
        rates.append(float(state["rate"]))
    return rates


def test_adaptive_follows_the_rule_of_the_paper():
    rates = rates_of(decrease=0.25, increase=0.5)
    # No rule before a second publication; twice no change; then a large one.
    assert rates == pytest.approx([1.0, 0.75, 0.5625, 0.5625 + 0.5 * 0.4375])


def test_a_vector_of_many_cells_never_skips_with_the_paper_s_calibration():
    counts = np.full((30, 200), 50)
    for calibration, publishes_always in (("paper", True), ("expected", False)):
        mechanism = get("landmark_adaptive")(epsilon=1.0, noise="laplace", calibration=calibration)
        actions = {r.action for r in run_mechanism(mechanism, counts, Facts(n_cells=200), seed=4)}
        assert (actions == {"published"}) is publishes_always


@pytest.mark.parametrize("sampler", ["paper", "drift"])
def test_the_rate_never_falls_so_low_that_nothing_raises_it_again(sampler):
    """With ``decrease: 1`` one publication without news took the rate to 0, for ever."""
    rates = rates_of(sampler=sampler, decrease=1.0, increase=0.5, least_rate=0.2)
    assert rates[:3] == pytest.approx([1.0, 0.2, 0.2])
    assert rates[3] == pytest.approx(0.6 if sampler == "paper" else 0.2)


def test_the_drift_sampler_wakes_up_when_the_level_moves():
    counts = np.repeat([50, 500], 60)[:, None] * np.ones((1, 20), int)
    mechanism = get("landmark_adaptive")(epsilon=1.0, sampler="drift", decrease=0.1)
    runs = [run_mechanism(mechanism, counts, Facts(n_cells=20), seed=seed) for seed in range(20)]
    published = np.array([[release.action == "published" for release in run] for run in runs])
    assert published[:, 40:60].mean() < 0.2
    # Somebody looks again, sees the jump, and from then on everything is published for a while.
    assert published[:, 60:80].mean() > 0.3


@pytest.mark.parametrize("family", ["laplace", "discrete_laplace", "gaussian", "discrete_gaussian"])
@pytest.mark.parametrize(("b", "c"), [(1.0, 1.0), (0.3, 4.0), (5.0, 5.0004), (7.0, 2.0), (0.0, 3.0), (0.0, 0.0)])
def test_expected_difference_of_two_releases_of_the_same_value(family, b, c):
    """Integer families use the continuous formula, which is close where the noise is wide."""
    step = 1.0 if family.startswith("discrete") else 0.05
    z = np.arange(-120, 120 + step / 2, step)

    def mass(scale):
        decay = z**2 / (2 * scale**2 or 1) if "gaussian" in family else np.abs(z) / (scale or 1)
        weights = np.exp(-decay) if scale else (np.abs(z) < step / 2).astype(float)
        return weights / weights.sum()

    difference = np.convolve(mass(b), mass(c))
    distance = np.abs(np.linspace(2 * z[0], 2 * z[-1], len(difference)))
    tolerance = 5e-3 if step < 1 else 0.03 if max(b, c) >= 3 else 0.12
    expected = float(NOISE_FAMILIES[family].expected_difference(b, c))
    assert expected == pytest.approx((difference * distance).sum(), rel=tolerance, abs=1e-9)


def test_unset_rates_are_those_of_counts_or_of_traces():
    adaptive = get("landmark_adaptive")
    assert adaptive(epsilon=1.0) == adaptive(epsilon=1.0, decrease=0.5, increase=0.5)
    traces = adaptive(epsilon=1.0, noise="planar_laplace")
    assert traces == adaptive(epsilon=1.0, noise="planar_laplace", decrease=0.1, increase=0.9)
    assert adaptive(epsilon=1.0, noise="planar_laplace", decrease=0.0).decrease == 0.0
    with pytest.raises(ParameterError, match="decrease"):
        adaptive(epsilon=1.0, decrease=1.5)
