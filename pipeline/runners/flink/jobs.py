"""Flink's job server, REST API and job metrics."""

from __future__ import annotations

import http.client
import json
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit
from urllib.request import url2pathname

from penstock.mechanisms.core.plugin import ConfigError, StateVersionError
from penstock.pipeline import atomic
from penstock.pipeline.config.plan import Plan
from penstock.pipeline.monitoring import logs, metrics
from penstock.pipeline.monitoring.metrics import MEASURES
from penstock.pipeline.monitoring.server import LOOPBACK
from penstock.pipeline.output.files import parts_folder, windows_of
from penstock.pipeline.runners.beam.graph import GRAPH
from penstock.pipeline.runners.beam.jobs import served
from penstock.pipeline.runners.flink import jars

#: What Flink needs to be allowed on Java 17.
_OPEN = (
    *("lang", "lang.invoke", "lang.reflect", "io", "net", "nio", "text", "time"),
    *("util", "util.concurrent", "util.concurrent.atomic", "util.concurrent.locks"),
)
JAVA_OPTIONS = (
    *(f"--add-opens=java.base/java.{package}=ALL-UNNAMED" for package in _OPEN),
    "--add-exports=java.base/sun.net.util=ALL-UNNAMED",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSSXXX",
)
#: How a job is tried again: ever more slowly, for about six minutes, after which it is lost; three minutes without a
#: failure make it young again, so that what is killed now and then recovers for ever.
RESTARTS = """restart-strategy.type: exponential-delay
restart-strategy.exponential-delay.initial-backoff: 1 s
restart-strategy.exponential-delay.backoff-multiplier: 2.0
restart-strategy.exponential-delay.max-backoff: 30 s
restart-strategy.exponential-delay.attempts-before-reset-backoff: 15
restart-strategy.exponential-delay.reset-backoff-threshold: 3 min
"""
#: Binds what can be bound of an embedded Flink: its REST service takes jobs from whoever reaches it.
LOCAL_ONLY = "".join(
    f"{name}: {LOOPBACK}\n"
    for name in ("rest.address", "rest.bind-address", "jobmanager.bind-host", "taskmanager.bind-host")
)


@contextmanager
def job_server(
    master: str, folder: Path, words: Sequence[str], checkpoint: str | None = None, rest_port: int | None = None
) -> Iterator[str]:
    """Run a job server for the duration of the block, and yield its endpoint.

    ``master``: ``[local]`` for a Flink inside the job server; otherwise host and port of a cluster. ``words``: what
    Java starts (`jars.server`). ``checkpoint``: URI of the one that an embedded Flink goes on from, since Beam's option
    is for clusters alone. ``rest_port``: where its REST service listens.
    """
    command = [jars.java(), *JAVA_OPTIONS, "-Xmx1g", *words, "--flink-master", master, "--job-host", "localhost"]
    command += ["--artifact-port", "0", "--expansion-port", "0"]  # 0: a free one
    command += ["--artifacts-dir", str(folder / "artifacts"), "--clean-artifacts-per-job"]
    configure(folder, checkpoint, rest_port)
    environment = {"FLINK_CONF_DIR": str(folder)} | os.environ  # a configuration of one's own replaces all of it
    with served("Flink", lambda port: [*command, "--job-port", str(port)], folder, environment) as endpoint:
        yield endpoint


def configure(folder: Path, checkpoint: str | None, rest_port: int | None) -> None:
    """Write the configuration file that a job server reads before each job."""
    restored = f"execution.savepoint.path: {checkpoint}\n" if checkpoint else ""
    listening = f"rest.bind-port: {rest_port}\n" if rest_port else ""
    atomic.make_folder(folder, private=True)
    atomic.write_text(folder / "config.yaml", RESTARTS + LOCAL_ONLY + listening + restored, private=True)


_JOB = re.compile("[0-9a-f]{32}")
_OVER = ("CANCELED", "FINISHED", "FAILED")
#: Seconds that jobs have to end in, between two looks, and for an answer.
_PATIENCE, _PAUSE, _ANSWER = 60.0, 0.2, 10.0


def checkpoints_folder(plan: Plan) -> Path:
    """Return the engine's checkpoint folder, which is removed when the run ends."""
    return plan.folder / "operator" / "checkpoint" / "flink"


