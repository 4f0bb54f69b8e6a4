"""The contract for sources: blocks of events, rejected rows, spans, and micro-batches of live sources."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.core.plugin import Checked, DataError, ParameterError, Registry, duration, parameter
from penstock.mechanisms.core.state import State
from penstock.pipeline.sources.reading.offsets import OffsetRange, OffsetsRead
from penstock.pipeline.windows.calendar import format_time
from penstock.pipeline.windows.grid import WindowGrid

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True)
class Reject:
    """An input row that could not be parsed. It is kept for the operator."""

    file: str  # file (or topic) it came from
    line: int  # 1-based line (or row, or offset) in it
    reason: str  # why it was rejected, such as ``latitude out of range``
    raw: str | None  # the row as read, or None if it is not kept

    def as_dict(self) -> dict[str, Any]:
        """Return the reject as a dictionary, as written to a line of ``rejects.jsonl``."""
        return asdict(self)


@dataclass(frozen=True)
class EventBlock:
    """A block of parsed input rows, stored as columns.

    Parameters
    ----------
    frame
        Columns ``time`` (Int64, milliseconds since 1970 UTC), ``user`` (Int64 or String) and either ``latitude``,
        ``longitude`` (Float64, degrees, finite and in range) or ``place`` (String), or both. No nulls. In a deployment
        `penstock.pipeline.counting.ingest` puts Binary digests in place of users, and ``cell`` in place of positions.
    n_rows
        Number of rows read, including rejected ones: ``n_rows == frame.height + len(rejects)``.
    rejects
        The rows that could not be parsed.
    offsets
        The ranges of offsets that the rows cover completely, if the input has offsets.
    """

    frame: pl.DataFrame
    n_rows: int
    rejects: tuple[Reject, ...] = field(default=())
    offsets: tuple[OffsetRange, ...] = field(default=())

    def __post_init__(self) -> None:
        if self.n_rows != self.frame.height + len(self.rejects):
            raise ValueError(
                f"{self.n_rows} rows read, but {self.frame.height} parsed and {len(self.rejects)} rejected"
            )

    def pieces(self, n_rows: int) -> Iterator[EventBlock]:
        """Split the block into pieces of at most ``n_rows`` valid rows. The first one keeps all rejects and offsets.

        >>> import polars as pl
        >>> block = EventBlock(pl.DataFrame({"time": [1, 2, 3], "user": [1, 1, 2]}), 3)
        >>> [piece.n_rows for piece in block.pieces(2)]
        [2, 1]
        """
        if self.frame.height <= n_rows:
            yield self
            return
        rejects, offsets = self.rejects, self.offsets
        for frame in self.frame.iter_slices(n_rows):
            yield EventBlock(frame, frame.height + len(rejects), rejects, offsets)
            rejects, offsets = (), ()


Integers = NDArray[np.int64]

#: No event yet.
MIN_EVENT_TIME = -(2**62)


@dataclass(frozen=True)
class MicroBatch:
    """Consecutive events of a stream, along with the watermark at the time they arrived."""

    number: int  # counts from 0
    block: EventBlock  # the events; rejects come with the first micro-batch of their block
    before: int  # clock of the stream before the first row, or `MIN_EVENT_TIME` if there was none
    after: int  # and after the last row
    watermarks: Integers  # watermark at which each row arrived; windows with an earlier deadline are closed to it
    end: State = field(default_factory=dict)  # position after the last row, as defined by the source
    starts: int | None = None  # clock at the first row, if the source is sorted by its clock
    more: bool = True  # whether more input may be available immediately


@dataclass
class Checkpointed:
    """The latest durable position of a live source. Input before this position is never read again.

    Each reader has a separate position. The runner advances it while the source reads, possibly in another thread.
    """

    position: State = field(default_factory=dict)  # in the terms of the source (`MicroBatch.end`); empty: none yet
    number: int | None = None  # first micro-batch after it; None if an engine may go back to an earlier one

    def move(self, position: State, number: int | None = None) -> None:
        """Update the position to a later one that has become durable."""
        self.position, self.number = position, number


@dataclass(frozen=True, order=True)
class Span:
    """A part of the input that one worker reads: several whole files, or rows ``start`` to ``stop`` of one file."""

    index: int
    files: tuple[str, ...]
    start: int = 0
    stop: int | None = None
    after: int = MIN_EVENT_TIME  # latest time of the preceding rows, if known (see `RowOrder`)


@dataclass(frozen=True, kw_only=True)
class Source(Checked, ABC):
    """Base class for all sources of events. A source also states the time range to release.

    A source is immutable and picklable.
    """

    from_: int | None = parameter(None, key="from", kind="time", doc="start of the first window (inclusive)")
    until: int | None = parameter(None, kind="time", doc="end of the run (exclusive); rows outside are out of time")
    block_rows: int = parameter(1_000_000, at_least=1, doc="number of rows in a block")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.from_ is not None and self.until is not None and self.until <= self.from_:
            raise ParameterError("until", self.until, f"later than from ({format_time(self.from_)})")

    #: Whether files are named after users, in which case a deployment must not record their names.
    has_user_names = False

    @property
    def has_people(self) -> bool:
        """True if rows identify people. False for trips that have no rider id."""
        return True

    @property
    def has_arrival(self) -> bool:
        """True if rows have an ``arrival`` column, which holds the time of receipt by the operator's clock."""
        return False

    @property
    def recorded(self) -> Source:
        """The source that the events originally come from."""
        return self

    def reading(self, columns: Collection[str]) -> Source:
        """Return a source that reads only users, times and whichever of latitude, longitude and place are given."""
        return self

    def from_start(self) -> FileSource:
        """Return a source that can be read repeatedly. Raise `DataError` if the events can be read only once."""
        raise DataError("events are read once, as they come, and not beforehand; give what would be read in a file")

    def all_blocks(self) -> Iterator[EventBlock]:
        """Yield all events from the beginning, by block. Raise `DataError` if they can be read only once."""
        of = self.from_start()
        for span in of.spans():
            yield from of.read(span)

    @abstractmethod
    def digests(self) -> dict[str, str]:
        """Return each input file's SHA-256 digest by name or, for generated events, that of their parameters."""


