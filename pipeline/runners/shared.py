"""Shared by both executors: threads, the ordered release, and a clean end at a signal."""

from __future__ import annotations

import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from penstock.pipeline.counting.count import GroupCounts
from penstock.pipeline.counting.ingest import ingested
from penstock.pipeline.counting.targets import PrivateFacts
from penstock.pipeline.monitoring import metrics
from penstock.pipeline.output.files import PART_ROWS, parts_folder
from penstock.pipeline.releasing.ledger import Ledger
from penstock.pipeline.releasing.release import Batch, ReleaseLoop
from penstock.pipeline.sources.base import LiveInput

if TYPE_CHECKING:
    from penstock.pipeline.config.plan import Plan


#: Blocks, and groups of windows, that are worked on side by side: NumPy and polars release Python's lock while they
#: parse, sort and count. Each holds a piece of the input in memory.
N_THREADS = 2
#: Rows of a block that are reduced together, so that intermediate arrays fit the processor's cache.
PIECE_ROWS = 1 << 18
#: Why a stream ends before its end.
INTERRUPTED = "interrupted"

Item = TypeVar("Item")
Result = TypeVar("Result")


def live_input(plan: Plan) -> LiveInput:
    """What a live source takes of a plan."""
    return LiveInput(plan.grid, parts_folder(plan, "spool"), partial(ingested, plan=plan))


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


def account_parts(plan: Plan) -> list[tuple[int, int]]:
    """Number and shard of every accountant's parallel parts."""
    return [(number, shard) for number, own in enumerate(plan.shards) for shard in range(len(own))]


def released_batches(
    plan: Plan, loop: ReleaseLoop, ledger: Ledger, state: bytes, counts: GroupCounts
) -> Iterator[tuple[Batch, bytes]]:
    """Batches of the size of a part, and the state after each; the same cuts whenever it is repeated.

    Every charge is on disk before its release leaves.
    """
    step = max(1, PART_ROWS // plan.grid.n_cells)
    for row in range(0, len(counts.bounded), step):
        first, bounded = counts.first + row, counts.bounded[row : row + step]
        last = first + len(bounded) - 1
        with ledger.transaction() as transaction:
            batch, state = loop.advance(state, first, bounded, transaction)
        if plan.targets.n_targets:
            seen = counts.target_cells[(counts.target_cells[:, 0] >= first) & (counts.target_cells[:, 0] <= last)]
            batch = replace(batch, known=PrivateFacts(first, bounded, seen))
        metrics.released(batch, int(plan.grid.calendar.end(last)))
        yield batch, state
        if batch.stopped:
            return


@contextmanager
def stopping(stop: Callable[[], None]) -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end a stream cleanly; a second one ends the program."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, _: object) -> None:
        """Stop at the first signal; a second one interrupts immediately."""
        signal.signal(number, signal.default_int_handler)
        metrics.draining()
        stop()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
