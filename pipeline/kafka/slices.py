"""A topic as the slices that a local stream counts: cut as messages come, and cut the same when a run goes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mechanisms.core.state import State
from pipeline import checkpoint
from pipeline.checkpoint import Checkpoints
from pipeline.kafka.consumer import Consumer, Messages
from pipeline.kafka.dead_letters import DeadLetters
from pipeline.kafka.events import block_of, joined
from pipeline.kafka.journal import Entry, Journal
from pipeline.kafka.progress import Progress
from pipeline.plan import Plan
from pipeline.slices import NEVER, Slice

if TYPE_CHECKING:
    from pipeline.sources.kafka import Kafka

#: Windows that one partition may be read ahead of another: what is open has to be kept.
_WINDOWS_AHEAD = 64


def slices(source: Kafka, plan: Plan, folder: Path, start: State, number: int, latest: int) -> Iterator[Slice | None]:
    """See `LiveSource.slices`.

    Every slice is written to a journal before it is counted: its offsets, and which partitions were idle. A run that is
    continued counts the same slices again from its checkpoint on, so that it releases the same.
    """
    with closing(Consumer(source)) as consumer, closing(DeadLetters(source)) as letters:
        reader = _Reader(source, plan, consumer, letters, start, latest)
        journal = Journal(folder / "journal.jsonl")
        for entry in journal.entries(number):
            yield reader.slice(entry, consumer.take(entry.ranges))
            number = entry.number + 1
        while not reader.finished:
            reader.look_around()
            messages = consumer.poll()
            idle = consumer.idle(source.idle_after) - messages.keys()
            if not messages and idle == reader.progress.idle:
                yield None
                continue
            ranges = {partition: (own[0].offset(), own[-1].offset() + 1) for partition, own in messages.items()}
            entry = Entry(number, ranges, idle)
            journal.append(entry, _covered(plan))
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

    def look_around(self) -> None:
        """Read partitions that are new, and hold those that are far ahead of one that has more to be read."""
        self._add(self.consumer.more(), from_start=True)
        times = self.progress.times
        behind = [time for partition, time in times.items() if time != NEVER and not self.consumer.at_end(partition)]
        longest = _WINDOWS_AHEAD * self.plan.calendar.step
        self.consumer.hold({p for p, time in times.items() if behind and time > min(behind) + longest})

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
        reached = self.progress.read(rows, entry.idle)
        return Slice(
            number=entry.number,
            block=joined(blocks, self.source),
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


def _covered(plan: Plan) -> int:
    """Number of the first slice that no checkpoint covers."""
    return checkpoint.decode_position(Checkpoints(checkpoint.folder(plan), ()).read("feed"))[1]["number"]