def latest_checkpoint(plan: Plan) -> Path | None:
    """Return the folder of the run's latest complete checkpoint or savepoint, or None if there is none."""
    folder = checkpoints_folder(plan)
    candidates = [*folder.glob("*/chk-*/_metadata"), *folder.glob("savepoint-*/_metadata")]
    latest = max(candidates, key=lambda path: path.stat().st_mtime_ns, default=None)
    return None if latest is None else latest.parent


#: Mark of a runner behind an endpoint, or in a jar that does not name its version.
UNKNOWN = "of unknown version"
#: Beside the checkpoints of a run: the steps of its jobs (`GRAPH`), and the version of their runner.
_MARK = "job.json"


def _marked(plan: Plan) -> dict[str, Any]:
    mark = checkpoints_folder(plan) / _MARK
    return dict(json.loads(mark.read_bytes())) if mark.exists() else {"graph": 1}


def initial_version(plan: Plan) -> str | None:
    """Return the runner version with which a resumed run began, or None if it was not recorded."""
    return _marked(plan).get("runner") if plan.resumed else None


def check_graph(plan: Plan) -> None:
    """Raise `StateVersionError` if the run has a job with a different `GRAPH`, whose checkpoints are incompatible."""
    marked = _marked(plan)["graph"]
    # A file that was being written has a name with a dot.
    if marked != GRAPH and any(checkpoints_folder(plan).glob("[!.]*")):
        raise StateVersionError(
            f"--resume: the job of {plan.folder} has the steps of another version of penstock (graph {marked}; "
            f"this version has {GRAPH}); finish it with the version that began it, or start again in another folder"
        )


def mark_job(plan: Plan, runner: str = "") -> None:
    """Record a run's graph and Flink runner version ("": a service). Raise `StateVersionError` if the runner changed.

    Runners from 2.76 on drop the readers in checkpoints of those before.
    """
    before = initial_version(plan)
    if before is not None and before != runner:
        old, new = (f"Beam's Flink runner {one}" if one else "a service such as Dataflow" for one in (before, runner))
        raise StateVersionError(
            f"--resume: the job of {plan.folder} was begun on {old}, and {new} may lose what it had read; go on with "
            "the first, or begin another run on the same ledger, in another folder, from the first window not released"
        )
    atomic.write_json(checkpoints_folder(plan) / _MARK, {"graph": GRAPH, "runner": runner})


def check_savepoint(plan: Plan, path: str) -> None:
    """Raise `ConfigError` if a savepoint is incomplete or cannot come from one of the run's jobs.

    Flink would restart a job that has other steps again and again, and one of another run has released other windows.
    """
    if not plan.resumed:
        text = "goes with --resume, in the folder of the run that made it: its releases are there"
        raise ConfigError((f"--savepoint_path: {text}",))
    folder = Path(url2pathname(urlsplit(path).path)).absolute()
    if folder.is_dir() and not (folder / "_metadata").exists():
        raise ConfigError((f"--savepoint_path: {folder} has no _metadata: it is not whole",))
    for parent in folder.parents[:2]:
        if (parent / _MARK).exists() and parent.resolve() != checkpoints_folder(plan).resolve():
            raise ConfigError((f"--savepoint_path: {folder} was made by the run in {parent.parents[2]}, not by this",))


def cancel_jobs(plan: Plan, master: str, *, seconds: float = _PATIENCE) -> bool:
    """Cancel the jobs of a run (found by its folder) on a cluster and wait for them to end. Checkpoints are kept.

    Returns whether none is left as far as the cluster can tell; otherwise a line of the log says so.
    """
    service = service_of(master)
    if service is None:
        return True
    deadline = time.monotonic() + seconds
    try:
        left = [job for job in own_jobs(plan) if _state(service, job) not in _OVER]
        for job in left:
            ask(f"{service}/jobs/{job}?mode=cancel", "PATCH")
        while left and time.monotonic() < deadline:
            time.sleep(_PAUSE)
            left = [job for job in left if _state(service, job) not in _OVER]
    except OSError as error:
        logs.problem("the cluster did not answer when its jobs were to be cancelled", error=type(error).__name__)
        return False
    if left:
        logs.problem("jobs of this run go on in the cluster: cancel them there", jobs=left)
    return not left


def own_jobs(plan: Plan) -> list[str]:
    """Return a run's past and present jobs, taken from the names of Flink's checkpoint folders."""
    return [path.name for path in checkpoints_folder(plan).glob("*") if _JOB.fullmatch(path.name)]


