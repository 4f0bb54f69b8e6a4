"""Runs in processes of their own that are killed at a durable write, forked from one that has imported everything."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        "penstock.pipeline.run",
        "penstock.pipeline.runners.beam.graph",
        "penstock.accountants.composition",
        "apache_beam.runners.portability.fn_api_runner",
        "dp_accounting.rdp",
    ]
)


def run_in_a_process(config: Path, folder: Path, resume: bool, fatal: int | str, after: bool, said: Path) -> int:
    """Exit code of a run that is killed at its ``fatal``-th durable write, or at the first one into a folder.

    Before the write, or ``after`` it. What the process says on standard error is in a file, at last how many durable
    writes it made.
    """
    process = CONTEXT.Process(target=_run, args=(config, folder, resume, fatal, after, said))
    process.start()
    process.join()
    assert process.exitcode is not None
    return process.exitcode


def _run(config: Path, folder: Path, resume: bool, fatal: int | str, after: bool, said: Path) -> None:
    with said.open("w") as file:
        os.dup2(file.fileno(), sys.stderr.fileno())
    faulthandler.dump_traceback_later(600, exit=True)  # a run that hangs says where
    n_writes = 0

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
    from penstock.pipeline.config.run import load
    from penstock.pipeline.run import run

    code = run(load(config), folder, resume=resume).exit_code
    print(n_writes, file=sys.stderr)
    sys.exit(code)
