"""Reading ahead: the next block is parsed while the last one is counted."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

T = TypeVar("T")


def prefetch(items: Iterable[T], n_ahead: int = 1) -> Iterator[T]:
    """The same items in the same order, made in a thread of their own up to ``n_ahead`` items early.

    Parameters
    ----------
    items
        What to iterate; an exception it raises is raised here, after the items before it.
    n_ahead
        Items that may wait.

    Notes
    -----
    Pays where making and using an item both release Python's lock, as parsing and sorting do. A consumer that stops
    early ends the thread at its next item.

    Examples
    --------
    >>> list(prefetch(iter(range(4))))
    [0, 1, 2, 3]
    """
    ready: queue.Queue[tuple[str, Any]] = queue.Queue(n_ahead)
    stopped = threading.Event()

    def put(entry: tuple[str, Any]) -> bool:
        while not stopped.is_set():
            try:
                ready.put(entry, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def produce() -> None:
        try:
            for item in items:
                if not put(("item", item)):
                    return
            put(("end", None))
        except BaseException as error:
            put(("error", error))

    thread = threading.Thread(target=produce, name="penstock-prefetch", daemon=True)
    thread.start()
    try:
        while True:
            kind, value = ready.get()
            if kind == "end":
                return
            if kind == "error":
                raise value
            yield value
    finally:
        stopped.set()
        thread.join()
