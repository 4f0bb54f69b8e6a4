"""Beam graph of a run, for any runner: turns blocks of events into releases, accounts and row counts.

The graph is the same for finite and endless input. What is final is decided by the watermark alone: each group of
windows has its deadline on endless input (`final_at`), while all of them are final at the end of finite input, so that
one timer for each key does. Elements reach a stateful step in any order, timers may fire again, and an engine may go
back to an earlier checkpoint: every step is idempotent, and so are the ledger and the `RunWriter`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from typing import Any

import apache_beam as beam
import numpy as np
from apache_beam.coders import BytesCoder
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import BagStateSpec, ReadModifyWriteStateSpec, TimerSpec, on_timer
from apache_beam.typehints.decorators import with_input_types, with_output_types

from penstock.accountants.core.accountant import Rows
from penstock.mechanisms.core.plugin import DataError
from penstock.mechanisms.core.state import decode_state
from penstock.pipeline import atomic
from penstock.pipeline.config.plan import Plan
from penstock.pipeline.counting.count import GroupCounts, nothing
from penstock.pipeline.counting.ingest import RowCounts
from penstock.pipeline.counting.spec import STREAM
from penstock.pipeline.monitoring import metrics
from penstock.pipeline.output.files import parts_folder
from penstock.pipeline.output.registration import open_ledger
from penstock.pipeline.output.writer import RunWriter
from penstock.pipeline.releasing import account as account_loop
from penstock.pipeline.releasing.account import AccountLoop
from penstock.pipeline.releasing.release import Batch
from penstock.pipeline.runners.beam import coders
from penstock.pipeline.runners.beam.counts import COUNTS, KEPT, ROW_COUNTS, CountDistinctUsers, by_group, replace_bag
from penstock.pipeline.runners.beam.pubsub import ReadMessages
from penstock.pipeline.runners.beam.read import ReadEvents
from penstock.pipeline.runners.beam.step import (
    ROWS,
    PlanTransform,
    WritingStep,
    end_of_input,
    final_at,
    last_due,
    redacted,
    timestamp,
    typed,
)
from penstock.pipeline.runners.beam.traces import ReleaseTraces
from penstock.pipeline.runners.shared import account_parts, released_batches
from penstock.pipeline.sources.pubsub import Pubsub

#: Version of the steps, their names and their state. A checkpoint of an engine fits one version; 1 had no mark.
GRAPH = 9
#: Groups that timers are set for ahead of time.
_TIMERS_AHEAD = 64
#: Milliseconds before the end of the input, after the last deadline, at which the row counts are complete.
_BEFORE = 2000
#: Name of the row counts on disk.
_TALLY = "cluster"
#: The row counts of the whole input, on disk at its end.
_INPUT = "input.json"
#: Noted when the last window is written.
_RELEASES = "releases.json"
#: The element that starts the release, whether there are events or not.
BEGIN = b""


def build(root: beam.Pipeline, plan: Plan, blocks: beam.PTransform[Any, Any] | None = None) -> None:
    """Attach the whole graph to a pipeline.

    ``blocks``: where blocks of events come from, by the contract of `pipeline.runners.beam.read`; None: the plan's
    source.
    """
    reader = ReadMessages(plan) if isinstance(plan.config.source, Pubsub) else ReadEvents(plan)
    events = root | "ReadEvents" >> (blocks or reader)
    if plan.on_points:
        traces = events | "ReleaseTraces" >> ReleaseTraces(plan)
        _ = (traces[ROWS],) | "TallyRows" >> TallyRows(plan)
        return
    release_counts(events, plan)


def release_counts(events: Any, plan: Plan) -> tuple[Any, Any]:
    """Count blocks of events, release the counts, write them and account for them. Return the written releases and
    the row tally.
    """
    counted = events | "CountDistinctUsers" >> CountDistinctUsers(plan, must_use_rows=False)  # the caller does
    released = counted["counts"] | "ReleaseInOrder" >> ReleaseInOrder(plan)
    written = released["releases"] | "WriteReleases" >> WriteReleases(plan)
    _ = written | "Account" >> Account(plan)
    return written, (counted[ROWS], released[ROWS]) | "TallyRows" >> TallyRows(plan)


def has_ended(plan: Plan) -> bool:
    """Return whether a run has released and accounted for all of its input or exhausted a budget."""
    ended = parts_folder(plan, "ended")
    if not all((ended / _account_name(part)).exists() for part in account_parts(plan)):
        return False
    if (parts_folder(plan, "stopped") / "stopped.json").exists():
        return True
    return (ended / _RELEASES).exists() and (ended / _INPUT).exists()


def write_final_summaries(plan: Plan) -> None:
    """Write an endless run's row counts and summaries after its job has been cancelled.

    Those on disk follow the state of the job: one that went back to a checkpoint after it had come to its end, and was
    cancelled on the way, has left figures of the way.
    """
    writer, ended = RunWriter(plan), parts_folder(plan, "ended")
    for number in range(len(plan.shards)):
        if (path := ended / _account_name((number, 0))).exists():
            writer.summary(number, json.loads(path.read_bytes()))
    if (path := ended / _INPUT).exists():
        total = json.loads(path.read_bytes())
        writer.row_counts(_TALLY, RowCounts(**total["row_counts"]))
        writer.memberships(_TALLY, total["memberships"])


def check_complete(plan: Plan, engine: str) -> None:
    """Raise `DataError` if a bounded job ended before all of its input was counted, released and accounted for."""
    if not (parts_folder(plan, "row_counts") / f"{_TALLY}.json").exists():
        text = f"{plan.folder}: the row counts are missing after {engine} has run; "
        raise DataError(text + "the folder must be one that the driver shares with all workers")
    if not (plan.on_points or has_ended(plan)):
        raise DataError(
            f"{engine} has ended the job before all windows were released and accounted: it has lost state or elements "
            "of the job; --resume does the rest, and what is charged stays charged"
        )


@with_input_types(COUNTS)
class ReleaseInOrder(PlanTransform):
    """Step the mechanism through all windows in order, each exactly once, including windows without events.

    Charges are in the ledger before the releases they are for leave. Returns ``{"releases": PCollection[Batch],
    "rows": PCollection[tuple[int, bytes]]}``.
    """

    def expand(self, counts: Any) -> dict[str, Any]:
        """Apply the steps of this transform."""
        impulse = counts.pipeline | "Begin" >> beam.Impulse()
        start = impulse | "Start" >> beam.Map(lambda _: (STREAM, BEGIN)).with_output_types(COUNTS)
        elements = (counts, start) | "CountsAndStart" >> beam.Flatten().with_output_types(COUNTS)
        # (stream, counts)
        released = elements | "Release" >> beam.ParDo(ReleaseWhenDue(self.plan)).with_outputs(ROWS, main="main")
        return {"releases": typed(released["main"], Batch), ROWS: typed(released[ROWS], ROW_COUNTS)}


@with_input_types(Batch)
@with_output_types(Batch)
class WriteReleases(PlanTransform):
    """Write releases to the run's folder and topic and forward them."""

    def expand(self, releases: Any) -> Any:
        """Apply the only step of this transform."""
        return releases | "Write" >> beam.ParDo(WriteBatches(self.plan)).with_output_types(Batch)


