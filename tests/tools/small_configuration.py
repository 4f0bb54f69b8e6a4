"""Small configurations that tests start from: hours of events at three places, and the middle of San Francisco."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from penstock.pipeline.config.rules import unused_keys
from penstock.pipeline.config.run import RunConfig, from_document, loads
from penstock.pipeline.config.yaml import parse_section
from penstock.pipeline.reporting.result import Result
from penstock.pipeline.run import run

START = datetime(2024, 1, 1, tzinfo=UTC)
SAN_FRANCISCO = {"type": "grid", "south": 37.74, "north": 37.82, "west": -122.47, "east": -122.37}


def grid(n: int) -> dict[str, Any]:
    """n × n cells."""
    return SAN_FRANCISCO | {"rows": n, "columns": n}


def with_what_is_read(value: dict[str, Any]) -> RunConfig:
    """The configuration without the keys that nothing in it reads: for sections that many tests share."""
    root, _ = parse_section(json.dumps(value), "shared", "a run")
    unread = unused_keys(from_document(root, is_trial=True))
    return loads(json.dumps({key: part for key, part in value.items() if key not in unread}))


def made_up_events(n: int, seed: int = 0, n_users: int = 40) -> list[tuple[str, str, str]]:
    """Events at the three places and one unknown place, some before and after the six hours."""
    rng = random.Random(seed)
    return [
        (
            f"user{rng.randrange(n_users)}",
            (START + timedelta(seconds=rng.randrange(-1800, 7 * 3600))).isoformat(),
            rng.choice("abcz"),
        )
        for _ in range(n)
    ]


def write_events(folder: Path, events: Iterable[tuple[Any, ...]]) -> Path:
    """A CSV file of (user, time, place)."""
    path = folder / "events.csv"
    lines = ["user,time,place", *(",".join(map(str, event)) for event in events)]
    path.write_text("\n".join(lines) + "\n")
    return path


def walk_source(path: Path | str) -> dict[str, Any]:
    """Source of a CSV file of users, times in seconds and positions: the first two hours of 1970."""
    return {
        "type": "csv",
        "path": str(path),
        "from": "1970-01-01T00:00:00Z",
        "until": "1970-01-01T02:00:00Z",
        "columns": {"user": "user", "time": "time", "latitude": "lat", "longitude": "lon"},
        "time_format": "unix_s",
    }


def small_sections(
    folder: Path, events: Iterable[tuple[Any, ...]] | str = (), n_windows: int = 6, **changes: Any
) -> dict[str, Any]:
    """Hourly counts at a, b and c of events, or of those in a file, in the first hours of 2024."""
    path = events if isinstance(events, str) else write_events(folder, events)
    value = {
        "name": "small",
        "seed": 3,
        "source": {
            "type": "csv",
            "path": str(path),
            "from": "2024-01-01T00:00:00Z",
            "until": f"2024-01-01T{n_windows:02d}:00:00Z",
            "columns": {"user": "user", "time": "time", "place": "place"},
        },
        "space": {"type": "places", "list": ["a", "b", "c"], "elsewhere": False},
        "windows": {"type": "fixed", "size": "1h"},
        "bounding": {"max_cells": 2},
        "landmarks": {"windows": [2, 4]},
        "mechanism": {"type": "landmark_uniform", "epsilon": 3.0},
        "output": {"path": str(folder / "out"), "report": False},
    } | changes
    steps = str([value["mechanism"], value.get("accountants")])
    if "landmarks" not in changes and "landmark" not in steps and "temporal" not in steps:
        del value["landmarks"]  # nothing reads them
    return value


PUBLISHED = """
name: published
source: {type: synthetic, seed: 1, n_users: 30, from: 2024-01-01T00:00:00Z, until: 2024-01-01T06:00:00Z}
space: {type: grid, south: 37.74, north: 37.82, west: -122.47, east: -122.37, rows: 2, columns: 2}
windows: {type: fixed, size: 1h}
mechanism: {type: discrete_laplace, epsilon: 0.5}
accountants: [{type: composition}]
output: {path: PATH, SINKS}
"""


def published(folder: Path | str, sinks: str, streamed: bool = False, **changes: str) -> RunConfig:
    """Six hours of made-up events in four cells, finite or as a stream, whose public rows go to sinks as well."""
    text = PUBLISHED.replace("PATH", str(folder)).replace("SINKS", sinks)
    if streamed:
        text = text.replace("{type: synthetic,", "{type: stream, of: {type: synthetic,").replace("Z}", "Z}}", 1)
    return loads(text, overrides=[f"{key}={value}" for key, value in changes.items()])


def run_locally(
    config: RunConfig, folder: Path | None = None, runner: str = "local", n_shards: int = 1, resume: bool = False
) -> Result:
    """Run in the plain loop unless a runner is named: its bytes are those of Beam (test_runners), much sooner."""
    return run(config, folder, runner, n_shards=n_shards, resume=resume)
