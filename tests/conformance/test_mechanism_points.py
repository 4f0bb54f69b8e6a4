"""Conformance of mechanisms on traces."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from scipy import stats

from penstock.mechanisms import get
from penstock.mechanisms.core.contract import Facts
from penstock.mechanisms.core.events import PureDP
from penstock.mechanisms.core.geometry import (
    DECIMALS,
    EARTH_RADIUS,
    distance,
    expected_distance,
    moved,
    offsets_between,
    within,
)
from penstock.mechanisms.core.noise import NoiseSource
from penstock.mechanisms.core.noise_keys import NoiseKey
from penstock.mechanisms.core.plugin import ParameterError
from penstock.mechanisms.core.run import PointSchedule, release_traces, run_mechanism, run_traces, traces_of
from penstock.mechanisms.core.state import decode_state, encode_state
from penstock.mechanisms.core.unit import LANDMARKS
from penstock.mechanisms.gaussian_trace import ConditionalGoal, PlannedNoise
from penstock.mechanisms.landmark_adaptive import LandmarkAdaptive
from penstock.mechanisms.landmark_uniform import LandmarkUniform
from penstock.mechanisms.planar_laplace import PlanarLaplace
from penstock.pipeline.releasing.traces import planned_noise

BEIJING = np.array([39.9, 116.4])
EPSILON, W, RADIUS = 2.0, 4, 50.0
SCHEDULES = {
    "landmark_uniform": [{}],
    "landmark_skip": [{}],
    "landmark_adaptive": [{}, {"calibration": "paper"}, {"sampler": "drift"}, {"decrease": 0.9, "increase": 0.1}],
    "w_event_uniform": [{"w": W}],
    "w_event_sample": [{"w": W}],
    "w_event_bd": [{"w": W}],
    "w_event_ba": [{"w": W}],
}

RHO = 0.5


def schedules(epsilon=EPSILON, prefix="", rho=None):
    """Every schedule with planar Laplace noise, or with Gaussian noise where a budget in ρ is given."""
    noise = {"epsilon": epsilon, "noise": "planar_laplace"} if rho is None else {"rho": rho, "noise": "planar_gaussian"}
    return [
        get(name)(**noise, radius=RADIUS, **parameters)
        for name, cases in SCHEDULES.items()
        if name.startswith(prefix)
        for parameters in cases
    ]


def both(prefix=""):
    return [*schedules(prefix=prefix), *schedules(prefix=prefix, rho=RHO)]


def spent(mechanism, release):
    """Cost of a release in the unit of the mechanism's budget."""
    return release.rho if mechanism.guarantee.concentrated else release.epsilon


def charged(release_or_charge):
    """Charge of each user in a release of points."""
    (event,) = getattr(release_or_charge, "charge", release_or_charge)
    (cost,) = vars(event).values()
    return cost


GOAL = ConditionalGoal(goal=1.0, n_points=6, length_scale=180.0, variance=1e5, nugget=9.0)
NOISE = PlannedNoise(conditional_goal=GOAL)
PLANNED = [get("gaussian_trace")(sigma=NOISE, radius=RADIUS, covariance=shape) for shape in (None, "designed")]
MECHANISMS = [*both(), PlanarLaplace(epsilon=EPSILON, radius=RADIUS), *get("gaussian_trace").examples(), *PLANNED]
every_mechanism = pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda m: repr(m)[:70] + repr(m)[-25:])


def run_planned(mechanism, traces, landmarks=None, **further):
    """Released traces, with the noise that a pipeline plans for them."""
    return run_traces(mechanism, traces, landmarks, **further, **planned_noise(mechanism, traces_of(traces)))


def tracks(n_users=12, seed=3, longest=30):
    """Random walks of different lengths with random landmarks; one all landmarks, one none."""
    rng = np.random.default_rng(seed)
    traces, landmarks = [], []
    for user in range(n_users):
        n = int(rng.integers(1, longest))
        traces.append(BEIJING + np.cumsum(rng.normal(0, 0.003, (n, 2)), axis=0))
        landmarks.append(rng.random(n) < {0: 0.0, 1: 1.0}.get(user, 0.4))
    return traces, landmarks


