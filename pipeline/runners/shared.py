"""Code shared by both executors: threads, ordered releases, and clean shutdown on a signal."""

from __future__ import annotations

import queue
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.core.state import State
from penstock.pipeline.config.plan import Plan
from penstock.pipeline.counting.bounding import PeriodQuota
from penstock.pipeline.counting.contributions import Contributions
from penstock.pipeline.counting.count import GroupCounts, contributions_of, count_group, nothing, visits
from penstock.pipeline.counting.ingest import RowCounts, ingested
from penstock.pipeline.counting.targets import PrivateFacts
from penstock.pipeline.counting.users import CodeTable
from penstock.pipeline.monitoring import metrics
from penstock.pipeline.output.files import PART_ROWS, parts_folder
from penstock.pipeline.output.writer import RunWriter
from penstock.pipeline.releasing.ledger import Ledger
from penstock.pipeline.releasing.release import Batch, ReleaseLoop
from penstock.pipeline.sources.base import EventBlock, LiveInput, LiveSource

#: Groups of windows that are counted side by side: NumPy releases Python's lock while it sorts and counts.
N_THREADS = 2
#: Rows of a block that are reduced together, so that intermediate arrays fit the processor's cache.
PIECE_ROWS = 1 << 18
#: Items that wait at most to be used once they have been read.
_WAITING = 2
#: Seconds between two looks whether the items are wanted still.
_PAUSE = 0.1
#: Why a stream ends before its end.
INTERRUPTED = "interrupted"

Item = TypeVar("Item")
Result = TypeVar("Result")


def live_source(plan: Plan) -> LiveSource:
    """Return a plan's live source, or raise `TypeError` if the input is finite."""
    source = plan.config.source
    if not isinstance(source, LiveSource):
        raise TypeError(f"{type(source).__name__} is not a stream")
    return source


def live_input(plan: Plan) -> LiveInput:
    """Return the run's parameters that its live source needs."""
    return LiveInput(plan.grid, parts_folder(plan, "spool"), ingestion(plan), plan.batching.max_readers)


def ingestion(plan: Plan) -> Callable[[EventBlock], EventBlock]:
    """Return the step that, in a deployment, strips blocks of data that must not be kept."""
    space, user_files = None if plan.on_points else plan.space, plan.config.source.recorded.has_user_names
    return partial(ingested, keys=plan.keys, space=space, user_files=user_files)


def reduced(
    plan: Plan,
    block: EventBlock,
    closed: NDArray[np.int64] | None = None,
    used_by_group: dict[int, int] | None = None,
    ids: CodeTable | None = None,
) -> tuple[RowCounts, Iterator[tuple[tuple[int, int], Contributions]]]:
    """Reduce a block to row counts and contributions by calling `contributions_of` with the plan's settings."""
    parts = plan.grid, plan.space, plan.bounds, plan.batching, plan.keys
    return contributions_of(block, *parts, closed, used_by_group, ids)


def counted(
    plan: Plan, group: int, pieces: Sequence[Contributions], quota: PeriodQuota | None = None
) -> tuple[GroupCounts, Contributions | None]:
    """Count a user shard's contributions to a window group. Also return users' visits if they are kept."""
    if not pieces:
        return nothing(group, plan.batching), None
    parts = plan.chain, plan.grid, plan.bounds, plan.batching, plan.keys, plan.targets
    counts, contributions = count_group(group, pieces, *parts, quota)
    return counts, visits(contributions, plan.batching.layout) if plan.summarises_users else None


class Prefetcher(Generic[Item]):
    """Iterator over items that a thread produces ahead of time. None is not an item.

    Two of them wait at most, so that slow use holds the making back.

    >>> letters = Prefetcher("abc")
    >>> list(letters)
    ['a', 'b', 'c']
    >>> letters.close()
    """

    def __init__(self, items: Iterable[Item | None]) -> None:
        self.ended = False
        self._items = items
        self._ready: queue.Queue[Item | BaseException | None] = queue.Queue(_WAITING)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._make, name="penstock-reader", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[Item]:
        while (item := self.take()) is not None:
            yield item

    def take(self, timeout: float | None = None) -> Item | None:
        """Return the next item, or None on timeout or at the end. Re-raises the producer's exception."""
        try:
            item = self._ready.get(timeout=timeout)
        except queue.Empty:
            return None
        if isinstance(item, BaseException):
            raise item
        self.ended = item is None
        return item

    def close(self) -> None:
        """Stop the thread."""
        self._closed.set()
        self._thread.join()

    def _make(self) -> None:
        try:
            for item in self._items:
                if self._closed.is_set() or not (item is None or self._put(item)):
                    return
            self._put(None)
        except BaseException as error:
            self._put(error)
        finally:
            if isinstance(self._items, Generator):
                self._items.close()

    def _put(self, item: Item | BaseException | None) -> bool:
        while not self._closed.is_set():
            try:
                self._ready.put(item, timeout=_PAUSE)
                return True
            except queue.Full:
                continue
        return False


def map_in_order(call: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """Yield the results in the order of the items, with a bounded number of calls in progress or waiting.

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
    """Return the (accountant index, shard) pairs that can be processed in parallel."""
    return [(number, shard) for number, shards in enumerate(plan.shards) for shard in range(len(shards))]


def released_batches(
    plan: Plan,
    loop: ReleaseLoop,
    ledger: Ledger | None,
    state: bytes,
    counts: GroupCounts,
    report: Callable[[Batch, int], None] = metrics.released,
) -> Iterator[tuple[Batch, bytes]]:
    """Yield batches of about one output part each, split deterministically, along with the state after each batch.

    Every charge is in the ledger, if there is one, and on disk before its release leaves.
    """
    step = max(1, PART_ROWS // plan.grid.n_cells)
    for row in range(0, len(counts.bounded), step):
        first, bounded = counts.first + row, counts.bounded[row : row + step]
        last = first + len(bounded) - 1
        with nullcontext() if ledger is None else ledger.transaction() as transaction:
            batch, state = loop.advance(state, first, bounded, transaction)
        if plan.targets.n_targets:
            seen = counts.target_cells[(counts.target_cells[:, 0] >= first) & (counts.target_cells[:, 0] <= last)]
            batch = replace(batch, known=PrivateFacts(first, bounded, seen))
        report(batch, int(plan.grid.calendar.end(last)))
        yield batch, state
        if batch.stopped:
            return


def release_shard(plan: Plan, ledger: Ledger, writer: RunWriter, shard: int, pieces: Iterable[State]) -> int:
    """Charge for a user shard's points, release them and return their number."""
    from penstock.pipeline.releasing.traces import TraceLoop, gather

    loop = TraceLoop(plan.traces, plan.space, plan.keys, plan.config.accountants, plan.batching.n_shards)
    batch = loop.release(shard, gather(list(pieces), plan.traces, plan.grid, plan.space))
    with ledger.transaction() as transaction:
        transaction.charge(batch.charge)
    writer.traces(batch)
    metrics.record(metrics.POINTS, n_points := len(batch.traces.times))
    return n_points


@contextmanager
def stopping(stop: Callable[[], None]) -> Iterator[None]:
    """On the first Ctrl-C or SIGTERM, end a stream cleanly. On the second, exit the program."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, _: object) -> None:
        signal.signal(number, signal.default_int_handler)
        metrics.set_state("draining")
        stop()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
