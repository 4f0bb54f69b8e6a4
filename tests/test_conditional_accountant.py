"""The running conditional_inferential accountant, and Gaussian noise planned for a goal."""

from __future__ import annotations

import math

import numpy as np
import pytest

from penstock.accountants.conditional_inferential import ConditionalInferential
from penstock.accountants.core.accountant import AccountingFacts
from penstock.accountants.core.trace_view import TraceView
from penstock.accountants.gaussian_process.goal import planned_sigma, with_planned_noise
from penstock.accountants.gaussian_process.kernels import GaussianProcess
from penstock.accountants.gaussian_process.loss import conditional_inferential_loss
from penstock.accountants.gaussian_process.readings import posterior
from penstock.mechanisms import get
from penstock.mechanisms.core.contract import Release, Window
from penstock.mechanisms.core.events import Event, Gaussian, Repeated
from penstock.mechanisms.core.plugin import ParameterError, UnsupportedEvent
from penstock.mechanisms.core.state import decode_state, encode_state
from penstock.mechanisms.core.trace_goal import ConditionalGoal, PlannedNoise

PRIOR = {"length_scale": 120.0, "variance": 1e5, "nugget": 100.0}
RADIUS, SIGMA = 40.0, 80.0


def books(**parameters):
    return ConditionalInferential(radius=RADIUS, **(PRIOR | parameters))


def rows_of(rows, name):
    return [row.value for row in rows if row.name == name]


def exact(times, secret, order=2.0):
    """Loss of one secret given the whole trace, and the same without dependence."""
    arguments = (PRIOR["length_scale"], RADIUS, order, "rbf", PRIOR["variance"])
    return conditional_inferential_loss(times, secret, SIGMA, *arguments, nugget=PRIOR["nugget"])


@pytest.mark.parametrize("secrets", ["singletons", "every_other", "sliding_blocks"])
def test_a_trace_within_the_block_has_the_loss_of_the_whole_trace(secrets):
    from penstock.accountants.gaussian_process.kernels import named_family

    times = np.cumsum(np.random.default_rng(1).uniform(20, 200, 9))
    rows = books(secrets=secrets, width=3).trace_rows("x", times, np.full(9, SIGMA))
    for n in (1, 4, 9):
        family = named_family(secrets, n, 3)
        losses, independent = zip(*(exact(times[:n], secret) for secret in family))
        assert rows_of(rows, "loss")[n - 1] == pytest.approx(max(losses), rel=1e-6)
        assert rows_of(rows, "independent_loss")[n - 1] == pytest.approx(max(independent), rel=1e-6)
    model = GaussianProcess(**PRIOR)
    assert rows_of(rows, "interval")[-1] == pytest.approx(posterior(times, times, SIGMA, model)[1][-1], rel=1e-6)


def test_a_short_block_never_understates():
    times = 60.0 * np.arange(40)
    whole = [max(exact(times[:n], [secret])[0] for secret in range(max(0, n - 9), n)) for n in range(1, 41)]
    bounded = rows_of(books(block=9).trace_rows("x", times, np.full(40, SIGMA)), "loss")
    assert (np.array(bounded) >= np.array(whole) * (1 - 1e-9)).all()


def test_a_promise_covers_what_comes_later_and_breaking_it_is_infinite():
    times = 60.0 * np.arange(30)
    promised = books(interval=60.0, block=25).trace_rows("x", times, np.full(30, SIGMA), promised=SIGMA)
    assert {row.status for row in promised} == {"final"}
    for newest in (10, 15):
        later = max(exact(times, [secret])[0] for secret in range(newest))
        assert rows_of(promised, "loss")[newest - 1] >= later * (1 - 1e-9)
    for times_or_noise in ((times - (times >= 600), np.full(30, SIGMA)), (times, np.where(times < 600, SIGMA, 1.0))):
        rows = books(interval=60.0).trace_rows("x", *times_or_noise, promised=SIGMA)
        assert math.isinf(rows_of(rows, "loss")[-1])


