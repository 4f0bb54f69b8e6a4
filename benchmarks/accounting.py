"""Benchmarks of accountants against literal implementations of the published algorithms.

Peers are plain transcriptions, timed in the same run: the sort-based leakage algorithm, the recursion of Koga et al.
(appendix D, O(T³M²)), and conditional inferential losses with dense inverses.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from benchmarks.measure import Benchmark, Peer, Scale
from penstock.accountants.core.accountant import AccountingFacts
from penstock.accountants.correlation.adversary import Walk
from penstock.accountants.correlation.leakage import LeakageFunction, temporal_privacy_loss
from penstock.accountants.correlation.running import RunningTemporalLoss
from penstock.accountants.gaussian_process.design import designed_covariance
from penstock.accountants.gaussian_process.goal import smallest_sigma
from penstock.accountants.gaussian_process.kernels import GaussianProcess, named_family
from penstock.accountants.gaussian_process.loss import conditional_inferential_loss
from penstock.accountants.gaussian_process.running import add_release, running_losses, start_trace
from penstock.accountants.inference.places import PriorPlaces
from penstock.accountants.inference.success_bounds import success_upper_bound
from penstock.accountants.inference.success_prior import most_matches
from penstock.accountants.inference.targets import KnownPrior, KnownTargets
from penstock.accountants.markov import (
    MarkovPrior,
    chain_matrix,
    chain_prior,
    estimate_prior,
    laplacian_smoothing_matrix,
)
from penstock.accountants.reconstruction import Reconstruction
from penstock.mechanisms.core.contract import Release, Window
from penstock.mechanisms.core.events import Exact
from penstock.mechanisms.core.state import State
from penstock.mechanisms.raw import Raw

Array = NDArray[np.float64]
BOUNDS = ("loose", "tight", "leakage", "first_moment", "segment")


def sort_based(matrix: Array, alpha: float) -> float:
    """Run the published algorithm literally: for each pair of rows, sort the ratios and add states in that order."""
    k, largest = math.expm1(alpha), 0.0
    for i, q in enumerate(matrix):
        for j, d in enumerate(matrix):
            if i == j:
                continue
            chosen = q > d
            order = np.argsort(-q[chosen] / np.maximum(d[chosen], 1e-300))
            q_sum, d_sum = q[chosen][order].cumsum(), d[chosen][order].cumsum()
            largest = max(largest, float(np.log((k * q_sum + 1) / (k * d_sum + 1)).max(initial=0.0)))
    return largest


def matrices(n: int) -> dict[str, Array]:
    """Return transition matrices of n states: random, a chain, smoothed, and estimated from counts."""
    rng = np.random.default_rng(0)
    counts = rng.poisson(0.3, (n, n)) + 0.01
    return {
        "dirichlet": rng.dirichlet(np.ones(n), n),
        "chain": chain_matrix(n, 0.1),
        "smoothing": laplacian_smoothing_matrix(n, 0.01),
        "counts": counts / counts.sum(axis=1, keepdims=True),
    }


def temporal(scale: Scale) -> Iterator[Benchmark]:
    """Yield cases on a chain's leakage against the published algorithm, building large chains, and whole streams."""
    matrix = matrices(50)["dirichlet"]
    leakage = LeakageFunction(matrix)
    published = Peer(
        "the published sort-based algorithm",
        partial(sort_based, matrix, 1.0),
        times=1000,
        equal=lambda ours, theirs: abs(ours[0] - theirs) <= 1e-12,
    )
    what = "leakage of a 50 × 50 chain, one evaluation after set-up"
    yield Benchmark(what, lambda: [leakage(1.0) for _ in range(1000)], [published], unit="µs", number=1000)
    for n in (200,) if scale.quick else (200, 1000):
        for name, large in matrices(n).items():
            yield Benchmark(f"set-up, n = {n:,}, {name}", partial(LeakageFunction, large), runs=3 if n < 500 else 1)
    long, smoothing = LeakageFunction(matrices(100)["dirichlet"]), laplacian_smoothing_matrix(2, 0.1)
    what = "100,000 releases backward, n = 100"
    yield Benchmark(what, lambda: temporal_privacy_loss(np.full(100_000, 0.1), backward=long))
    running = RunningTemporalLoss(backward=smoothing, forward=smoothing, largest_epsilon=0.1)

    def follow() -> None:
        """Account for 10,000 releases in sequence."""
        state = running.start()
        for _ in range(10_000):
            state, _ = running.step(state, 0.1)

    yield Benchmark("10,000 releases, forward losses revised", follow)