@with_input_types(Batch)
class Account(PlanTransform):
    """Step the plan's accountants through the releases in order and write their rows and summaries.

    Returns ``PCollection[tuple[str, list]]``: the name of an accountant, and its rows of one batch.
    """

    def expand(self, releases: Any) -> Any:
        """Apply the steps of this transform."""
        accounted = account_parts(self.plan)
        each = beam.FlatMap(lambda batch: [(part, batch) for part in accounted])
        parts = releases | "ForEachAccountant" >> each.with_output_types(tuple[tuple[int, int], Batch])
        # ((accountant, shard), Batch)
        return parts | "AccountInOrder" >> beam.ParDo(AccountInOrder(self.plan)).with_output_types(
            tuple[str, list[Any]]
        )


class TallyRows(PlanTransform):
    """Sum row outcomes in exactly-once state and write the totals.

    Runners' own counters would count a retried bundle again. Returns ``PCollection[bytes]``: the row counts of the
    whole input (`decode_rows`), at its end.
    """

    def expand(self, rows: tuple[Any, ...]) -> Any:
        """Apply the steps of this transform to all collections of row counts."""
        impulse = rows[0].pipeline | "Begin" >> beam.Impulse()
        opening = impulse | "Opening" >> beam.Map(lambda _: coders.row_counts()).with_output_types(ROW_COUNTS)
        counts = (*rows, opening) | "Together" >> beam.Flatten().with_output_types(ROW_COUNTS)
        return counts | "Tally" >> beam.ParDo(Tally(self.plan)).with_output_types(bytes)


