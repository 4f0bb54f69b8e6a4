"""SIGINT and SIGTERM end a stream between two micro-batches."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from penstock.pipeline.monitoring.server import HEALTH

#: Why a stream ends before its end.
INTERRUPTED = "interrupted"


@contextmanager
def stopping(stop: Callable[[], None]) -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end a stream cleanly; a second one ends the program."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, _: object) -> None:
        signal.signal(number, signal.default_int_handler)
        HEALTH.drain()
        stop()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
