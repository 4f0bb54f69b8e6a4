"""Progress of a Kafka reader: the watermark, idle partitions, the journal of micro-batches, and committed offsets."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.core.state import State
from penstock.pipeline.atomic import make_folder, write_durably
from penstock.pipeline.sources.base import MIN_EVENT_TIME, Checkpointed

#: Number of bytes by which the file grows before obsolete entries are removed.
_LONG = 1 << 20
#: Number of entries to keep if an engine may still go back to an earlier checkpoint.
_KEPT = 100_000


@dataclass(frozen=True)
class TopicEntry:
    """A journal entry that records which messages make up a micro-batch."""

    number: int  # of the micro-batch
    ranges: Mapping[int, tuple[int, int]]  # half-open range of offsets by partition
    idle: frozenset[int]  # partitions that do not hold back the watermark after the micro-batch
    clock: int | None = None  # time reached by the clock, if all partitions are idle and time advances
    listed: int | None = None  # time up to which all partitions are known, or None if that is irrelevant

    def encode(self) -> str:
        """Encode the entry as a single line."""
        ranges = {str(partition): list(ends) for partition, ends in sorted(self.ranges.items())}
        entry = {"number": self.number, "ranges": ranges, "idle": sorted(self.idle), "clock": self.clock}
        return json.dumps(entry | {"listed": self.listed}) + "\n"

    @classmethod
    def decode(cls, line: str) -> TopicEntry:
        """Decode a line written by `encode`."""
        entry = json.loads(line)
        ranges = {int(partition): (ends[0], ends[1]) for partition, ends in entry["ranges"].items()}
        return cls(entry["number"], ranges, frozenset(entry["idle"]), entry["clock"], entry.get("listed"))


class Numbered(Protocol):
    """Protocol that the entries of a journal implement."""

    @property
    def number(self) -> int:
        """The number of the micro-batch."""

    def encode(self) -> str:
        """Encode the entry as a single line."""


Kind = TypeVar("Kind", bound=Numbered)


class Journal(Generic[Kind]):
    """Write-ahead journal of micro-batches, one per line. An incomplete last line was never acted upon and is ignored.

    The process that opens the journal takes it over. Anything that another process, presumed dead, writes afterwards
    is ignored. Entries before ``number``, the first micro-batch to be read again, are removed.
    """

    def __init__(self, folder: Path, number: int, decode: Callable[[str], Kind]) -> None:
        make_folder(folder)
        files, self._decode = sorted(folder.glob("journal-*.jsonl")), decode
        by_number = {entry.number: entry for entry in self._entries(files[-1])} if files else {}
        #: Entries from ``number`` on, without a gap.
        self.entries: list[Kind] = []
        while number + len(self.entries) in by_number:
            self.entries.append(by_number[number + len(self.entries)])
        self.path = folder / f"journal-{(int(files[-1].stem[8:]) if files else 0) + 1:06d}.jsonl"
        self._write(self.entries)
        for file in files:
            file.unlink(missing_ok=True)

    def append(self, entry: Kind, checkpointed: Checkpointed) -> None:
        """Write an entry durably. Entries that are no longer needed are removed once the file has grown large."""
        if self.path.stat().st_size > self._long:
            first = entry.number - _KEPT if checkpointed.number is None else checkpointed.number
            self._write(kept for kept in self._entries(self.path) if kept.number >= first)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(entry.encode())
            file.flush()
            os.fsync(file.fileno())

    def _write(self, entries: Iterable[Kind]) -> None:
        text = "".join(entry.encode() for entry in entries)
        write_durably(self.path, text.encode())
        self._long = len(text) + _LONG

    def _entries(self, path: Path) -> list[Kind]:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        return [self._decode(line) for line in lines if line.endswith("\n")]


Integers = NDArray[np.int64]


@dataclass
class Progress:
    """The position and the event time that each partition has reached.

    >>> progress = Progress(offsets={0: 0, 1: 0}, times={0: MIN_EVENT_TIME, 1: MIN_EVENT_TIME})
    >>> progress.read({0: (2, np.array([10, 30]))}, frozenset()), progress.watermark == MIN_EVENT_TIME
    ([array([-4611686018427387904,                   10])], True)
    >>> _ = progress.read({1: (1, np.array([20]))}, frozenset())
    >>> progress.watermark
    20
    >>> progress.read({}, frozenset({1})), progress.watermark
    ([], 30)
    """

    offsets: dict[int, int] = field(default_factory=dict)  # next offset to read, by partition
    times: dict[int, int] = field(default_factory=dict)  # latest time of an event, or `MIN_EVENT_TIME`, by partition
    idle: frozenset[int] = frozenset()  # partitions that do not hold back the watermark
    watermark: int = MIN_EVENT_TIME  # the earliest time of any partition that is not idle; never decreases
    first: int = MIN_EVENT_TIME  # earlier events do not advance time
    limit: int | None = None  # time never advances beyond this limit
    disorder: int = 0  # delay of the watermark
    by_broker: bool = False  # whether times are the broker's and the clock advances at the end of a partition

    def read(
        self,
        rows: Mapping[int, tuple[int, Integers]],
        idle: frozenset[int],
        clock: int | None = None,
        listed: int | None = None,
    ) -> list[Integers]:
        """Advance the partitions that were read, and return the watermarks against which their rows are judged.

        ``rows``: by partition, in order: the next offset, and the times of the rows before it (by the broker: of
        arrival). ``idle``, ``clock``, ``listed``: as in `TopicEntry`. By the broker a row is held against its own
        arrival time, which no watermark of its partition has passed while the broker's clock keeps to ``disorder``; a
        row that is older all the same would come to windows that are gone. By events a row is held against its own
        partition and what was certain before all of these rows, so that it does not matter which partitions happened to
        be read together.
        """
        entries = []
        for partition, (offset, times) in rows.items():
            moves = np.where(
                times >= self.first, times if self.limit is None else np.minimum(times, self.limit), MIN_EVENT_TIME
            )
            latest = np.maximum.accumulate(np.concatenate([[self.times[partition]], moves]))
            passed = np.maximum(latest[:-1], self.watermark) - self.disorder
            entries.append(np.maximum(times, passed) if self.by_broker else passed)
            self.offsets[partition], self.times[partition] = offset, int(latest[-1])
        if self.by_broker:
            self.times |= {partition: self.at_end(partition, clock) for partition in idle}
        else:
            self.idle = idle
        active = [time for partition, time in self.times.items() if partition not in self.idle]
        there = min(active, default=self.latest)
        self.watermark = max(self.watermark, there if listed is None else min(there, listed))
        return entries

    def at_end(self, partition: int, clock: int | None) -> int:
        """Return the time reached by a partition that was read to its end when the clock showed the given time."""
        time = self.times[partition]
        return time if clock is None else max(time, clock if self.limit is None else min(clock, self.limit))

    @property
    def latest(self) -> int:
        """The latest event time in any partition."""
        return max(self.times.values(), default=MIN_EVENT_TIME)

    def as_state(self) -> State:
        """Return the progress as a dictionary of arrays."""
        partitions = sorted(self.offsets)
        return {
            "partition": np.asarray(partitions, np.int64),
            "offset": np.asarray([self.offsets[p] for p in partitions], np.int64),
            "time": np.asarray([self.times[p] for p in partitions], np.int64),
            "idle": np.asarray([p in self.idle for p in partitions], np.bool_),
        }

    def restore(self, state: State) -> None:
        """Restore the progress from the result of `as_state`. A state without partitions is ignored."""
        if "partition" in state:
            partitions = state["partition"].tolist()
            self.offsets = dict(zip(partitions, state["offset"].tolist()))
            self.times = dict(zip(partitions, state["time"].tolist()))
            self.idle = frozenset(state["partition"][state["idle"]].tolist())


@dataclass(frozen=True)
class PartitionAssignment:
    """The partitions assigned to one reader on a cluster. The engine takes the minimum of all readers' watermarks.

    >>> [partition for partition in range(7) if PartitionAssignment(1, 3).owns(partition)]
    [1, 4]
    """

    reader: int = 0
    n_readers: int = 1  # the only one has all partitions

    @classmethod
    def of(cls, position: State) -> PartitionAssignment:
        """Return the assignment that is part of a reader's position."""
        return cls(int(position["reader"]), int(position["n_readers"])) if "reader" in position else cls()

    def as_state(self) -> State:
        """Return the assignment as part of a reader's position. The result is empty if there is only one reader."""
        if self.n_readers == 1:
            return {}
        return {"reader": np.asarray(self.reader), "n_readers": np.asarray(self.n_readers)}

    def owns(self, partition: int) -> bool:
        """Return whether this reader is responsible for a partition, which may have been added after the run began."""
        return partition % self.n_readers == self.reader


class Commits:
    """Commits checkpointed positions to a consumer group so that the lag can be monitored.

    Refusals are ignored, and if there is no group nothing is committed.
    """

    def __init__(self, group: str | None, consumer: Any, checkpointed: Checkpointed, *, every: float = 1.0) -> None:
        self._group, self._consumer, self._checkpointed, self._every = group, consumer, checkpointed, every
        self._last: dict[int, int] = {}
        self._since = float("-inf")

    def update(self) -> None:
        """Commit new offsets, but no more often than once every ``every`` seconds."""
        position = self._checkpointed.position  # maybe none yet, or one without a partition
        if self._group is None or "partition" not in position or time.monotonic() - self._since < self._every:
            return
        self._since = time.monotonic()
        offsets = dict(zip(position["partition"].tolist(), position["offset"].tolist()))
        if offsets != self._last:
            with suppress(self._consumer.refused):
                self._consumer.commit(offsets)
                self._last = offsets
