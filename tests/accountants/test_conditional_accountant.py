"""The running conditional_inferential accountant, and Gaussian noise planned for a goal."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from penstock.accountants.conditional_inferential import ConditionalInferential
from penstock.accountants.gaussian_process.goal import planned_deviations, planned_sigma
from penstock.accountants.gaussian_process.kernels import GaussianProcess, named_family
from penstock.accountants.gaussian_process.loss import conditional_inferential_loss
from penstock.mechanisms import get
from penstock.mechanisms.core.noise import NoiseSource
from penstock.mechanisms.core.noise_keys import NoiseKey
from penstock.mechanisms.core.plugin import ParameterError
from penstock.mechanisms.core.run import PointSchedule, collect, run_traces, traces_of
from penstock.mechanisms.gaussian_trace import ConditionalGoal, LengthScales, PlannedNoise
from tests.tools.conditional_losses import rows_of, view

PRIOR = {"length_scale": 120.0, "variance": 1e5, "nugget": 100.0}
RADIUS, SIGMA = 40.0, 80.0


#: The same with this length scale alone, for those who declare it.
ALONE = PRIOR | {"length_scale": LengthScales(exactly=120.0)}


def books(**parameters):
    return ConditionalInferential(radius=RADIUS, **(ALONE | parameters))


def exact(times, secret, order=2.0):
    """Loss of one secret given the whole trace, and the same without dependence."""
    arguments = (PRIOR["length_scale"], RADIUS, order, "rbf", PRIOR["variance"])
    return conditional_inferential_loss(times, secret, SIGMA, *arguments, nugget=PRIOR["nugget"])


@pytest.mark.parametrize("secrets", ["singletons", "every_other", "sliding_blocks"])
def test_a_trace_within_the_block_has_the_loss_of_the_whole_trace(secrets):
    times = np.cumsum(np.random.default_rng(1).uniform(20, 200, 9))
    rows = books(secrets=secrets, width=3).trace_rows("x", times, np.full(9, SIGMA))
    for n in (1, 4, 9):
        family = named_family(secrets, n, 3)
        losses, independent = zip(*(exact(times[:n], secret) for secret in family))
        assert rows_of(rows, "loss")[n - 1] == pytest.approx(max(losses), rel=1e-6)
        assert rows_of(rows, "independent_loss")[n - 1] == pytest.approx(max(independent), rel=1e-6)
    prior = GaussianProcess(**PRIOR).covariance(times)
    posterior = prior - prior @ np.linalg.inv(prior + SIGMA**2 * np.eye(9)) @ prior
    assert rows_of(rows, "interval")[-1] == pytest.approx(2 * np.sqrt(posterior[-1, -1]), rel=1e-6)


def test_a_short_block_never_understates():
    times = 60.0 * np.arange(40)
    whole = [max(exact(times[:n], [secret])[0] for secret in range(max(0, n - 9), n)) for n in range(1, 41)]
    bounded = rows_of(books(block=9).trace_rows("x", times, np.full(40, SIGMA)), "loss")
    assert (np.array(bounded) >= np.array(whole) * (1 - 1e-9)).all()


def test_figures_depend_on_no_position_and_repetitions_add_nothing():
    times = 60.0 * np.arange(6)
    plain = books().trace_rows("x", times[::2], np.full(3, SIGMA))
    repeated = books().trace_rows("x", times, np.where(np.arange(6) % 2, np.inf, SIGMA))
    assert rows_of(repeated, "loss")[::2] == rows_of(plain, "loss")
    assert rows_of(repeated, "loss")[1::2] == rows_of(plain, "loss")


def test_every_trace_has_an_account():
    rows = books(every=4).account_traces(view(get("gaussian_trace")(sigma=SIGMA), np.full(7, SIGMA)))
    assert [(row.subject, row.window) for row in rows if row.name == "loss"] == [(f"{10:016x}", 4), (f"{11:016x}", 3)]
    assert rows_of(rows, "loss") == pytest.approx(
        [max(exact(60.0 * np.arange(n), [secret])[0] for secret in range(n)) for n in (4, 3)], rel=1e-6
    )


def test_a_schedule_with_gaussian_noise_is_accounted_unless_releases_decide_what_follows():
    plain = get("landmark_uniform")(rho=0.5, noise="planar_gaussian")
    adaptive = get("landmark_adaptive")(rho=0.5, noise="planar_gaussian")
    trace = books().account_traces(view(get("gaussian_trace")(sigma=SIGMA), np.full(7, SIGMA)))
    rows, unbounded = (books().account_traces(view(one, np.full(7, SIGMA))) for one in (plain, adaptive))
    assert rows_of(rows, "loss") == rows_of(trace, "loss")
    assert all(math.isinf(value) for value in rows_of(unbounded, "loss"))


def test_noise_without_a_theorem_has_no_bound():
    planar = get("planar_laplace")(epsilon=1.0)
    rows = books().account_traces(view(planar, np.full(7, SIGMA)))
    assert all(math.isinf(value) for value in rows_of(rows, "loss"))


def test_a_goal_is_kept_with_no_more_noise_than_it_takes():
    goal = ConditionalGoal(goal=0.8, secrets="sliding_blocks", width=2, **ALONE)
    accountant = books(secrets="sliding_blocks", width=2)
    for times in (60.0 * np.arange(9), 75.0 * np.arange(9)):
        sigma = planned_sigma(goal, RADIUS, times)
        loss = rows_of(accountant.trace_rows("x", times, np.full(9, sigma)), "loss")[-1]
        assert 0.8 * (1 - 1e-6) <= loss <= 0.8 * (1 + 1e-9)
        less = rows_of(accountant.trace_rows("x", times, np.full(9, 0.99 * sigma)), "loss")[-1]
        assert less > 0.8
        assert planned_sigma(goal, 2 * RADIUS, times) > sigma


def test_where_the_prior_determines_a_secret_point_the_loss_is_infinite_and_a_nugget_ends_that():
    given = {"length_scale": 6000.0, "variance": 1e6, "radius": RADIUS, "secrets": "sliding_blocks", "width": 4}
    times, sigma = np.arange(6.0), np.full(6, SIGMA)
    losses = [
        rows_of(ConditionalInferential(**given, nugget=nugget).trace_rows("x", times, sigma), "loss")
        for nugget in (0.0, 100.0)
    ]
    assert np.isinf(losses[0][-1])
    assert np.isfinite(losses[1]).all()


GOALS = {
    "single points": {"secrets": "singletons"},
    "pairs": {"secrets": "sliding_blocks", "width": 2},
    "runs of four": {"secrets": "sliding_blocks", "width": 4},
    "every other": {"secrets": "every_other"},
    "no nugget": {"secrets": "sliding_blocks", "width": 2, "nugget": 0.0, "kernel": "matern32"},
    "periodic": {
        "secrets": "every_other",
        "kernel": "periodic",
        "length_scale": LengthScales(exactly=1.0),
        "period": 900.0,
    },
}


@pytest.mark.parametrize("name", GOALS)
def test_no_gaps_that_a_trace_may_have_break_the_goal(name):
    """Brute force: the loss of every promised secret in released traces with random irregular gaps."""
    rng = np.random.default_rng(8)
    goal = ConditionalGoal(goal=1.0, n_points=14, **ALONE | GOALS[name])
    mechanism = get("gaussian_trace")(sigma=PlannedNoise(conditional_goal=goal), radius=RADIUS)
    every = []
    for n in rng.integers(2, 20, 12):
        # From a second to an hour, some traces regular, some with all lengths of gaps.
        spread = rng.choice([0.0, 0.3, 2.5])
        gaps = np.clip(60_000 * np.exp(spread * rng.normal(size=n)) * rng.choice([0.2, 1.0, 1.25, 5.0]), 1000, 3.6e6)
        every.append(np.round(np.cumsum(gaps)).astype(np.int64))
    flat = traces_of([np.tile([39.9, 116.4], (len(times), 1)) for times in every])
    flat = replace(flat, times=np.concatenate(every))
    deviations = planned_deviations(goal, RADIUS, flat)
    noise = NoiseSource(NoiseKey.from_seed(1), configuration=b"")
    schedule = PointSchedule(flat, (39.9, 116.4), deviations=deviations)
    released = collect(mechanism, schedule, noise)
    assert released.noise == mechanism.family.name == "planar_gaussian"  # what the accountant has a theorem for
    kernel = (goal.length_scales.longest, RADIUS, goal.order, goal.kernel, goal.variance, goal.period)
    for first, times in zip(flat.starts, every):
        scale = released.scale[first : first + len(times)]
        is_out = released.action[first : first + len(times)] == "published"
        assert is_out.sum() in (0, min(len(times), 14))
        if not is_out.any():
            continue
        seconds, sigma = times[is_out] / 1000, scale[is_out]
        losses = []
        for n in range(1, len(seconds) + 1):
            for secret in named_family(goal.secrets, n, goal.width):
                given = (seconds, secret, sigma, *kernel)
                losses.append(conditional_inferential_loss(*given, nugget=goal.nugget)[0])
        assert 1 - 1e-6 <= max(losses) <= 1 + 1e-6
    assert np.isfinite(deviations).any()


def test_what_no_noise_can_keep_to_the_goal_is_refused():
    goal = ConditionalGoal(
        goal=1.0, n_points=3, length_scale=LengthScales(exactly=3600.0), variance=1e6, secrets="every_other"
    )
    mechanism = get("gaussian_trace")(sigma=PlannedNoise(conditional_goal=goal), radius=RADIUS)
    tracks = [np.tile([39.9, 116.4], (n, 1)) for n in (5, 2)]
    flat = traces_of(tracks)
    with pytest.raises(ParameterError, match="planned_deviations"):
        run_traces(mechanism, tracks)
    long, short = run_traces(mechanism, tracks, deviations=planned_deviations(goal, RADIUS, flat), origin=(40.0, 116.0))
    assert short.action.tolist() == ["published"] * 2
    assert long.action.tolist() == ["published"] * 3 + ["refused"] * 2
    assert (long.values[3:] == long.values[2]).all()
    assert long.repeats.tolist() == [-1, -1, -1, 3, 3]
    # One second apart under a length scale of an hour: six points determine each other.
    close = replace(goal, n_points=12)
    flat = traces_of([np.tile([39.9, 116.4], (12, 1))])
    flat = replace(flat, times=flat.times // 60)
    assert planned_deviations(close, RADIUS, flat).tolist() == [math.inf]
    nothing = collect(
        get("gaussian_trace")(sigma=PlannedNoise(conditional_goal=close), radius=RADIUS),
        PointSchedule(flat, (40.0, 116.0), deviations=np.array([math.inf])),
        NoiseSource(NoiseKey.from_seed(1), configuration=b""),
    )
    assert (nothing.action == "refused").all()
    assert (nothing.values == (40.0, 116.0)).all()


@pytest.mark.parametrize(
    ("wrong", "field"),
    [({"kernel": "periodic"}, "period"), ({"period": 3.0}, "period"), ({"block": 0}, "block"), ({"every": 0}, "every")],
)
def test_wrong_parameters_name_themselves(wrong, field):
    with pytest.raises(ParameterError, match=field):
        books(**wrong)


def test_wrong_noise_of_a_trace_names_itself():
    for wrong in (-1.0, math.inf, math.nan, "much", True):
        with pytest.raises(ParameterError, match="sigma"):
            get("gaussian_trace")(sigma=wrong)