def paper_matches(prior: MarkovPrior, n_steps: int) -> Array:
    """Compute f(1) … f(T) as in the paper, with one array operation per (matches, last window)."""
    powers = np.stack([np.linalg.matrix_power(prior.transition, k) for k in range(n_steps)])
    reached = np.zeros((n_steps, prior.n_locations))
    reached[1:] = (prior.initial[None, :, None] * powers[1:]).max(axis=1)
    best = [float(prior.initial.max()), float(reached.max())]
    for matches in range(3, n_steps + 1):
        following = np.zeros_like(reached)
        for last in range(matches - 1, n_steps):
            gaps = np.arange(1, last - matches + 3)
            following[last] = (reached[last - gaps, :, None] * powers[gaps]).max(axis=(0, 1))
        reached = following
        best.append(float(reached.max()))
    return np.array(best)


def reconstruction(scale: Scale) -> Iterator[Benchmark]:
    """Yield cases on single bounds, match probabilities against the paper's recursion, and many targets."""
    rng, prior = np.random.default_rng(2), chain_prior(100, 0.1)
    sensors = [{int(cell)} for cell in rng.integers(0, 100, 10)]
    for bound in BOUNDS:
        call = partial(success_upper_bound, prior, sensors, 5, bound=bound)  # type: ignore[arg-type]
        yield Benchmark(f"{bound} bound, T = 10, M = 100, s = 5", call, unit="ms", runs=5)
    prior = chain_prior(101, 0.1)
    for n_steps, tolerance in ((40, 4),) if scale.quick else ((40, 4), (168, 16)):
        recursion = Peer(
            "the paper's recursion, O(T³M²)",
            partial(paper_matches, prior, n_steps),
            equal=lambda ours, theirs: np.allclose(np.exp(ours), theirs[::-1][: len(ours)], rtol=1e-8, atol=0),
        )
        sizes, sensors = f"T = {n_steps}, M = 101, s = {tolerance}", [{int(c)} for c in rng.integers(0, 101, n_steps)]
        yield Benchmark(f"match probabilities, {sizes}", partial(most_matches, prior, n_steps, tolerance), [recursion])
        yield Benchmark(f"tight bound, {sizes}", partial(success_upper_bound, prior, sensors, tolerance, bound="tight"))
    if not scale.quick:
        yield from many_targets()


