"""Windows on Flink are released when the broker's clock has passed their deadline, whichever partitions are silent."""

from __future__ import annotations

import json
import os
import time
from datetime import UTC, datetime

import numpy as np
import pytest

pytest.importorskip("confluent_kafka", reason="the extra 'kafka' is not installed")

from penstock.pipeline.run import run
from penstock.pipeline.windows.calendar import Calendar
from tests.integration.flink_runs import needs_flink, running, wait_until, words_of
from tests.integration.test_kafka import broker, configured, live_topic, outputs, producer, sections, topic, topics

# Slow: beside everything else it would measure the machine.
pytestmark = [pytest.mark.integration, pytest.mark.slow, needs_flink]
__all__ = ["broker", "topics"]

#: Seconds: allowed lateness, `disorder`, `idle_after`; what the engine may take beyond them, and more for each process
#: that waits for a processor. A window that waited for the next one would take ten more.
LATENESS, DISORDER, IDLE_AFTER, ENGINE, BUSY = 2, 1, 1, 3, 1
#: Seconds in which the job starts before its first window begins.
STARTING = 60
PLACE = {"latitude": 37.78, "longitude": -122.42}


@pytest.mark.parametrize(
    ("parallelism", "seconds", "n_windows"),
    [(2, 10, 6), (1, 10, 6), (2, 60, 3), (1, 60, 3)],
)
def test_no_window_waits_for_a_silent_partition(broker, topics, tmp_path, parallelism, seconds, n_windows):
    """Partition 0 has events, some of them late, the other two have none; late rows and releases are the loop's."""
    names, sender = live_topic(broker, topics), producer(broker)
    begin = (int(time.time()) + STARTING) // seconds * seconds + seconds
    end = begin + n_windows * seconds
    source = topic(broker, names, watermark="broker", disorder=f"{DISORDER}s", idle_after=f"{IDLE_AFTER}s")
    source |= {"from": instant(begin), "until": instant(end)}
    windows = {"type": "fixed", "size": f"{seconds}s", "allowed_lateness": f"{LATENESS}s"}
    config, folder = tmp_path / "config.json", tmp_path / "flink"
    config.write_text(json.dumps(sections(folder, source, windows=windows)))
    released, written = folder / "public" / "parts" / "releases", dict[int, float]()
    reading: float | None = None

    def has_ended() -> bool:
        """Note when rows are read at first, and each window was written: the parts are merged at the end."""
        nonlocal reading
        if reading is None and any(folder.glob("operator/parts/spool/reader-*/journal-*.jsonl")):
            reading = time.time()
        written.update({int(path.stem): path.stat().st_mtime for path in released.glob("[0-9]*.parquet")})
        return driver.poll() is not None

    with running(config, folder, "--", f"--parallelism={parallelism}") as driver:
        for user in range(10_000):
            if (now := time.time()) >= end + LATENESS:
                break
            event = now - (2 * seconds if user % 10 == 9 else 0)
            sender.send(names["events"], "", json.dumps({"user": user, "time": int(event * 1000), **PLACE}), 0)
            sender.flush()
            time.sleep(0.5 if now >= begin else 2)
            has_ended()
        assert wait_until(has_ended, 120), words_of(folder)
        assert driver.poll() == 0, words_of(folder)
    calendar = Calendar(step=1000 * seconds, anchor=0, time_zone="UTC", from_ms=1000 * begin, until_ms=1000 * end)
    assert len(written) == n_windows
    assert reading is not None
    # On a machine that is busy with other things the job may start when its first windows are over.
    ends = {window: calendar.end(window) / 1000 for window in sorted(written)}
    delays = np.array([written[window] - end for window, end in ends.items() if end > reading])
    if len(delays) < n_windows / 2:
        pytest.skip(f"the job took {reading - begin + STARTING:.0f} s to start")
    p50, p99 = np.quantile(delays, [0.5, 0.99])
    print(
        f"windows of {seconds} s, parallelism {parallelism}: p50 {p50:.1f} s, p99 {p99:.1f} s, load {os.getloadavg()}"
    )
    n_waiting = max(0.0, max(os.getloadavg()[:2]) - (os.cpu_count() or 1))
    assert delays.max() <= LATENESS + DISORDER + IDLE_AFTER + ENGINE + BUSY * n_waiting, delays
    local = tmp_path / "local"
    assert run(configured(sections(local, source, windows=windows))).exit_code == 0
    assert outputs(folder) == outputs(local)
    rows = [json.loads((one / "operator" / "manifest.json").read_text())["rows"] for one in (folder, local)]
    assert rows[0] == rows[1]
    assert rows[0]["late"] > 0


def instant(seconds: int) -> str:
    """An instant of a configuration."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
