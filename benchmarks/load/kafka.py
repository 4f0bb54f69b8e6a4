"""Load on a run that reads from Kafka: how many events a second, how soon a release follows, how much memory.

``PYTHONPATH=tests/integration python -m benchmarks.load.kafka`` starts a broker of its own (see
``tests/integration/kafka_broker.py``) or uses ``--brokers``; prints a table and, with ``--out``, writes JSON.

* *backlog*: events that wait in the topic are read and released as fast as it goes;
* *live*: events come at a stated rate with the time of the day; the delay is that from the instant at which a window is
  final (its end, disorder and allowed lateness) to the time at which its releases reach their topic;
* *memory*: thousands of windows, the resident memory of the run after a fifth of them and at the end.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.load.common import (
    START,
    Figures,
    arrivals,
    broker,
    command,
    configuration,
    formats,
    generating,
    percentiles,
    preload,
    resident,
    topic_of,
)


def run(value: dict[str, Any], folder: Path) -> tuple[dict[str, Any], list[tuple[float, int]], float]:
    """Manifest, (memory, bytes of the ledger) over time, and processor seconds of a run."""
    path = folder / "run.yaml"
    path.write_text(json.dumps(value))
    before, ledger = os.times(), folder / "out" / "operator" / "ledger"
    running = subprocess.Popen(
        [sys.executable, "-m", "penstock.pipeline.cli.main", "run", str(path)], stdout=subprocess.DEVNULL
    )
    memory = []
    while running.poll() is None:
        memory.append((resident(running.pid), ledger.stat().st_size if ledger.exists() else 0))
        time.sleep(0.1)
    if running.returncode:
        raise SystemExit(f"the run ended with {running.returncode}")
    after = os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return json.loads((folder / "out" / "operator" / "manifest.json").read_text()), memory, used


def backlog(brokers: str, format: str, n_events: int, mode: str) -> dict[str, Any]:
    """A topic full of events, read to its end."""
    until = START + 3_600_000
    with topic_of(brokers, f"backlog-{format}-{time.time_ns()}") as (topic, folder):
        preload(brokers, topic, format, n_events, until)
        value = configuration(brokers, topic, format, folder, START, until, "1m", mode)
        manifest, memory, used = run(value, folder)
        seconds = manifest["seconds"]["pipeline"]
        assert manifest["rows"]["used"] == n_events
        return {
            "what": "backlog",
            "format": format,
            "events": n_events,
            "seconds": seconds,
            "events per second": round(n_events / seconds),
            "processor seconds": round(used, 1),
            "most memory (MB)": round(max(memory)[0]),
        }


def live(brokers: str, format: str, rate: float, seconds: float, mode: str) -> dict[str, Any]:
    """Events at a rate while the run reads them: delays of the releases and memory."""
    disorder = 500
    with topic_of(brokers, f"live-{format}-{time.time_ns()}") as (topic, folder):
        first = (int(time.time()) + 2) * 1000
        until = first + int(seconds + 10) * 1000
        with generating(brokers, topic, format, rate, seconds + 15, first, until) as sent:
            value = configuration(
                brokers, topic, format, folder, first, until, "1s", mode, disorder="500ms", checkpoint="5s"
            )
            manifest, memory, used = run(value, folder)
        assert manifest["rows"]["used"] == sent.result()
        ends, arrived = arrivals(brokers, topic)[:-2].T
        is_prompt = ends > arrived.min() + 2000  # those before have waited for the program to start
        ends, arrived = ends[is_prompt], arrived[is_prompt]
        return {
            "what": f"live, {rate:,.0f}/s",
            "format": format,
            "events": manifest["rows"]["used"],
            "late": manifest["rows"]["late"],
            "windows": len(ends),
            **percentiles(arrived - ends - disorder),
            "processor seconds": round(used, 1),
            "most memory (MB)": round(max(memory)[0]),
        }


def windows(brokers: str, n_windows: int, mode: str, per_window: int = 200) -> dict[str, Any]:
    """Many small windows: whether memory grows with their number."""
    until = START + 1000 * n_windows
    with topic_of(brokers, f"windows-{time.time_ns()}") as (topic, folder):
        preload(brokers, topic, "arrow", n_windows * per_window, until, rows=20 * per_window)
        value = configuration(brokers, topic, "arrow", folder, START, until, "1s", mode, checkpoint="2s")
        manifest, memory, used = run(value, folder)
        whole = memory[-1][1]
        fifths = [next(mb for mb, size in memory if size >= part * whole / 5) for part in range(1, 6)]
        return {
            "what": f"{n_windows:,} windows",
            "format": "arrow",
            "events": manifest["rows"]["used"],
            "seconds": manifest["seconds"]["pipeline"],
            "processor seconds": round(used, 1),
            "memory by fifths of the windows (MB)": list(map(round, fifths)),
            "memory while books and files are closed (MB)": round(max(mb for mb, size in memory if size == whole)),
        }


def main() -> int:
    """Measure what is asked for and write the figures."""
    given = command(__doc__, ("backlog", "live", "windows"), 2_000_000).parse_args()
    figures = Figures(given)
    with broker(given) as brokers:
        for format, n_events, rate in formats(given):
            figures.take("backlog", backlog, brokers, format, n_events, given.mode)
            figures.take("live", live, brokers, format, rate, given.seconds, given.mode)
        figures.take("windows", windows, brokers, given.windows, given.mode)
    figures.write()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
