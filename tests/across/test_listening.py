"""Runs without an engine listen on loopback alone; `tests/integration/test_live_figures.py` checks engines."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.ports import descendants, free_ports, listeners

ROOT = Path(__file__).parents[2]
STREAM = """
name: listening
seed: 1
source: {type: stream, speed: 60x, of: {type: synthetic, n_users: 9, days: 1, seed: 7}}
space: {type: places, list: [a]}
windows: {type: fixed, size: 1h}
mechanism: {type: discrete_laplace, epsilon: 1.0}
output: {path: OUT, report: false}
"""


@contextmanager
def started(*words: str) -> Iterator[subprocess.Popen[bytes]]:
    """A module of penstock as a process, until the block ends."""
    process = subprocess.Popen([sys.executable, "-m", *words], cwd=ROOT, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def places(process: subprocess.Popen[bytes]) -> set[tuple[str, int]]:
    """Where a process and its children listen, once one does."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        actual = listeners([process.pid, *descendants(process.pid)])
        if at := set[tuple[str, int]]().union(*actual.values()):
            return at
        time.sleep(0.1)
    raise AssertionError("nothing listens")


@pytest.mark.parametrize("runner", ["local", "direct"])
def test_the_loop_listens_for_its_metrics_alone(tmp_path, runner):
    (tmp_path / "config.yaml").write_text(STREAM.replace("OUT", str(tmp_path / "out")))
    (port,) = free_ports(1)
    words = ["run", str(tmp_path / "config.yaml"), "--runner", runner, "--metrics-port", str(port)]
    with started("penstock.pipeline.cli.main", *words) as run:
        assert places(run) == {("127.0.0.1", port)}


def test_the_pool_of_workers_listens_on_loopback():
    (port,) = free_ports(1)
    with started("penstock.pipeline.runners.beam.pool", "--port", str(port)) as pool:
        assert places(pool) == {("127.0.0.1", port)}
