"""Runs in forked processes that are killed."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        "penstock.pipeline.cli.main",
        "penstock.pipeline.run",
        "penstock.pipeline.runners.beam.graph",
        "penstock.accountants.composition",
        "apache_beam.runners.portability.fn_api_runner",
        "dp_accounting.rdp",
    ]
)


def run_in_a_process(
    config: Path,
    folder: Path,
    resume: bool,
    message: Path,
    *,
    fatal: int | str = 0,
    after: bool = False,
    seconds: float | None = None,
) -> int:
    """Exit code of ``penstock run``, killed at its ``fatal``-th durable write, or at the first one into a folder.

    Before the write, or ``after`` it; or ``seconds`` after its beginning. What the process says on standard error is in
    a file, at last how many durable writes it made in how many seconds.
    """
    words = ["run", str(config), "--out", str(folder), "--quiet"] + ["--resume"] * resume
    process = CONTEXT.Process(target=_run, args=(words, message, fatal, after, os.environ["XDG_STATE_HOME"]))
    process.start()
    process.join(seconds)
    process.kill()
    process.join()
    assert process.exitcode is not None
    return process.exitcode


def _run(words: list[str], message: Path, fatal: int | str, after: bool, state: str) -> None:
    os.environ["XDG_STATE_HOME"] = state  # that of the test, not of the server that forks
    with message.open("w") as file:
        os.dup2(file.fileno(), sys.stderr.fileno())
    faulthandler.dump_traceback_later(600, exit=True)  # a run that hangs says where
    n_writes, began = 0, time.monotonic()

    def deadly(write: Callable[..., Any]) -> Callable[..., Any]:
        def patched(*arguments: Any, **options: Any) -> Any:
            nonlocal n_writes
            n_writes += 1
            is_fatal = fatal in str(arguments[-1]) if isinstance(fatal, str) else n_writes == fatal
            if is_fatal and not after:
                os.kill(os.getpid(), signal.SIGKILL)
            result = write(*arguments, **options)
            if is_fatal:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return patched

    os.replace, os.link, os.fsync = deadly(os.replace), deadly(os.link), deadly(os.fsync)
    from penstock.pipeline.cli.main import main

    code = main(words)
    print(n_writes, time.monotonic() - began, file=sys.stderr)
    sys.exit(code)
