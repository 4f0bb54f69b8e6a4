"""What a command asks of its process: less looking for garbage, memory that is used again, and an end at Ctrl-C."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import NoReturn, TypeVar

T = TypeVar("T")

#: ``M_ARENA_MAX`` of glibc's ``mallopt``.
_ARENA_MAX = -8
_is_command = False


def prepare() -> None:
    """Set the process up; called once, before there are threads."""
    global _is_command
    _is_command = True
    # Starting makes some million objects that stay, and looking through them for garbage was a tenth of a short run.
    gc.set_threshold(100_000, 50, 50)
    atexit.register(gc.freeze)  # so did looking through them once more before they are all thrown away
    _share_arena()


def is_command() -> bool:
    """Whether the process is that of a command, and not of a program that calls us."""
    return _is_command


def take_from_jemalloc() -> None:
    """Let Arrow take memory from jemalloc, where it was built with it and nobody has said otherwise.

    Its own choice asks for whole huge pages and soon gives them back: half of what a run had the kernel clear.
    """
    if "ARROW_DEFAULT_MEMORY_POOL" in os.environ:
        return
    import pyarrow as pa

    with suppress(NotImplementedError):
        pa.set_memory_pool(pa.jemalloc_memory_pool())


def _share_arena() -> None:
    """Let all threads take memory from one place, where there is glibc.

    What one thread has used serves the next then: a sixth less memory, two fifths fewer fresh pages. Locks are no
    matter, since threads take large pieces rarely. Whoever has set the number of arenas is obeyed.
    """
    if "MALLOC_ARENA_MAX" in os.environ or "arena_max" in os.environ.get("GLIBC_TUNABLES", ""):
        return
    import ctypes

    with suppress(AttributeError, OSError, TypeError):  # another C library, or another system
        ctypes.CDLL(None).mallopt(_ARENA_MAX, 1)


def apart(call: Callable[[], T]) -> T:
    """Call in a thread of its own, and wait: Ctrl-C ends the wait, after which the process is to `end`.

    Python raises it in the first thread, wherever that is: amid an import or under a lock, for which other threads then
    wait for ever, or in a step, whose error the runner tells in its own words.

    >>> apart(lambda: 6 * 7)
    42
    """
    if threading.current_thread() is not threading.main_thread():
        return call()  # Ctrl-C strikes elsewhere
    done: Future[T] = Future()

    def work() -> None:
        try:
            done.set_result(call())
        except BaseException as error:
            done.set_exception(error)

    # Set again, the handler is Python's alone: Polars puts one before it, which raises in whichever thread reads just
    # then, and lets this one wait on.
    if (handler := signal.getsignal(signal.SIGINT)) is not None:
        signal.signal(signal.SIGINT, handler)
    threading.Thread(target=work, name="penstock-apart", daemon=True).start()
    return done.result()


def end(code: int) -> NoReturn:
    """End the process at once, whatever its threads are doing: to them it is a kill, which is safe at any moment."""
    with suppress(OSError):  # nobody may be reading any more
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
