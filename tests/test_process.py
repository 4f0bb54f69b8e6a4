"""What a command sets up in its process, seen in processes of their own."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from small_configuration import small_sections

from pipeline.cli import main
from pipeline.cli.main import COMMANDS
from pipeline.output.redaction import discreet
from pipeline.process import apart

ARENAS = """
import ctypes, re, tempfile, threading
from pipeline.process import prepare

prepare()
together = threading.Barrier(4)
pieces = []

def take():
    together.wait()
    pieces.extend(ctypes.create_string_buffer(50_000) for _ in range(100))

threads = [threading.Thread(target=take) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
libc = ctypes.CDLL(None)
libc.fopen.restype = ctypes.c_void_p
with tempfile.NamedTemporaryFile("r") as told:
    file = ctypes.c_void_p(libc.fopen(told.name.encode(), b"w"))
    libc.malloc_info(0, file)
    libc.fclose(file)
    print(len(re.findall("<heap nr=", told.read())))
"""


def arenas(**variables: str) -> int:
    """How many places four threads have taken memory from."""
    without = {k: v for k, v in os.environ.items() if k not in ("MALLOC_ARENA_MAX", "GLIBC_TUNABLES")}
    done = subprocess.run(
        [sys.executable, "-c", ARENAS], env=without | variables, capture_output=True, text=True, check=True
    )
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="arenas are glibc's")
def test_threads_share_one_arena_unless_somebody_has_said_otherwise() -> None:
    assert arenas() == 1
    assert arenas(MALLOC_ARENA_MAX="3") == 3


AT_THE_END = """
import atexit, gc
from pipeline.process import prepare

atexit.register(lambda: print(gc.get_freeze_count() > 1000))
prepare()
"""


def test_what_is_there_at_the_end_is_not_searched_for_garbage() -> None:
    done = subprocess.run([sys.executable, "-c", AT_THE_END], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


def listening() -> None:
    """Hear of Ctrl-C, also where the tests were begun in the background."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


STUCK = """
import sys, time
from concurrent.futures import ThreadPoolExecutor
import pipeline.run
from pipeline.cli.main import script

def run(*_):
    waiting = ThreadPoolExecutor().submit(time.sleep, 600)
    print("running", flush=True)
    try:
        waiting.result()
    except KeyboardInterrupt as error:
        raise RuntimeError("as a runner tells it")  # nobody may ask a thread like this one to end

pipeline.run.run = run
script()
"""


@pytest.mark.parametrize("words", [[], ["--json"], ["--log", "text"]])
def test_ctrl_c_ends_a_run_at_once_whatever_its_threads_are_doing(tmp_path: Path, words: list[str]) -> None:
    config = tmp_path / "run.json"
    config.write_text(json.dumps(small_sections(tmp_path)))
    command = [sys.executable, "-c", STUCK, "run", str(config), *words]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes, preexec_fn=listening) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "running\n"
        process.send_signal(signal.SIGINT)
        try:
            out, errors = process.communicate(timeout=20)
        finally:
            process.kill()
    assert process.returncode == 4
    assert errors.splitlines()[-1] == "penstock: interrupted"
    assert "Traceback" not in errors
    told = {"exit_code": 4, "error": "KeyboardInterrupt", "problems": ["interrupted"]}
    assert (json.loads(out) if out else told) == told
    assert bool(out) == ("--json" in words)


READING = """
import os, signal, threading, time
import polars as pl
from pipeline.process import apart, end

ended, told = threading.Event(), []

def interrupted(values):
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.1)
    return values

def read():
    try:
        column = pl.col("a").map_batches(interrupted, return_dtype=pl.Int64)
        told.append(pl.LazyFrame({"a": [1]}).select(column).collect().item())
    except BaseException as error:
        told.append(error)
    ended.set()

try:
    apart(read)
except KeyboardInterrupt:
    ended.wait()
    print(told)
    end(0)
"""


def test_ctrl_c_strikes_nobody_who_is_reading() -> None:
    """Polars would raise it there, and the runner log it with all of its words."""
    command = [sys.executable, "-c", READING]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20, preexec_fn=listening)
    assert done.stdout == "[1]\n"


@pytest.mark.parametrize("deployment", [False, True])
def test_ctrl_c_is_told_as_such_whatever_it_became_on_its_way(monkeypatch, capsys, deployment: bool) -> None:
    """As Python has it where it strikes in a class that is being made."""

    class Field:
        def __set_name__(self, owner: type, name: str) -> None:
            raise KeyboardInterrupt

    def execute(_: object) -> int:
        with discreet(deployment):
            type("Owner", (), {"field": Field()})
        return 0

    monkeypatch.setitem(COMMANDS, "list", replace(COMMANDS["list"], execute=execute))
    assert main.main(["list"]) == 4
    assert capsys.readouterr().err == "penstock: interrupted\n"


def test_a_command_that_is_called_in_a_thread_runs_there() -> None:
    found: list[str] = []
    caller = threading.Thread(
        target=lambda: found.append(apart(lambda: threading.current_thread().name)), name="somewhere"
    )
    caller.start()
    caller.join()
    assert found == ["somewhere"]
    assert apart(lambda: threading.current_thread().name) == "penstock-apart"
