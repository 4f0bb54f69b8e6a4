"""Cost of conditional inferential figures, beside a plain transcription with dense inverses in the same run.

Run ``python benchmarks/conditional.py``; every figure is the least of several repeats, so that a busy machine matters
little.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from accountants.conditional_inferential import (
    add_release,
    axis_models,
    conditional_inferential_loss,
    designed_covariance,
    running_losses,
    singletons,
    smallest_sigma,
    start_trace,
)


def milliseconds(call: Callable[[], Any], n_repeats: int) -> float:
    best = np.inf
    for _ in range(n_repeats):
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return float(best * 1e3)


def transcription(times: Any, secret: Any, sigma: float, length_scale: float, n_axes: int) -> float:
    """The formula as it is written: inverses, all eigenvalues, both axes."""
    worst = 0.0
    for _ in range(n_axes):
        prior = np.exp(-0.5 * np.subtract.outer(times, times) ** 2 / length_scale**2) + 1e-3 * np.eye(len(times))
        rest = np.setdiff1d(np.arange(len(times)), secret)
        inverse = np.linalg.inv(prior[np.ix_(secret, secret)])
        a = prior[np.ix_(rest, secret)] @ inverse
        conditional = prior[np.ix_(rest, rest)] - a @ prior[np.ix_(secret, rest)]
        alpha = np.linalg.eigvals(a.T @ np.linalg.inv(conditional + sigma**2 * np.eye(len(rest))) @ a).real.max()
        worst = max(worst, len(secret) * (alpha + 1.0 / sigma**2))
    return worst


def main() -> None:
    print(f"{'points':>7} {'loss ms':>9} {'dense ms':>9} {'ratio':>6}    (every other point secret, two axes)")
    for n_points in (10, 50, 200, 800):
        times, secret = np.arange(float(n_points)), np.arange(0, n_points, 2)
        n_repeats = 200 if n_points < 100 else 5

        def ours(times: Any = times, secret: Any = secret) -> Any:
            return conditional_inferential_loss(times, secret, 1.0, [2.0, 2.0], 1.0, 2.0, nugget=1e-3)

        def dense(times: Any = times, secret: Any = secret) -> Any:
            return transcription(times, secret, 1.0, 2.0, n_axes=2)

        mine, peer = milliseconds(ours, n_repeats), milliseconds(dense, n_repeats)
        print(f"{n_points:7d} {mine:9.3f} {peer:9.3f} {peer / mine:6.2f}")

    times = np.arange(10.0)
    sigma = milliseconds(lambda: smallest_sigma(1.0, times, singletons(10), 2.0, 1.0, 2.0), 20)
    design = milliseconds(lambda: designed_covariance(times, singletons(10), 10.0, 2.0), 3)
    print(f"\nsmallest sigma, 10 single secrets: {sigma:.1f} ms; designed covariance: {design:.0f} ms")

    axes, block = axis_models([2.0, 2.0], nugget=1e-3), 32
    state = start_trace(2)
    for step in range(100):
        state = add_release(state, float(step), 1.0, axes, block)
    added = milliseconds(lambda: add_release(state, 100.0, 1.0, axes, block), 200)
    figures = milliseconds(lambda: running_losses(state, axes, singletons(block), 1.0, 2.0), 20)
    print(f"running, block of {block}, two axes: release {added:.3f} ms, {block} losses and intervals {figures:.1f} ms")


if __name__ == "__main__":
    main()
