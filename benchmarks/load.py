"""Load test of a Kafka deployment: throughput, latency, memory, checkpoints and recovery.

``python -m benchmarks.load --runner local`` (or ``flink``) starts a broker, and for Flink
a cluster, of its own on this machine (see ``tests/integration``) and prints a line of figures for each of

* *backlog*: events that wait in the topic are read and released as fast as it goes;
* *live*: events come at a rate. The delay is that from the instant at which a window is final to the time at which its
  releases reach their topic. In the middle the run is interrupted, waits, and goes on with ``--resume`` while events
  come as before: how soon is everything caught up with? Memory and checkpoints, by fifths of the windows;
* *latency* (only with ``--only latency``, on Flink): windows of 10 s by the broker's clock while one partition is
  silent, with an event a second and with ``--rate``, at parallelism 1 and 2: from a window's end to its last row in the
  topic. Every window is held against allowed lateness, `disorder`, `idle_after` and 3 s;
* *finite*: files are counted, on Flink at parallelism 1, 2 and 4: processor by kind of process, bytes between steps.

Rows are held against the broker's timestamps, as in a deployment: an event has the time at which it is sent, and a
window is final once the broker's clock has passed its end by ``disorder`` and ``idle_after``. Everything ends by
itself: events and seconds are bounded, and nothing leaves the loopback interface.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import polars as pl

from benchmarks.measure import penstock
from penstock.mechanisms.core.noise_keys import new_key_file
from penstock.pipeline.sources.reading.kafka_client import Producer, library
from tests.integration.flink_cluster import ROOT, FlinkCluster, children, end
from tests.integration.kafka_broker import Broker
from tests.tools.play_topic import _messages, make_topics

N_PARTITIONS, N_USERS, N_PARTS = 4, 100_000, 5
SPACE = {"type": "grid", "south": 37.7, "north": 37.8, "west": -122.5, "east": -122.4, "rows": 10, "columns": 10}
START = 1_704_067_200_000
#: Milliseconds: of the source; and what a prompt release is not later than.
DISORDER, IDLE_AFTER, PROMPT = 500, 1000, 5000
#: Milliseconds of windows whose latency is measured: allowed lateness, and what the engine may take beyond every delay
#: that is configured.
LATENESS, ENGINE = 2000, 3000
#: Seconds of a whole run at most.
_SECONDS = 1800.0

Processes = Mapping[str, Sequence[int]]


@dataclass(frozen=True)
class Engine:
    """The runner under test.

    Parameters
    ----------
    words
        Of the command line of a run.
    processes
        Numbers of the processes besides the command's own, by kind.
    checkpoint
        Bytes and milliseconds of the engine's latest checkpoint; None before the first.
    """

    words: Sequence[str] = ("--runner", "local")
    processes: Callable[[], Processes] = dict
    checkpoint: Callable[[], tuple[int, int] | None] = lambda: None


@dataclass(frozen=True)
class Glance:
    """A snapshot of a run.

    Parameters
    ----------
    at
        Time of the day, in seconds.
    memory
        Resident, in MB, by kind of process.
    processor
        Seconds that each process has used until now, by its kind and number.
    rows
        That the run has counted.
    released
        Windows in the ledger.
    checkpoint
        Bytes and milliseconds of the engine's latest one; None before the first.
    load
        Processes that run or wait for a processor, averaged over a minute.
    """

    at: float
    memory: dict[str, float]
    processor: dict[tuple[str, int], float]
    rows: int
    released: int
    checkpoint: tuple[int, int] | None
    load: float


def look(engine: Engine, run: Sequence[int], folder: Path) -> Glance:
    """Take a snapshot of a run's processes and files."""
    processes = {**engine.processes(), "run": run}
    rows = released = 0
    for path in (folder / "out" / "operator" / "parts" / "row_counts").glob("*.json"):
        with contextlib.suppress(OSError, ValueError):
            rows += json.loads(path.read_text())["used"]
    with contextlib.suppress(OSError):
        released = (folder / "ledger").read_bytes().count(b"\n")
    return Glance(
        time.time(),
        {kind: sum(map(resident, pids)) for kind, pids in processes.items()},
        {(kind, pid): processor(pid) for kind, pids in processes.items() for pid in pids},
        rows,
        released,
        engine.checkpoint(),
        os.getloadavg()[0],
    )