def many_targets() -> Iterator[Benchmark]:
    """Yield cases on one window's running figures for 1,000 dense targets, and the mean bound over 10,000 users."""
    rng = np.random.default_rng(4)
    priors = tuple(MarkovPrior(np.full(101, 1 / 101), rng.dirichlet(np.full(101, 0.05), size=101)) for _ in range(1000))
    paths = np.stack([prior.sample(1, 12, rng)[0] for prior in priors])
    known = KnownTargets(
        users=(None,) * 1000, priors=priors, places=PriorPlaces.of_cells(100), first=0, assumption="drawn"
    )
    accountant = Reconstruction(horizon=10, tolerance=2, targets=1000, prior=KnownPrior(chain=Walk(n=100), windows=2))
    sensors = rng.integers(0, 100, 40)

    def windows(first: int, last: int) -> list[Window]:
        """Return the public facts of windows with one active cell each."""
        active = [np.arange(100) == sensors[index] for index in range(first, last + 1)]
        return [Window(index=first + i, start=i, end=i + 1, active=mask) for i, mask in enumerate(active)]

    model, state = accountant.start(
        AccountingFacts(n_cells=100, mechanism=Raw(), windows=windows, training={"known": known})
    )

    def step(index: int, state: State) -> State:
        """Account for the exact counts of a window."""
        cells = paths[:, index - 1]
        counts, window = np.bincount(cells, minlength=101)[:100], windows(index, index)[0]
        release = Release(window=index, values=counts.astype(float), charge=(Exact(),), active=window.active)
        private = {"counts": counts, "target_cells": np.where(cells == 100, -1, cells)}
        return accountant.charge(release, window, private, model, state)[1]

    for index in range(1, 12):
        state = step(index, state)
    what = "running figures of 1,000 targets, M = 101, T = 10, s = 2"
    yield Benchmark(what, partial(step, 12, state), unit="s a window", runs=3)
    training = [np.minimum(rng.zipf(1.6, size=27), 101) - 1 for _ in range(10_000)]
    observed = [{int(cell)} for cell in rng.integers(0, 100, 5)]
    yield Benchmark(
        "tight bounds of 10,000 users with sparse priors, estimation included",
        lambda: [success_upper_bound(estimate_prior(path, 101), observed, 1, bound="tight") for path in training],
    )


def dense_inverses(times: Array, secret: NDArray[np.intp], sigma: float, length_scale: float) -> float:
    """Evaluate the textbook formula with dense inverses and all eigenvalues."""
    prior = np.exp(-0.5 * np.subtract.outer(times, times) ** 2 / length_scale**2) + 1e-3 * np.eye(len(times))
    rest = np.setdiff1d(np.arange(len(times)), secret)
    inverse = np.linalg.inv(prior[np.ix_(secret, secret)])
    a = prior[np.ix_(rest, secret)] @ inverse
    conditional = prior[np.ix_(rest, rest)] - a @ prior[np.ix_(secret, rest)]
    alpha = np.linalg.eigvals(a.T @ np.linalg.inv(conditional + sigma**2 * np.eye(len(rest))) @ a).real.max()
    return float(len(secret) * (alpha + 1.0 / sigma**2))


def conditional(scale: Scale) -> Iterator[Benchmark]:
    """Yield cases on losses of single traces, planning, and running accounts of an infinite trace."""
    for n_points in (10, 50, 200, 800):
        times, secret = np.arange(float(n_points)), np.arange(0, n_points, 2)
        peer = Peer(
            "the formula with dense inverses",
            partial(dense_inverses, times, secret, 1.0, 2.0),
            equal=lambda ours, theirs: math.isclose(ours[0], theirs, rel_tol=1e-6),
        )
        loss = partial(conditional_inferential_loss, times, secret, 1.0, 2.0, 1.0, 2.0, nugget=1e-3)
        runs = 200 if n_points < 100 else 5
        yield Benchmark(f"loss of {n_points} points, every other one secret", loss, [peer], unit="ms", runs=runs)
    times, prior, block = np.arange(10.0), GaussianProcess(length_scale=2.0, nugget=1e-3), 32
    state = start_trace()
    for step in range(100):
        state = add_release(state, float(step), 1.0, prior, block)
    single, together = (named_family("singletons", n) for n in (10, block))
    for what, call, runs in (
        ("smallest sigma, 10 single secrets", partial(smallest_sigma, 1.0, times, single, 2.0, 1.0, 2.0), 20),
        ("designed covariance, 10 single secrets", partial(designed_covariance, times, single, 10.0, 2.0), 3),
        (f"running: one release, block of {block}", partial(add_release, state, 100.0, 1.0, prior, block), 200),
        (f"running: {block} losses and intervals", partial(running_losses, state, prior, together, 1.0, 2.0), 20),
    ):
        yield Benchmark(what, call, unit="ms", runs=runs)
