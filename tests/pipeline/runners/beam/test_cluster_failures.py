"""Permanent failures of a step end the run; durable writes and charges stay."""

from __future__ import annotations

import errno
import os
import pickle
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from apache_beam.runners.runner import PipelineState

from penstock.mechanisms.core.noise_keys import new_key_file
from penstock.mechanisms.core.plugin import ConfigError, DataError, ParameterError, PenstockError, StateVersionError
from penstock.pipeline.config.plan import make_plan
from penstock.pipeline.config.run import loads
from penstock.pipeline.monitoring.redaction import UnforeseenError, redact_errors
from penstock.pipeline.output import checkpoint
from penstock.pipeline.releasing.release import Batch
from penstock.pipeline.runners.beam import distributed
from penstock.pipeline.runners.beam import jobs as beam_jobs
from penstock.pipeline.runners.beam.graph import ReleaseWhenDue, WriteBatches
from penstock.pipeline.runners.beam.step import Step, redacted
from penstock.pipeline.runners.failure import note_failure, raise_failure
from penstock.pipeline.runners.flink import runner
from penstock.pipeline.runners.flink.jobs import latest_checkpoint

if TYPE_CHECKING:
    from penstock.pipeline.config.plan import Plan


CONFIG = """
name: failures
seed: 7
source: {type: stream, of: {type: synthetic, seed: 1, n_users: 10, from: 2024-01-01T00:00:00Z,
         until: 2024-01-01T06:00:00Z}}
space: {type: grid, south: 37.74, north: 37.82, west: -122.47, east: -122.37, rows: 2, columns: 2}
windows: {type: fixed, size: 1h}
mechanism: {type: discrete_laplace, epsilon: 0.5}
accountants: [{type: composition}]
output: {path: PATH, report: false, ledger_source: events, kafka: {brokers: "localhost:1", releases: footfall}}
"""


def plan_in(folder: Path, text: str = CONFIG, **changes: object) -> Plan:
    """A cluster's plan whose folder is there."""
    (folder / "operator").mkdir(parents=True, exist_ok=True)
    return distributed(make_plan(loads(text.replace("PATH", str(folder))), folder, **changes))


class Failing(Step):
    """A step that fails."""

    def __init__(self, plan: Plan, error: Exception) -> None:
        super().__init__(plan)
        self.error = error

    @redacted
    def process(self, _: object) -> None:
        """Fail."""
        raise self.error


LASTING = [
    (DataError("the ledger is damaged"), DataError, "the ledger is damaged"),
    (StateVersionError("version 9"), StateVersionError, "version 9"),
    (ConfigError(("one", "two")), ConfigError, "one\ntwo"),
    (ParameterError("schema", 1, "a file"), ConfigError, "schema: 1 is not allowed"),
    (PermissionError(errno.EACCES, "Permission denied", "/ledger"), PenstockError, "Permission denied"),
    (OSError(errno.ENOSPC, "No space left on device"), PenstockError, "No space left"),
    (OSError("Io error: disk full (os error 28)"), PenstockError, "disk full"),
    (ModuleNotFoundError("no module named 'confluent_kafka'"), PenstockError, "confluent_kafka"),
]


@pytest.mark.parametrize(("error", "kind", "words"), LASTING)
def test_what_lasts_ends_the_run_as_what_it_was(tmp_path, error, kind, words):
    plan = plan_in(tmp_path)
    raise_failure(plan.folder)
    with pytest.raises(type(error)):
        Failing(plan, error).process(None)
    with pytest.raises(kind, match="(?s)" + words.replace("(", "[(]")):
        raise_failure(plan.folder)


@pytest.mark.parametrize("error", [ConnectionError("reset"), RuntimeError("the engine is gone"), KeyError("x")])
def test_what_may_pass_is_the_engines_to_repeat(tmp_path, error):
    plan = plan_in(tmp_path)
    with pytest.raises(type(error)):
        Failing(plan, error).process(None)
    raise_failure(plan.folder)


