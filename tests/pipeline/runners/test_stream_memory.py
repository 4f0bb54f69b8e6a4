"""Memory of an endless stream does not grow."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest

from penstock.pipeline import INTERRUPTED
from penstock.pipeline.config.run import loads
from penstock.pipeline.monitoring.metrics import CHECKPOINT_BYTES, LAST_WINDOW, ROWS, RunMetrics, listening
from penstock.pipeline.run import run
from tests.tools.listeners import interrupted

PAGE = os.sysconf("SC_PAGE_SIZE")


def resident() -> int:
    """Bytes of memory that this process holds."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * PAGE


def endless(folder, n_users: int, events_per_hour: float = 1.0, window: str = "1h") -> dict:
    return {
        "name": "endless",
        "seed": 3,
        "source": {
            "type": "stream",
            "of": {"type": "synthetic", "n_users": n_users, "endless": True, "events_per_hour": events_per_hour},
            "checkpoint": "5s",
        },
        "space": {
            "type": "grid",
            **{"south": 37.74, "north": 37.82, "west": -122.47, "east": -122.37, "rows": 5, "columns": 5},
        },
        "windows": {"type": "fixed", "size": window},
        "landmarks": {"recurring": ["07:00-09:00"], "max_per_period": 2},
        "budget_period": "1d",
        "mechanism": {"type": "landmark_uniform", "epsilon": 1.0},
        "accountants": [{"type": "landmark_budget"}],
        "output": {"path": str(folder / "out"), "report": False, "truth": False},
    }


def watch(value: dict, n_windows: int) -> dict[str, np.ndarray]:
    """Run until so many windows are due; memory and state once in a while."""
    figures: dict[str, list[float]] = {"windows": [], "events": [], "memory": [], "state": []}
    registry = RunMetrics()

    def look(_: int, latest: float) -> bool:
        last = figures["windows"][-1] if figures["windows"] else 0
        window = registry.value(LAST_WINDOW) or 0
        if window >= last + n_windows / 100:
            figures["windows"].append(window)
            figures["events"].append(registry.total(ROWS))
            figures["memory"].append(resident())
            figures["state"].append(registry.value(CHECKPOINT_BYTES) or 0)
        return window >= n_windows

    with listening(registry), interrupted(look):
        assert run(loads(json.dumps(value))).exit_code == INTERRUPTED
    return {name: np.array(values) for name, values in figures.items()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n_users", "events_per_hour", "n_windows"),
    [(100, 1.0, 20_000), (100_000, 5.0, 200)],
    ids=["20,000 windows", "100 million events"],
)
def test_memory_and_state_stay_flat(tmp_path, n_users, events_per_hour, n_windows):
    actual = watch(endless(tmp_path, n_users, events_per_hour), n_windows)
    middle = len(actual["memory"]) // 2
    early, late = actual["memory"][10:middle].max(), actual["memory"][middle:].max()
    print({name: values[[10, middle, -1]].tolist() for name, values in actual.items()})
    assert late < 1.15 * early
    assert actual["state"][middle:].max() < 1.5 * actual["state"][10:middle].max()