def steps_of(mechanism, traces, landmarks, restart=lambda state: state, seed=7):
    """Reference implementation: one step at a time for all users with points left."""
    flat = traces_of(traces, landmarks)
    schedule = PointSchedule(flat, (39.0, 116.0), **planned_noise(mechanism, flat))
    noise = NoiseSource(NoiseKey.from_seed(seed), configuration=b"")
    state = mechanism.start(Facts(n_cells=2, n_replicas=len(traces)))
    for index in range(1, int(flat.lengths.max()) + 1):
        left = flat.lengths >= index
        selected = restart({name: array[left] for name, array in state.items()})
        rows = flat.starts[left] + index - 1
        time, points = schedule.at(rows, index), flat.points[rows]
        drawn = noise.at_points(index, schedule.identities[left], time.start, points, selected)
        worst = charged(mechanism.worst_charge(time, selected))
        arrays = (points, *selected.values())
        given = [array.copy() for array in arrays]
        (release,), after = mechanism.step(time, points, selected, drawn)
        unchanged = all(np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in zip(arrays, given))
        for name, array in after.items():
            state[name] = state[name].copy()
            state[name][left] = array
        yield release, worst, unchanged


@every_mechanism
def test_it_resumes_from_encoded_state_at_every_timestamp(mechanism):
    def through_bytes(state):
        return decode_state(encode_state("points", 1, state), "points", 1)

    whole, resumed = (list(steps_of(mechanism, *tracks(), restart)) for restart in (lambda s: s, through_bytes))
    for (one, *_), (two, *_) in zip(whole, resumed):
        assert all(a.tobytes() == b.tobytes() for a, b in zip(_arrays(one), _arrays(two)))


def _arrays(release):
    return [release.values, release.action, release.scale, charged(release), release.repeats]


@every_mechanism
def test_inputs_are_not_changed(mechanism):
    for release, _, unchanged in steps_of(mechanism, *tracks()):
        assert unchanged
        assert np.isfinite(release.values).all()


@every_mechanism
def test_a_step_costs_at_most_its_worst(mechanism):
    for release, worst, _ in steps_of(mechanism, *tracks()):
        assert (charged(release) <= worst * (1 + 1e-12)).all()


@every_mechanism
def test_users_in_a_shard_release_what_they_release_alone(mechanism):
    traces, landmarks = tracks()
    together = run_planned(mechanism, traces, landmarks, seed=5)
    for user in (0, 1, 5, 11):
        (alone,) = run_planned(mechanism, [traces[user]], [landmarks[user]], seed=5, users=[user])
        assert alone.values.tobytes() == together[user].values.tobytes()
        assert alone.epsilon.tobytes() == together[user].epsilon.tobytes()
        assert alone.rho.tobytes() == together[user].rho.tobytes()


@every_mechanism
def test_a_retry_draws_the_same_noise_and_another_point_fresh_noise(mechanism):
    traces, landmarks = tracks()
    first, again = (run_planned(mechanism, traces, landmarks, seed=5) for _ in range(2))
    assert all(a.values.tobytes() == b.values.tobytes() for a, b in zip(first, again))
    elsewhere = [trace + 1e-6 for trace in traces]
    other = run_planned(mechanism, elsewhere, landmarks, seed=5)
    published = np.concatenate([(a.action == "published") & (b.action == "published") for a, b in zip(first, other)])
    noise, fresh = (
        np.concatenate([offsets_between(t, r.values) for t, r in zip(given, released)])[published]
        for given, released in ((traces, first), (elsewhere, other))
    )
    if published.any():
        assert (np.abs(noise - fresh).max(axis=1) > 1e-3).mean() > 0.99


@pytest.mark.parametrize("mechanism", both("landmark"), ids=repr)
def test_landmarks_and_any_other_point_of_a_user_stay_within_epsilon(mechanism):
    for seed in range(5):
        traces, landmarks = tracks(40, seed)
        for released, mask in zip(run_traces(mechanism, traces, landmarks, seed=seed), landmarks):
            cost = spent(mechanism, released)
            assert cost[mask].sum() + cost[~mask].max(initial=0.0) <= mechanism.budget * (1 + 1e-12)


@pytest.mark.parametrize("mechanism", both("w_event"), ids=repr)
def test_any_w_points_of_a_user_stay_within_epsilon(mechanism):
    for released in run_traces(mechanism, tracks(40)[0], seed=2):
        sums = np.convolve(spent(mechanism, released), np.ones(W))
        assert sums.max() <= mechanism.budget * (1 + 1e-12)


