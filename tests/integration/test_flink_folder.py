"""Files that keep arriving, on real Flink: while they come, a worker and then the driver are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from penstock.pipeline.config.run import load
from penstock.pipeline.run import run
from tests.integration.flink_cluster import FlinkCluster, end
from tests.integration.flink_runs import check, goes_on, needs_flink, start, wait_until, words_of

pytestmark = [pytest.mark.integration, needs_flink]

CONFIG = """
name: arriving
seed: 3
source:
  type: folder
  of: {type: csv, path: PATH/in}
  from: FROM
  until: UNTIL
  idle_after: 2s
space: {type: places, list: [x, y], elsewhere: false}
windows: {type: fixed, size: 5s, allowed_lateness: 5s}
bounding: {max_cells: 2}
mechanism: {type: discrete_laplace, epsilon: 1.0}
accountants: [{type: composition}]
output: {path: PATH/run, report: false}
"""
#: Seconds of files that are there at the beginning, and of those that come.
BEFORE, AFTER = 60, 90


def stamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def put(folder: Path, second: int, written: float | None = None) -> None:
    """Write a file under another name first; one of its rows lay around for half a minute."""
    rows = [f"u{(second + i) % 13},{stamp(second + i / 10 - 30 * (i == 9))},{'xy'[i % 2]}" for i in range(10)]
    hidden = folder / f".{second}.csv"
    hidden.write_text("\n".join(["user,time,place", *rows]) + "\n")
    if written is not None:
        os.utime(hidden, (written, written))
    os.replace(hidden, folder / f"{second}.csv")


class Sender:
    """A process that writes a file every second."""

    def __init__(self, folder: Path, first: int, last: int) -> None:
        code = (
            f"import sys, time; sys.path[:0] = {sys.path!r}\n"
            "from pathlib import Path; from tests.integration.test_flink_folder import put\n"
            f"for second in range({first}, {last}):\n"
            "    time.sleep(max(0, second + 1 - time.time()))\n"
            f"    put(Path({str(folder)!r}), second)\n"
        )
        self.process = subprocess.Popen([sys.executable, "-c", code])

    def __enter__(self) -> subprocess.Popen[bytes]:
        return self.process

    def __exit__(self, *_: object) -> None:
        end(self.process)


def test_what_comes_is_counted_once_whoever_is_killed(tmp_path: Path, cluster: FlinkCluster) -> None:
    """The bytes of a run on this machine over the same files, and the same late rows."""
    incoming, folder, now = tmp_path / "in", tmp_path / "run", int(time.time())
    incoming.mkdir()
    for second in range(now - BEFORE, now):
        put(incoming, second, written=second + 1)
    config = tmp_path / "run.yaml"
    times = CONFIG.replace("FROM", stamp(now - BEFORE)).replace("UNTIL", stamp(now + AFTER))
    config.write_text(times.replace("PATH", str(tmp_path)))
    options = ["--", *cluster.options, "--checkpointing_interval=1000"]
    with Sender(incoming, now, now + AFTER) as sender:
        driver = start(config, folder, *options)
        try:
            assert goes_on(folder, driver, 3), words_of(folder)
            assert wait_until(lambda: bool(cluster.workers()), 120)
            assert cluster.kill_worker()
            assert goes_on(folder, driver, 3), words_of(folder)
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
            driver = start(config, folder, "--resume", *options)
            assert driver.wait(300) == 0, words_of(folder)
        finally:
            end(driver)
        assert sender.wait(120) == 0
    run(load(config), tmp_path / "alone")
    rows = check(folder, tmp_path / "alone")
    print(rows)
    assert rows["rows"] == 10 * (BEFORE + AFTER)
    assert rows["late"] > 0