def resident(pid: int) -> float:
    """Return a process's resident memory in MB."""
    with contextlib.suppress(OSError, StopIteration, IndexError):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024
    return 0.0


def processor(pid: int) -> float:
    """Return a process's CPU time in seconds."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


class Job:
    """A run sampled twice a second from start to finish.

    Parameters
    ----------
    engine
        Where it runs.
    value
        Its configuration.
    folder
        For that and for what it prints.
    """

    def __init__(self, engine: Engine, value: dict[str, Any], folder: Path) -> None:
        self.engine, self.folder = engine, folder
        self.glances: list[Glance] = []
        (folder / "run.yaml").write_text(json.dumps(value))

    def __enter__(self) -> Self:
        self.begun = time.time()
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        end(self._process)

    def start(self, *words: str) -> None:
        """Start the run."""
        command = penstock("run", str(self.folder / "run.yaml"), *words, *self.engine.words)
        with (self.folder / "run.log").open("ab") as log:
            self._process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, start_new_session=True)

    def watch(self, seconds: float = _SECONDS, enough: Callable[[Glance], bool] = lambda glance: False) -> None:
        """Sample the run for a number of seconds, or until a condition holds or the command ends."""
        deadline = time.time() + seconds
        while self._process.poll() is None and time.time() < deadline and not any(map(enough, self.glances[-1:])):
            pids = [self._process.pid, *children(self._process.pid)]
            self.glances.append(look(self.engine, pids, self.folder))
            time.sleep(0.5)

    def interrupt(self) -> None:
        """Interrupt the run like Ctrl-C, keeping its latest checkpoint."""
        self._process.send_signal(signal.SIGINT)
        self._wait_for(4)

    def finish(self) -> dict[str, Any]:
        """Wait for the run to end, and return the manifest."""
        self.watch()
        self._wait_for(0)
        manifest: dict[str, Any] = json.loads((self.folder / "out" / "operator" / "manifest.json").read_text())
        return manifest

    def _wait_for(self, expected: int) -> None:
        if (code := self._process.wait(60)) != expected:
            raise SystemExit(f"the run ended with {code}:\n{(self.folder / 'run.log').read_text()[-4000:]}")


def events(rng: np.random.Generator, times: np.ndarray) -> pl.DataFrame:
    """Generate one event by a random user in a random place at each time (ms)."""
    n = len(times)
    place = {"latitude": rng.uniform(37.7, 37.8, n), "longitude": rng.uniform(-122.5, -122.4, n)}
    return pl.DataFrame({"user": rng.integers(0, N_USERS, n), "time": times, **place})


def generate(brokers: str, topic: str, rate: float, first: int, until: int, n_partitions: int = N_PARTITIONS) -> int:
    """Send events in real time at a given rate from ``first`` until ``until`` (ms), and return their number.

    A burst is sent every 50 ms, and has left before the next one. Connections are opened by events from before the run.
    """
    producer, rng = Producer(brokers, {}), np.random.default_rng(1)

    def send(times: np.ndarray) -> None:
        """Send events with the given times, and wait for delivery."""
        for partition, value in _messages(events(rng, times), n_partitions, "json"):
            producer.send(topic, "", value, partition)
        producer.flush()

    send(np.full(100, first - 3_600_000))
    time.sleep(max(0.0, first / 1000 - time.time()))
    n_sent, now = 0, first / 1000
    while now < until / 1000:
        before, now = now, min(time.time(), until / 1000)
        n = int((now - first / 1000) * rate) - n_sent
        send((1000 * np.linspace(before, now, n, endpoint=False)).astype(np.int64))
        n_sent += n
        time.sleep(max(0.0, now + 0.05 - time.time()))
    return n_sent


def configuration(source: dict[str, Any], folder: Path, first: int, until: int, size: str) -> dict[str, Any]:
    """Return the configuration of a deployment, with times in milliseconds."""
    new_key_file(folder / "noise.key")
    moments = [datetime.fromtimestamp(at / 1000, UTC).isoformat().replace("+00:00", "Z") for at in (first, until)]
    return {
        "name": "load",
        "mode": "deployment",
        "noise_key": str(folder / "noise.key"),
        "source": source | {"time_format": "unix_ms", "from": moments[0], "until": moments[1]},
        "space": SPACE,
        "windows": {"type": "fixed", "size": size},
        "bounding": {"max_cells": 5},
        "mechanism": {"type": "discrete_laplace", "epsilon": 1.0},
        "accountants": [{"type": "composition"}],
        "output": {"path": str(folder / "out"), "report": False, "user_summaries": False}
        | {"ledger_source": "load", "ledger": str(folder / "ledger"), "new_ledger": True},
    }


def topic_run(brokers: str, topic: str, folder: Path, first: int, until: int) -> dict[str, Any]:
    """Return the configuration of a run that reads one topic and sends its releases to another."""
    source = {"type": "kafka", "brokers": brokers, "topic": topic, "user_type": "integer"}
    source |= {"disorder": f"{DISORDER}ms", "idle_after": f"{IDLE_AFTER}ms"}
    value = configuration(source, folder, first, until, "1s")
    value["output"]["kafka"] = {"brokers": brokers, "releases": f"{topic}-releases"}
    return value


@contextlib.contextmanager
def topic_of(brokers: str, name: str) -> Iterator[tuple[str, Path]]:
    """Create a topic with the broker's timestamps, a topic for its releases, and a folder for the run."""
    topic = f"{name}-{time.time_ns()}"
    make_topics(brokers, {topic: N_PARTITIONS}, by_broker=True)
    make_topics(brokers, {f"{topic}-releases": 1})
    with tempfile.TemporaryDirectory() as folder:
        yield topic, Path(folder)


