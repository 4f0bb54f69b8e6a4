"""How fast temporal privacy loss is, against the published sort-based algorithm and a linear program.

python -m benchmarks temporal
"""

from __future__ import annotations

import math
import subprocess

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

from benchmarks.measure import Row, Settings, python, seconds
from penstock.accountants.correlation.leakage import LeakageFunction, temporal_privacy_loss
from penstock.accountants.correlation.running import RunningTemporalLoss
from penstock.accountants.markov import chain_matrix, laplacian_smoothing_matrix


def sort_based(matrix: NDArray[np.float64], alpha: float) -> float:
    """The published algorithm as it stands: for each pair of rows, sort the ratios and take states while it pays."""
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


def linear_program(matrix: NDArray[np.float64], alpha: float, q: int, d: int) -> float:
    """One pair of rows by HiGHS: largest q·y with d·y = 1 and all y within a factor exp(alpha)."""
    n = len(matrix)
    box = np.vstack([np.c_[np.eye(n), np.full(n, -math.exp(alpha))], np.c_[-np.eye(n), np.ones(n)]])
    equal = np.append(matrix[d], 0.0)[None]
    solution = linprog(-np.append(matrix[q], 0.0), A_ub=box, b_ub=np.zeros(2 * n), A_eq=equal, b_eq=[1.0])
    return math.log(-solution.fun)


def matrices(n: int) -> dict[str, NDArray[np.float64]]:
    """Transition matrices of n states: random, a chain, smoothed, and counted."""
    rng = np.random.default_rng(0)
    counts = rng.poisson(0.3, (n, n)) + 0.01
    return {
        "dirichlet": rng.dirichlet(np.ones(n), n),
        "chain": chain_matrix(n, 0.1),
        "smoothing": laplacian_smoothing_matrix(n, 0.01),
        "counts": counts / counts.sum(axis=1, keepdims=True),
    }


def rows(settings: Settings) -> list[Row]:
    """Evaluations, set-up, and whole streams."""
    return [*evaluations(), *set_up(200), *([] if settings.quick else set_up(1000)), *streams()]


def evaluations() -> list[Row]:
    """One evaluation after set-up, beside both peers."""
    matrix = matrices(50)["dirichlet"]
    ours = LeakageFunction(matrix)
    if abs(ours(1.0) - sort_based(matrix, 1.0)) > 1e-12:
        raise AssertionError("the sort-based algorithm gives another value")
    took = seconds(lambda: [ours(1.0) for _ in range(1000)]) / 1000 * 1e6
    sorting = seconds(lambda: sort_based(matrix, 1.0)) * 1e6
    solving = seconds(lambda: [linear_program(matrix, 1.0, 0, d) for d in range(1, 11)]) / 10 * 50 * 49 * 1e6
    peers = {"the published sort-based algorithm": sorting, "HiGHS, from 10 of the 2,450 pairs of rows": solving}
    return [
        Row(
            area="temporal",
            what="leakage of a 50 × 50 chain, one evaluation after set-up",
            ours=took,
            unit="µs",
            peer=peer,
            theirs=theirs,
        )
        for peer, theirs in peers.items()
    ]


SET_UP = """
import resource
from benchmarks.areas.temporal import LeakageFunction, matrices
from benchmarks.measure import seconds
matrix = matrices({n})[{name!r}]
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(seconds(lambda: LeakageFunction(matrix), {n_runs}))
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


def set_up(n: int) -> list[Row]:
    """Set-up of large chains, each in a process of its own."""
    found = []
    for name in matrices(2):
        code = SET_UP.format(n=n, name=name, n_runs=3 if n < 500 else 1)
        said = subprocess.run(python(code), check=True, capture_output=True, text=True).stdout
        took, memory = map(float, said.split())
        found.append(Row(area="temporal", what=f"set-up, n = {n:,}, {name}", ours=took, memory=memory))
    return found


def streams() -> list[Row]:
    """Losses of whole streams."""
    leakage = LeakageFunction(matrices(100)["dirichlet"])
    backward = seconds(lambda: temporal_privacy_loss(np.full(100_000, 0.1), backward=leakage))
    moderate = laplacian_smoothing_matrix(2, 0.1)
    running = RunningTemporalLoss(backward=moderate, forward=moderate, largest_epsilon=0.1)

    def follow() -> None:
        """Step through 10,000 releases."""
        state = running.start()
        for _ in range(10_000):
            state, _ = running.step(state, 0.1)

    both = seconds(follow)
    what = {"100,000 releases backward, n = 100": backward, "10,000 releases, forward losses revised": both}
    return [Row(area="temporal", what=name, ours=took) for name, took in what.items()]
