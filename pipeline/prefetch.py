"""Work in threads: the next block is parsed while the last one is counted, and two are counted at once."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, Self, TypeVar

S = TypeVar("S")
T = TypeVar("T")

#: Calls that run side by side: each holds a piece of the input, so that more would take more memory.
N_THREADS = 2


class prefetch(Iterator[T], Generic[T]):
    """The same items in the same order, made in a thread of their own up to ``n_ahead`` items early.

    Parameters
    ----------
    items
        What to iterate, from now on; an exception it raises is raised here, after the items before it.
    n_ahead
        Items that may wait; 0: any number.

    Notes
    -----
    Pays where making and using an item both release Python's lock, as parsing and sorting do. A consumer that stops
    early calls `close` (or leaves the ``with`` block), which ends the thread at its next item.

    Examples
    --------
    >>> list(prefetch(iter(range(4))))
    [0, 1, 2, 3]
    """

    def __init__(self, items: Iterable[T], n_ahead: int = 1) -> None:
        self._items = items
        self._ready: queue.Queue[tuple[str, Any]] = queue.Queue(n_ahead)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._produce, name="penstock-prefetch", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __next__(self) -> T:
        if self._stopped.is_set():
            raise StopIteration
        kind, value = self._ready.get()
        if kind == "item":
            item: T = value
            return item
        self.close()
        if kind == "error":
            raise value
        raise StopIteration

    def close(self) -> None:
        """End the thread."""
        self._stopped.set()
        self._thread.join()

    def _produce(self) -> None:
        try:
            for item in self._items:
                if not self._put(("item", item)):
                    return
            self._put(("end", None))
        except BaseException as error:
            self._put(("error", error))
        finally:
            if isinstance(self._items, Generator):
                self._items.close()  # it may be reading ahead itself

    def _put(self, entry: tuple[str, Any]) -> bool:
        while not self._stopped.is_set():
            try:
                self._ready.put(entry, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False


def in_threads(call: Callable[[S], T], items: Iterable[S], n_threads: int = N_THREADS) -> Iterator[T]:
    """The results of a call on every item, in order of the items; up to ``n_threads`` calls run side by side.

    >>> list(in_threads(abs, [-1, 2, -3]))
    [1, 2, 3]
    """
    running: deque[Future[T]] = deque()
    pool = ThreadPoolExecutor(n_threads, "penstock-thread")
    try:
        for item in items:
            running.append(pool.submit(call, item))
            if len(running) > n_threads:
                yield running.popleft().result()
        while running:
            yield running.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