@dataclass(frozen=True, kw_only=True)
class FileSource(Source):
    """Base class for sources that can be read more than once, such as files and synthetic events.

    `spans` runs once on the driver. `read` runs on the workers and calls `RowOrder.check` on the rows it reads.
    """

    disorder: int | None = duration(
        None,
        doc="largest step back in time from row to row, files in order of name; unset: any order. With 0s "
        "(sorted) or 1d (a file a day) memory does not grow with the input under --runner local",
    )

    def from_start(self) -> FileSource:
        """Return this source, which can be read repeatedly."""
        return self

    @abstractmethod
    def spans(self) -> list[Span]:
        """Split the input into spans of about ``block_rows`` rows, in fixed order. Raise `DataError` on failure."""

    def spans_from(self, first: int) -> Iterator[Span]:
        """Yield the spans in order, starting at index ``first``. The iterator never ends if the source is unbounded."""
        yield from self.spans()[first:]

    @abstractmethod
    def read(self, span: Span) -> Iterator[EventBlock]:
        """Read a span and yield it in blocks. Every input row appears exactly once, either parsed or rejected."""


class RowOrder:
    """Check that rows arrive in the order that their source declares. State is kept across blocks.

    Rows outside the time range of the run are ignored, so that a wrong clock does no damage.

    >>> from penstock.pipeline.sources.csv import Csv
    >>> order = RowOrder(Csv(path="a.csv", disorder=5))
    >>> order.check(np.array([10, 6, 12]), "row {}".format)
    >>> order.latest, order.watermark
    (12, 7)
    """

    def __init__(self, source: FileSource, after: int = MIN_EVENT_TIME) -> None:
        self._disorder, self._from, self._until = source.disorder, source.from_, source.until
        self.latest = after

    @property
    def watermark(self) -> int:
        """The time before which no more rows will arrive, or `MIN_EVENT_TIME` without a declared order."""
        return MIN_EVENT_TIME if self._disorder is None else self.latest - self._disorder

    def check(self, times: Integers, place: Callable[[int], str]) -> None:
        """Check the order of the next rows. Raise a `DataError` that names the ``place`` of a row out of order."""
        if self._disorder is None or not len(times):
            return
        reached = latest_before(times, self._from, self._until, self.latest)
        begun = times >= self._from if self._from is not None else True
        early = np.flatnonzero(begun & (times < reached[:-1] - self._disorder))
        if len(early):
            raise DataError(
                f"{place(int(early[0]))}: is earlier than source.disorder allows; sort rows and name files by time, "
                "state a longer disorder, or leave it out"
            )
        self.latest = int(reached[-1])


