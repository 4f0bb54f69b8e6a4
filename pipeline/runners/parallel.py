"""Threads of one process: NumPy and polars release Python's lock while they parse, sort and count."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

#: Blocks, and groups of windows, that are worked on side by side. Each holds a piece of the input in memory.
N_THREADS = 2
#: Rows of a block that are reduced together, so that intermediate arrays fit the processor's cache.
PIECE_ROWS = 1 << 18

Item = TypeVar("Item")
Result = TypeVar("Result")


def map_in_order(call: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """Results in order of the items, of which only a few are worked on or waiting at any time.

    >>> list(map_in_order(abs, [-2, 1, -3]))
    [2, 1, 3]
    """
    with ThreadPoolExecutor(N_THREADS, "penstock-counting") as pool:
        running: deque[Future[Result]] = deque()
        try:
            for item in items:
                running.append(pool.submit(call, item))
                if len(running) > N_THREADS:
                    yield running.popleft().result()
            while running:
                yield running.popleft().result()
        finally:
            for future in running:
                future.cancel()
