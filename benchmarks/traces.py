"""Cost of releasing traces: all users of a shard together, beside the same mechanism user by user.

Run ``python benchmarks/traces.py``; every figure is the least of several repeats. Both ways release the same bytes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from mechanisms import get
from mechanisms.core.mechanism import Mechanism
from mechanisms.core.trace_run import run_traces

N_USERS, N_POINTS, N_ALONE = 8000, 150_000, 200


def seconds(call: Callable[[], Any], n_repeats: int = 3) -> float:
    best = np.inf
    for _ in range(n_repeats):
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return float(best)


def main() -> None:
    rng = np.random.default_rng(1)
    lengths = rng.multinomial(N_POINTS - N_USERS, np.full(N_USERS, 1 / N_USERS)) + 1
    traces = [np.array([39.9, 116.4]) + np.cumsum(rng.normal(0, 0.003, (n, 2)), axis=0) for n in lengths]
    landmarks = [rng.random(n) < 0.3 for n in lengths]
    users = list(range(N_USERS))

    def alone(mechanism: Mechanism) -> list[Any]:
        some = zip(traces[:N_ALONE], landmarks, users)
        return [run_traces(mechanism, [trace], [mask], users=[user])[0] for trace, mask, user in some]

    print(f"{N_USERS} users, {N_POINTS} points        together   user by user   ratio")
    for name in ("landmark_skip", "landmark_uniform", "landmark_adaptive", "w_event_bd", "w_event_ba"):
        parameters: dict[str, Any] = {"epsilon": 1.0, "noise": "planar_laplace"}
        mechanism: Mechanism = get(name)(**parameters | ({"w": 5} if name.startswith("w_event") else {}))
        together = run_traces(mechanism, traces, landmarks, users=users)
        assert all(np.array_equal(a.values, b.values) for a, b in zip(alone(mechanism), together))
        shard = seconds(lambda m=mechanism: run_traces(m, traces, landmarks, users=users))
        one = seconds(lambda m=mechanism: alone(m)) * N_USERS / N_ALONE
        print(f"{name:<32}{shard:8.2f} s {one:12.1f} s {one / shard:7.0f}")


if __name__ == "__main__":
    main()
