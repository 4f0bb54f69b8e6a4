"""Read events as blocks: finite input in spans, endless input through a splittable reader with a manual watermark.

Both kinds of reader keep to one contract:

* An element is a `NamedBlock`. A block that is read again after a failure has the same name and the same rows.
* Its timestamp is not after its earliest event of the run. Blocks of finite input have the least timestamp there is.
* The watermark passes an instant when no row from before it is expected any more. Rows that come all the same are
  late, and counted as late where all their windows are final. On finite input it moves once, at the end.
* A block of endless input says for every row which window was the last final one when the row arrived (``closed``):
  at the row's own arrival time, or in a simulation at the latest event before it. This never depends on timing, so
  that a run which was disturbed accepts the same rows as one which was not.
* After the last block of endless input that ends, the watermark goes to `end_of_input` and stays there. Flink
  would clear state before its timers have fired if it went to the end of time, so the reader itself never ends: the
  driver cancels the job.
* Everything is in the global window.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
import weakref
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
from apache_beam.coders import Coder
from apache_beam.coders.coders import NullableCoder, TimestampCoder
from apache_beam.io.iobase import RestrictionProgress, RestrictionTracker
from apache_beam.io.watermark_estimators import ManualWatermarkEstimator
from apache_beam.transforms.core import RestrictionProvider, WatermarkEstimatorProvider
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.shared import Shared
from apache_beam.utils.timestamp import MIN_TIMESTAMP, Duration, Timestamp

from penstock.pipeline.atomic import write_json
from penstock.pipeline.config.plan import Plan
from penstock.pipeline.counting.ingest import last_final_windows
from penstock.pipeline.output.files import READERS, parts_folder
from penstock.pipeline.runners.beam.coders import Cursor, CursorCoder, NamedBlock
from penstock.pipeline.runners.beam.step import PlanTransform, Step, end_of_input, redacted, timestamp, whole_second
from penstock.pipeline.runners.shared import Prefetcher, live_input, live_source
from penstock.pipeline.sources.base import MIN_EVENT_TIME, Checkpointed, EventBlock, MicroBatch, Span
from penstock.pipeline.windows.calendar import Calendar

#: Seconds to wait at least where there is nothing to read at the moment, and after the end. Flink's runner counts whole
#: seconds that are left, and passes a watermark on only while no turn goes on: readers that never wait hold it up.
IDLE, REST = 1.5, 5.0
#: Seconds that are waited at most where no window can be final before: every turn costs Flink's older runners a name.
MAX_IDLE = 20.0
#: Seconds that a turn which comes more than a second too early waits.
EARLY = 0.1
#: Seconds of reading after which the engine gets its turn, where there is more: it takes positions in between.
TURN = 1.0
#: Turns that a reader has in an hour, unless it catches up with many windows.
TURNS_PER_HOUR = 3600
#: Windows after which it gets its turn as well: what waits for its release stays little when much is caught up with.
TURN_WINDOWS = 64


class ReadEvents(PlanTransform):
    """Read a plan's source: ordered spans of files or rows, or shared readers if the source is live.

    ``shared``: whether several workers may share the spans of finite input; one alone reads them where they are made.
    Returns ``PCollection[NamedBlock]``; unbounded for a live source.
    """

    def __init__(self, plan: Plan, shared: bool = True) -> None:
        super().__init__(plan)
        self.shared = shared

    def expand(self, root: Any) -> Any:
        """Apply the readers for the source."""
        if not self.plan.streaming:
            spans = self.plan.config.source.from_start().spans()
            created = root | "Spans" >> beam.Create(spans, reshuffle=self.shared)
            return created | "ReadSpans" >> beam.ParDo(ReadSpans(self.plan)).with_output_types(NamedBlock)
        impulse = root | "Source" >> beam.Impulse()
        readers = impulse | "Readers" >> beam.ParDo(Readers(self.plan)).with_output_types(bytes)
        # bytes: the cursor that a reader begins at
        return readers | "Replay" >> beam.ParDo(Replay(self.plan)).with_output_types(NamedBlock)


class ReadSpans(Step):
    """Read finite input span by span."""

    @redacted
    def process(self, span: Span) -> Iterator[NamedBlock]:
        """Emit a span's blocks, named so that they sort in input order."""
        # What is read next is decoded in a thread while a block is handed on.
        source = self.plan.config.source.reading(self.plan.space.reads).from_start()
        with closing(Prefetcher(source.read(span))) as blocks:
            for number, block in enumerate(blocks):
                yield NamedBlock(f"{span.index:09d}/{number:09d}", block)


