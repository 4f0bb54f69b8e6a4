"""Designed noise on traces: the goal over a class of length scales, the noise that is drawn, charges and accounts."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.accountants.conditional_inferential import ConditionalInferential
from penstock.accountants.gaussian_process.goal import (
    planned_covariance,
    planned_factors,
    planned_sigma,
    promised_secrets,
)
from penstock.accountants.gaussian_process.kernels import named_family
from penstock.accountants.landmark_budget import LandmarkBudget
from penstock.mechanisms import get
from penstock.mechanisms.core.geometry import offsets_between
from penstock.mechanisms.core.plugin import ParameterError
from penstock.mechanisms.core.run import run_traces, traces_of
from penstock.mechanisms.gaussian_trace import ConditionalGoal, LengthScales, PlannedNoise
from penstock.pipeline.config.canonical import digest, resolved
from penstock.pipeline.config.goals import plan_conditional
from penstock.pipeline.config.run import loads
from penstock.pipeline.monitoring.verify import verify
from tests.tools.conditional_losses import LONGEST, PRIOR, RADIUS, SECRETS, largest_loss, rows_of, view
from tests.tools.small_configuration import run_locally as run
from tests.tools.small_configuration import walk_source

BEIJING = np.array([39.9, 116.4])


def goal_of(**changes):
    return ConditionalGoal(goal=1.0, **PRIOR | changes)


def designed(goal):
    return get("gaussian_trace")(sigma=PlannedNoise(conditional_goal=goal), radius=RADIUS, covariance="designed")


@given(
    gaps=st.lists(st.floats(1.0, 900.0), min_size=1, max_size=7),
    kernel=st.sampled_from(["rbf", "matern12", "matern32"]),
    which=st.sampled_from(SECRETS),
)
@settings(max_examples=15, deadline=None)
def test_no_length_scale_and_no_gaps_break_a_goal_with_designed_noise(gaps, kernel, which):
    times = np.concatenate([[0.0], np.cumsum(gaps)])
    goal = goal_of(kernel=kernel, **which)
    covariance = planned_covariance(goal, RADIUS, times)
    secrets = promised_secrets(goal, len(times))
    assert largest_loss(times, secrets, kernel=kernel, covariance=covariance) <= 1.0
    assert np.trace(covariance) <= len(times) * planned_sigma(goal, RADIUS, times) ** 2 * (1 + 1e-9)
    for n in range(1, len(times)):
        beginning = [secret for secret in secrets if secret[-1] < n]
        assert largest_loss(times[:n], beginning, None, kernel, (20.0, LONGEST), covariance[:n, :n]) <= 1.0


@pytest.mark.parametrize("which", SECRETS, ids=str)
def test_ten_points_need_much_less_noise(which):
    times = 60.0 * np.arange(10)
    goal = goal_of(**which)
    white = 10 * planned_sigma(goal, RADIUS, times) ** 2
    assert white > 1.3 * np.trace(planned_covariance(goal, RADIUS, times))


def test_a_design_for_the_longest_length_scale_alone_would_lose_more():
    times = np.array([0.0, 30.0, 150.0, 160.0, 400.0, 1000.0, 1010.0, 1030.0])
    which = {"secrets": "sliding_blocks", "width": 3}
    alone = planned_covariance(goal_of(**which | {"length_scale": LengthScales(exactly=LONGEST)}), RADIUS, times)
    secrets = promised_secrets(goal_of(**which), 8)
    assert largest_loss(times, secrets, scales=[LONGEST], covariance=alone) <= 1.0
    assert largest_loss(times, secrets, covariance=alone) > 1.5


TIMES = 60.0 * np.arange(5)  # of `traces_of`


def released_noise(mechanism, n_users, covariance=None, **planned):
    """Noise of many equal traces in metres, (n_users, 5, 2), and their releases."""
    tracks = [np.tile(BEIJING, (5, 1))] * n_users
    released = run_traces(mechanism, tracks, seed=9, **planned)
    return np.stack([offsets_between(BEIJING, one.values) for one in released]), released


def is_as_planned(noise, covariance):
    """Check the empirical covariance of both axes, and between them, against the planned one within 5 σ."""
    n, variances = len(noise), covariance.diagonal()
    error = np.sqrt((np.multiply.outer(variances, variances) + covariance**2) / n)
    east, north = noise[..., 0], noise[..., 1]
    actual = [east.T @ east / n, north.T @ north / n, east.T @ north / n]
    wanted = [covariance, covariance, np.zeros_like(covariance)]
    between = np.sqrt(np.multiply.outer(variances, variances) / n)
    allowed = [error, error, between]
    return all((np.abs(one - other) <= 5 * wide).all() for one, other, wide in zip(actual, wanted, allowed))


def test_two_plans_for_a_point_share_no_noise():
    track = np.tile(BEIJING, (3, 1))
    plain, shaped = goal_of(n_points=5), goal_of(secrets="every_other", n_points=5)
    for mechanism in (get("gaussian_trace")(sigma=PlannedNoise(conditional_goal=plain)), designed(shaped)):
        released = []
        for n_points, sigma in ((2, 100.0), (3, 200.0)):
            planned = {"deviations": np.array([sigma]), "factors": [sigma * np.eye(n_points)]}
            released += run_traces(mechanism, [track[:n_points]], seed=3, **planned)
        short, long = (one.values[0] - BEIJING for one in released)
        assert (
            np.abs(long / short - 2.0) > 0.01
        ).all()  # with the same draws the longer trace's noise is twice as large
    # Noise that is stated is bound to user, time, point and state alone.
    one, other = (run_traces(get("gaussian_trace")(sigma=50.0), [track[:n]], seed=3)[0].values for n in (2, 3))
    assert (one == other[:2]).all()


def test_designed_noise_is_for_traces_of_a_stated_length():
    most = goal_of(n_points=1000)
    assert designed(most).is_designed
    with pytest.raises(ParameterError, match="at most 1,000 with designed noise"):
        designed(goal_of(n_points=1001))
    assert not get("gaussian_trace")(sigma=PlannedNoise(conditional_goal=goal_of(n_points=1001))).is_designed


def test_twenty_thousand_traces_have_the_designed_covariance():
    goal = goal_of(secrets="every_other", n_points=5)
    mechanism, n_users = designed(goal), 20_000
    deviations, factors = planned_factors(goal, RADIUS, traces_of([np.tile(BEIJING, (5, 1))] * n_users))
    assert factors[0] is factors[-1]
    covariance = factors[0] @ factors[0].T
    assert covariance == pytest.approx(planned_covariance(goal, RADIUS, TIMES))
    noise, released = released_noise(mechanism, n_users, deviations=deviations, factors=factors)
    assert is_as_planned(noise, covariance)
    assert released[0].scale == pytest.approx(np.sqrt(covariance.diagonal()))
    # Mutant: white noise of the stated scales.
    white = [np.diag(np.sqrt(covariance.diagonal()))] * n_users
    assert not is_as_planned(released_noise(mechanism, n_users, deviations=deviations, factors=white)[0], covariance)


def test_the_sum_of_charges_covers_what_any_points_tell_together():
    rng = np.random.default_rng(2)
    goal = goal_of(secrets="sliding_blocks", n_points=8)
    tracks = [np.tile(BEIJING, (n, 1)) for n in (8, 5)]
    deviations, factors = planned_factors(goal, RADIUS, traces_of(tracks))
    understated = 0
    for released, factor in zip(run_traces(designed(goal), tracks, deviations=deviations, factors=factors), factors):
        n = len(factor)
        inverse = np.linalg.inv(factor @ factor.T)
        assert (released.epsilon == math.inf).all()
        vectors = [*rng.normal(size=(300, n)), *np.linalg.eigh(inverse)[1].T]
        for vector in vectors:
            points = rng.permutation(n)[: rng.integers(1, n + 1)]
            one = np.zeros(n)
            one[points] = RADIUS * vector[points] / np.abs(vector[points]).max()
            messages = one @ inverse @ one / 2
            assert messages <= released.rho[points].sum() * (1 + 1e-9)
            understated += messages > (RADIUS**2 / (2 * released.scale[points] ** 2)).sum()
    assert understated > 100  # what the scales alone, taken for independent noise, would charge


def seen(goal, factors):
    scales = np.concatenate([np.linalg.norm(factor, axis=1) for factor in factors])
    return replace(view(designed(goal), scales), factors=factors)


def test_the_account_is_exact_under_the_covariance_at_every_point():
    goal = goal_of(secrets="every_other", n_points=4)
    _, factors = planned_factors(goal, RADIUS, traces_of([np.zeros((4, 2)), np.zeros((3, 2))]))
    account = ConditionalInferential(radius=RADIUS, secrets="every_other", **PRIOR)
    rows = account.account_traces(seen(goal, factors))
    losses = {(row.subject, row.window): row.value for row in rows if row.name == "loss"}
    assert len(losses) == 7
    for subject, factor in zip((f"{10:016x}", f"{11:016x}"), factors):
        covariance = factor @ factor.T
        for n in range(1, len(factor) + 1):
            exact = largest_loss(60.0 * np.arange(n), named_family("every_other", n), covariance=covariance[:n, :n])
            assert exact * (1 - 1e-9) <= losses[subject, n] <= 1.0 + 1e-6
    assert {row.name for row in rows} == {row.name for row in account.trace_rows("x", TIMES, np.full(5, 80.0))}
    ended = [row.status for row in rows if row.name == "loss"]
    assert ended == ["provisional"] * 3 + ["final"] + ["provisional"] * 2 + ["final"]


def test_no_account_takes_designed_noise_for_independent():
    goal = goal_of(secrets="every_other", n_points=4)
    _, factors = planned_factors(goal, RADIUS, traces_of([np.zeros((4, 2)), np.zeros((3, 2))]))
    account = ConditionalInferential(radius=RADIUS, secrets="every_other", **PRIOR)
    blind = account.account_traces(replace(seen(goal, factors), factors=None))
    assert all(math.isinf(value) for value in rows_of(blind, "loss"))
    rho = np.arange(1.0, 8.0)
    spent = rows_of(LandmarkBudget().account_traces(replace(seen(goal, factors), rho=rho)), "budget_spent")
    assert spent == [4.0, 7.0]


def test_points_that_no_design_protects_are_refused_and_later_ones_repeat():
    goal = ConditionalGoal(
        goal=1.0, n_points=3, length_scale=LengthScales(exactly=3600.0), variance=1e6, secrets="every_other"
    )
    tracks = [np.tile(BEIJING, (n, 1)) for n in (5, 2)]
    with pytest.raises(ParameterError, match="planned_factors"):
        run_traces(designed(goal), tracks)
    deviations, factors = planned_factors(goal, RADIUS, traces_of(tracks))
    long, short = run_traces(designed(goal), tracks, deviations=deviations, factors=factors, origin=(40.0, 116.0))
    assert short.action.tolist() == ["published"] * 2
    assert long.action.tolist() == ["published"] * 3 + ["refused"] * 2
    assert (long.values[3:] == long.values[2]).all()
    close = replace(goal, n_points=12)
    flat = traces_of([np.tile(BEIJING, (12, 1)), np.tile(BEIJING, (1, 1))])
    flat = replace(flat, times=flat.times // 60)
    deviations, factors = planned_factors(close, RADIUS, flat)
    assert np.isinf(deviations).tolist() == [True, False]
    tracks = np.split(flat.points, [12])
    nothing, single = run_traces(designed(close), tracks, deviations=deviations, factors=factors, origin=(40.0, 116.0))
    assert (nothing.action == "refused").all()
    assert (nothing.values == (40.0, 116.0)).all()
    assert single.action.tolist() == ["published"]
    account = ConditionalInferential(radius=RADIUS, length_scale=3600.0, variance=1e6)
    empty = replace(
        view(designed(close), np.zeros(7)),
        action=np.full(7, "refused"),
        factors=[np.full((4, 4), np.nan), np.full((3, 3), np.nan)],
    )
    assert set(rows_of(account.account_traces(empty), "loss")) == {0.0}


def sections(path, out, covariance="designed", **mechanism):
    goal = {"goal": 1.0, "secrets": "sliding_blocks", "width": 2, "n_points": 6, **PRIOR}
    shape = {} if covariance is None else {"covariance": covariance}
    step = {"type": "gaussian_trace", "radius": RADIUS, "sigma": {"conditional_goal": goal}, **shape} | mechanism
    known = {"type": "conditional_inferential", "radius": RADIUS, "secrets": "sliding_blocks", "width": 2, **PRIOR}
    return {
        "name": "designed",
        "seed": 3,
        "source": walk_source(path),
        "space": {"type": "grid", "south": 39, "north": 42, "west": 115, "east": 118, "rows": 1, "columns": 1},
        "windows": {"type": "timestamps", "gap": "1m"},
        "mechanism": step,
        "accountants": [known, {"type": "landmark_budget"}],
        "utility": ["mae"],
        "output": {"path": str(out), "report": False},
    }


def configuration(*args, **changes):
    return loads(json.dumps(sections(*args, **changes)))


@pytest.fixture
def events(tmp_path):
    """Six users' walks with irregular times, one of them longer than what is released."""
    rng = np.random.default_rng(4)
    lines = ["user,time,lat,lon"]
    for user, n in enumerate((8, 1, 3, 5, 4, 2)):
        seconds = np.cumsum(rng.integers(60, 500, n))
        for second, point in zip(seconds, BEIJING + np.cumsum(rng.normal(0, 0.001, (n, 2)), axis=0)):
            lines.append(f"u{user},{second},{point[0]:.6f},{point[1]:.6f}")
    path = tmp_path / "events.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_run_keeps_every_trace_to_the_goal_with_less_error(events, tmp_path):
    errors = {}
    for covariance in ("designed", None):
        folder = run(configuration(events, tmp_path / str(covariance), covariance)).folder
        assert [check.name for check in verify(folder) if not check.passed] == []
        rows = pl.read_parquet(folder / "public" / "accounts.parquet")
        losses = rows.filter(name="loss")
        assert losses["subject"].n_unique() == 6
        assert 0.9 < losses["value"].max() <= 1.0 + 1e-6
        assert (rows.filter(name="budget_spent")["value"] > 0).all()
        points = pl.read_parquet(folder / "public" / "traces.parquet")
        assert points["action"].value_counts(sort=True)["count"].to_list() == [21, 2]
        errors[covariance] = pl.read_parquet(folder / "operator" / "utility.parquet").filter(metric="mae")["value"][0]
        promised = json.loads((folder / "public" / "manifest.json").read_text())["guarantee"]
        assert "loss of at most 1" in json.dumps(promised)
    assert errors["designed"] < errors[None]


def test_a_design_needs_a_goal_and_an_unset_shape_changes_no_digest(events, tmp_path):
    with pytest.raises(ParameterError, match=r"^covariance: .*conditional_goal"):
        get("gaussian_trace")(sigma=50.0, covariance="designed")
    plain, shaped = (configuration(events, tmp_path / "out", shape) for shape in (None, "designed"))
    assert digest(plain) != digest(shaped)
    assert "covariance" not in resolved(plain)["mechanism"][0]


def test_a_plan_says_how_much_noise_designs_need_at_most(events, tmp_path):
    value = sections(events, tmp_path / "out")
    value["accountants"] = value["accountants"][:1]
    planned = plan_conditional(loads(json.dumps(value)), 1.0)
    assert "m or less as root mean square, for 100 points, 60 s apart" in planned.promise
