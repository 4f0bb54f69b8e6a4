"""A deployment on Flink: no user, no coordinate and no key in any file, log, job or checkpoint that it leaves."""

import random
import re
import struct
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from penstock.mechanisms.core.noise_keys import new_key_file
from penstock.pipeline.monitoring.verify import verify
from tests.integration.flink_cluster import FlinkCluster
from tests.integration.flink_runs import contents, needs_flink, running, words_of

pytestmark = [pytest.mark.integration, needs_flink]

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
output: {path: FOLDER/run, report: false, ledger_source: events, ledger: FOLDER/ledger}
"""


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
    actual = [b"planted-", *(secret.encode() for secret in secrets), *map(bytes.fromhex, secrets)]
    return actual + [repr(place).encode() for place in places] + [struct.pack("<d", place) for place in places]


def test_no_secret_or_planted_fact_is_in_anything_that_flink_keeps(tmp_path: Path, cluster: FlinkCluster) -> None:
    secrets = planted(tmp_path)
    (tmp_path / "config.yaml").write_text(CONFIG.replace("FOLDER", str(tmp_path)))
    folder, kept = tmp_path / "run", dict[Path, bytes]()
    options = ["--", *cluster.options, "--parallelism=1", "--checkpointing_interval=500"]
    with running(tmp_path / "config.yaml", folder, *options) as driver:
        deadline = time.monotonic() + 240
        while driver.poll() is None and time.monotonic() < deadline:
            kept |= contents(folder)  # checkpoints are removed at the end
            time.sleep(0.2)
        assert driver.poll() == 0, words_of(folder)
    assert [str(one) for one in verify(folder) if not one.passed] == []
    assert any("chk-" in path.parent.name and path.name == "_metadata" for path in kept)
    kept |= contents(folder) | contents(cluster.folder) | contents(tmp_path / "run.log")
    for path, data in kept.items():
        assert not any(secret in data for secret in secrets), path