@dataclass(frozen=True)
class LiveInput:
    """The attributes of a run that a live source uses."""

    grid: WindowGrid
    spool: Path  # folder for data needed to resume the run; kept as long as the run's files
    ingest: Callable[[EventBlock], EventBlock]  # strips data that must not be kept: ids and positions in a deployment
    max_readers: int = 1  # maximum number of readers that share the source on an engine
    waits: bool = True  # whether a source waits for input, which readers that take turns on an engine do not


def latest_before(times: Integers, from_: int | None, until: int | None, before: int) -> Integers:
    """Return the latest event time within the run before each row, followed by the latest of all, shape (n_rows + 1,).

    Events outside the run do not advance time. In a simulation this is the watermark, which anybody's event advances.
    """
    inside = times >= (MIN_EVENT_TIME if from_ is None else from_)
    if until is not None:
        inside &= times < until
    return np.maximum.accumulate(np.concatenate([[before], np.where(inside, times, MIN_EVENT_TIME)]))


@dataclass(frozen=True, kw_only=True)
class LiveSource(Source):
    """Base class for sources whose events are counted and released while more events arrive."""

    #: Whether only one of Beam's connectors can read the source, on runners that support it.
    by_connector = False
    #: Whether managed services such as Dataflow can read the source.
    on_services = False
    #: Whether blocks state their offsets, so that `describe_unread_input` can detect lost input.
    has_offsets = False

    disorder: int = duration(0, doc="delay of the watermark")
    checkpoint: int = duration(10_000, doc="time between checkpoints for --resume")

    @property
    def factor(self) -> float | None:
        """The number of seconds of events to replay per second of real time, or None if there is no limit."""
        return None

    @property
    def lateness_flaw(self) -> tuple[str, str] | None:
        """The setting that lets other people's rows make a row late, and the value it should have.

        None if lateness depends only on a row's own arrival time and a public clock. **Privacy**: otherwise, one
        person's event changes which rows of others count, and no mechanism's guarantee holds.
        """
        return ("type", "a source whose rows have an arrival time of their own")

    @property
    def endless(self) -> bool:
        """True if the source is unbounded."""
        return self.until is None

    def starts(self, run: LiveInput) -> list[State]:
        """Return the initial position of each reader on a cluster. The positions are the same when a run is resumed."""
        return [{}]

    def check_beginning(self, run: LiveInput, counted: Sequence[OffsetRange]) -> None:
        """Raise `DataError` if the input from the run's start, according to its ``counted`` offsets, is gone."""

    def topic_id(self, run: LiveInput) -> str | None:
        """Return an identifier of the input that the run reads, or None if it has none or has not been read yet."""
        return None

    def describe_unread_input(self, read: OffsetsRead) -> list[str]:
        """Describe input that the run should have read but did not. Raise `DataError` if unknown."""
        return []

    @abstractmethod
    def micro_batches(
        self, run: LiveInput, folder: Path, start: State, number: int, latest: int, checkpointed: Checkpointed
    ) -> Iterator[MicroBatch | None]:
        """Yield micro-batches in order, beginning at the position ``start``. Yields None while there is no new input.

        ``folder``: a folder for temporary files. ``start``: the position (`MicroBatch.end`) from which to continue, or
        empty for the beginning. ``number``, ``latest``: the number of the next micro-batch, and the time reached
        before it. ``checkpointed``: the latest durable position, which advances while micro-batches are read.
        """


SOURCES: Registry[Source] = Registry("penstock.pipeline.sources", "source", Source)


def is_recorded(source: Source) -> bool:
    """Return whether a source's input is finite and can be read more than once."""
    return isinstance(source.recorded, FileSource) and not getattr(source.recorded, "endless", False)