class Readers(Step):
    """Emit the initial cursors of the readers that share a live source."""

    @redacted
    def process(self, _: bytes) -> Iterator[bytes]:
        """Emit each reader's initial cursor."""
        for reader, position in enumerate(live_source(self.plan).starts(live_input(self.plan))):
            yield CursorCoder().encode(Cursor(position, reader=reader))


class CursorTracker(RestrictionTracker):  # type: ignore[misc]
    """Restriction tracker for input from a cursor onward. Reading can be resumed, but the input cannot be divided.

    >>> tracker = CursorTracker(Cursor())
    >>> tracker.try_claim(Cursor(number=1)), tracker.try_split(0)[1].number, tracker.try_claim(Cursor(number=2))
    (True, 1, False)
    """

    def __init__(self, restriction: Cursor) -> None:
        self._cursor, self._left = restriction, False

    def current_restriction(self) -> Cursor:
        """Return the current position, or the end if the remainder has been split off."""
        return replace(self._cursor, ended=True) if self._left else self._cursor

    def try_claim(self, position: Cursor) -> bool:
        """Move past a micro-batch. Return False if the remainder has been split off."""
        if self._left:
            return False
        self._cursor = position
        return True

    def try_split(self, fraction_of_remainder: float) -> tuple[Cursor, Cursor] | None:
        """Split off the entire unclaimed remainder. Fractions are undefined because the input may be endless."""
        if fraction_of_remainder != 0 or self._left or self._cursor.ended:
            return None
        self._left = True
        return replace(self._cursor, ended=True), self._cursor

    def check_done(self) -> None:
        """Raise `ValueError` unless the restriction has been completed or its remainder has been split off."""
        if not (self._left or self._cursor.ended):
            raise ValueError(f"the source was left at micro-batch {self._cursor.number} without a word")

    def current_progress(self) -> RestrictionProgress:
        """Return a nominal progress because a source may never end."""
        return RestrictionProgress(completed=float(self._cursor.number), remaining=0.0 if self._cursor.ended else 1.0)

    def is_bounded(self) -> bool:
        """Return False because a live source is unbounded even if it happens to end."""
        return False


class InitialCursor(RestrictionProvider):  # type: ignore[misc]
    """Restriction provider for elements that encode a reader's initial cursor."""

    def initial_restriction(self, element: bytes) -> Any:
        """Return a reader's initial position."""
        return CursorCoder().decode(element)

    def create_tracker(self, restriction: Cursor) -> CursorTracker:
        """Create a tracker for the remaining input."""
        return CursorTracker(restriction)

    def restriction_size(self, element: bytes, restriction: Cursor) -> float:
        """Return a constant because sizes are not used for scheduling."""
        return 1.0

    def restriction_coder(self) -> Coder:
        """Return the coder for positions in checkpoints."""
        return CursorCoder()

    def truncate(self, element: bytes, restriction: Cursor) -> None:
        """Drop the remaining restriction when a job is drained."""