def in_seconds(seconds: float) -> int:
    """Return the time ``seconds`` from now in milliseconds, rounded down to a whole second."""
    return 1000 * int(time.time() + seconds)


def backlog(engine: Engine, brokers: str, given: argparse.Namespace) -> dict[str, Any]:
    """Measure a run that drains a full topic."""
    with topic_of(brokers, "backlog") as (topic, folder):
        first = in_seconds(5)
        until = first + int(1000 * given.seconds)
        n_events = generate(brokers, topic, given.rate, first, until)
        with Job(engine, topic_run(brokers, topic, folder, first, until), folder) as job:
            manifest = job.finish()
    seconds = manifest["seconds"]["pipeline"]
    return {"what": "backlog", **counted(manifest, n_events)} | {
        "seconds": seconds,
        "events per second": round(n_events / seconds),
        **events_per_second(job.glances),
        "whole run (s)": round(job.glances[-1].at - job.begun, 1),
        **most(job.glances),
        "processor (s)": processor_seconds(job.glances),
    }


def live(engine: Engine, brokers: str, given: argparse.Namespace) -> dict[str, Any]:
    """Measure delays, recovery and memory of a live run across an interruption."""
    with topic_of(brokers, "live") as (topic, folder), sender() as pool:
        pool.submit(time.time).result()  # its imports are done
        first = in_seconds(5)
        until = first + int(1000 * (given.pause + 2 * (given.seconds + given.start)))
        sent = pool.submit(generate, brokers, topic, given.rate, first, until)
        with Job(engine, topic_run(brokers, topic, folder, first, until), folder) as job:
            job.watch(enough=lambda glance: glance.released > max(0, glance.at - (first + PROMPT) / 1000))
            settled = time.time()
            job.watch(given.seconds)
            interrupted = time.time()
            job.interrupt()
            time.sleep(given.pause)
            resumed = time.time()
            job.start("--resume")
            manifest = job.finish()
        ends, arrived = arrivals(brokers, topic).T / 1000
    delays = arrived - ends - (DISORDER + IDLE_AFTER) / 1000
    return {"what": f"live, {given.rate:,.0f}/s", **counted(manifest, sent.result())} | {
        **steady(delays[(arrived > settled) & (arrived < interrupted)]),
        "processors meanwhile": cores([glance for glance in job.glances if settled < glance.at < interrupted]),
        **recovery(arrived - resumed, delays),
        **most(job.glances),
        **by_fifths(job.glances),
        "processor (s)": processor_seconds(job.glances),
    }


