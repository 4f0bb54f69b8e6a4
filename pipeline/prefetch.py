"""Reading ahead: the next block is parsed while the last one is counted."""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator, Iterable, Iterator
from typing import Any, Generic, Self, TypeVar

T = TypeVar("T")


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
