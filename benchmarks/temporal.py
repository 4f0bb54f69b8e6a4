"""How fast temporal privacy loss is, against the published sort-based algorithm and a linear program.

    python -m benchmarks.temporal [--large]

Prints one line a measurement: what, seconds, and how many times faster than its peer in the same run.
"""

from __future__ import annotations

import argparse
import math
import resource
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

from accountants.temporal import (
    LeakageFunction,
    RunningTemporalLoss,
    chain_matrix,
    laplacian_smoothing_matrix,
    temporal_privacy_loss,
)


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


def seconds(call: Callable[[], object]) -> float:
    """Time of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def matrices(n: int) -> dict[str, NDArray[np.float64]]:
    rng = np.random.default_rng(0)
    counts = rng.poisson(0.3, (n, n)) + 0.01
    return {
        "dirichlet": rng.dirichlet(np.ones(n), n),
        "chain": chain_matrix(n, 0.1),
        "smoothing": laplacian_smoothing_matrix(n, 0.01),
        "counts": counts / counts.sum(axis=1, keepdims=True),
    }


def peers() -> None:
    matrix = matrices(50)["dirichlet"]
    ours = LeakageFunction(matrix)
    assert abs(ours(1.0) - sort_based(matrix, 1.0)) < 1e-12
    building = seconds(lambda: LeakageFunction(matrix))
    evaluating = seconds(lambda: [ours(1.0) for _ in range(1000)]) / 1000
    sorting = seconds(lambda: sort_based(matrix, 1.0))
    solving = seconds(lambda: [linear_program(matrix, 1.0, 0, d) for d in range(1, 11)]) / 10 * 50 * 49
    print(f"n=50 one evaluation          {evaluating * 1e6:10.2f} us")
    print(f"     sort-based              {sorting * 1e6:10.0f} us  {sorting / evaluating:12,.0f} times slower")
    print(f"     HiGHS (from 10 pairs)   {solving * 1e6:10.0f} us  {solving / evaluating:12,.0f} times slower")
    print(f"     set-up                  {building * 1e6:10.0f} us  {building / sorting:12.2f} sort-based evaluations")


def set_up(n: int) -> None:
    for name, matrix in matrices(n).items():
        building = seconds(lambda matrix=matrix: LeakageFunction(matrix))  # type: ignore[misc]
        leakage = LeakageFunction(matrix) if n <= 200 else None
        vertices = f"{len(leakage.vertices)} vertices" if leakage else ""
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        print(f"n={n} set-up {name:12s} {building:10.3f} s   peak {peak} MB so far   {vertices}")


def streams() -> None:
    leakage = LeakageFunction(matrices(100)["dirichlet"])
    took = seconds(lambda: temporal_privacy_loss(np.full(100_000, 0.1), backward=leakage))
    print(f"n=100 backward, 100,000 releases     {took:8.3f} s")
    moderate = laplacian_smoothing_matrix(2, 0.1)
    running = RunningTemporalLoss(backward=moderate, forward=moderate, largest_epsilon=0.1)

    def follow() -> None:
        state = running.start()
        for _ in range(10_000):
            state, _ = running.step(state, 0.1)

    print(f"running, both sides, 10,000 releases {seconds(follow):8.3f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--large", action="store_true", help="also n = 1,000 (a minute or two)")
    large = parser.parse_args().large
    set_up(200)
    peers()
    streams()
    if large:
        set_up(1000)


if __name__ == "__main__":
    main()