def latency(engine: Engine, brokers: str, given: argparse.Namespace, rate: float) -> dict[str, Any]:
    """Measure the delay from each window's end to its last released row, with an empty last partition."""
    with topic_of(brokers, "latency") as (topic, folder), sender() as pool:
        pool.submit(time.time).result()  # its imports are done
        first = -(-in_seconds(given.start) // 10_000) * 10_000
        until = first + int(1000 * given.seconds) // 10_000 * 10_000
        sent = pool.submit(generate, brokers, topic, rate, first, until, N_PARTITIONS - 1)
        value = topic_run(brokers, topic, folder, first, until)
        value["windows"] = {"type": "fixed", "size": "10s", "allowed_lateness": f"{LATENESS}ms"}
        with Job(engine, value, folder) as job:
            manifest = job.finish()
        ends, arrived = arrivals(brokers, topic).T / 1000
        line = {"what": f"latency, {rate:,.0f}/s", **counted(manifest, sent.result())}
    delays, most_ms = 1000 * (arrived - ends), DISORDER + IDLE_AFTER + LATENESS + ENGINE
    meanwhile = [glance for glance in job.glances if first <= 1000 * glance.at <= until]
    return line | {
        "windows": len(delays),
        **percentiles(delays),
        "latest (ms)": round(float(delays.max())),
        f"later than {most_ms} ms": int((delays > most_ms).sum()),
        "load": [round(extreme(glance.load for glance in meanwhile), 1) for extreme in (min, max)],
        "processors meanwhile": cores(meanwhile),
        **by_fifths(job.glances),
    }


def finite(engine: Engine, n_events: int) -> dict[str, Any]:
    """Measure a bounded run over Parquet files."""
    with tempfile.TemporaryDirectory() as name:
        folder, until, rng = Path(name), START + 3_600_000, np.random.default_rng(1)
        (folder / "events").mkdir()
        for number, at in enumerate(np.array_split(np.arange(n_events), 16)):
            frame = events(rng, START + at * (until - START) // n_events)
            frame.write_parquet(folder / "events" / f"{number:03d}.parquet")
        columns = {name: name for name in ("user", "time", "latitude", "longitude")}
        source = {"type": "parquet", "path": str(folder / "events"), "columns": columns}
        with Job(engine, configuration(source, folder, START, until, "10s"), folder) as job:
            manifest = job.finish()
    return {"what": "finite", **counted(manifest, n_events)} | {
        "whole run (s)": round(job.glances[-1].at - job.begun, 1),
        "load": round(os.getloadavg()[0], 1),
        "processor (s)": processor_seconds(job.glances),
        **most(job.glances),
    }


def counted(manifest: dict[str, Any], n_events: int) -> dict[str, int]:
    """Return the numbers of counted and late events; raise `AssertionError` unless they add up to all events."""
    used, late = manifest["rows"]["used"], manifest["rows"]["late"]
    if used + late != n_events:
        raise AssertionError(f"{n_events} events were sent, {used} counted, {late} late")
    return {"events": used, "late": late}


def sender() -> ProcessPoolExecutor:
    """Return a single-process pool for sending events."""
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))


def arrivals(brokers: str, topic: str) -> np.ndarray:
    """Return each released window's end and the time of its last row in the release topic, shape (n_windows, 2)."""
    kafka = library()
    client = kafka.Consumer({"bootstrap.servers": brokers, "group.id": "load", "enable.partition.eof": True})
    client.assign([kafka.TopicPartition(f"{topic}-releases", 0, 0)])
    arrived: dict[str, dict[str, int]] = {}
    while (message := client.poll(10)) is not None and message.error() is None:
        # What a run that goes on sends again has the same key: the first is the one that counts.
        row = json.loads(message.value())
        arrived.setdefault(row["window_end"], {}).setdefault(row["cell"], message.timestamp()[1])
    client.close()
    windows = [
        (int(datetime.fromisoformat(end).timestamp() * 1000), max(cells.values())) for end, cells in arrived.items()
    ]
    return np.asarray(sorted(windows), np.int64).reshape(-1, 2)


