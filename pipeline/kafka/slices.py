"""A topic as the slices that a local stream counts: cut as messages come, and cut the same when a run goes on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from time import time as clock_time
from typing import TYPE_CHECKING, Any

import numpy as np

from mechanisms.core.state import State
from pipeline import checkpoint, parts
from pipeline.checkpoint import Checkpoints
from pipeline.ingestion import ingested
from pipeline.kafka.commits import Commits
from pipeline.kafka.consumer import Consumer, Messages
from pipeline.kafka.dead_letters import DeadLetters
from pipeline.kafka.events import block_of, joined
from pipeline.kafka.journal import Entry, Journal
from pipeline.kafka.progress import Progress
from pipeline.kafka.shares import MOST, Board, Share, Standing
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
        journal = Journal(_journal_folder(plan, reader.share), number)
        commits = Commits(source, plan, consumer, reader.share)
        for entry in journal.entries:
            reader.add({partition: first for partition, (first, _) in entry.ranges.items()})
            yield reader.slice(entry, consumer.take(entry.ranges))
            number = entry.number + 1
        new = reader.begin()
        while not reader.finished:
            messages = consumer.poll()
            idle = consumer.idle(source.idle_after) - messages.keys()
            clock, elsewhere = reader.quiet_time(idle)
            if messages or new or idle != reader.progress.idle or reader.passes(clock, elsewhere):
                ranges = {partition: (first, first) for partition, first in new.items()}
                ranges |= {partition: (own[0].offset(), own[-1].offset() + 1) for partition, own in messages.items()}
                entry = Entry(number, ranges, idle, clock, elsewhere)
                journal.append(entry, partial(_needed, plan, number))
                yield reader.slice(entry, messages)
                number += 1
            else:
                yield None
            commits.go_on()
            new = reader.look_around()
        reader.tell(None)


class _Reader:
    """Turns messages into slices."""

    def __init__(
        self, source: Kafka, plan: Plan, consumer: Consumer, letters: DeadLetters, start: State, latest: int
    ) -> None:
        self.source, self.plan, self.consumer, self.letters = source, plan, consumer, letters
        self.share = Share.of(start)
        self.board = Board(parts_folder(plan, "spool"), self.share)
        #: Middle of the times that each partition has shown last.
        self.typical: dict[int, float] = {}
        self.end: int | None = None
        if plan.calendar.n_windows is not None:
            last = plan.calendar.end(plan.calendar.n_windows)
            self.end = last + plan.config.windows.allowed_lateness + source.disorder
        self.progress = Progress(reached=latest, first=plan.calendar.from_ms, limit=self.end)
        self.progress.restore(start)
        if self.progress.offsets:
            consumer.assign(self.progress.offsets)

    def begin(self) -> dict[int, int]:
        """Read the partitions that are not known yet; gives where."""
        is_first = not self.progress.offsets
        own = filter(self.share.owns, self.consumer.partitions())
        unknown = [partition for partition in own if partition not in self.progress.offsets]
        return self._find(unknown, from_start=not is_first)

    @property
    def finished(self) -> bool:
        """Whether every window of the run is final."""
        return self.end is not None and self.progress.reached >= self.end

    def quiet_time(self, idle: frozenset[int]) -> tuple[int | None, int | None]:
        """What time it is where nothing comes, if all own partitions are idle: (by the clock, by other readers)."""
        if len(idle) < len(self.progress.times):
            return None, None
        others = self.board.others()
        if not all(other.idle for other in others):
            return None, min(other.reached for other in others if not other.idle)
        known = [other.latest for other in others]
        if self.source.clock:
            known.append(int(clock_time() * 1000) - self.source.idle_after)
        return (max(known), None) if known else (None, None)

    def passes(self, *times: int | None) -> bool:
        """Whether a window, or the run, is over at one of these times and was not before."""
        step, reached = self.plan.calendar.step, self.progress.reached
        latest = max((time for time in times if time is not None), default=reached)
        is_over = self.end is not None and reached < self.end <= latest
        return is_over or latest // step > reached // step

    def look_around(self) -> dict[int, int]:
        """Hold partitions that are far ahead of one that has more to be read; read new ones, and give where."""
        partitions = self.progress.offsets
        # One that has shown nothing yet may have everything before it: the others wait until it has been heard of.
        behind = [self.typical.get(partition, NEVER) for partition in partitions if not self.consumer.at_end(partition)]
        self.tell(min(behind, default=None))
        behind += [other.behind for other in self.board.others() if other.behind is not None and not other.idle]
        longest = _WINDOWS_AHEAD * self.plan.calendar.step
        self.consumer.hold({p for p, time in self.typical.items() if behind and time > min(behind) + longest})
        return self._find(list(filter(self.share.owns, self.consumer.more())), from_start=True)

    def tell(self, behind: float | None) -> None:
        """Tell the other readers how far this one has come; one that has finished keeps none of them waiting."""
        progress = self.progress
        is_idle = len(progress.idle) == len(progress.offsets)
        self.board.tell(Standing(progress.reached, progress.latest, is_idle, behind))

    def slice(self, entry: Entry, messages: Messages) -> Slice:
        """The events of some messages, and what time it was when they arrived."""
        before = self.progress.reached
        rows: dict[int, Any] = {}
        blocks = []
        for partition, own in messages.items():
            block = block_of(self.source, partition, own)
            blocks.append(block)
            rows[partition] = (entry.ranges[partition][1], block.frame["time"].to_numpy())
        self._adapt(rows)
        self.letters.send([reject for block in blocks for reject in block.rejects], messages)
        reached = self.progress.read(rows, entry.idle, entry.clock, entry.elsewhere)
        return Slice(
            number=entry.number,
            block=ingested(joined(blocks, self.source), self.plan),
            before=before,
            after=self.progress.reached,
            end=self.progress.as_state() | self.share.as_state(),
            reached=np.concatenate([np.zeros(0, np.int64), *reached]),
        )

    def _adapt(self, rows: Mapping[int, tuple[int, Any]]) -> None:
        """Let a slice cover some windows, not thousands of a backlog: what is open has to be kept.

        By typical times, so that single ones that are wrong decide nothing.
        """
        longest = 0.0
        for partition, (_, times) in rows.items():
            if len(times):
                low, self.typical[partition], high = np.quantile(times, (0.1, 0.5, 0.9))
                longest = max(longest, (high - low) / self.plan.calendar.step)
        self.consumer.adapt(True if longest > _WINDOWS_AHEAD else False if longest < _WINDOWS_AHEAD / 4 else None)

    def _find(self, partitions: list[int], from_start: bool) -> dict[int, int]:
        bounds = {partition: self.consumer.bounds(partition) for partition in partitions}
        earliest = from_start or self.source.offset == "earliest"
        offsets = {partition: low if earliest else high for partition, (low, high) in bounds.items()}
        self.add(offsets)
        return offsets

    def add(self, offsets: Mapping[int, int]) -> None:
        """Read further partitions from these offsets on; those that are known stay as they are."""
        new = {partition: offset for partition, offset in offsets.items() if partition not in self.progress.offsets}
        for partition, offset in new.items():
            self.progress.add(partition, offset)
        if new:
            self.consumer.assign(new)


def starts(source: Kafka, plan: Plan) -> list[State]:
    """See `LiveSource.starts`: a reader for each partition that the topic had at first, up to `shares.MOST`."""
    path = parts_folder(plan, "spool") / "readers"
    if not path.exists():
        with closing(Consumer(source)) as consumer:
            parts.write_first(path, str(min(MOST, len(consumer.partitions()))).encode())
    n_readers = int(path.read_bytes())
    return [Share(reader, n_readers).as_state() for reader in range(n_readers)]


def _journal_folder(plan: Plan, share: Share) -> Path:
    folder = parts_folder(plan, "spool")
    return folder / f"reader-{share.reader:03d}" if share.n_readers > 1 else folder


def _needed(plan: Plan, number: int) -> int:
    """First slice that may be read again: the one after the checkpoint of a local run; an engine keeps its own."""
    saved = Checkpoints(checkpoint.folder(plan), ()).read("feed")
    return checkpoint.decode_position(saved)[1]["number"] if saved else number - _KEPT