class ManualWatermark(WatermarkEstimatorProvider):  # type: ignore[misc]
    """Provider of a manual watermark that is stored in checkpoints with a standard coder."""

    def initial_estimator_state(self, element: bytes, restriction: Cursor) -> None:
        """Return None because there is no watermark yet."""

    def create_watermark_estimator(self, estimator_state: Timestamp | None) -> ManualWatermarkEstimator:
        """Create an estimator that starts at the last watermark."""
        return ManualWatermarkEstimator(estimator_state)

    def estimator_state_coder(self) -> Coder:
        """Return a standard coder. Beam's default would pickle the state."""
        return NullableCoder(TimestampCoder())


class Reader:
    """A source opened in this process, with its next micro-batch."""

    def __init__(self, plan: Plan, start: Cursor) -> None:
        self.plan, self.source, self.cursor = plan, live_source(plan), start
        folder = tempfile.mkdtemp(prefix="penstock-")
        self._remove_folder = weakref.finalize(self, shutil.rmtree, folder)  # also of a reader that is given up
        spool = Path(folder) / "spool"
        #: What the engine has taken: every turn begins with that.
        self.checkpointed = Checkpointed(start.position)
        self._pieces = self.source.micro_batches(
            replace(live_input(plan), waits=False), spool, start.position, start.number, start.latest, self.checkpointed
        )
        self._begun, self._start = time.monotonic(), max(start.latest, plan.grid.calendar.from_ms)
        #: When the next turn was asked for, by the clock of this process.
        self.due = 0.0
        self.ended = False
        self.piece: MicroBatch | None = None
        self.advance()

    def advance(self) -> None:
        """Move past the current micro-batch and fetch the next one if any is available."""
        if self.piece is not None:
            self.cursor = self.cursor.after(self.piece)
            if not self.piece.more:
                self.piece = None
                return
        try:
            self.piece = next(self._pieces)
        except StopIteration:
            self.ended, self.piece = True, None
            self._remove_folder()

    @property
    def wait(self) -> float:
        """The number of seconds until the current micro-batch is due, which is zero or less if it is already due.

        If it is not due yet, at least `IDLE`. Without a micro-batch, half the time until the next window can be final,
        so that little is left to read by then.
        """
        if self.piece is None:
            grid, disorder = self.plan.grid, self.source.disorder
            final = grid.deadline(grid.last_final(self.cursor.latest - disorder) + 1) + disorder
            return min(MAX_IDLE, max(IDLE, (final / 1000 - time.time()) / 2))
        if self.source.factor is None or self.piece.after == MIN_EVENT_TIME:
            return 0.0
        left = self._begun + (self.piece.after - self._start) / 1000 / self.source.factor - time.monotonic()
        return max(IDLE, left) if left > 0 else left

    @property
    def time(self) -> int:
        """The stream's clock while idle, which advances up to the time of the next row if that is known."""
        if self.piece is None or self.piece.starts is None or self.source.factor is None:
            return self.cursor.latest
        now = self._start + int((time.monotonic() - self._begun) * 1000 * self.source.factor)
        return max(self.cursor.latest, min(now, self.piece.starts))


class _ReaderCache(dict[int, Reader]):
    """Cache of open readers by reader index, kept between turns."""


