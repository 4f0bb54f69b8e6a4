"""A deployment on Flink: no user, no coordinate and no key in any file, log, job or checkpoint that it leaves."""

import os
import random
import re
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from flink_cluster import ROOT, FlinkCluster

from mechanisms.core.noise import new_key_file
from pipeline.cluster.jars import jars_folder
from pipeline.verify import verify

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not jars_folder().exists(), reason="no Flink: python -m pipeline.cluster.jars fetches it"),
]

CONFIG = """
name: secrets
mode: deployment
noise_key: FOLDER/noise.key
source:
  type: stream
  speed: 1200x
  of:
    type: csv
    path: FOLDER/events.csv
    columns: {user: user, time: time, latitude: latitude, longitude: longitude}
    from: 2024-01-01T00:00:00Z
    until: 2024-01-01T06:00:00Z
space: {type: grid, south: 37.74, north: 37.82, west: -122.47, east: -122.37, rows: 4, columns: 4}
windows: {type: fixed, size: 30m}
bounding: {max_cells: 2}
mechanism: {type: discrete_laplace, epsilon: 0.5}
accountants: [{type: composition}]
output: {path: FOLDER/run, report: false}
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[FlinkCluster]:
    """A cluster with one task manager."""
    with FlinkCluster(tmp_path / "cluster", n_task_managers=1) as started:
        yield started


def planted(folder: Path) -> list[bytes]:
    """Write events and a key; gives everything that must not turn up anywhere else."""
    chance, start = random.Random(5), datetime(2024, 1, 1, tzinfo=UTC)
    lines, places = ["user,time,latitude,longitude"], []
    for minute in range(0, 360, 2):
        latitude, longitude = 37.74 + 0.08 * chance.random(), -122.47 + 0.1 * chance.random()
        at = (start + timedelta(minutes=minute)).isoformat()
        lines.append(f"planted-{chance.randrange(40)}-person,{at},{latitude!r},{longitude!r}")
        places += [latitude, longitude] if minute < 40 else []
    (folder / "events.csv").write_text("\n".join(lines) + "\n")
    new_key_file(folder / "noise.key")
    secrets = re.findall(r"[0-9a-f]{64}", (folder / "noise.key").read_text())
    assert secrets
    found = [b"planted-", *(secret.encode() for secret in secrets), *map(bytes.fromhex, secrets)]
    return found + [repr(place).encode() for place in places] + [struct.pack("<d", place) for place in places]


def test_nothing_shows(tmp_path: Path, cluster: FlinkCluster) -> None:
    secrets = planted(tmp_path)
    (tmp_path / "config.yaml").write_text(CONFIG.replace("FOLDER", str(tmp_path)))
    command = [sys.executable, "-m", "pipeline.cli", "run", str(tmp_path / "config.yaml"), "--runner", "flink", "--"]
    command += [*cluster.options, "--parallelism=1", "--checkpointing_interval=500"]
    kept: dict[Path, bytes] = {}
    with (tmp_path / "run.log").open("wb") as log:
        driver = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
        deadline = time.monotonic() + 240
        try:
            while driver.poll() is None and time.monotonic() < deadline:
                kept |= contents(tmp_path / "run")  # checkpoints are removed at the end
                time.sleep(0.2)
        finally:
            driver.kill()
    assert driver.wait() == 0, (tmp_path / "run.log").read_text()[-2000:]
    assert [str(one) for one in verify(tmp_path / "run") if not one.passed] == []
    assert any("chk-" in path.parent.name and path.name == "_metadata" for path in kept)
    kept |= contents(tmp_path / "run") | contents(tmp_path / "cluster") | contents(tmp_path / "run.log")
    for path, data in kept.items():
        assert not any(secret in data for secret in secrets), path


def contents(path: Path) -> dict[Path, bytes]:
    """All files of a folder, but jars; those that go away meanwhile are left out."""
    found = {}
    files = [path] if path.is_file() else [Path(where) / name for where, _, names in os.walk(path) for name in names]
    for file in files:
        with suppress(OSError):
            if file.suffix != ".jar":
                found[file] = file.read_bytes()
    return found