def service_of(master: str) -> str | None:
    """Return the address of a job manager's REST service. An embedded Flink has none, so None is returned.

    >>> service_of("localhost:8081"), service_of("https://flink"), service_of("[local]")
    ('http://localhost:8081', 'https://flink', None)
    """
    if master.startswith("["):
        return None
    return master if "://" in master else f"http://{master}"


def ask(address: str, method: str = "GET", seconds: float = _ANSWER, body: Mapping[str, Any] | None = None) -> Any:
    """Return the REST service's response, empty for an unknown or ended job. Raise `OSError` on failure."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address, data, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=seconds) as answer:
            return json.loads(answer.read() or b"{}")
    except urllib.error.HTTPError as error:
        if error.code in (404, 409):
            return {}
        raise
    except http.client.HTTPException as error:
        raise OSError(f"{type(error).__name__}: the service broke off") from None


def _state(service: str, job: str) -> str:
    """Return a job's state, treating an unknown job as cancelled."""
    return str(ask(f"{service}/jobs/{job}").get("state", "CANCELED"))


#: Seconds between two looks: Flink asks its task managers no more often.
_INTERVAL = 10.0
#: Seconds that an answer may take, while the driver waits.
_METRICS_ANSWER = 2.0
#: What a step is called, and then the measure.
_PREFIX = ".penstock_"


class FlinkMeasures:
    """A job's metrics, copied periodically into this process's. Counters and gauges need a Flink that is not embedded.

    Beam's job service tells none before a job has ended, and that of a run is cancelled.
    """

    def __init__(self, plan: Plan, master: str) -> None:
        self._plan, self._service, self._next = plan, service_of(master), 0.0
        self._written = max((part.stem for part in self._releases()), default="")

    def _releases(self) -> Iterator[Path]:
        return parts_folder(self._plan, "releases").glob("*.parquet")

    def delays(self) -> None:
        """Record the delays of releases written since the last call, from their files: Flink only reports sums."""
        if not self._plan.streaming:
            return
        with suppress(OSError):  # metrics end no run
            for part in sorted(part for part in self._releases() if part.stem > self._written):
                deadline = self._plan.grid.deadline(windows_of(part.stem).stop - 1) / 1000
                metrics.record(metrics.RELEASE_DELAY, max(0.0, part.stat().st_mtime - deadline))
                self._written = part.stem

    def look(self) -> None:
        """Poll Flink's counters and look at new releases, at most once per interval."""
        if time.monotonic() < self._next:
            return
        self.delays()
        self._next = time.monotonic() + _INTERVAL
        if self._service is None:
            return
        with suppress(OSError, LookupError, TypeError, ValueError):
            totals: dict[str, float] = {}
            for job in own_jobs(self._plan):
                answer = ask(f"{self._service}/jobs/{job}", seconds=_METRICS_ANSWER)
                for vertex in answer.get("vertices", ()) if answer.get("state") == "RUNNING" else ():
                    address = f"{self._service}/jobs/{job}/vertices/{vertex['id']}/subtasks/metrics"
                    known = [metric["id"] for metric in ask(address, seconds=_METRICS_ANSWER)]
                    known = [identifier for identifier in known if _name(identifier) in _MEASURES]
                    reported = f"{address}?get={quote(','.join(known))}"
                    for metric in ask(reported, seconds=_METRICS_ANSWER) if known else ():
                        name, kind = _name(metric["id"]), _MEASURES[_name(metric["id"])][0].kind
                        total, maximum, before = float(metric["sum"]), float(metric["max"]), totals.get(name, 0.0)
                        totals[name] = before + total if kind == "counter" else max(before, maximum)
            for name, amount in totals.items():
                measure, value = _MEASURES[name]
                metrics.take_over(measure, amount / measure.per_unit, value)


def _name(identifier: str) -> str:
    """Return a Flink metric's name in Beam, or an empty string if the metric is internal to Flink.

    >>> _name("[3]{Replay__CountBlocks}.penstock_rows_used"), _name("numRecordsIn")
    ('rows_used', '')
    """
    return identifier.partition(_PREFIX)[2]


#: Measures, and values of their labels, by their names in Beam.
_MEASURES = {
    measure.beam_name(value): (measure, value)
    for measure in MEASURES
    if measure.beam is not None and measure.kind != "histogram"
    for value in measure.values or ("",)
}