def events_per_second(glances: Sequence[Glance]) -> dict[str, int]:
    """Return events per second between the first and last tenth of the count, and overall up to the last release.

    None of a run that tells its row counts at the end.
    """
    if not any(glance.rows for glance in glances):
        return {}
    rows = np.maximum.accumulate([glance.rows for glance in glances])  # a run that has ended removes its parts
    at = np.asarray([glance.at for glance in glances])
    first, tenth, last = (int(np.argmax(rows >= part * rows[-1])) for part in (1e-9, 0.1, 0.9))
    done = next(i for i, glance in enumerate(glances) if glance.released == glances[-1].released)
    by_count = (rows[last] - rows[tenth]) / max(at[last] - at[tenth], 0.5)
    by_release = (rows[-1] - rows[first]) / max(at[done] - at[first], 0.5)
    return {"events per second, counted": round(by_count), "and released": round(by_release)}


def percentiles(delays: np.ndarray) -> dict[str, int]:
    """Return the median and the 99th percentile of the delays, in milliseconds."""
    return {f"p{part} (ms)": round(float(np.percentile(delays, part))) for part in (50, 99)}


def steady(delays: np.ndarray) -> dict[str, Any]:
    """Summarise delays (in seconds) between the end of the backlog and the interruption of the run."""
    if not len(delays):
        return {"windows": 0}  # it never caught up: --start was too short for this machine
    thirds = [round(float(np.median(third)), 2) for third in np.array_split(delays, 3)]
    return {"windows": len(delays), **percentiles(1000 * delays), "p50 by thirds (s)": thirds}


def recovery(after: np.ndarray, delays: np.ndarray) -> dict[str, Any]:
    """Return the seconds from ``--resume`` to the first release, and to prompt releases."""
    caught_up = float(after[(after > 0) & (delays < PROMPT / 1000)].min(initial=np.inf))
    return {
        "released again after (s)": round(float(after[after > 0].min()), 1),
        "caught up after (s)": round(caught_up, 1) if caught_up < np.inf else None,
        "p50 after that (s)": round(float(np.median(delays[after >= caught_up])), 2) if caught_up < np.inf else None,
    }


def processor_seconds(glances: Sequence[Glance]) -> dict[str, float]:
    """Return CPU seconds by kind of process, including finished processes."""
    first, used = dict(glances[0].processor), dict[tuple[str, int], float]()
    for glance in glances:
        used |= {process: max(seconds, used.get(process, 0.0)) for process, seconds in glance.processor.items()}
    by_kind: dict[str, float] = {}
    for (kind, pid), seconds in used.items():
        by_kind[kind] = by_kind.get(kind, 0.0) + seconds - first.get((kind, pid), 0.0)
    return {kind: round(seconds, 1) for kind, seconds in by_kind.items()}


def cores(glances: Sequence[Glance]) -> dict[str, float]:
    """Return the number of busy processors by kind of process."""
    if len(glances) < 2:
        return {}
    seconds = glances[-1].at - glances[0].at
    return {kind: round(used / seconds, 3) for kind, used in processor_seconds(glances).items()}


def most(glances: Sequence[Glance]) -> dict[str, Any]:
    """Return peak memory by kind of process, and the maximum size and duration of checkpoints."""
    kinds = glances[-1].memory
    memory = {kind: round(max(glance.memory.get(kind, 0.0) for glance in glances)) for kind in kinds}
    checkpoints = [glance.checkpoint for glance in glances if glance.checkpoint]
    if not checkpoints:
        return {"most memory (MB)": memory}
    size, duration = np.max(checkpoints, axis=0).tolist()
    return {
        "most memory (MB)": memory,
        "largest checkpoint (kB)": size // 1000,
        "longest checkpoint (ms)": duration,
    }


