"""Local runner: a plain loop over the steps in this process, for finite input and for streams of counts."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import TypeVar

import numpy as np

from penstock.mechanisms.core.state import State, nested, part
from penstock.pipeline.config.plan import Plan
from penstock.pipeline.counting import input_check
from penstock.pipeline.counting.bounding import PeriodQuota
from penstock.pipeline.counting.contributions import Contributions, HeldContributions, decoded, union
from penstock.pipeline.counting.count import GroupCounts, join_visits, nothing, summarise_users
from penstock.pipeline.counting.ingest import RowCounts, last_final_windows
from penstock.pipeline.counting.users import CodeTable
from penstock.pipeline.monitoring import logs, metrics
from penstock.pipeline.output import checkpoint
from penstock.pipeline.output.files import PART_ROWS, parts_folder
from penstock.pipeline.output.manifest import as_equation
from penstock.pipeline.output.registration import open_ledger
from penstock.pipeline.output.writer import RunWriter
from penstock.pipeline.runners import shared
from penstock.pipeline.runners.shared import PIECE_ROWS, Prefetcher
from penstock.pipeline.sources.base import (
    MIN_EVENT_TIME,
    Checkpointed,
    EventBlock,
    FileSource,
    MicroBatch,
    Reject,
    RowOrder,
    is_recorded,
)

#: Seconds between two looks at the clock and at signals while a stream has nothing to do.
_PAUSE = 0.1
#: Pieces of contributions to one group of windows that are held before they are merged.
_MAX_PIECES = 64
#: Visits of users to cells, by group of windows, that are held before they are joined, beside as many as are joined.
_MAX_VISITS = 1 << 22

Key = TypeVar("Key")
Piece = TypeVar("Piece")
#: The step that reduces a block to row counts and to pieces by key.
Reduce = Callable[[EventBlock], tuple[RowCounts, Iterator[tuple[Key, Piece]]]]
#: A group of windows, and its contributions by shard.
_Work = tuple[int, dict[int, list[Contributions]]]


def run_finite(plan: Plan) -> None:
    """Read, release and account for finite input. The parts of the output files are merged afterwards."""
    source = plan.config.source.reading(plan.space.reads).from_start()
    if plan.on_points:
        _run_traces(plan, source)
        return
    output = ReleaseAndAccount(plan)
    counted: Iterable[GroupCounts] = _counted(plan, source, output.writer)
    if source.disorder is not None:
        # A row further on may be wrong: nothing is charged and released before the last one was read.
        counted = [counts.narrowed() for counts in counted]
    n_memberships, within_budget = 0, True
    for kept in counted:
        counts = kept.as_type(np.int64)
        n_memberships += counts.n_memberships
        output.writer.truth(counts.first, counts.counts, counts.bounded)
        within_budget = within_budget and output.release(counts)
    output.writer.memberships("all", n_memberships)
    output.summarise()


def _run_traces(plan: Plan, source: FileSource) -> None:
    """Read and release traces one user shard at a time."""
    from penstock.pipeline.releasing.traces import points_of

    writer, ledger = RunWriter(plan), open_ledger(plan)
    points: dict[int, list[State]] = defaultdict(list)
    reduce = partial(points_of, grid=plan.grid, space=plan.space, keys=plan.keys, n_shards=plan.batching.n_shards)
    for parts in _read(plan, source, writer, reduce, RowOrder(source)):
        for shard, piece in parts:
            points[shard].append(piece)
    n_points = [shared.release_shard(plan, ledger, writer, shard, points.pop(shard)) for shard in sorted(points)]
    writer.memberships("all", sum(n_points))


def _counted(plan: Plan, source: FileSource, writer: RunWriter) -> Iterator[GroupCounts]:
    """Yield each group's counts, computed in parallel unless quotas carry over between groups."""
    users: dict[int, list[Contributions]] = defaultdict(list)
    quotas: dict[int, PeriodQuota] = defaultdict(PeriodQuota)
    count, groups = partial(_count_shards, plan, quotas), _groups(plan, source, writer)
    for counts, visits in map(count, groups) if plan.bounds.over_periods else shared.map_in_order(count, groups):
        for shard, seen in visits.items():
            users[shard].append(seen)
            if sum(map(len, users[shard][1:])) > _MAX_VISITS + len(users[shard][0]):
                users[shard] = [join_visits(users[shard], plan.grid.n_cells)]
        yield counts
    for shard, joined in users.items():
        writer.users(shard, summarise_users(joined, plan.grid.n_cells))


