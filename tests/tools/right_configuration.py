"""A valid configuration with a value in every kind of section, and mutations of it at any depth."""

from __future__ import annotations

import copy
from typing import Any

Path = tuple[str | int, ...]

#: The file that it reads, for the folder that it is loaded in.
EVENTS = ("events.csv", "cab,time,latitude,longitude\n")
RIGHT: dict[str, Any] = {
    "name": "example",
    "mode": "simulation",
    "seed": 7,
    "source": {
        "type": "csv",
        "path": "events.csv",
        "from": "2008-05-19T00:00:00Z",
        "until": "2008-05-20T00:00:00Z",
        "columns": {"user": "cab"},
    },
    "space": {"type": "grid", "south": 37.7, "north": 37.8, "west": -122.5, "east": -122.3, "rows": 4, "columns": 4},
    "sensors": {"fixed": ["r00c00", "r01c01"]},
    "windows": {"type": "fixed", "size": "1h", "allowed_lateness": 0},
    "bounding": {"max_cells": 2, "keep": "first"},
    "landmarks": {"windows": [8, 9], "times": ["2008-05-19T12:00:00Z"], "recurring": ["07:00-09:00"]},
    "budget_period": "1d",
    "mechanism": [{"type": "landmark_uniform", "epsilon": 1.0}],
    "accountants": [{"type": "landmark_budget"}],
    "utility": ["mae"],
    "output": {"path": "runs/example"},
}


def at(values: Any, path: Path) -> Any:
    """Value at a key path."""
    for step in path:
        values = values[step]
    return values


def changed(values: Any, path: Path, value: Any) -> Any:
    """A copy with another value at a path."""
    values = copy.deepcopy(values)
    at(values, path[:-1])[path[-1]] = value
    return values
