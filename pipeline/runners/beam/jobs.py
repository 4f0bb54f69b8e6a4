"""Run a plan as a job behind a Beam job endpoint: start the server, then submit, watch and cancel the job."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final, Literal, Protocol

import apache_beam as beam
import grpc
from apache_beam.options.pipeline_options import PipelineOptions, PortableOptions, WorkerOptions
from apache_beam.runners.portability.portable_runner import PortableRunner
from apache_beam.runners.runner import PipelineState

from penstock.mechanisms.core.plugin import DataError
from penstock.pipeline import atomic
from penstock.pipeline.atomic import private_opener
from penstock.pipeline.config.plan import Plan
from penstock.pipeline.monitoring import metrics
from penstock.pipeline.monitoring.status import of_folder
from penstock.pipeline.runners.beam.engine import UNSPLIT
from penstock.pipeline.runners.beam.graph import build, check_complete, has_ended, write_final_summaries
from penstock.pipeline.runners.beam.pool import worker_pool
from penstock.pipeline.runners.failure import forget_failure, raise_failure
from penstock.pipeline.runners.shared import stopping

#: How a job ends: everything is done; it was stopped; another one goes on from its savepoint.
Outcome = Literal["ended", "stopped", "renewed"]
ENDED: Final = "ended"
STOPPED: Final = "stopped"
RENEWED: Final = "renewed"
#: Seconds between two looks at the job, and at the figures that its workers leave.
_PATIENCE, _INTERVAL = 0.2, 5.0
#: Seconds that a job has to end in once it has been cancelled, and a server to start.
_SHUTDOWN_SECONDS, _SECONDS = 20.0, 120.0
#: Ports that are tried: a free one may be taken by the time that a server has started.
_PORTS, _TAKEN = 3, "ddress already in use"
#: A command that ends with the driver, even a killed one, since a server would go on for ever: ``cat`` reads a pipe
#: that only the driver holds open, and what follows it ends the process that ``exec`` makes of this shell.
_ENDING_WITH_STDIN = 'exec 3<&0; { cat <&3 >/dev/null; kill $$; } & exec "$@" 3<&- </dev/null'


class Renewer(Protocol):
    """Interface for stopping a job with a savepoint from which another job continues."""

    was_asked: bool

    def is_due(self) -> bool:
        """Return whether the job is due to be renewed."""

    def stop(self) -> bool:
        """Stop the job and return whether it wrote a savepoint."""


def free_port() -> int:
    """Return a free port on this machine."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return int(free.getsockname()[1])


@contextlib.contextmanager
def served(
    engine: str,
    command: Callable[[int], Sequence[str]],
    folder: Path,
    environment: Mapping[str, str] | None = None,
    *,
    port: Callable[[], int] = free_port,
) -> Iterator[str]:
    """Run a job server until the block or this process ends, and yield its endpoint. Raises `DataError` if it does not
    start.

    ``command``: the words that start it at a port, which ``port`` chooses. ``folder``: where its log goes.

    **Privacy**: the log and all that the server writes, such as checkpoints, are for their owner alone.
    """
    atomic.make_folder(folder, private=True)
    log = folder / "job_server.log"
    with open(log, "ab", opener=private_opener) as output, contextlib.ExitStack() as begun:
        for others in reversed(range(_PORTS)):
            before, chosen = log.stat().st_size, port()
            process = begun.enter_context(
                _child_process(command(chosen), os.environ if environment is None else environment, output)
            )
            if _is_responding(process, f"localhost:{chosen}"):
                break
            words = log.read_bytes()[before:].decode(errors="replace")
            if not (others and _TAKEN in words):
                raise DataError(f"the job server of {engine} did not start:\n{words[-1000:]}")
        yield f"localhost:{chosen}"