def test_the_first_failure_counts_and_a_folder_that_is_gone_stays_so(tmp_path):
    plan = plan_in(tmp_path / "run")
    for words in ("cause", "consequence"):
        note_failure(plan.folder, DataError(words))
    with pytest.raises(DataError, match="cause"):
        raise_failure(plan.folder)
    note_failure(tmp_path / "elsewhere", DataError("nobody reads this"))
    assert not (tmp_path / "elsewhere").exists()


def test_a_deployment_tells_no_file_that_may_be_named_after_somebody(tmp_path):
    plan = plan_in(tmp_path)
    plan = replace(plan, config=replace(plan.config, mode="deployment"))
    with pytest.raises(UnforeseenError):
        Failing(plan, PermissionError(errno.EACCES, "Permission denied", "ann.csv")).process(None)
    with pytest.raises(PenstockError, match="Permission denied") as caught:
        raise_failure(plan.folder)
    assert "ann" not in str(caught.value)
    with pytest.raises(UnforeseenError, match="No such file") as reported, redact_errors(deployment=True):
        (tmp_path / "ann.csv").read_bytes()
    assert "ann" not in str(reported.value)


def test_a_worker_without_the_key_ends_the_run(tmp_path):
    key = tmp_path / "noise.key"
    new_key_file(key)
    text = CONFIG.replace("seed: 7", f"mode: deployment\nnoise_key: {key}")
    sent = pickle.dumps(Failing(plan_in(tmp_path / "run", text), KeyError()))
    step = pickle.loads(sent)
    step.setup()
    assert step.plan.folder == tmp_path / "run"
    key.unlink()
    step = pickle.loads(sent)  # reads no file
    with pytest.raises(PenstockError):
        step.setup()
    with pytest.raises(PenstockError, match=r"noise\.key"):
        raise_failure(tmp_path / "run")


class Job:
    """A job in some state."""

    def __init__(self, state: str) -> None:
        self.state = state

    def cancel(self) -> None:
        """Cancel the job."""
        self.state = PipelineState.CANCELLED


def test_the_driver_says_why_and_a_job_that_was_stopped_in_flink_can_go_on(tmp_path):
    plan = plan_in(tmp_path)
    assert beam_jobs._watch(plan, Job(PipelineState.DONE), "Flink", None, None) == "stopped"
    with pytest.raises(DataError, match="lost the job"):
        beam_jobs._watch(plan, Job(PipelineState.FAILED), "Flink", None, None)
    note_failure(plan.folder, StateVersionError("version 9"))
    with pytest.raises(StateVersionError, match="version 9"):
        beam_jobs._watch(plan, Job(PipelineState.RUNNING), "Flink", None, None)


def test_a_checkpoint_that_goes_while_it_is_looked_at_ends_no_run(tmp_path):
    """An engine keeps the latest one alone, and removes the others at any moment."""
    plan, job, looks = plan_in(tmp_path), Job(PipelineState.RUNNING), []
    checkpoint.begin(plan)

    def look() -> None:
        looks.append(job.state)
        job.state = PipelineState.DONE
        raise FileNotFoundError("chk-7")

    assert beam_jobs._watch(plan, job, "Flink", look, None) == "stopped"
    assert looks == [PipelineState.RUNNING]


def test_what_an_old_job_failed_with_is_forgotten_once_it_is_gone(tmp_path, monkeypatch):
    plan = plan_in(tmp_path, resumed=True)
    monkeypatch.setattr(runner, "cancel_jobs", lambda plan, _: note_failure(plan.folder, DataError("of the old job")))
    left = []
    monkeypatch.setattr(beam_jobs, "_watch", lambda plan, *_: left.extend(plan.folder.rglob("failed.json")))
    monkeypatch.setattr(beam_jobs, "build", lambda *_: None)
    monkeypatch.setattr(
        "penstock.pipeline.runners.beam.jobs.beam.Pipeline", lambda **_: SimpleNamespace(run=lambda: None)
    )
    runner._submit(plan, "localhost:1", [])
    assert left == []


