"""Load on a run that reads from Kafka: how many events a second, how soon a release follows, how much memory.

``python benchmarks/kafka_load.py`` starts a broker of its own (see ``tests/integration/kafka_broker.py``) or uses
``--brokers``; prints a table and, with ``--out``, writes JSON.

* *backlog*: events that wait in the topic are read and released as fast as it goes;
* *live*: events come at a stated rate with the time of the day; the delay is that from the instant at which a window is
  final (its end, disorder and allowed lateness) to the time at which its releases reach their topic;
* *memory*: thousands of windows, the resident memory of the run after a fifth of them and at the end.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "integration"))

from kafka_broker import Broker

from pipeline.kafka.client import library
from pipeline.kafka.play import _messages, make_topics
from pipeline.kafka.producer import Producer

N_PARTITIONS, N_USERS = 4, 100_000
SPACE = {"type": "grid", "south": 37.7, "north": 37.8, "west": -122.5, "east": -122.4, "rows": 10, "columns": 10}
START = 1_704_067_200_000


def events(rng: np.random.Generator, times: np.ndarray) -> pl.DataFrame:
    n = len(times)
    place = {"latitude": rng.uniform(37.7, 37.8, n), "longitude": rng.uniform(-122.5, -122.4, n)}
    return pl.DataFrame({"user": rng.integers(0, N_USERS, n), "time": times, **place})


def send(producer: Producer, topic: str, frame: pl.DataFrame, format: str) -> None:
    for partition, value in _messages(frame, N_PARTITIONS, format):
        producer.send(topic, "", value, partition)


def end(producer: Producer, topic: str, until: int, format: str) -> None:
    last = events(np.random.default_rng(0), np.array([until + 10**9]))
    for partition in range(N_PARTITIONS):
        for _, value in _messages(last, 1, format):
            producer.send(topic, "", value, partition)
    producer.flush()


def preload(brokers: str, topic: str, format: str, n_events: int, until: int, rows: int = 20_000) -> None:
    producer, rng = Producer(brokers, {}), np.random.default_rng(1)
    for first in range(0, n_events, rows):
        at = np.arange(first, min(first + rows, n_events))
        send(producer, topic, events(rng, START + at * (until - START) // n_events), format)
    end(producer, topic, until, format)


def generate(brokers: str, topic: str, format: str, rate: float, seconds: float, until: int) -> None:
    """Events of the present at a rate, sent every 50 ms."""
    producer, rng = Producer(brokers, {}), np.random.default_rng(1)
    begun = sent_until = time.time()
    while time.time() < begun + seconds:
        now = time.time()
        n = int((now - sent_until) * rate)
        send(
            producer,
            topic,
            events(rng, (1000 * np.linspace(sent_until, now, n, endpoint=False)).astype(np.int64)),
            format,
        )
        sent_until = now
        time.sleep(max(0.0, now + 0.05 - time.time()))
    end(producer, topic, until, format)


def configuration(
    brokers: str, topic: str, format: str, folder: Path, first: int, until: int, size: str, **source: Any
) -> dict[str, Any]:
    moments = [datetime.fromtimestamp(at / 1000, UTC).isoformat().replace("+00:00", "Z") for at in (first, until)]
    return {
        "name": "load",
        "seed": 1,
        "source": {
            "type": "kafka",
            "brokers": brokers,
            "topic": topic,
            "format": format,
            "user_type": "integer",
            "time_format": "unix_ms",
            "from": moments[0],
            "until": moments[1],
            **source,
        },
        "space": SPACE,
        "windows": {"type": "fixed", "size": size},
        "bounding": {"max_cells": 5},
        "mechanism": {"type": "discrete_laplace", "epsilon": 1.0},
        "accountants": [{"type": "composition"}],
        "output": {"path": str(folder / "out"), "report": False, "truth": False}
        | {"kafka": {"brokers": brokers, "releases": f"{topic}-releases"}},
    }


def resident(pid: int) -> float:
    """Resident memory in MB."""
    with contextlib.suppress(OSError, StopIteration, IndexError):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024
    return 0.0


def run(value: dict[str, Any], folder: Path) -> tuple[dict[str, Any], list[tuple[float, int]], float]:
    """Manifest, (memory, bytes of the ledger) over time, and processor seconds of a run."""
    path = folder / "run.yaml"
    path.write_text(json.dumps(value))
    before, ledger = os.times(), folder / "out" / "operator" / "ledger"
    running = subprocess.Popen([sys.executable, "-m", "pipeline.cli", "run", str(path)], stdout=subprocess.DEVNULL)
    memory = []
    while running.poll() is None:
        memory.append((resident(running.pid), ledger.stat().st_size if ledger.exists() else 0))
        time.sleep(0.1)
    if running.returncode:
        raise SystemExit(f"the run ended with {running.returncode}")
    after = os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return json.loads((folder / "out" / "operator" / "manifest.json").read_text()), memory, used


def delays(brokers: str, topic: str, disorder: int) -> np.ndarray:
    """Milliseconds from the instant at which each window was final to its last row in the topic of releases."""
    kafka = library()
    client = kafka.Consumer({"bootstrap.servers": brokers, "group.id": "load", "enable.partition.eof": True})
    client.assign([kafka.TopicPartition(f"{topic}-releases", 0, 0)])
    arrived: dict[str, int] = {}
    while (message := client.poll(10)) is not None and message.error() is None:
        arrived[json.loads(message.value())["window_end"]] = message.timestamp()[1]
    client.close()
    ends = {end: int(datetime.fromisoformat(end).timestamp() * 1000) for end in arrived}
    return np.asarray([arrived[end] - ends[end] - disorder for end in sorted(arrived)])


@contextlib.contextmanager
def topic_of(brokers: str, name: str) -> Iterator[tuple[str, Path]]:
    make_topics(brokers, {name: N_PARTITIONS, f"{name}-releases": 1})
    with tempfile.TemporaryDirectory() as folder:
        yield name, Path(folder)


def backlog(brokers: str, format: str, n_events: int) -> dict[str, Any]:
    until = START + 3_600_000
    with topic_of(brokers, f"backlog-{format}-{time.time_ns()}") as (topic, folder):
        preload(brokers, topic, format, n_events, until)
        value = configuration(brokers, topic, format, folder, START, until, "1m")
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


def live(brokers: str, format: str, rate: float, seconds: float) -> dict[str, Any]:
    disorder = 500
    with topic_of(brokers, f"live-{format}-{time.time_ns()}") as (topic, folder):
        first = (int(time.time()) + 2) * 1000
        until = first + int(seconds + 10) * 1000
        arguments = (brokers, topic, format, rate, seconds + 15, until)
        feeding = multiprocessing.get_context("spawn").Process(target=generate, args=arguments)
        feeding.start()
        value = configuration(brokers, topic, format, folder, first, until, "1s", disorder="500ms", checkpoint="5s")
        manifest, memory, used = run(value, folder)
        feeding.join()
        found = delays(brokers, topic, disorder)[10:-2]  # the first windows wait for the program to start
        return {
            "what": f"live, {rate:,.0f}/s",
            "format": format,
            "events": manifest["rows"]["used"],
            "late": manifest["rows"]["late"],
            "windows": len(found),
            "p50 (ms)": round(float(np.percentile(found, 50))),
            "p99 (ms)": round(float(np.percentile(found, 99))),
            "processor seconds": round(used, 1),
            "most memory (MB)": round(max(memory)[0]),
        }


def windows(brokers: str, n_windows: int, per_window: int = 200) -> dict[str, Any]:
    until = START + 1000 * n_windows
    with topic_of(brokers, f"windows-{time.time_ns()}") as (topic, folder):
        preload(brokers, topic, "arrow", n_windows * per_window, until, rows=20 * per_window)
        value = configuration(brokers, topic, "arrow", folder, START, until, "1s", checkpoint="2s")
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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--brokers", help="host:port; a broker is started where it is left out")
    parser.add_argument("--events", type=int, default=2_000_000, help="events of a backlog")
    parser.add_argument("--rate", type=float, default=50_000, help="events a second, live")
    parser.add_argument("--seconds", type=float, default=60, help="how long they come")
    parser.add_argument("--windows", type=int, default=10_000)
    parser.add_argument("--only", choices=("backlog", "live", "windows"))
    parser.add_argument("--format", choices=("json", "arrow"))
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    found = []
    with contextlib.ExitStack() as stack:
        brokers = given.brokers
        if brokers is None:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            brokers = stack.enter_context(Broker(Path(folder))).address
        formats = [given.format] if given.format else ["arrow", "json"]
        for format in formats:
            if given.only in (None, "backlog"):
                found.append(backlog(brokers, format, given.events if format == "arrow" else given.events // 4))
                print(json.dumps(found[-1]), flush=True)
            if given.only in (None, "live"):
                found.append(live(brokers, format, given.rate if format == "arrow" else given.rate / 5, given.seconds))
                print(json.dumps(found[-1]), flush=True)
        if given.only in (None, "windows"):
            found.append(windows(brokers, given.windows))
            print(json.dumps(found[-1]), flush=True)
    if given.out:
        given.out.write_text(json.dumps(found, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
