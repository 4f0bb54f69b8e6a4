"""Cost of releasing traces: all users of a shard together, beside the same mechanism user by user.

    python -m benchmarks traces [--data FOLDER]

Every figure of a mechanism is the least of several repeats. Both ways release the same bytes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import Row, Settings, median, penstock, process, seconds
from penstock.mechanisms import get
from penstock.mechanisms.core.contract import Mechanism
from penstock.mechanisms.core.run import run_traces

N_USERS, N_POINTS, N_ALONE = 8000, 150_000, 200


def rows(settings: Settings) -> list[Row]:
    """Mechanisms on the points of a shard, and a whole run over the taxis of T-Drive where they are."""
    found = [_shard(name) for name in ("landmark_skip", "landmark_uniform", "landmark_adaptive", "w_event_bd")]
    taxis = settings.data_set("tdrive")
    return found if taxis is None else [*found, _taxis(settings, taxis)]


def _shard(name: str) -> Row:
    rng = np.random.default_rng(1)
    lengths = rng.multinomial(N_POINTS - N_USERS, np.full(N_USERS, 1 / N_USERS)) + 1
    traces = [np.array([39.9, 116.4]) + np.cumsum(rng.normal(0, 0.003, (n, 2)), axis=0) for n in lengths]
    landmarks = [rng.random(n) < 0.3 for n in lengths]
    users = list(range(N_USERS))
    parameters: dict[str, Any] = {"epsilon": 1.0, "noise": "planar_laplace"}
    mechanism: Mechanism = get(name)(**parameters | ({"w": 5} if name.startswith("w_event") else {}))

    def alone() -> list[Any]:
        """Release the traces of some users one by one."""
        some = zip(traces[:N_ALONE], landmarks, users)
        return [run_traces(mechanism, [trace], [mask], users=[user])[0] for trace, mask, user in some]

    together = run_traces(mechanism, traces, landmarks, users=users)
    if not all(np.array_equal(a.values, b.values) for a, b in zip(alone(), together)):
        raise AssertionError(f"{name} releases something else user by user")
    return Row(
        area="traces",
        what=f"{name} on {N_POINTS:,} points of {N_USERS:,} users",
        ours=seconds(lambda: run_traces(mechanism, traces, landmarks, users=users), 3),
        peer=f"the same user by user, from {N_ALONE} users",
        theirs=seconds(alone, 3) * N_USERS / N_ALONE,
    )


def _taxis(settings: Settings, data: Path) -> Row:
    config = Path(__file__).parents[2] / "configs" / "datasets" / "tdrive.yaml"
    changed = ("--set", f"source.path={data}", "--out", str(settings.folder / "tdrive"))
    run = median([process(penstock("run", str(config), *changed, "--quiet")) for _ in range(settings.repeats)])
    return Row(
        area="traces",
        what="landmark_adaptive on one hour of T-Drive, from its files to the report",
        ours=run.wall,
        cpu=run.cpu,
        memory=run.memory,
    )