class ReleaseWhenDue(WritingStep):
    """Step the release loop through the groups of windows in order.

    On endless input a chain of timers, one at the deadline of every group, releases what has been counted until then;
    any firing releases all that is due. The counts of a group are written down before they are noised, and the first
    write counts: if the engine goes back behind a release, and another set of rows is in time then, neither the release
    nor its charge becomes another one. On finite input all rows are in time whenever it is counted.

    State: counts of the unreleased groups. The current stretch of `_TIMERS_AHEAD` groups is read and written with every
    release, later groups once per stretch: there may be thousands in a backlog.
    """

    PENDING = BagStateSpec("pending", BytesCoder())
    REMAINING = BagStateSpec("further", BytesCoder())
    LOOP = ReadModifyWriteStateSpec("loop", BytesCoder())
    DUE = TimerSpec("due", TimeDomain.WATERMARK)

    @redacted
    def prepare(self) -> None:
        """Create the writer and the loop and open the ledger."""
        super().prepare()
        self.loop = self.plan.release_loop()
        self.ledger = open_ledger(self.plan)

    @redacted
    def process(
        self,
        element: tuple[str, bytes],
        pending: Any = beam.DoFn.StateParam(PENDING),
        further: Any = beam.DoFn.StateParam(REMAINING),
        loop: Any = beam.DoFn.StateParam(LOOP),
        due: Any = beam.DoFn.TimerParam(DUE),
    ) -> Iterator[Any]:
        """Buffer counts until their windows are final. Rows that arrive after that count as late."""
        if element[1] == BEGIN:
            for group in range(_TIMERS_AHEAD if self.plan.streaming else 1):
                self._set_timers(due, group)
            return
        counts, n_rows = coders.decode(element[1])
        released = self.loop.released(loop.read() or self.loop.start())
        if counts.first <= released:
            yield beam.pvalue.TaggedOutput(ROWS, coders.late(n_rows, counts.n_memberships))
        else:
            group = (counts.first - 1) // self.plan.batching.group
            is_near = group // _TIMERS_AHEAD <= released // self.plan.batching.group // _TIMERS_AHEAD
            (pending if is_near else further).add(coders.pack(group, n_rows, element[1]))

    @on_timer(DUE)
    @redacted
    def fire(
        self,
        tag: Any = beam.DoFn.DynamicTimerTagParam,
        pending: Any = beam.DoFn.StateParam(PENDING),
        further: Any = beam.DoFn.StateParam(REMAINING),
        loop: Any = beam.DoFn.StateParam(LOOP),
        due: Any = beam.DoFn.TimerParam(DUE),
    ) -> Iterator[Any]:
        """Release all groups that are due and set timers for those that follow."""
        state, last = loop.read() or self.loop.start(), int(tag)
        first = -(-self.loop.released(state) // self.plan.batching.group)
        if first > last or self.loop.stopped(state):
            return
        waiting = by_group(pending.read())
        for group in range(first, last + 1):
            if group % _TIMERS_AHEAD == 0:
                near, later = list[bytes](), list[bytes]()
                for data in further.read():
                    (near if coders.unpack(data)[0] < group + _TIMERS_AHEAD else later).append(data)
                replace_bag(further, later)
                waiting |= by_group(near)
            counts = self._group_counts(group, waiting.pop(group, (0, []))[1])
            self.writer.truth(counts.first, counts.counts, counts.bounded)
            stopped, report = False, partial(self.with_listeners, metrics.released)
            for batch, after in released_batches(self.plan, self.loop, self.ledger, state, counts, report):
                state, stopped = after, batch.stopped is not None
                yield batch
            if stopped:
                break
            self._set_timers(due, group + _TIMERS_AHEAD)
        replace_bag(pending, [coders.pack(group, n, data) for group, (n, pieces) in waiting.items() for data in pieces])
        loop.write(state)

    def _set_timers(self, due: Any, group: int) -> None:
        n_windows = self.plan.grid.calendar.n_windows
        if n_windows is None or group * self.plan.batching.group < n_windows:
            last = last_due(self.plan, group)
            # Just below it: an engine may call only once the watermark has passed an instant, and a reader whose
            # partitions are silent stays at the deadline until the next one. Watermarks are whole seconds.
            due.set(timestamp(final_at(self.plan, last) - 1), dynamic_timer_tag=str(last))

    def _group_counts(self, group: int, pieces: list[memoryview]) -> GroupCounts:
        """Return a group's counts for release. In a stream, these are always the counts of the first attempt."""
        counts = nothing(group, self.plan.batching)
        for data in pieces:
            counts = counts + coders.decode(bytes(data))[0]
        if not self.plan.streaming:
            return counts
        folder = parts_folder(self.plan, "counted")
        path = folder / f"{group:012d}"
        if not path.exists():
            atomic.write_first(path, coders.encode_counts(counts, 0, self.plan))
            (folder / f"{group - KEPT:012d}").unlink(missing_ok=True)
        settled: GroupCounts = coders.decode(path.read_bytes())[0]
        return settled


class WriteBatches(WritingStep):
    """Write batches of releases. If the source is live, wait for ``output.delay`` first."""

    @redacted
    def process(self, batch: Batch) -> Iterator[Batch]:
        """Write a batch once and forward it."""
        grid, last = self.plan.grid, batch.releases[-1].window if batch.releases else 0
        final_at = grid.deadline(last) / 1000 if last and self.plan.streaming else None
        self.writer.releases(batch, final_at)
        self.with_listeners(metrics.written, final_at)
        if last and last == grid.calendar.n_windows:
            atomic.write_json(parts_folder(self.plan, "ended") / _RELEASES, True)
        yield batch


class AccountInOrder(WritingStep):
    """Step one shard of an accountant through all releases in order, each exactly once.

    Batches are cut alike whenever they are repeated, so that a part of the accounts that is there already is the same.
    """

    WAITING = BagStateSpec("waiting", coders.BatchCoder())
    LOOP = ReadModifyWriteStateSpec("loop", BytesCoder())

    def prepare(self) -> None:
        """Create the writer. Loops are created on first use because a shard may hold many priors."""
        super().prepare()
        self.loops: dict[tuple[int, int], AccountLoop] = {}

    @redacted
    def process(
        self,
        element: tuple[tuple[int, int], Batch],
        waiting: Any = beam.DoFn.StateParam(WAITING),
        loop: Any = beam.DoFn.StateParam(LOOP),
    ) -> Iterator[tuple[str, Rows]]:
        """Account for releases in order, buffering those that arrive early, and record the end."""
        (number, shard), batch = element
        if (account := self.loops.get(element[0])) is None:
            account = self.loops[element[0]] = self.plan.account_loop(number, shard)
        state = loop.read() or account.start()
        early = list[Batch]()
        for candidate in sorted([*waiting.read(), batch], key=_position):
            if account.is_early(state, candidate):
                early.append(candidate)
                continue
            first = account.accounted(state) + 1
            rows, state = account.advance(state, candidate)
            if rows:
                self.writer.accounts(number, shard, first, rows)
                yield account.name, rows
        replace_bag(waiting, early)
        loop.write(state)
        if shard == 0:  # the summary is the same in every part
            self.writer.summary(number, account.summary(state))
        if decode_state(state, *account_loop.FORMAT)["finished"]:
            atomic.write_json(parts_folder(self.plan, "ended") / _account_name(element[0]), account.summary(state))


class Tally(WritingStep):
    """Sum all row counts under a single key.

    Row counts balance at any time. On endless input the file is written again with each element: after a failure it
    goes back with the state, and is right again when the rows have been read again. All releases come before the timer,
    so what is written at the timer is complete, whatever came before it: `write_final_summaries` puts that in place.
    """

    BOOKS = ReadModifyWriteStateSpec("books", BytesCoder())
    END = TimerSpec("end", TimeDomain.WATERMARK)

    @redacted
    def process(
        self, element: tuple[int, bytes], books: Any = beam.DoFn.StateParam(BOOKS), end: Any = beam.DoFn.TimerParam(END)
    ) -> None:
        """Add to the row counts and set a timer for the end of the input."""
        # Memberships come from counting, whatever is released: those of a run that was stopped are no duplicates.
        total, memberships = coders.decode_rows(books.read() or coders.row_counts()[1])
        counts, more = coders.decode_rows(element[1])
        total.add(counts)
        books.write(coders.row_counts(total, memberships + more)[1])
        if self.plan.streaming:
            self._write(total, memberships + more)
        if (instant := end_of_input(self.plan)) is not None:
            end.set(timestamp(instant - _BEFORE))

    @on_timer(END)
    @redacted
    def close(self, books: Any = beam.DoFn.StateParam(BOOKS)) -> Iterator[bytes]:
        """Record the end of the input together with its row counts."""
        data = books.read()
        total, memberships = coders.decode_rows(data)
        if not self.plan.streaming:
            self._write(total, memberships)
        summary = {"row_counts": asdict(total), "memberships": memberships}
        atomic.write_json(parts_folder(self.plan, "ended") / _INPUT, summary)
        yield data

    def _write(self, total: RowCounts, memberships: int) -> None:
        self.writer.row_counts(_TALLY, total)
        self.writer.memberships(_TALLY, memberships)


def _account_name(part: tuple[int, int]) -> str:
    return f"account-{part[0]:03d}-{part[1]:06d}.json"


def _position(batch: Batch) -> float:
    if batch.known is not None:
        return batch.known.first
    return batch.releases[0].window if batch.releases else np.inf
