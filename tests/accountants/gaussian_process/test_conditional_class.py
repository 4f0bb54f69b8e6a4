"""A class of priors: no length scale up to the longest breaks a goal or passes an account, whatever the gaps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.accountants.conditional_inferential import ConditionalInferential
from penstock.accountants.gaussian_process.goal import planned_sigma, promised_secrets
from penstock.accountants.gaussian_process.kernels import named_family
from penstock.accountants.gaussian_process.loss import conditional_inferential_loss
from penstock.mechanisms.core.plugin import ParameterError
from penstock.mechanisms.gaussian_trace import ConditionalGoal, LengthScales
from tests.tools.conditional_losses import LONGEST, PRIOR, RADIUS, SECRETS, largest_loss

VARIANCE, NUGGET = PRIOR["variance"], PRIOR["nugget"]


@given(
    gaps=st.lists(st.floats(1.0, 900.0), min_size=1, max_size=8),
    kernel=st.sampled_from(["rbf", "matern12", "matern32"]),
    which=st.sampled_from(SECRETS),
)
@settings(max_examples=15, deadline=None)
def test_no_length_scale_and_no_gaps_break_a_goal(gaps, kernel, which):
    times = np.concatenate([[0.0], np.cumsum(gaps)])
    goal = ConditionalGoal(goal=1.0, length_scale=LONGEST, variance=VARIANCE, nugget=NUGGET, kernel=kernel, **which)
    sigma = planned_sigma(goal, RADIUS, times)
    worst = largest_loss(times, promised_secrets(goal, len(times)), sigma, kernel)
    assert worst <= 1.0
    assert worst > 0.9  # no more noise than it takes; the peak may lie between two of these length scales
    account = ConditionalInferential(
        radius=RADIUS, length_scale=LONGEST, variance=VARIANCE, nugget=NUGGET, kernel=kernel, **which
    )
    rows = account.trace_rows("x", times, np.full(len(times), sigma))
    losses = [row.value for row in rows if row.name == "loss"]
    for n in {1, len(times)}:
        family = named_family(which["secrets"], n, which.get("width", 2))
        so_far = largest_loss(times[:n], family, sigma, kernel)
        assert so_far * (1 - 1e-9) <= losses[n - 1] <= 1.0 + 1e-6


def test_a_plan_for_the_longest_alone_would_lose_more():
    rng = np.random.default_rng(3)
    actual = []
    for _ in range(8):
        times = np.cumsum(rng.choice([5.0, 30.0, 120.0, 600.0], 8) * rng.uniform(0.5, 1.5, 8))
        chosen = {"variance": VARIANCE, "nugget": NUGGET, "secrets": "sliding_blocks", "width": 3}
        alone = ConditionalGoal(goal=1.0, length_scale=LengthScales(exactly=LONGEST), **chosen)
        sigma = planned_sigma(alone, RADIUS, times)
        secrets = promised_secrets(alone, len(times))
        assert largest_loss(times, secrets, sigma, scales=[LONGEST]) <= 1.0
        actual.append(largest_loss(times, secrets, sigma))
        assert planned_sigma(ConditionalGoal(goal=1.0, length_scale=LONGEST, **chosen), RADIUS, times) >= sigma
    assert max(actual) > 3.0  # of a goal of 1; 4.35 and 3.94 of these eight traces


@pytest.mark.parametrize("secrets", ["singletons", "sliding_blocks"])
def test_an_account_covers_the_class_when_points_have_left_the_block(secrets):
    rng = np.random.default_rng(4)
    times = np.cumsum(rng.uniform(100.0, 250.0, 24))
    account = ConditionalInferential(
        radius=RADIUS, length_scale=LONGEST, variance=1e4, nugget=NUGGET, secrets=secrets, block=14, every=6
    )
    rows = account.trace_rows("x", times, np.full(24, 150.0))
    finite = 0
    for row in (row for row in rows if row.name == "loss"):
        n = row.window
        chosen = [secret + max(0, n - 14) for secret in named_family(secrets, min(n, 14), 2)]
        given = {"radius": RADIUS, "order": 2.0, "variance": 1e4, "nugget": NUGGET}
        whole = max(
            conditional_inferential_loss(times[:n], secret, 150.0, scale, **given)[0]
            for secret in chosen
            for scale in np.geomspace(5.0, LONGEST, 25)
        )
        assert row.value >= whole * (1 - 1e-9)
        finite += bool(np.isfinite(row.value))
    assert finite >= 2
    assert {row.unit for row in rows if row.name == "worst_length_scale"} == {"seconds"}


def test_length_scales_are_read_as_a_class():
    given = {"variance": 1e6, "radius": 50.0}
    times, sigma = np.array([0.0, 60.0, 500.0]), np.full(3, 100.0)
    number, stated, alone = (
        ConditionalInferential(length_scale=scale, **given).trace_rows("x", times, sigma)
        for scale in (600.0, LengthScales(at_most=600.0), LengthScales(exactly=600.0))
    )
    assert number == stated
    assert "worst_length_scale" not in {row.name for row in alone}
    for wrong in (0.0, -1.0, True, "long"):
        with pytest.raises(ParameterError, match="length_scale"):
            ConditionalInferential(length_scale=wrong, **given)
    with pytest.raises(ParameterError, match="at_most"):
        LengthScales()
