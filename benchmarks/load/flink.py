"""Load on a job of Flink that reads from Kafka: events a second, delay of releases, memory, checkpoints, recovery.

``PYTHONPATH=tests/integration python -m benchmarks.load.flink`` starts a broker and a cluster of its own (a job
manager, task managers, a pool of Python workers; see ``tests/integration``) on this machine, submits ``penstock run
--runner flink`` with checkpoints, and prints a line of figures for each of

* *backlog*: events that wait in the topic are read and released as fast as it goes;
* *live*: events come at a stated rate with the time of the day; the delay is that from the instant at which a window is
  final (its end and disorder) to the time at which its releases reach their topic. In the middle the job is cancelled,
  waits, and goes on with ``--resume`` while events come as before: how soon is everything caught up with?
* *windows*: thousands of windows; the memory of every process, and checkpoints, by fifths of the windows.
* *finite*: files that are counted by a bounded job at parallelism 1, 2 and 4: how long it takes, the seconds of the
  processor by kind of process, and the bytes that travel between steps.

Everything ends by itself: events and seconds are bounded, and nothing leaves the loopback interface.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import numpy as np
from flink_cluster import ROOT, FlinkCluster, children, end

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
    save,
    topic_of,
)
from benchmarks.load.flink_samples import Sample, by_fifths, cores, events_per_second, most, processor_seconds, take

#: Milliseconds: how far the watermark stays behind, and what a prompt release is not later than.
DISORDER, PROMPT = 500, 5000
#: Seconds of a whole run at most.
_SECONDS = 1800.0


class Job:
    """A run on the cluster, looked at twice a second from its beginning to its end.

    Parameters
    ----------
    cluster
        Where it runs.
    value
        Its configuration.
    folder
        For that and for what it prints.
    options
        Of Beam and its Flink runner.
    n_shards
        That users are dealt out to.
    """

    def __init__(
        self, cluster: FlinkCluster, value: dict[str, Any], folder: Path, options: list[str], n_shards: int = 1
    ) -> None:
        self.cluster, self.folder, self.options = cluster, folder, ["--shards", str(n_shards), "--", *options]
        self.samples: list[Sample] = []
        (folder / "run.yaml").write_text(json.dumps(value))

    def __enter__(self) -> Self:
        self.begun = time.time()
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        end(self._driver)

    def start(self, *words: str) -> None:
        """Submit the job."""
        command = [
            sys.executable,
            "-m",
            "penstock.pipeline.cli.main",
            "run",
            str(self.folder / "run.yaml"),
            "--runner",
            "flink",
        ]
        options = [*self.options, *self.cluster.options]
        with (self.folder / "driver.log").open("ab") as log:
            self._driver = subprocess.Popen(
                [*command, *words, *options], cwd=ROOT, stdout=log, stderr=log, start_new_session=True
            )

    def watch(self, seconds: float = _SECONDS, enough: Callable[[Sample], bool] = lambda sample: False) -> None:
        """Take samples for so many seconds, until one is enough, or to the end of the driver."""
        deadline = time.time() + seconds
        while self._driver.poll() is None and time.time() < deadline and not any(map(enough, self.samples[-1:])):
            driver = [self._driver.pid, *children(self._driver.pid)]
            self.samples.append(take(self.cluster, driver, self.folder / "out"))
            time.sleep(0.5)

    def drain(self) -> None:
        """Cancel the job as Ctrl-C does; its latest checkpoint stays."""
        self._driver.send_signal(signal.SIGINT)
        self._ended_with(4)

    def finish(self) -> dict[str, Any]:
        """Watch it to its end; gives the manifest."""
        self.watch()
        self._ended_with(0)
        found: dict[str, Any] = json.loads((self.folder / "out" / "operator" / "manifest.json").read_text())
        return found

    def _ended_with(self, code: int) -> None:
        if (found := self._driver.wait(60)) != code:
            raise SystemExit(f"the run ended with {found}:\n{(self.folder / 'driver.log').read_text()[-4000:]}")


def backlog(
    cluster: FlinkCluster, brokers: str, format: str, n_events: int, mode: str, options: list[str]
) -> dict[str, Any]:
    """A topic full of events, read to its end."""
    until = START + 3_600_000
    with topic_of(brokers, f"backlog-{format}-{time.time_ns()}") as (topic, folder):
        preload(brokers, topic, format, n_events, until)
        value = configuration(brokers, topic, format, folder, START, until, "10s", mode)
        with Job(cluster, value, folder, options) as job:
            manifest = job.finish()
        assert manifest["rows"]["used"] == n_events
        return {"what": "backlog", "format": format, "events": n_events} | {
            **events_per_second(job.samples),
            "whole run (s)": round(job.samples[-1].at - job.begun, 1),
            **most(job.samples),
            "processor (s)": processor_seconds(job.samples),
        }


def live(
    cluster: FlinkCluster, brokers: str, format: str, rate: float, given: argparse.Namespace, options: list[str]
) -> dict[str, Any]:
    """Events at a rate while the job runs, is cancelled and goes on: delays, recovery, memory."""
    whole = given.pause + 2 * (min(given.seconds, 600.0) + given.start)
    with topic_of(brokers, f"live-{format}-{time.time_ns()}") as (topic, folder):
        first = (int(time.time()) + 2) * 1000
        until = first + int(whole) * 1000
        value = configuration(brokers, topic, format, folder, first, until, "1s", given.mode, disorder=f"{DISORDER}ms")
        with (
            generating(brokers, topic, format, rate, whole + 5, first, until) as sent,
            Job(cluster, value, folder, options) as job,
        ):
            job.watch(enough=lambda sample: sample.released > max(0, sample.at - (first + PROMPT) / 1000))
            settled = time.time()
            job.watch(given.seconds)
            drained = time.time()
            job.drain()
            time.sleep(given.pause)
            resumed = time.time()
            job.start("--resume")
            manifest = job.finish()
            assert manifest["rows"]["used"] == sent.result()
        ends, arrived = arrivals(brokers, topic).T / 1000
        delays = arrived - ends - DISORDER / 1000
        return {"what": f"live, {rate:,.0f}/s", "format": format, "events": manifest["rows"]["used"]} | {
            "late": manifest["rows"]["late"],
            **steady(delays[(arrived > settled) & (arrived < drained)]),
            "processors meanwhile": cores([sample for sample in job.samples if settled < sample.at < drained]),
            **recovery(arrived - resumed, delays),
            **most(job.samples),
            "processor (s)": processor_seconds(job.samples),
        }


def steady(delays: np.ndarray) -> dict[str, Any]:
    """Delays (seconds) from when what came before the job ran had been caught up with, until it was cancelled."""
    if not len(delays):
        return {"windows": 0}  # it never caught up: --start was too short for this machine
    thirds = [round(float(np.median(third)), 2) for third in np.array_split(delays, 3)]
    return {"windows": len(delays), **percentiles(1000 * delays), "p50 by thirds (s)": thirds}


def recovery(after: np.ndarray, delays: np.ndarray) -> dict[str, Any]:
    """How soon after ``--resume`` releases went on, and how soon they were prompt again (seconds)."""
    caught_up = float(after[(after > 0) & (delays < PROMPT / 1000)].min(initial=np.inf))
    return {
        "released again after (s)": round(float(after[after > 0].min()), 1),
        "caught up after (s)": round(caught_up, 1) if caught_up < np.inf else None,
        "p50 after that (s)": round(float(np.median(delays[after >= caught_up])), 2) if caught_up < np.inf else None,
    }


def windows(cluster: FlinkCluster, brokers: str, n_windows: int, mode: str, options: list[str]) -> dict[str, Any]:
    """Many small windows: whether memory and state grow with their number."""
    per_window, until = 200, START + 1000 * n_windows
    with topic_of(brokers, f"windows-{time.time_ns()}") as (topic, folder):
        preload(brokers, topic, "arrow", n_windows * per_window, until, rows=20 * per_window)
        value = configuration(brokers, topic, "arrow", folder, START, until, "1s", mode)
        with Job(cluster, value, folder, options) as job:
            manifest = job.finish()
        assert manifest["rows"]["used"] == n_windows * per_window
        return {"what": f"{n_windows:,} windows", "format": "arrow", "events": manifest["rows"]["used"]} | {
            "whole run (s)": round(job.samples[-1].at - job.begun, 1),
            **by_fifths(job.samples),
            "processor (s)": processor_seconds(job.samples),
        }


def finite(cluster: FlinkCluster, n_events: int, parallelism: int, mode: str) -> dict[str, Any]:
    """Parquet files read by a bounded job at one parallelism."""
    until = START + 3_600_000
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "events").mkdir()
        save(folder / "events", n_events, 16, until)
        value = configuration("", "", "arrow", folder, START, until, "10s", mode)
        times = {name: value["source"][name] for name in ("from", "until")}
        columns = {name: name for name in ("user", "time", "latitude", "longitude")}
        value["source"] = {"type": "parquet", "path": str(folder / "events"), "time_format": "unix_ms"}
        value["source"] |= {"columns": columns, **times}
        del value["output"]["kafka"]
        value["output"]["user_summaries"] = False  # they would be most of what travels, and an endless run has none
        options = [f"--parallelism={parallelism}", f"--sdk_worker_parallelism={parallelism}"]
        before = {job["id"] for job in cluster.rest("/jobs")["jobs"]}
        with Job(cluster, value, folder, options, parallelism) as job:
            manifest = job.finish()
        assert manifest["rows"]["used"] == n_events
        (own,) = {job["id"] for job in cluster.rest("/jobs")["jobs"]} - before
        return {"what": "finite", "parallelism": parallelism, "shards": parallelism, "events": n_events} | {
            "job (s)": round(cluster.rest(f"/jobs/{own}")["duration"] / 1000, 1),
            "whole run (s)": round(job.samples[-1].at - job.begun, 1),
            "load": round(os.getloadavg()[0], 1),
            "processor (s)": processor_seconds(job.samples),
            "bytes between steps": travelled(cluster, own),
            **most(job.samples),
        }


def travelled(cluster: FlinkCluster, job: str) -> dict[str, int]:
    """Bytes that each vertex of a job has sent to others."""
    vertices = cluster.rest(f"/jobs/{job}")["vertices"]
    return {vertex["name"][:40]: int(vertex["metrics"]["write-bytes"]) for vertex in vertices}


def main() -> int:
    """Measure what is asked for and write the figures."""
    parser = command(__doc__, ("backlog", "live", "windows", "finite"), 4_000_000)
    parser.add_argument("--task-managers", type=int, default=2, help="with two slots and one Python worker each")
    parser.add_argument("--start", type=float, default=60, help="seconds that the start of a job may take")
    parser.add_argument("--pause", type=float, default=20, help="seconds without the job in the middle of a live run")
    parser.add_argument("--checkpoints", type=int, default=5000, help="milliseconds between two")
    parser.add_argument("options", nargs="*", help="after --: further options of Beam and its Flink runner")
    given = parser.parse_args()
    options = [f"--checkpointing_interval={given.checkpoints}", *given.options]
    figures = Figures(given)
    if given.only in (None, "finite"):
        # A pool of workers serves one task manager: those of a bounded job come and go.
        with tempfile.TemporaryDirectory() as folder, FlinkCluster(Path(folder) / "flink", 1, 4) as cluster:
            for parallelism in (1, 2, 4):
                figures.take("finite", finite, cluster, given.events, parallelism, given.mode)
    if given.only != "finite":
        with (
            tempfile.TemporaryDirectory() as folder,
            broker(given) as brokers,
            FlinkCluster(Path(folder) / "flink", given.task_managers) as cluster,
        ):
            for format, n_events, rate in formats(given):
                figures.take("backlog", backlog, cluster, brokers, format, n_events, given.mode, options)
                figures.take("live", live, cluster, brokers, format, rate, given, options)
            figures.take("windows", windows, cluster, brokers, given.windows, given.mode, options)
    figures.write()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
