"""Deployments with planted people, whose traces are searched for in everything that a run leaves."""

from __future__ import annotations

import json
import stat
import struct
from pathlib import Path
from typing import Any

import polars as pl

from penstock.mechanisms.core.noise_keys import new_key_file
from penstock.pipeline.config.run import RunConfig
from tests.tools.small_configuration import with_what_is_read

USER, NUMBER = "planted-user-4711", 4711004711004711
LATITUDE, LONGITUDE = 37.7654321, -122.4654321
AREA = {"south": 37.7, "north": 37.8, "west": -122.5, "east": -122.4}


def events(user: object, n_hours: int = 6) -> str:
    """Hourly events, one row without a time and one outside the area."""
    rows = [f"{user},2024-01-01T{hour:02d}:10:00Z,{LATITUDE},{LONGITUDE}" for hour in range(n_hours)]
    rows += [f"{user},not a time,{LATITUDE},{LONGITUDE}", f"{user},2024-01-01T01:00:00Z,95.5,{LONGITUDE}"]
    return "\n".join(["user,time,latitude,longitude", *rows]) + "\n"


def sections(folder: Path, user: object = USER, **changes: Any) -> dict[str, Any]:
    """A deployment over a planted user's events, its files in a folder."""
    key = folder / "noise.key"
    if not key.exists():
        new_key_file(key)
    (folder / "events.csv").write_text(events(user))
    source = {
        "type": "csv",
        "path": str(folder / "events.csv"),
        "from": "2024-01-01T00:00:00Z",
        "until": "2024-01-01T06:00:00Z",
        "columns": {"user": "user", "time": "time", "latitude": "latitude", "longitude": "longitude"},
        "user_type": "integer" if isinstance(user, int) else "string",
    }
    value = {
        "name": "deployed",
        "mode": "deployment",
        "noise_key": str(key),
        "source": source,
        "space": {"type": "grid", **AREA, "rows": 2, "columns": 2},
        "windows": {"type": "fixed", "size": "1h"},
        "bounding": {"max_cells": 1},
        "landmarks": {"windows": [2]},
        "mechanism": {"type": "landmark_uniform", "epsilon": 1.0},
        "accountants": [{"type": "landmark_budget"}],
        "output": {"path": str(folder / "out"), "ledger_source": "events", "ledger_budget": 1000.0},
    }
    if {"mechanism", "accountants"} <= changes.keys():
        del value["landmarks"]  # what reads them is replaced
    return value | changes


def configured(value: dict[str, Any]) -> RunConfig:
    return with_what_is_read(value)


def planted(folder: Path) -> list[bytes]:
    """Everything that must be nowhere: as text, and as numbers in binary files."""
    secret = json.loads((folder / "noise.key").read_text())["epochs"][0]["secret"]
    facts = [USER.encode(), str(NUMBER).encode(), str(LATITUDE).encode(), str(LONGITUDE).encode(), secret.encode()]
    numbers = [struct.pack(order + "d", value) for order in "<>" for value in (LATITUDE, LONGITUDE)]
    return [*facts, *numbers, struct.pack("<q", NUMBER), struct.pack(">q", NUMBER), bytes.fromhex(secret)]


def leaks(root: Path, facts: list[bytes]) -> list[tuple[str, bytes]]:
    """Every file below a folder that holds one of the facts, in its bytes or in its name."""
    actual = []
    for path in sorted(root.rglob("*")):
        data = str(path.relative_to(root)).encode() + (path.read_bytes() if path.is_file() else b"")
        if path.suffix == ".parquet":
            data += pl.read_parquet(path).write_csv().encode()
        actual += [(str(path), fact) for fact in facts if fact in data]
    return actual


def accessible_to_others(operator: Path) -> list[str]:
    """List paths accessible to other users, with their modes."""
    actual = []
    for path in [operator, *operator.rglob("*")]:
        try:
            mode = stat.S_IMODE(path.lstat().st_mode)
        except FileNotFoundError:  # renamed meanwhile
            continue
        if mode & 0o077:
            actual.append(f"{path.name} {mode:04o}")
    return actual
