"""Beam's job server for Flink, as a process of this one."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
from apache_beam.utils.subprocess_server import pick_port

from mechanisms.core.errors import DataError
from pipeline.cluster import jars

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
_MAIN = "org.apache.beam.runners.flink.FlinkJobServerDriver"
_SECONDS = 120.0
_PR_SET_PDEATHSIG = 1


@contextmanager
def job_server(master: str, folder: Path, jar: str | None = None) -> Iterator[str]:
    """Start a job server; gives its endpoint, and ends it with the block.

    Parameters
    ----------
    master
        ``[local]``: Flink runs inside the job server; otherwise host and port of a cluster.
    folder
        Where artefacts and the log go.
    jar
        A job server of one's own in place of the jars of the cache.

    Raises
    ------
    ConfigError
        Without Java or without jars.
    DataError
        If it does not start; the message ends with its last words.
    """
    what = ["-jar", jar] if jar else ["-cp", jars.class_path(), _MAIN]
    port, artifact_port, expansion_port = pick_port(None, None, None)
    command = [jars.java(), *JAVA_OPTIONS, "-Xmx1g", *what, "--flink-master", master, "--job-host", "localhost"]
    command += ["--job-port", str(port), "--artifact-port", str(artifact_port), "--expansion-port", str(expansion_port)]
    command += ["--artifacts-dir", str(folder / "artifacts"), "--clean-artifacts-per-job"]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(RESTARTS)
    environment = {"FLINK_CONF_DIR": str(folder)} | os.environ  # whoever has a configuration says it all there
    log = folder / "job_server.log"
    with log.open("ab") as output:
        process = subprocess.Popen(
            command, env=environment, stdout=output, stderr=output, stdin=subprocess.DEVNULL,
            preexec_fn=_end_with_this_process,
        )  # fmt: skip
    try:
        _wait(process, f"localhost:{port}", log)
        yield f"localhost:{port}"
    finally:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _end_with_this_process() -> None:
    """Let Linux end the job server with its driver, however that ends: an embedded Flink would go on for ever."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _wait(process: subprocess.Popen[bytes], endpoint: str, log: Path) -> None:
    """Wait until the job server answers."""
    deadline = time.monotonic() + _SECONDS
    with grpc.insecure_channel(endpoint) as channel:
        ready = grpc.channel_ready_future(channel)
        while time.monotonic() < deadline and process.poll() is None:
            try:
                ready.result(timeout=0.5)
                return
            except grpc.FutureTimeoutError:
                continue
    words = log.read_text(errors="replace")[-1000:]
    raise DataError(f"Flink's job server did not start:\n{words}")