@pytest.mark.parametrize("mechanism", both("landmark"), ids=repr)
def test_a_declared_maximum_is_never_passed(mechanism):
    traces, landmarks = tracks(40)
    flat = traces_of(traces, landmarks)
    flat = replace(flat, periods=(np.arange(len(flat.times)) - np.repeat(flat.starts, flat.lengths)) // 10)
    schedule = PointSchedule(flat, (39.0, 116.0), max_landmarks=2)
    cost, refused = np.zeros((2, len(flat.times)))
    for rows, release in release_traces(mechanism, schedule, NoiseSource(NoiseKey.from_seed(1), configuration=b"")):
        cost[rows], refused[rows] = charged(release), release.action == "refused"
    group = flat.user_of * 100 + flat.periods
    for number in np.unique(group):
        selected = group == number
        marked = selected & flat.landmarks
        most = cost[marked].sum() + cost[selected & ~flat.landmarks].max(initial=0.0)
        assert most <= mechanism.budget * (1 + 1e-12)
        if "Skip" not in type(mechanism).__name__:
            assert refused[marked].sum() == max(0, marked.sum() - 2)


def test_no_landmarks_is_event_level_and_only_landmarks_is_user_level():
    track = BEIJING + np.random.default_rng(1).normal(0, 0.01, (20, 2))
    for share, name in ((0.0, "landmark_uniform"), (1.0, "landmark_uniform"), (0.0, "landmark_skip")):
        mechanism = get(name)(epsilon=EPSILON, noise="planar_laplace")
        (released,) = run_traces(mechanism, [track], [np.full(20, bool(share))], seed=1)
        assert released.epsilon == pytest.approx(np.full(20, EPSILON / 20 if share else EPSILON))
    skip = get("landmark_skip")(epsilon=EPSILON, noise="planar_laplace")
    (released,) = run_traces(skip, [track], [np.ones(20, bool)], seed=1, origin=(40.0, 117.0))
    assert (released.values == [40.0, 117.0]).all()
    assert not released.epsilon.any()


@dataclass(frozen=True, kw_only=True)
class Scaled(PlanarLaplace):
    """A broken mechanism: the noise is not the declared one."""

    factor: float = 1.0

    def step(self, window, points, state, noise):
        honest = PlanarLaplace(epsilon=self.epsilon / self.factor, radius=self.radius)
        (release,), state = honest.step(window, points, state, noise)
        declared = np.full((len(points), 1), self.metres / self.epsilon)
        return [replace(release, scale=declared, charge=(PureDP(np.full(len(points), self.epsilon)),))], state


def noise_is_as_declared(mechanism, radial=None):
    """p-value of the lengths, and of the directions, of what a mechanism adds to points."""
    place = np.tile(BEIJING, (1, 1))
    released = run_traces(mechanism, [place] * 6000, seed=11)
    scale = np.array([one.scale[0] for one in released])
    offsets = np.concatenate([offsets_between(place, one.values) for one in released])
    published = np.array([one.action[0] == "published" for one in released])
    lengths = np.hypot(*offsets.T)[published] / scale[published]
    radial = radial or stats.gamma(2)
    turns = (np.arctan2(*offsets.T)[published] / (2 * np.pi)) % 1.0
    return min(stats.kstest(lengths, radial.cdf).pvalue, stats.kstest(turns, "uniform").pvalue)


def test_planar_noise_is_accepted_at_its_scale_and_rejected_beside_it():
    assert noise_is_as_declared(PlanarLaplace(epsilon=EPSILON, radius=RADIUS)) > 1e-4
    for factor in (0.7, 1.3):
        assert noise_is_as_declared(Scaled(epsilon=EPSILON, radius=RADIUS, factor=factor)) < 1e-8
    gaussian = get("gaussian_trace")
    assert noise_is_as_declared(gaussian(sigma=40.0), stats.rayleigh()) > 1e-4
    assert noise_is_as_declared(gaussian(sigma=40.0), stats.rayleigh(scale=1.3)) < 1e-8


@pytest.mark.parametrize("name", ["landmark_uniform", "landmark_adaptive", "w_event_uniform", "w_event_ba"])
def test_a_schedule_adds_the_noise_that_its_scale_says(name):
    parameters = {"w": W} if name.startswith("w_event") else {}
    mechanism = get(name)(epsilon=EPSILON, noise="planar_laplace", radius=RADIUS, **parameters)
    assert noise_is_as_declared(mechanism) > 1e-4
    gaussian = get(name)(rho=RHO, noise="planar_gaussian", radius=RADIUS, **parameters)
    assert noise_is_as_declared(gaussian, stats.rayleigh()) > 1e-4
    assert noise_is_as_declared(gaussian, stats.rayleigh(scale=1.2)) < 1e-8


@pytest.mark.parametrize("mechanism", schedules(rho=RHO), ids=repr)
def test_gaussian_noise_has_the_size_that_its_share_of_the_budget_asks_for(mechanism):
    for released in run_traces(mechanism, *tracks(), seed=3):
        shown = released.action == "published"
        share = released.rho[shown] - mechanism.query_budget
        assert released.scale[shown] == pytest.approx(RADIUS / np.sqrt(2 * share))
        assert (released.epsilon[shown] == np.inf).all()


def test_a_budget_in_epsilon_and_delta_is_the_largest_rho_that_keeps_to_both():
    mechanism = get("landmark_uniform")(epsilon=2.0, delta=1e-6, noise="planar_gaussian", radius=RADIUS)
    assert mechanism.budget == pytest.approx(0.0884, rel=1e-2)
    assert mechanism.guarantee.amount_of(LANDMARKS) == mechanism.budget
    assert "ρ-zero-concentrated indistinguishability" in mechanism.guarantee.words.statement
    assert "ε = 2 at δ = 1e-06" in mechanism.guarantee.words.statement
    assert "planar Gaussian" in mechanism.guarantee.theorem
    for wrong in ({"epsilon": 2.0}, {"rho": 0.1, "delta": 1e-6}, {"rho": 0.1, "epsilon": 1.0}, {}):
        with pytest.raises(ParameterError):
            get("landmark_uniform")(**wrong, noise="planar_gaussian")
    with pytest.raises(ParameterError, match="planar_gaussian"):
        get("landmark_uniform")(rho=0.1, noise="planar_laplace")


def divergence(sigma, apart, order):
    """Rényi divergence on the sphere between a point moved by Gaussian noise along great circles and one ``apart``.

    By quadrature over length and direction of the step from the first point: there the noise is that of the plane, and
    a density per area of the sphere is that of the plane times (angle / sine of the angle).
    """
    radius, weight = np.polynomial.legendre.leggauss(400)
    length = sigma * 6.0 * (radius + 1)  # up to twelve standard deviations
    weight = weight * 6.0 * sigma
    turn = 2 * np.pi * np.arange(240) / 240
    start = np.array([39.9, 116.4])
    other = moved(start, np.array([apart, 0.0]))
    steps = length[:, None, None] * np.stack([np.cos(turn), np.sin(turn)], axis=-1)
    far = distance(moved(start, steps), other)
    near = np.broadcast_to(length[:, None], far.shape)

    def log_density(metres):
        return -(metres**2) / (2 * sigma**2) - np.log(np.sinc(metres / EARTH_RADIUS / np.pi))

    density = np.exp(-(length**2) / (2 * sigma**2)) * length / (2 * np.pi * sigma**2) * weight * (2 * np.pi / len(turn))
    ratio = np.exp((order - 1) * (log_density(near) - log_density(far)))
    return np.log((density[:, None] * ratio).sum()) / (order - 1)


@pytest.mark.parametrize("sigma", [100.0, 10_000.0, 300_000.0, 1_000_000.0])
def test_on_the_sphere_gaussian_noise_costs_no_more_than_in_the_plane(sigma):
    for apart in (0.1, 0.5, 1.0):
        for order in (1.5, 2.0, 4.0):
            bound = order * apart**2 / 2
            actual = divergence(sigma, apart * sigma, order)
            assert actual <= bound * (1 + 1e-6)
            if sigma <= 10_000:
                assert actual == pytest.approx(bound, rel=1e-3)


def test_without_limits_points_are_shown_as_they_are():
    traces, landmarks = tracks()
    for mechanism in [
        *schedules(np.inf),
        *schedules(rho=np.inf),
        get("planar_laplace")(epsilon=np.inf),
        get("gaussian_trace")(sigma=0.0),
    ]:
        for trace, released in zip(traces, run_traces(mechanism, traces, landmarks, seed=1)):
            shown = released.action == "published"
            assert distance(trace, released.values)[shown].max(initial=0.0) < 0.1


def test_the_expected_distance_is_that_of_two_noisy_releases():
    rng = np.random.default_rng(5)

    def planar(scale):
        return rng.gamma(2.0, scale, 400_000) * np.exp(2j * np.pi * rng.random(400_000))

    for scale, other in ((1.0, 1.0), (3.0, 1.0), (1.0, 20.0)):
        apart = np.abs(planar(scale) - planar(other))
        assert abs(apart.mean() - expected_distance(scale, other)) < 5 * apart.std() / 400_000**0.5


def test_counts_refuse_the_noise_of_points():
    mechanism = get("landmark_uniform")(epsilon=1.0, noise="planar_laplace")
    with pytest.raises(ParameterError, match="noise"):
        run_mechanism(mechanism, np.zeros((2, 3), int), Facts(n_cells=3, landmarks=()))
    with pytest.raises(ParameterError, match="radius"):
        get("landmark_uniform")(epsilon=1.0, radius=5.0)
    with pytest.raises(ParameterError, match="points of traces"):
        run_traces(get("landmark_uniform")(epsilon=1.0), [np.zeros((1, 2))])


@dataclass(frozen=True, kw_only=True)
class Greedy(LandmarkAdaptive):
    """Mutant: a repeating landmark passes its whole budget to every later one."""

    def record(self, window, offer, after):
        handing = window.landmark & ~offer.publish & (window.landmarks_to_come > 0)
        bonus = offer.state["bonus"] + np.where(handing, offer.amount, 0.0)
        return super().record(window, offer, after) | {"bonus": bonus}


@dataclass(frozen=True, kw_only=True)
class Crowded(PlanarLaplace):
    """A broken mechanism: everybody in the shard is moved as the first user is."""

    def step(self, window, points, state, noise):
        (release,), state = super().step(window, points, state, noise)
        return [replace(release, values=points + (release.values - points)[:1])], state


@dataclass(frozen=True, kw_only=True)
class Careless(LandmarkUniform):
    """A broken mechanism: it writes into the state that it was given."""

    def refused(self, window, state):
        state["landmarks_seen"] += 1
        return super().refused(window, state)


@pytest.mark.parametrize(
    ("mutant", "check"),
    [
        (Greedy, test_landmarks_and_any_other_point_of_a_user_stay_within_epsilon),
        (Crowded, test_users_in_a_shard_release_what_they_release_alone),
        (Careless, test_inputs_are_not_changed),
    ],
)
def test_a_broken_mechanism_fails_its_check(mutant, check):
    parameters = {} if mutant is Crowded else {"noise": "planar_laplace"}
    with pytest.raises(AssertionError):
        check(mutant(epsilon=EPSILON, radius=RADIUS, **parameters))


@pytest.mark.parametrize("noise", ["planar_laplace", "planar_gaussian"])
def test_points_are_published_on_a_grid_without_a_trace_of_their_digits(noise):
    """The last bits of a double would tell which of two points the noise was added to."""
    budget = {"epsilon": 1.0} if noise == "planar_laplace" else {"rho": 0.5}
    schedule = get("w_event_uniform")(w=1, noise=noise, radius=RADIUS, **budget)
    [released] = run_traces(schedule, [np.full((200, 2), np.pi) * [1, 11]], [np.zeros(200, bool)], origin=(0.0, 0.0))
    assert np.array_equal(released.values, np.round(released.values, DECIMALS))
    assert len(np.unique(released.values, axis=0)) == 200


def test_a_circle_pulls_the_opposite_side_of_the_sphere_together():
    """Two points on either side of the point opposite the centre end as near to each other as they were."""
    centre, opposite = (10.0, 20.0), np.array([-10.0, -160.0])
    steps = np.array([[0.0, 0.0], [50.0, 0.0], [-50.0, 0.0], [0.0, 80.0], [30.0, -40.0]])
    points = moved(np.broadcast_to(opposite, steps.shape), steps)
    inside = within(points, centre, 5000.0)
    apart, before = (distance(one[:, None], one[None]) for one in (inside, points))
    assert (apart <= before + 0.5).all(), "but for the rounding of distances to the other side of the sphere"
    assert (distance(inside, np.asarray(centre)) <= 100.0).all()
