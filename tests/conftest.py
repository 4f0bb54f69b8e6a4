"""Shared fixtures: where real data is, and small runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def data_folder():
    """Folder of an unpacked real data set; the test is skipped where the data is not at hand."""

    def find(name: str) -> Path:
        root = os.environ.get("PENSTOCK_DATA")
        if not root:
            pytest.skip("PENSTOCK_DATA does not say where the real data sets are")
        folder = Path(root) / name
        if not folder.is_dir():
            pytest.skip(f"the data set {name} is not in PENSTOCK_DATA")
        return folder

    return find


@pytest.fixture
def small_run(tmp_path: Path):
    """Write events as CSV, make a configuration with changes, run it and return the result."""
    from pipeline.configuration.run import loads
    from pipeline.run import run

    def go(events: list[tuple[Any, ...]] | str, out: str = "out", n_shards: int = 1, **changes: Any):
        if isinstance(events, str):
            path = Path(events)
        else:
            path = tmp_path / "events.csv"
            lines = ["user,time,place", *(",".join(map(str, event)) for event in events)]
            path.write_text("\n".join(lines) + "\n")
        sections: dict[str, Any] = {
            "name": "small",
            "seed": 3,
            "source": {
                "type": "csv",
                "path": str(path),
                "from": "2024-01-01T00:00:00Z",
                "until": "2024-01-01T06:00:00Z",
                "columns": {"user": "user", "time": "time", "place": "place"},
            },
            "space": {"type": "places", "list": ["a", "b", "c"], "elsewhere": False},
            "windows": {"type": "fixed", "size": "1h"},
            "bounding": {"max_cells": 2},
            "landmarks": {"windows": [2, 4]},
            "mechanism": {"type": "landmark_uniform", "epsilon": 3.0},
            "accountants": [{"type": "landmark_budget"}],
            "output": {"path": str(tmp_path / out)},
        }
        for key, value in changes.items():
            if isinstance(value, dict) and isinstance(sections.get(key), dict) and "type" not in value:
                sections[key] = sections[key] | value
            else:
                sections[key] = value
        import json

        return run(loads(json.dumps(sections)), n_shards=n_shards)

    return go