def _count_shards(
    plan: Plan, quotas: Mapping[int, PeriodQuota], work: _Work
) -> tuple[GroupCounts, dict[int, Contributions]]:
    """Return a window group's counts and, for the summary, its users' visits by shard."""
    group, shards = work
    total, visits = nothing(group, plan.batching), {}
    for shard in sorted(shards):
        quota = quotas[shard] if plan.bounds.over_periods else None
        counts, seen = shared.counted(plan, group, shards.pop(shard), quota)
        total = total + counts
        if seen is not None:
            visits[shard] = seen
    return total, visits


def _groups(plan: Plan, source: FileSource, writer: RunWriter) -> Iterator[_Work]:
    """Yield window groups and their contributions in order, as soon as the source has no more rows for a group."""
    # Not for shards of users, which go by identities. Of a deployment's ids only keyed digests are kept.
    ids = CodeTable(plan.keys.users) if plan.batching.n_shards == 1 else None
    held = HeldContributions(plan.batching.layout, plan.bounds.keep, parts_folder(plan, "held"), ids)
    order, n_passed = RowOrder(source), 0
    try:
        for parts in _read(plan, source, writer, partial(shared.reduced, plan, ids=ids), order):
            for (group, shard), piece in parts:
                held.add(group, shard, piece)
            n_final = plan.grid.last_final(order.watermark) // plan.batching.group
            while n_passed < n_final:
                yield n_passed, held.take(n_passed)
                n_passed += 1
        for group in range(n_passed, plan.batching.n_groups):
            yield group, held.take(group)
    finally:
        held.drop()


def _read(
    plan: Plan, source: FileSource, writer: RunWriter, reduce: Reduce[Key, Piece], order: RowOrder
) -> Iterator[Iterator[tuple[Key, Piece]]]:
    """Reduce the input to keyed contributions or points, and write the row counts and rejects of each span."""
    for span in plan.config.source.from_start().spans():
        rows, rejects = RowCounts(), list[Reject]()
        with closing(Prefetcher(source.read(replace(span, after=order.latest)))) as blocks:
            for piece in (piece for block in blocks for piece in block.pieces(PIECE_ROWS)):
                of_piece, reduced = reduce(piece)
                rows.add(of_piece)
                metrics.read_rows(of_piece)
                rejects += piece.rejects
                order.check(piece.frame["time"].to_numpy(), lambda _: "a row")
                yield reduced
        name = f"{span.index:09d}"
        writer.rejects(name, rejects)
        writer.row_counts(name, rows)


def run_stream(plan: Plan) -> str | None:
    """Read, count, release and account for a stream. The parts of the output files are merged afterwards.

    It goes on from the checkpoint in the folder of the run, if there is one. Returns None if the stream came to its
    end or used up a budget, `INTERRUPTED` after SIGINT or SIGTERM.
    """
    stop = threading.Event()
    with shared.stopping(stop.set):
        return StreamLoop(plan, stop).run()


class ReleaseAndAccount:
    """Stage after counting: release windows in order, account for them and write the results.

    A charge is durable in the ledger before its release is written, and a release before it is accounted. ``saved`` is
    a checkpoint to go on from.
    """

    def __init__(self, plan: Plan, saved: State | None = None) -> None:
        self.plan, self.writer, self.ledger = plan, RunWriter(plan), open_ledger(plan)
        self.loop = plan.release_loop()
        self.state = saved["release"].tobytes() if saved else self.loop.start()
        #: ε that the current budget period has left; None: there is no budget, or nothing was released yet.
        self.budget_left: float | None = None
        if saved and "budget_left" in saved:
            self.budget_left = float(saved["budget_left"])
        self.accounts = {part: plan.account_loop(*part) for part in shared.account_parts(plan)}
        self.account_states = {
            part: saved[checkpoint.account_key(*part)].tobytes() if saved else loop.start()
            for part, loop in self.accounts.items()
        }

    def release(self, counts: GroupCounts, final_at: float | None = None) -> bool:
        """Release consecutive windows. Return False once the budget is exhausted.

        ``final_at``: when the last window became final, in seconds since 1970 (streams).
        """
        for batch, state in shared.released_batches(self.plan, self.loop, self.ledger, self.state, counts):
            self.state = state
            self.writer.releases(batch, final_at)
            metrics.written(final_at)
            if batch.budget_left is not None:
                self.budget_left = batch.budget_left
            for (number, shard), account in self.accounts.items():
                before = self.account_states[number, shard]
                rows, self.account_states[number, shard] = account.advance(before, batch)
                self.writer.accounts(number, shard, account.accounted(before) + 1, rows)
            if batch.stopped:
                return False
        return True

    def summarise(self) -> None:
        """Write each accountant's summary, which is the same for all shards."""
        for (number, shard), loop in self.accounts.items():
            if shard == 0:
                self.writer.summary(number, loop.summary(self.account_states[number, shard]))

    def saved(self) -> State:
        """Return the state for a checkpoint."""
        states = {"release": self.state}
        states |= {checkpoint.account_key(*part): data for part, data in self.account_states.items()}
        left = {} if self.budget_left is None else {"budget_left": np.asarray(self.budget_left)}
        return {name: np.frombuffer(data, np.uint8) for name, data in states.items()} | left


