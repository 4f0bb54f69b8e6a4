"""Cost of conditional inferential figures, beside a plain transcription with dense inverses in the same run.

    python -m benchmarks conditional

Every figure is the least of several repeats, so that a busy machine matters little.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.measure import Row, Settings, seconds
from penstock.accountants.gaussian_process.design import designed_covariance
from penstock.accountants.gaussian_process.goal import smallest_sigma
from penstock.accountants.gaussian_process.kernels import GaussianProcess, singletons
from penstock.accountants.gaussian_process.loss import conditional_inferential_loss
from penstock.accountants.gaussian_process.running import add_release, running_losses, start_trace


def transcription(times: Any, secret: Any, sigma: float, length_scale: float) -> float:
    """The formula as it is written: inverses and all eigenvalues."""
    prior = np.exp(-0.5 * np.subtract.outer(times, times) ** 2 / length_scale**2) + 1e-3 * np.eye(len(times))
    rest = np.setdiff1d(np.arange(len(times)), secret)
    inverse = np.linalg.inv(prior[np.ix_(secret, secret)])
    a = prior[np.ix_(rest, secret)] @ inverse
    conditional = prior[np.ix_(rest, rest)] - a @ prior[np.ix_(secret, rest)]
    alpha = np.linalg.eigvals(a.T @ np.linalg.inv(conditional + sigma**2 * np.eye(len(rest))) @ a).real.max()
    return float(len(secret) * (alpha + 1.0 / sigma**2))


def rows(settings: Settings) -> list[Row]:
    """Losses of single traces, planning, and the running account."""
    return [*(loss(n) for n in (10, 50, 200, 800)), *planning()]


def loss(n_points: int) -> Row:
    """Loss of a trace with every other point secret."""
    times, secret = np.arange(float(n_points)), np.arange(0, n_points, 2)
    n_repeats = 200 if n_points < 100 else 5
    ours = 1000 * seconds(
        lambda: conditional_inferential_loss(times, secret, 1.0, 2.0, 1.0, 2.0, nugget=1e-3), n_repeats
    )
    return Row(
        area="conditional",
        what=f"loss of {n_points} points, every other one secret",
        ours=ours,
        unit="ms",
        peer="the formula with dense inverses",
        theirs=1000 * seconds(lambda: transcription(times, secret, 1.0, 2.0), n_repeats),
    )


def planning() -> list[Row]:
    """Noise for a goal, and what the running account of an endless trace costs."""
    times, prior, block = np.arange(10.0), GaussianProcess(length_scale=2.0, nugget=1e-3), 32
    state = start_trace()
    for step in range(100):
        state = add_release(state, float(step), 1.0, prior, block)
    single, together = singletons(10), singletons(block)
    calls: list[tuple[str, Callable[[], Any], int]] = [
        ("smallest sigma, 10 single secrets", lambda: smallest_sigma(1.0, times, single, 2.0, 1.0, 2.0), 20),
        ("designed covariance, 10 single secrets", lambda: designed_covariance(times, single, 10.0, 2.0), 3),
        (f"running: one release, block of {block}", lambda: add_release(state, 100.0, 1.0, prior, block), 200),
        (f"running: {block} losses and intervals", lambda: running_losses(state, prior, together, 1.0, 2.0), 20),
    ]
    return [Row(area="conditional", what=what, ours=1000 * seconds(call, n), unit="ms") for what, call, n in calls]