class Replay(Step):
    """Read a live source endlessly in turns of one second. The engine keeps the position and the watermark."""

    def __init__(self, plan: Plan, *, turn: float = TURN) -> None:
        super().__init__(plan)
        self._turn_seconds = turn
        self._shared = Shared()  # one object for all instances of the step in a process
        self._open: _ReaderCache | None = None

    @property
    def readers(self) -> _ReaderCache:
        """The readers that are open in this process."""
        if self._open is None:
            self._open = self._shared.acquire(_ReaderCache)
        return self._open

    @beam.DoFn.unbounded_per_element()  # type: ignore[untyped-decorator]
    @redacted
    def process(
        self,
        element: bytes,
        tracker: Any = beam.DoFn.RestrictionParam(InitialCursor()),
        watermark: Any = beam.DoFn.WatermarkEstimatorParam(ManualWatermark()),
    ) -> Iterator[Any]:
        """Emit the rows that are due and leave the rest for the next turn."""
        cursor = tracker.current_restriction()
        # Removed from the open ones: an abandoned turn that still runs in another thread must not share its reader.
        reader = self.readers.pop(cursor.reader, None)
        if reader is None or reader.cursor != cursor:
            reader = Reader(self.plan, cursor)
        # Prism brings turns that are put off at once (apache/beam issue 39848); Flink drops fractions of a second.
        if reader.due - time.monotonic() > 1.0:
            time.sleep(EARLY)
        reader.checkpointed.move(cursor.position)
        yield from self._turn(reader, tracker, watermark)
        # The driver watches the turns since it began counting.
        path = parts_folder(self.plan, READERS) / f"{reader.cursor.reader:03d}.json"
        n_turns = json.loads(path.read_bytes())["turns"] if path.exists() else 0
        reached = whole_second(max(0, reader.time - live_source(self.plan).disorder))
        write_json(path, {"watermark": reached, "turns": n_turns + 1})
        # Not where the turn failed or was given up: the rest of its reader would look like the end of the input.
        self.readers[cursor.reader] = reader

    def _turn(self, reader: Reader, tracker: Any, watermark: Any) -> Iterator[Any]:
        turn_ends, calendar = time.monotonic() + self._turn_seconds, self.plan.grid.calendar
        furthest = max(reader.cursor.latest, calendar.from_ms) + TURN_WINDOWS * calendar.step
        if reader.piece is None and not reader.ended:
            reader.advance()
        turn_is_over = False  # not before a micro-batch: a machine that is held up comes on, if by one at a time
        while not reader.ended:
            piece, wait = reader.piece, reader.wait
            if piece is None or wait > 0 or turn_is_over:
                self._advance_watermark(watermark, reader.time)
                self._defer(reader, tracker, max(0.0, wait))
                return
            if not tracker.try_claim(reader.cursor.after(piece)):
                return
            reader.advance()
            closed = last_final_windows(piece, self.plan.grid)
            name = f"{reader.cursor.reader:03d}/{piece.number:012d}"
            otherwise = piece.before if piece.before != MIN_EVENT_TIME else calendar.from_ms
            yield TimestampedValue(
                NamedBlock(name, piece.block, closed if closed.any() else None),
                timestamp(earliest(piece.block, calendar, otherwise)),
            )
            self._advance_watermark(watermark, piece.after)
            turn_is_over = time.monotonic() > turn_ends or reader.cursor.latest > furthest
        if (end := end_of_input(self.plan)) is not None:
            self._advance_watermark(watermark, end + live_source(self.plan).disorder)
        self._defer(reader, tracker, REST)

    @staticmethod
    def _defer(reader: Reader, tracker: Any, seconds: float) -> None:
        reader.due = time.monotonic() + seconds
        tracker.defer_remainder(Duration(seconds))

    def _advance_watermark(self, watermark: Any, reached: int) -> None:
        """Advance the watermark. Rows with exactly that time may still arrive."""
        if reached == MIN_EVENT_TIME:
            return
        time = whole_second(reached - live_source(self.plan).disorder)
        if (instant := timestamp(time)) > (watermark.current_watermark() or MIN_TIMESTAMP):
            watermark.set_watermark(instant)


def earliest(block: EventBlock, calendar: Calendar, otherwise: int) -> int:
    """Return the time in milliseconds of a block's earliest event within the run, or ``otherwise`` if there is none.

    >>> import polars as pl
    >>> calendar = Calendar(step=10, anchor=0, time_zone="UTC", from_ms=0, until_ms=100)
    >>> block = EventBlock(pl.DataFrame({"time": [-5, 42, 17, 100], "user": [1, 2, 3, 4], "place": list("aaaa")}), 4)
    >>> earliest(block, calendar, otherwise=0)
    17
    """
    times = block.frame["time"].to_numpy()
    inside = times[calendar.index(times) > 0]
    return int(np.min(inside)) if len(inside) else otherwise