def test_a_savepoint_in_the_folder_is_gone_on_from(tmp_path):
    plan = plan_in(tmp_path)
    folder = tmp_path / "operator" / "checkpoint" / "flink"
    for seconds, name in enumerate(("4f/chk-3", "savepoint-4f-1")):
        (folder / name).mkdir(parents=True)
        (folder / name / "_metadata").write_bytes(b"")
        os.utime(folder / name / "_metadata", (seconds, seconds))
    assert latest_checkpoint(plan) == folder / "savepoint-4f-1"


def test_a_step_that_would_charge_twice_ends_the_run(tmp_path):
    plan = plan_in(tmp_path)
    step = ReleaseWhenDue(plan)
    step.setup()
    loop = plan.release_loop()
    batch = loop.advance(loop.start(), 1, np.array([[1, 2, 3, 4]]))[0]
    with step.ledger.transaction() as transaction:
        transaction.charge(replace(batch.charges[0], data="other input"))
    cell = SimpleNamespace(read=lambda: None, write=lambda _: None)
    bag = SimpleNamespace(read=lambda: [], clear=lambda: None, add=lambda _: None)
    with pytest.raises(DataError):
        list(step.fire(tag="0", pending=bag, further=bag, loop=cell, due=None))
    with pytest.raises(DataError, match="window 1"):
        raise_failure(plan.folder)


def test_a_topic_gets_what_the_file_holds(tmp_path):
    plan = plan_in(tmp_path)
    reported: list[pa.Table] = []
    loop = plan.release_loop()
    for counts in ([5, 5, 5, 5], [0, 0, 0, 0]):  # the second attempt would say something else
        batch, _ = loop.advance(loop.start(), 1, np.array([counts]))
        step = WriteBatches(plan)
        step.setup()
        step.writer._sinks = [SimpleNamespace(releases=reported.append)]
        list(step.process(Batch(batch.releases, batch.charges)))
    written = list((tmp_path / "public" / "parts" / "releases").iterdir())
    assert len(written) == 1
    values = [table.column("value").to_pylist() for table in reported]
    assert values[0] == values[1]
    assert reported[0].schema == reported[1].schema


def test_a_job_server_ends_with_a_driver_that_is_killed(tmp_path: Path) -> None:
    program = f"""
import os, time
from penstock.pipeline.runners.beam.jobs import _child_process
with open({str(tmp_path / "log")!r}, "wb") as log:
  with _child_process(["sleep", "600"], {{**os.environ}}, log) as server:
    print(server.pid, flush=True)
    time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        server = int(driver.stdout.readline())
        os.kill(server, 0)
        driver.kill()
    deadline = time.monotonic() + 20
    while Path(f"/proc/{server}/cmdline").exists() and Path(f"/proc/{server}/cmdline").read_bytes():
        assert time.monotonic() < deadline
        time.sleep(0.05)


#: Stands for Java: ends where its port is taken, otherwise answers as a job server does.
JAVA = """import socket, sys, time
from concurrent import futures
import grpc
port = int(sys.argv[1])
with socket.socket() as probe:
    probe.bind(("localhost", port))
server = grpc.server(futures.ThreadPoolExecutor(1))
server.add_insecure_port(f"localhost:{port}")
server.start()
time.sleep(600)
"""


def test_a_job_server_takes_another_port_where_its_own_has_been_taken(tmp_path):
    java = tmp_path / "java.py"
    java.write_text(JAVA)

    def served(port):
        return beam_jobs.served("Flink", lambda port: [sys.executable, str(java), str(port)], tmp_path, port=port)

    with socket.create_server(("localhost", 0)) as somebody:
        taken = somebody.getsockname()[1]
        ports = iter([taken, beam_jobs.free_port()])
        with served(lambda: next(ports)) as endpoint:
            assert endpoint != f"localhost:{taken}"
        message = "job server of Flink did not start:\n(.|\n)*Address already in use"
        with pytest.raises(DataError, match=message), served(lambda: taken):
            pass
