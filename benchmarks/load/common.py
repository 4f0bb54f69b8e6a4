"""What the benchmarks of load have in common: events at a stated rate, a configuration, memory, delays."""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from kafka_broker import Broker

from penstock.mechanisms.core.noise_keys import new_key_file
from penstock.pipeline.sources.reading.kafka_client import Producer, library
from tests.tools.play_topic import _messages, make_topics

N_PARTITIONS, N_USERS = 4, 100_000
SPACE = {"type": "grid", "south": 37.7, "north": 37.8, "west": -122.5, "east": -122.4, "rows": 10, "columns": 10}
START = 1_704_067_200_000


def events(rng: np.random.Generator, times: np.ndarray) -> pl.DataFrame:
    """An event at each of the times (ms), by random users in random places."""
    n = len(times)
    place = {"latitude": rng.uniform(37.7, 37.8, n), "longitude": rng.uniform(-122.5, -122.4, n)}
    return pl.DataFrame({"user": rng.integers(0, N_USERS, n), "time": times, **place})


def send(producer: Producer, topic: str, frame: pl.DataFrame, format: str) -> None:
    """Send events over all partitions, without waiting for the broker."""
    for partition, value in _messages(frame, N_PARTITIONS, format):
        producer.send(topic, "", value, partition)


def save(folder: Path, n_events: int, n_files: int, until: int) -> None:
    """Write events in the order of time as Parquet files."""
    rng = np.random.default_rng(1)
    for number, at in enumerate(np.array_split(np.arange(n_events), n_files)):
        events(rng, START + at * (until - START) // n_events).write_parquet(folder / f"events-{number:03d}.parquet")


def end(producer: Producer, topic: str, until: int, format: str) -> None:
    """Send each partition an event after the end, so that its watermark closes every window."""
    last = events(np.random.default_rng(0), np.array([until + 10**9]))
    for partition in range(N_PARTITIONS):
        for _, value in _messages(last, 1, format):
            producer.send(topic, "", value, partition)
    producer.flush()


def preload(brokers: str, topic: str, format: str, n_events: int, until: int, rows: int = 20_000) -> None:
    """Fill a topic with events, evenly from the start until ``until`` (ms), and end it."""
    producer, rng = Producer(brokers, {}), np.random.default_rng(1)
    for first in range(0, n_events, rows):
        at = np.arange(first, min(first + rows, n_events))
        send(producer, topic, events(rng, START + at * (until - START) // n_events), format)
    end(producer, topic, until, format)


def generate(brokers: str, topic: str, format: str, rate: float, seconds: float, first: int, until: int) -> int:
    """Events of the present at a rate, sent every 50 ms; returns how many of them are from ``first`` to ``until``."""
    producer, rng = Producer(brokers, {}), np.random.default_rng(1)
    begun = sent_until = time.time()
    n_inside = 0
    while time.time() < begun + seconds:
        now = time.time()
        times = 1000 * np.linspace(sent_until, now, int((now - sent_until) * rate), endpoint=False)
        send(producer, topic, events(rng, times.astype(np.int64)), format)
        n_inside += int(np.count_nonzero((times.astype(np.int64) >= first) & (times.astype(np.int64) < until)))
        sent_until = now
        time.sleep(max(0.0, now + 0.05 - time.time()))
    end(producer, topic, until, format)
    return n_inside


@contextlib.contextmanager
def generating(*arguments: Any) -> Iterator[Future[int]]:
    """`generate` in a process of its own."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        yield pool.submit(generate, *arguments)


def command(description: str | None, what: tuple[str, ...], n_events: int) -> argparse.ArgumentParser:
    """What can be asked of either benchmark."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--brokers", help="host:port; a broker is started where it is left out")
    parser.add_argument("--mode", choices=("simulation", "deployment"), default="simulation", help="of the runs")
    parser.add_argument("--only", choices=what)
    parser.add_argument("--format", choices=("json", "arrow"))
    parser.add_argument("--events", type=int, default=n_events, help="of a backlog; a quarter of it for json")
    parser.add_argument("--rate", type=float, default=50_000, help="events a second, live; a fifth of it for json")
    parser.add_argument("--seconds", type=float, default=60, help="how long they come")
    parser.add_argument("--windows", type=int, default=10_000)
    parser.add_argument("--out", type=Path, help="write the figures there, as JSON")
    return parser


def formats(given: argparse.Namespace) -> list[tuple[str, int, float]]:
    """Each format that is asked for, with the events of its backlog and its rate."""
    whole = {"arrow": (given.events, given.rate), "json": (given.events // 4, given.rate / 5)}
    return [(format, *whole[format]) for format in whole if given.format in (None, format)]


@contextlib.contextmanager
def broker(given: argparse.Namespace) -> Iterator[str]:
    """Address of the broker that is given, or of one that is started."""
    if given.brokers is not None:
        yield given.brokers
        return
    with tempfile.TemporaryDirectory() as folder, Broker(Path(folder)) as started:
        yield started.address


class Figures:
    """What is measured, printed as it comes and written at the end."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given, self.found = given, list[dict[str, Any]]()

    def take(self, what: str, measure: Callable[..., dict[str, Any]], *arguments: Any) -> None:
        """Measure something if it is asked for."""
        if self.given.only in (None, what):
            self.found.append({"mode": self.given.mode, **measure(*arguments)})
            print(json.dumps(self.found[-1]), flush=True)

    def write(self) -> None:
        """Write the figures where they are asked for."""
        if self.given.out:
            self.given.out.write_text(json.dumps(self.found, indent=2) + "\n")


def configuration(
    brokers: str, topic: str, format: str, folder: Path, first: int, until: int, size: str, mode: str, **source: Any
) -> dict[str, Any]:
    """Configuration of a run that reads a topic and sends its releases to another."""
    secret: dict[str, Any] = {"seed": 1}
    if mode == "deployment":
        new_key_file(folder / "noise.key")
        # The backlog is older than its messages.
        secret = {"mode": mode, "noise_key": str(folder / "noise.key"), "allow_no_guarantee": True}
    moments = [datetime.fromtimestamp(at / 1000, UTC).isoformat().replace("+00:00", "Z") for at in (first, until)]
    return {
        "name": "load",
        **secret,
        "source": {
            "type": "kafka",
            "brokers": brokers,
            "topic": topic,
            "format": format,
            "user_type": "integer",
            "time_format": "unix_ms",
            "watermark": "events",
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
        | {"ledger_source": "load", "ledger": str(folder / "out" / "operator" / "ledger"), "new_ledger": True}
        | {"kafka": {"brokers": brokers, "releases": f"{topic}-releases"}},
    }


def resident(pid: int) -> float:
    """Resident memory in MB."""
    with contextlib.suppress(OSError, StopIteration, IndexError):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024
    return 0.0


def arrivals(brokers: str, topic: str) -> np.ndarray:
    """End of each released window and the time of its last row in the topic of releases, shape (n_windows, 2)."""
    kafka = library()
    client = kafka.Consumer({"bootstrap.servers": brokers, "group.id": "load", "enable.partition.eof": True})
    client.assign([kafka.TopicPartition(f"{topic}-releases", 0, 0)])
    arrived: dict[str, dict[str, int]] = {}
    while (message := client.poll(10)) is not None and message.error() is None:
        # What a run that goes on sends again has the same key: the first is the one that counts.
        row = json.loads(message.value())
        arrived.setdefault(row["window_end"], {}).setdefault(row["cell"], message.timestamp()[1])
    client.close()
    found = [
        (int(datetime.fromisoformat(end).timestamp() * 1000), max(cells.values())) for end, cells in arrived.items()
    ]
    return np.asarray(sorted(found), np.int64).reshape(-1, 2)


def percentiles(delays: np.ndarray) -> dict[str, int]:
    """Half of the delays, and all but a hundredth, in milliseconds."""
    return {f"p{part} (ms)": round(float(np.percentile(delays, part))) for part in (50, 99)}


@contextlib.contextmanager
def topic_of(brokers: str, name: str) -> Iterator[tuple[str, Path]]:
    """A new topic with one for its releases, and a folder for the run."""
    make_topics(brokers, {name: N_PARTITIONS, f"{name}-releases": 1})
    with tempfile.TemporaryDirectory() as folder:
        yield name, Path(folder)