def test_figures_depend_on_no_position_and_repetitions_add_nothing():
    times = 60.0 * np.arange(6)
    plain = books().trace_rows("x", times[::2], np.full(3, SIGMA))
    repeated = books().trace_rows("x", times, np.where(np.arange(6) % 2, np.inf, SIGMA))
    assert rows_of(repeated, "loss")[::2] == rows_of(plain, "loss")
    assert rows_of(repeated, "loss")[1::2] == rows_of(plain, "loss")


def view(mechanism, noise, scale):
    n = len(scale)
    return TraceView(
        subjects=["a", "b"],
        starts=np.array([0, 4]),
        times=60_000 * np.arange(n),
        landmarks=np.zeros(n, bool),
        periods=np.zeros(n, int),
        epsilon=np.full(n, np.inf),
        scale=scale,
        action=np.full(n, "published"),
        noise=noise,
        mechanism=mechanism,
    )


def test_every_trace_has_books_of_its_own():
    rows = books(every=4).account_traces(view(get("gaussian_trace")(sigma=SIGMA), "gaussian", np.full(7, SIGMA)))
    assert [(row.subject, row.window) for row in rows if row.name == "loss"] == [("a", 4), ("b", 3)]
    assert rows_of(rows, "loss") == pytest.approx(
        [max(exact(60.0 * np.arange(n), [secret])[0] for secret in range(n)) for n in (4, 3)], rel=1e-6
    )


def test_noise_without_a_theorem_has_no_bound():
    planar = get("planar_laplace")(epsilon=1.0)
    rows = books().account_traces(view(planar, "planar_laplace", np.full(7, SIGMA)))
    assert all(math.isinf(value) for value in rows_of(rows, "loss"))


class Unknown(Event):
    """No accountant knows it."""


def test_the_books_of_one_stream_are_those_of_its_trace_and_survive_a_restart():
    accountant = books()
    model, state = accountant.start(AccountingFacts(n_cells=2, mechanism=get("gaussian_trace")(sigma=SIGMA)))
    charges = [Gaussian(RADIUS, SIGMA), Gaussian(RADIUS, SIGMA), Repeated(2), Gaussian(RADIUS, SIGMA)]
    found = []
    for index, event in enumerate(charges):
        state = decode_state(encode_state("books", 1, state), "books", 1)
        window = Window(index=index + 1, start=60_000 * index, end=60_000 * (index + 1))
        release = Release(window=index + 1, values=np.zeros(2), charge=(event,))
        rows, state = accountant.charge(release, window, {}, model, state)
        found += rows_of(rows, "loss")
    times, sigma = 60.0 * np.arange(4), np.array([SIGMA, SIGMA, np.inf, SIGMA])
    assert found == rows_of(accountant.trace_rows("x", times, sigma), "loss")
    with pytest.raises(UnsupportedEvent):
        accountant.charge(Release(window=5, values=np.zeros(2), charge=(Unknown(),)), window, {}, model, state)


def test_a_goal_is_kept_with_no_more_noise_than_it_takes():
    goal = ConditionalGoal(goal=0.8, interval=60.0, n_points=9, secrets="sliding_blocks", width=2, **PRIOR)
    asked = get("gaussian_trace")(sigma=PlannedNoise(conditional_goal=goal), radius=RADIUS)
    with pytest.raises(ParameterError, match="with_planned_noise"):
        asked.deviation  # noqa: B018
    mechanism = with_planned_noise(asked)
    assert mechanism == asked
    accountant = books(secrets="sliding_blocks", width=2)
    times = 60.0 * np.arange(9)
    loss = rows_of(accountant.trace_rows("x", times, np.full(9, mechanism.deviation)), "loss")[-1]
    assert 0.8 * (1 - 1e-6) <= loss <= 0.8 * (1 + 1e-9)
    less = rows_of(accountant.trace_rows("x", times, np.full(9, 0.99 * mechanism.deviation)), "loss")[-1]
    assert less > 0.8
    assert planned_sigma(goal, 2 * RADIUS) > mechanism.deviation


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
