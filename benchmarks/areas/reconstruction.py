"""Speed and tightness of the reconstruction bounds.

    python -m benchmarks reconstruction

The peer is the recursion of Koga et al. (appendix D, O(T³M²)) as a plain vectorised transcription, timed in the same
run. ``python -m benchmarks.areas.reconstruction`` prints how tight the bounds are.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from benchmarks.measure import Row, Settings
from penstock.accountants.core.accountant import AccountingFacts
from penstock.accountants.inference.estimators import attack_success
from penstock.accountants.inference.places import PriorPlaces
from penstock.accountants.inference.success_bounds import success_upper_bound
from penstock.accountants.inference.success_prior import most_matches
from penstock.accountants.inference.targets import KnownPrior, KnownTargets, Line
from penstock.accountants.markov import MarkovPrior, chain_prior, estimate_prior
from penstock.accountants.reconstruction import Reconstruction
from penstock.mechanisms.core.contract import Release, Window
from penstock.mechanisms.core.events import Exact
from penstock.mechanisms.core.state import State
from penstock.mechanisms.raw import Raw

BOUNDS = ("loose", "tight", "leakage", "first_moment", "segment")


def paper_matches(prior: MarkovPrior, n_steps: int) -> NDArray[np.float64]:
    """f(1) … f(T) as the paper writes it, one array operation per (matches, last window)."""
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


def timed(work: Callable[[], object], repeats: int = 1) -> tuple[float, object]:
    """Shortest of several runs in seconds of the processor, and the result."""
    best, result = np.inf, None
    for _ in range(repeats):
        begin = time.process_time()
        result = work()
        best = min(best, time.process_time() - begin)
    return best, result


def tightness() -> None:
    """Every bound beside the better of two attacks, on the paper's simulated chain."""
    print("1-D chain, T=10, tau=.1, raw counts, one random sensor a window")
    print(f"{'M':>4} {'s':>2} " + " ".join(f"{bound:>12}" for bound in BOUNDS) + f" {'attack':>12}")
    rng = np.random.default_rng(1)
    for n_locations, tolerance in ((10, 5), (20, 5), (50, 5), (100, 0), (100, 5), (100, 8)):
        prior = chain_prior(n_locations, 0.1)
        sensors = [{int(cell)} for cell in rng.integers(0, n_locations, 10)]
        values = [success_upper_bound(prior, sensors, tolerance, bound=bound) for bound in BOUNDS]  # type: ignore[arg-type]
        attacks = [
            attack_success(kind, prior, sensors, tolerance, 50_000, rng)[0]  # type: ignore[arg-type]
            for kind in ("map", "posterior_marginals")
        ]
        print(f"{n_locations:>4} {tolerance:>2} " + " ".join(f"{v:>12.3g}" for v in [*values, max(attacks)]))


def rows(settings: Settings) -> list[Row]:
    """Single bounds, match probabilities beside the paper's recursion, and many targets."""
    found = [*single_bounds(), *long_chains((40, 4)), *([] if settings.quick else long_chains((168, 16)))]
    return found if settings.quick else [*found, *many_targets()]


def single_bounds() -> list[Row]:
    """Milliseconds of one bound."""
    prior = chain_prior(100, 0.1)
    sensors = [{int(cell)} for cell in np.random.default_rng(2).integers(0, 100, 10)]
    found = []
    for bound in BOUNDS:
        seconds, _ = timed(lambda name=bound: success_upper_bound(prior, sensors, 5, bound=name), repeats=5)  # type: ignore[misc]
        what = f"{bound} bound, T = 10, M = 100, s = 5"
        found.append(Row(area="reconstruction", what=what, ours=1e3 * seconds, unit="ms"))
    return found


def long_chains(case: tuple[int, int]) -> list[Row]:
    """Match probabilities and the tight bound of one long chain; ``case``: windows and tolerance."""
    n_steps, tolerance = case
    prior = chain_prior(101, 0.1)
    ours, log_f = timed(lambda: most_matches(prior, n_steps, tolerance), repeats=3)
    paper, f = timed(lambda: paper_matches(prior, n_steps))
    if not np.allclose(np.exp(log_f), np.asarray(f)[::-1][: tolerance + 1], rtol=1e-8, atol=0):  # type: ignore[call-overload]
        raise AssertionError("the paper's recursion gives other probabilities")
    watched = [{int(cell)} for cell in np.random.default_rng(3).integers(0, 101, n_steps)]
    tight, _ = timed(lambda: success_upper_bound(prior, watched, tolerance, bound="tight"))
    what, peer = f"T = {n_steps}, M = 101, s = {tolerance}", "the paper's recursion, O(T³M²)"
    return [
        Row(area="reconstruction", what=f"{name}, {what}", ours=took, peer=peer, theirs=paper)
        for name, took in (("match probabilities", ours), ("tight bound", tight))
    ]


def many_targets() -> list[Row]:
    """A window's running figures for 1,000 dense targets, and the mean bound of 10,000 users with few places."""
    rng = np.random.default_rng(4)
    priors = tuple(MarkovPrior(np.full(101, 1 / 101), rng.dirichlet(np.full(101, 0.05), size=101)) for _ in range(1000))
    paths = np.stack([prior.sample(1, 12, rng)[0] for prior in priors])
    known = KnownTargets(
        users=(None,) * 1000, priors=priors, places=PriorPlaces.of_cells(100), first=0, assumption="drawn"
    )
    section = KnownPrior(chain=Line(n=100), windows=2)
    accountant = Reconstruction(horizon=10, tolerance=2, targets=1000, prior=section)
    sensors = rng.integers(0, 100, 40)

    def windows(first: int, last: int) -> list[Window]:
        """Public facts of windows in which one cell each is active."""
        active = [np.arange(100) == sensors[index] for index in range(first, last + 1)]
        return [Window(index=first + i, start=i, end=i + 1, active=mask) for i, mask in enumerate(active)]

    facts = AccountingFacts(n_cells=100, mechanism=Raw(), windows=windows, training={"known": known})
    model, state = accountant.start(facts)

    def step(index: int, state: State) -> State:
        """Account the exact counts of a window."""
        cells = paths[:, index - 1]
        counts, window = np.bincount(cells, minlength=101)[:100], windows(index, index)[0]
        release = Release(window=index, values=counts.astype(float), charge=(Exact(),), active=window.active)
        private = {"counts": counts, "target_cells": np.where(cells == 100, -1, cells)}
        return accountant.charge(release, window, private, model, state)[1]

    for index in range(1, 12):
        state = step(index, state)
    window, _ = timed(lambda: step(12, state), repeats=3)
    training = [np.minimum(rng.zipf(1.6, size=27), 101) - 1 for _ in range(10_000)]
    begin = time.process_time()
    watched = [{int(cell)} for cell in rng.integers(0, 100, 5)]
    for path in training:
        success_upper_bound(estimate_prior(path, 101), watched, 1, bound="tight")
    taken = time.process_time() - begin
    what = {
        "running figures of 1,000 targets, M = 101, T = 10, s = 2": (window, "s a window"),
        "tight bounds of 10,000 users with sparse priors, estimation included": (taken, "s"),
    }
    return [Row(area="reconstruction", what=name, ours=took, unit=unit) for name, (took, unit) in what.items()]


if __name__ == "__main__":
    tightness()
