"""What a command sets up in its process, seen in processes of their own."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

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