class StreamLoop:
    """Count and release a stream's windows as the watermark passes their deadlines.

    A window is final once the watermark has reached its end plus allowed lateness. A checkpoint is taken between two
    micro-batches, when all parts that it covers are durable; what is executed again after a kill writes the same parts.
    ``stop`` ends the stream after the micro-batch that is being counted.
    """

    def __init__(self, plan: Plan, stop: threading.Event) -> None:
        self.plan, self.source, self.stop = plan, shared.live_source(plan), stop
        saved = checkpoint.read(plan)
        self.output = ReleaseAndAccount(plan, saved)
        self.writer = self.output.writer
        #: Contributions to the groups of windows that are not final yet.
        self.open: dict[int, list[Contributions]] = {}
        self.rows, self.n_memberships, self.n_counted = RowCounts(), 0, 0
        self.quota, self.position, self.checkpointed = PeriodQuota(), State(), Checkpointed()
        self.number, self.latest = 0, MIN_EVENT_TIME
        if saved:
            self.position = part("source", saved)
            self.rows, self.quota = RowCounts.of_state(part("rows", saved)), PeriodQuota(part("quota", saved))
            self.number, self.latest = int(saved["number"]), int(saved["latest"])
            self.n_counted, self.n_memberships = int(saved["counted"]), int(saved["memberships"])
            data, end = saved["open"].tobytes(), 0
            for group, n_bytes in zip(saved["open_groups"].tolist(), saved["open_bytes"].tolist()):
                begin, end = end, end + n_bytes
                self.open[group] = [decoded(data[begin:end])]
            self.checkpointed.move(self.position, self.number)
        self.within_budget = True
        #: Whether there is no more to warn of; a recorded input was looked at before.
        self.warned = is_recorded(self.source)
        self._start = max(self.latest, plan.grid.calendar.from_ms)
        self._begun = self._saved = time.monotonic()

    def run(self) -> str | None:
        """Process the stream until the source ends, a stop is requested or a budget is exhausted."""
        spool = parts_folder(self.plan, "spool")
        batches = self.source.micro_batches(
            shared.live_input(self.plan), spool, self.position, self.number, self.latest, self.checkpointed
        )
        with closing(Prefetcher(batches)) as reader:
            while self._should_continue and not reader.ended:
                metrics.beat()
                is_new = self.number != (self.checkpointed.number or 0)
                if is_new and time.monotonic() - self._saved >= self.source.checkpoint / 1000:
                    self._save()
                if (piece := reader.take(_PAUSE)) is not None:
                    self._take(piece)
        n_windows = self.plan.grid.calendar.n_windows
        if reader.ended and n_windows is not None:
            self._release(n_windows)
        self._save()
        still_open = sum(len(self._joined(pieces)) for pieces in self.open.values())
        self.writer.row_counts("stream", self.rows)
        self.writer.memberships("stream", self.n_memberships + still_open)
        self.output.summarise()
        return None if reader.ended or not self.within_budget else shared.INTERRUPTED

    @property
    def _should_continue(self) -> bool:
        return self.within_budget and not self.stop.is_set()

    @property
    def _watermark(self) -> int:
        return MIN_EVENT_TIME if self.latest == MIN_EVENT_TIME else self.latest - self.source.disorder

    def _take(self, piece: MicroBatch) -> None:
        """Count a micro-batch once it is due. While waiting, advance the watermark if the clock is known."""
        factor, grid = self.source.factor, self.plan.grid
        while self._should_continue:
            elapsed, wait = time.monotonic() - self._begun, 0.0
            if factor is not None and piece.after != MIN_EVENT_TIME:
                wait = (piece.after - self._start) / 1000 / factor - elapsed
            if wait <= 0:
                self._count(piece)
                self._release(grid.last_final(self._watermark))
                return
            if piece.starts is not None and factor is not None:
                now = self._start + int(elapsed * 1000 * factor)
                self._release(grid.last_final(min(now, piece.starts) - self.source.disorder))
            self.stop.wait(min(wait, _PAUSE))
            metrics.beat()

    def _count(self, piece: MicroBatch) -> None:
        """Reduce a micro-batch to contributions. Rows of windows that were final on arrival are late."""
        rows, parts = shared.reduced(self.plan, piece.block, last_final_windows(piece, self.plan.grid))
        for (group, _), contributions in parts:
            pieces = self.open.setdefault(group, [])
            pieces.append(contributions)
            if len(pieces) > _MAX_PIECES:
                self.open[group] = [self._joined(pieces)]
        self.writer.rejects(f"{piece.number:012d}", piece.block.rejects)
        self.rows.add(rows)
        metrics.read_rows(rows)
        if not (self.warned or self.rows.used) and self.rows.rows >= input_check.FIRST:
            # A stream cannot wait for the rest; in a deployment the positions of its rows are gone.
            sample = [] if self.plan.config.mode == "deployment" else [piece.block]
            why = input_check.explain_unused_rows(
                as_equation(self.rows), sample, self.plan.grid.calendar, self.plan.space
            )
            logs.caution(f"no row was usable so far. {why}")
            self.warned = True
        self.position, self.number, self.latest = piece.end, piece.number + 1, piece.after
        metrics.reached(piece.after, self._watermark)

    def _release(self, window: int) -> None:
        """Count and release all final windows, including empty ones."""
        final_at, size = time.time(), self.plan.batching.group
        n_groups = -(-window // size) if window == self.plan.grid.calendar.n_windows else window // size
        # Windows that become final together are released and written together.
        step = max(1, PART_ROWS // (size * self.plan.grid.n_cells))
        while self.within_budget and self.n_counted < n_groups:
            metrics.record(metrics.DUE, (n_groups - self.n_counted) * size)
            groups = range(self.n_counted, min(self.n_counted + step, n_groups))
            parts = [shared.counted(self.plan, group, self.open.pop(group, []), self.quota)[0] for group in groups]
            counts = GroupCounts(
                parts[0].first,
                np.concatenate([one.counts for one in parts]),
                np.concatenate([one.bounded for one in parts]),
                sum(one.n_memberships for one in parts),
                np.concatenate([one.target_cells for one in parts]),
            )
            self.n_memberships += counts.n_memberships
            self.n_counted = groups.stop
            self.writer.truth(counts.first, counts.counts, counts.bounded)
            self.within_budget = self.output.release(counts, final_at)
        metrics.record(metrics.DUE, max(0, n_groups - self.n_counted) * size)

    def _joined(self, pieces: list[Contributions]) -> Contributions:
        return union(pieces, self.plan.batching.layout, self.plan.bounds.keep)

    def _save(self) -> None:
        """Write a checkpoint."""
        self.open = {group: [self._joined(pieces)] for group, pieces in self.open.items()}
        pieces = [piece.encode(self.plan.batching.layout) for (piece,) in self.open.values()]
        n_final = min(self.n_counted * self.plan.batching.group, self.plan.grid.calendar.n_windows or 2**62)
        numbers = {"number": self.number, "latest": self.latest, "watermark": self._watermark, "final": n_final}
        numbers |= {"counted": self.n_counted, "memberships": self.n_memberships}
        state = {
            **nested("source", self.position),
            **nested("rows", self.rows.as_state()),
            **{name: np.asarray(number) for name, number in numbers.items()},
            "open_groups": np.asarray(list(self.open), np.int64),
            "open_bytes": np.asarray([len(piece) for piece in pieces], np.int64),
            "open": np.frombuffer(b"".join(pieces), np.uint8),
            **(nested("quota", self.quota.state()) if self.plan.bounds.over_periods else {}),
            **self.output.saved(),
        }
        metrics.checkpoint_written(checkpoint.write(self.plan, state))
        self.checkpointed.move(self.position, self.number)
        self._saved = time.monotonic()