def by_fifths(glances: Sequence[Glance]) -> dict[str, Any]:
    """Return memory and checkpoint size after each fifth of the released windows."""
    whole = glances[-1].released
    ends = [next(g for g in glances if g.released >= part * whole / N_PARTS) for part in range(1, N_PARTS + 1)]
    return {
        "memory by fifths (MB)": {
            kind: [round(glance.memory.get(kind, 0.0)) for glance in ends] for kind in glances[-1].memory
        },
        "checkpoints by fifths (kB)": [glance.checkpoint[0] // 1000 if glance.checkpoint else None for glance in ends],
    }


def latest_checkpoint(cluster: FlinkCluster) -> tuple[int, int] | None:
    """Return the size in bytes and duration in milliseconds of the running job's latest checkpoint."""
    with contextlib.suppress(OSError, LookupError):
        latest = cluster.rest(f"/jobs/{cluster.jobs()[0]}/checkpoints")["latest"]["completed"]
        return latest and (int(latest["state_size"]), int(latest["end_to_end_duration"]))
    return None


def on_flink(cluster: FlinkCluster, options: Sequence[str], n_shards: int = 1) -> Engine:
    """Return a cluster as an engine, with ``options`` for Beam and its Flink runner."""
    words = ("--runner", "flink", "--shards", str(n_shards), "--", *options, *cluster.options)
    return Engine(words, cluster.processes, partial(latest_checkpoint, cluster))


def bounded_jobs(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield figures of runs over files."""
    if given.runner == "local":
        yield finite(Engine(), given.events)
        return
    # A pool of workers serves one task manager: those of a bounded job come and go.
    with tempfile.TemporaryDirectory() as folder, FlinkCluster(Path(folder) / "flink", 1, 4) as cluster:
        for parallelism in (1, 2, 4):
            options = [f"--parallelism={parallelism}", f"--sdk_worker_parallelism={parallelism}"]
            before = {job["id"] for job in cluster.rest("/jobs")["jobs"]}
            figures = finite(on_flink(cluster, options, parallelism), given.events)
            (job,) = {job["id"] for job in cluster.rest("/jobs")["jobs"]} - before
            yield {**figures, "parallelism": parallelism, "bytes between steps": travelled(cluster, job)}


def travelled(cluster: FlinkCluster, job: str) -> dict[str, int]:
    """Return the number of bytes sent by each vertex of a job."""
    vertices = cluster.rest(f"/jobs/{job}")["vertices"]
    return {vertex["name"][:40]: int(vertex["metrics"]["write-bytes"]) for vertex in vertices}


def topic_runs(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield figures of two runs over topics, one with a backlog and one live."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        brokers = given.brokers or stack.enter_context(Broker(folder / "broker")).address
        engine = Engine()
        if given.runner == "flink":
            cluster = stack.enter_context(FlinkCluster(folder / "flink", given.task_managers))
            engine = on_flink(cluster, [f"--checkpointing_interval={given.checkpoints}", *given.options])
        if given.only == "latency":
            for parallelism, rate in itertools.product((1, 2), (1.0, given.rate)):
                spread = replace(engine, words=(*engine.words, f"--parallelism={parallelism}"))
                yield {**latency(spread, brokers, given, rate), "parallelism": parallelism}
        for name, measure in (("backlog", backlog), ("live", live)):
            if given.only in (None, name):
                yield measure(engine, brokers, given)


def main() -> int:
    """Run the selected measurements, print their figures and write them to a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runner", choices=("local", "flink"), default="local")
    parser.add_argument("--brokers", help="host:port; a broker is started where it is left out")
    parser.add_argument("--only", choices=("backlog", "live", "latency", "finite"))
    parser.add_argument("--rate", type=float, default=10_000, help="events a second")
    parser.add_argument("--seconds", type=float, default=60, help="how long they come, before and after the pause")
    parser.add_argument("--start", type=float, default=60, help="seconds that the start of a run may take")
    parser.add_argument("--pause", type=float, default=20, help="seconds without the run in the middle of a live one")
    parser.add_argument("--events", type=int, default=4_000_000, help="of a finite run")
    parser.add_argument("--task-managers", type=int, default=2, help="with two slots and one Python worker each")
    parser.add_argument("--checkpoints", type=int, default=5000, help="milliseconds between two on Flink")
    parser.add_argument("--out", type=Path, help="write the figures there, as JSON")
    parser.add_argument("options", nargs="*", help="after --: further options of Beam and its Flink runner")
    given = parser.parse_args()
    figures = []
    kinds = {"finite": [bounded_jobs], None: [bounded_jobs, topic_runs]}.get(given.only, [topic_runs])
    for line in (line for kind in kinds for line in kind(given)):
        figures.append({"runner": given.runner, **line})
        print(json.dumps(figures[-1]), flush=True)
    if given.out:
        given.out.write_text(json.dumps(figures, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