@contextlib.contextmanager
def _child_process(
    command: Sequence[str], environment: Mapping[str, str], output: IO[bytes]
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command until the block or this process ends."""
    shell = ["sh", "-c", _ENDING_WITH_STDIN, "sh", *command]
    process = subprocess.Popen(shell, env=environment, stdin=subprocess.PIPE, stdout=output, stderr=output, umask=0o077)
    assert process.stdin is not None
    try:
        yield process
    finally:
        process.stdin.close()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _is_responding(process: subprocess.Popen[bytes], endpoint: str) -> bool:
    """Wait for the job server to respond and return whether it did."""
    deadline = time.monotonic() + _SECONDS
    with grpc.insecure_channel(endpoint) as channel:
        ready = grpc.channel_ready_future(channel)
        while time.monotonic() < deadline and process.poll() is None:
            try:
                ready.result(timeout=0.5)
                return True
            except grpc.FutureTimeoutError:
                continue
    return False


def submit(
    plan: Plan,
    words: Sequence[str],
    engine: str,
    look: Callable[[], None] | None = None,
    renewal: Renewer | None = None,
) -> Outcome:
    """Submit a plan as a single job. The parts of the output files are merged afterwards.

    ``plan`` is as `pipeline.runners.beam.distributed` makes it. ``words``: all options of the job, its endpoint among
    them; workers of the environment ``LOOPBACK`` are processes of this one, which listen on the loopback interface.
    ``look`` takes over what workers elsewhere have measured, ``renewal`` stops a job that another one goes on from.
    """
    if plan.resumed:
        forget_failure(plan.folder)
    options = PipelineOptions([UNSPLIT, *words], save_main_session=False)
    with contextlib.ExitStack() as begun:
        portable = options.view_as(PortableOptions)
        if portable.environment_type == "LOOPBACK":
            # In place of Beam's own, which listens on every interface.
            cache = options.view_as(WorkerOptions).max_cache_memory_usage_mb << 20
            portable.environment_type = "EXTERNAL"
            portable.environment_config = begun.enter_context(worker_pool(state_cache_size=cache))
        pipeline = beam.Pipeline(runner=PortableRunner(), options=options)
        build(pipeline, plan)
        outcome = _watch(plan, pipeline.run(), engine, look, renewal)
    if outcome == ENDED:
        write_final_summaries(plan) if plan.streaming else check_complete(plan, engine)
    return outcome


def _watch(plan: Plan, job: Any, engine: str, look: Callable[[], None] | None, renewal: Renewer | None) -> Outcome:
    """Wait until a bounded job ends or a streaming job is complete. The job is cancelled on exit."""
    stopped, next_look = threading.Event(), 0.0
    with stopping(stopped.set), _cancelling(job):
        while not stopped.is_set():
            state = _state(job)
            if plan.streaming and has_ended(plan):
                return ENDED
            raise_failure(plan.folder)
            if state == PipelineState.DONE:
                # A streaming job waits for ever: it was stopped in the engine, with a savepoint.
                was_asked = renewal is not None and renewal.was_asked
                return RENEWED if was_asked else STOPPED if plan.streaming else ENDED
            if PipelineState.is_terminal(state):
                raise DataError(f"{engine} has lost the job; its log says why, and --resume goes on")
            if time.monotonic() >= next_look:
                with contextlib.suppress(OSError):  # an engine removes a checkpoint while it is looked at
                    record_progress(plan)
                    if look is not None:
                        look()
                next_look = time.monotonic() + _INTERVAL
            if renewal is not None and renewal.is_due() and renewal.stop():
                return STOPPED if stopped.is_set() else RENEWED  # a signal came meanwhile
            time.sleep(_PATIENCE)
    return STOPPED


def record_progress(plan: Plan) -> None:
    """Report the progress recorded by a stream's workers: watermark, latest window and checkpoint."""
    if not plan.streaming:
        return
    status = of_folder(plan.folder)
    if status.watermark is not None:
        n_final = plan.grid.last_final(int(status.watermark * 1000))
        metrics.record(metrics.DUE, max(0, n_final - (status.released or 0)))
    levels = (metrics.WATERMARK, metrics.LAST_WINDOW, metrics.LAST_WINDOW_END, metrics.CHECKPOINT)
    values = (status.watermark, status.released, status.last_window_end, status.checkpoint)
    for measure, value in zip(levels, values):
        if value is not None:
            metrics.record(measure, value)


def _state(job: Any) -> str:
    try:
        return str(job.state)
    except Exception as error:  # whatever the channel raises: the job server is gone
        raise DataError(f"the job server does not answer ({type(error).__name__}); --resume goes on") from None


@contextlib.contextmanager
def _cancelling(job: Any) -> Iterator[None]:
    """Cancel the job on exit and wait, up to a time limit, until it stops writing."""
    try:
        yield
    finally:
        with contextlib.suppress(Exception):  # a job server that is gone has nothing to cancel
            job.cancel()
            deadline = time.monotonic() + _SHUTDOWN_SECONDS
            while not PipelineState.is_terminal(_state(job)) and time.monotonic() < deadline:
                time.sleep(_PATIENCE)
