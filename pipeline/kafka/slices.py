"""A topic as the slices that a local stream counts: cut as messages come, and cut the same when a run goes on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mechanisms.core.state import State
from pipeline import checkpoint
from pipeline.checkpoint import Checkpoints
from pipeline.ingestion import ingested
from pipeline.kafka.consumer import Consumer, Messages
from pipeline.kafka.dead_letters import DeadLetters
from pipeline.kafka.events import block_of, joined
from pipeline.kafka.journal import Entry, Journal
from pipeline.kafka.progress import Progress
from pipeline.paths import parts_folder
from pipeline.plan import Plan
from pipeline.slices import NEVER, Slice

if TYPE_CHECKING:
    from pipeline.sources.kafka import Kafka

#: Windows that one partition may be read ahead of another: what is open has to be kept.
_WINDOWS_AHEAD = 64
#: Entries of the journal that are kept where nobody says which are needed.
_KEPT = 100_000


def slices(source: Kafka, plan: Plan, folder: Path, start: State, number: int, latest: int) -> Iterator[Slice | None]:
    """See `LiveSource.slices`.

    Every slice is written to a journal before it is counted: its offsets, and which partitions were idle. A run that is
    continued counts the same slices again from its checkpoint on, so that it releases the same. The journal lies with
    the run (not in ``folder``, which may be gone with a worker).
    """
    with closing(Consumer(source)) as consumer, closing(DeadLetters(source)) as letters:
        reader = _Reader(source, plan, consumer, letters, start, latest)
        journal = Journal(parts_folder(plan, "spool"), number)
        for entry in journal.entries:
            yield reader.slice(entry, consumer.take(entry.ranges))
            number = entry.number + 1
        while not reader.finished:
            reader.look_around()
            messages = consumer.poll()
            idle = consumer.idle(source.idle_after) - messages.keys()
            clock = reader.clock(idle)
            if not messages and idle == reader.progress.idle and clock is None:
                yield None
                continue
            ranges = {partition: (own[0].offset(), own[-1].offset() + 1) for partition, own in messages.items()}
            entry = Entry(number, ranges, idle, clock)
            journal.append(entry, _needed(plan, number))
            yield reader.slice(entry, messages)
            number += 1


class _Reader:
    """Turns messages into slices."""

    def __init__(
        self, source: Kafka, plan: Plan, consumer: Consumer, letters: DeadLetters, start: State, latest: int
    ) -> None:
        self.source, self.plan, self.consumer, self.letters = source, plan, consumer, letters
        self.end: int | None = None
        if plan.calendar.n_windows is not None:
            last = plan.calendar.end(plan.calendar.n_windows)
            self.end = last + plan.config.windows.allowed_lateness + source.disorder
        self.progress = Progress(reached=latest, first=plan.calendar.from_ms, limit=self.end)
        self.progress.restore(start)
        if start:
            consumer.assign(self.progress.offsets)
        self._add(partition for partition in consumer.partitions() if partition not in self.progress.offsets)

    @property
    def finished(self) -> bool:
        """Whether every window of the run is final."""
        return self.end is not None and self.progress.reached >= self.end

    def clock(self, idle: frozenset[int]) -> int | None:
        """Where time goes on without events and a window has become final by that, the time; otherwise None."""
        if not self.source.clock or len(idle) < len(self.progress.times):
            return None
        now = int(time.time() * 1000) - self.source.idle_after
        step = self.plan.calendar.step
        return now if now // step > self.progress.reached // step else None

    def look_around(self) -> None:
        """Read partitions that are new, and hold those that are far ahead of one that has more to be read."""
        self._add(self.consumer.more(), from_start=True)
        times = self.progress.times
        behind = [own for partition, own in times.items() if own != NEVER and not self.consumer.at_end(partition)]
        longest = _WINDOWS_AHEAD * self.plan.calendar.step
        self.consumer.hold({p for p, own in times.items() if behind and own > min(behind) + longest})

    def slice(self, entry: Entry, messages: Messages) -> Slice:
        """The events of some messages, and what time it was when they arrived."""
        before = self.progress.reached
        rows: dict[int, Any] = {}
        blocks = []
        for partition, own in messages.items():
            block = block_of(self.source, partition, own)
            blocks.append(block)
            rows[partition] = (entry.ranges[partition][1], block.frame["time"].to_numpy())
        self.letters.send([reject for block in blocks for reject in block.rejects], messages)
        reached = self.progress.read(rows, entry.idle, entry.clock)
        return Slice(
            number=entry.number,
            block=ingested(joined(blocks, self.source), self.plan),
            before=before,
            after=self.progress.reached,
            end=self.progress.as_state(),
            reached=np.concatenate([np.zeros(0, np.int64), *reached]),
        )

    def _add(self, partitions: Any, from_start: bool = False) -> None:
        offsets = {}
        for partition in partitions:
            low, high = self.consumer.bounds(partition)
            offsets[partition] = low if from_start or self.source.offset == "earliest" else high
            self.progress.add(partition, offsets[partition])
        if offsets:
            self.consumer.assign(offsets)


def _needed(plan: Plan, number: int) -> int:
    """First slice that may be read again: the one after the checkpoint of a local run; an engine keeps its own."""
    saved = Checkpoints(checkpoint.folder(plan), ()).read("feed")
    return checkpoint.decode_position(saved)[1]["number"] if saved else number - _KEPT
