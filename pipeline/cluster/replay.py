"""Read a live source as an unbounded splittable step: the engine keeps its position, and its watermark moves."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.coders import Coder
from apache_beam.io.iobase import RestrictionProgress, RestrictionTracker
from apache_beam.io.watermark_estimators import ManualWatermarkEstimator
from apache_beam.transforms.core import RestrictionProvider
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import MIN_TIMESTAMP, Duration, Timestamp

from mechanisms.core.errors import PenstockError
from mechanisms.core.state import State, decode_state, encode_state
from pipeline import parts
from pipeline.cluster.blocks import earliest, encode_block, end_of_input
from pipeline.cluster.step import ClusterStep, discreetly
from pipeline.lateness import closed_before
from pipeline.paths import parts_folder
from pipeline.plan import Plan
from pipeline.slices import NEVER, Slice
from pipeline.source import LiveSource

#: Seconds of reading after which the engine gets its turn: it takes positions and watermarks in between.
TURN = 0.25
#: Windows after which it gets its turn as well: what waits for its release stays little when much is caught up with.
TURN_WINDOWS = 64
#: Seconds to wait where there is nothing to read at the moment, and after the end.
IDLE, REST = 0.1, 5.0


@dataclass(frozen=True, eq=False)
class Cursor:
    """How far a source has been read.

    Parameters
    ----------
    position
        In the terms of the source (`Slice.end`).
    number, latest
        Number of the next slice, and the time that was reached before it.
    ended
        Whether nothing is left for this reader: the rest was left to another.
    """

    position: State = field(default_factory=dict)
    number: int = 0
    latest: int = NEVER
    ended: bool = False

    @classmethod
    def after(cls, piece: Slice) -> Cursor:
        """The cursor behind a slice."""
        return cls(piece.end, piece.number + 1, piece.after)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Cursor) and CursorCoder().encode(self) == CursorCoder().encode(other)

    def __hash__(self) -> int:
        return hash((self.number, self.latest, self.ended))


class CursorCoder(Coder):  # type: ignore[misc]
    """Cursors as bytes."""

    def encode(self, value: Cursor) -> bytes:
        """A line of numbers, then the position."""
        head = json.dumps([value.number, value.latest, value.ended]).encode()
        return head + b"\n" + encode_state("cursor", 1, value.position)

    def decode(self, encoded: bytes) -> Cursor:
        """The inverse of `encode`."""
        head, _, position = encoded.partition(b"\n")
        return Cursor(decode_state(position, "cursor", 1), *json.loads(head))

    def is_deterministic(self) -> bool:
        """Equal cursors have equal bytes."""
        return True


class CursorTracker(RestrictionTracker):  # type: ignore[misc]
    """Everything from a cursor on; never split for several readers, only left to be continued.

    Examples
    --------
    >>> tracker = CursorTracker(Cursor())
    >>> tracker.try_claim(Cursor(number=1)), tracker.try_split(0)[1].number, tracker.try_claim(Cursor(number=2))
    (True, 1, False)
    """

    def __init__(self, restriction: Cursor) -> None:
        self._cursor, self._left = restriction, False

    def current_restriction(self) -> Cursor:
        """Where to go on, or the end if that was left to another."""
        return replace(self._cursor, ended=True) if self._left else self._cursor

    def try_claim(self, position: Cursor) -> bool:
        """Move behind a slice."""
        if self._left:
            return False
        self._cursor = position
        return True

    def try_split(self, fraction_of_remainder: float) -> tuple[Cursor, Cursor] | None:
        """Leave what has not been claimed; a fraction of something endless cannot be told."""
        if fraction_of_remainder != 0 or self._left or self._cursor.ended:
            return None
        self._left = True
        return replace(self._cursor, ended=True), self._cursor

    def check_done(self) -> None:
        """Raise `ValueError` unless the end was reached or the rest was left."""
        if not (self._left or self._cursor.ended):
            raise ValueError(f"the source was left at slice {self._cursor.number} without a word")

    def current_progress(self) -> RestrictionProgress:
        """Unknown: a source may have no end."""
        return RestrictionProgress(completed=float(self._cursor.number), remaining=0.0 if self._cursor.ended else 1.0)

    def is_bounded(self) -> bool:
        """A live source is unbounded, also where it comes to an end."""
        return False


class Everything(RestrictionProvider):  # type: ignore[misc]
    """One reader for the whole source."""

    def initial_restriction(self, element: bytes) -> Cursor:
        """From the beginning."""
        return Cursor()

    def create_tracker(self, restriction: Cursor) -> CursorTracker:
        """A tracker of what is left."""
        return CursorTracker(restriction)

    def restriction_size(self, element: bytes, restriction: Cursor) -> float:
        """The same for all: size decides nothing here."""
        return 1.0

    def restriction_coder(self) -> Coder:
        """How positions are kept in checkpoints."""
        return CursorCoder()

    def truncate(self, element: bytes, restriction: Cursor) -> None:
        """A drained job reads nothing more."""


class Reader:
    """An open source in this process: to go on where the last turn ended costs nothing."""

    def __init__(self, plan: Plan, start: Cursor) -> None:
        self.plan, self.source, self.cursor = plan, live_source(plan), start
        self._folder = tempfile.TemporaryDirectory(prefix="penstock-")
        spool = Path(self._folder.name) / "spool"
        self._pieces = self.source.slices(plan, spool, start.position, start.number, start.latest)
        self._begun, self._start = time.monotonic(), max(start.latest, plan.calendar.from_ms)
        self.ended = False
        self.piece: Slice | None = None
        self.advance()

    def advance(self) -> None:
        """Leave the slice at hand behind, and look at the next one."""
        if self.piece is not None:
            self.cursor = Cursor.after(self.piece)
        try:
            self.piece = next(self._pieces)
        except StopIteration:
            self.ended, self.piece = True, None
            self._folder.cleanup()

    @property
    def wait(self) -> float:
        """Seconds until the slice at hand is due."""
        if self.piece is None:
            return IDLE
        if self.source.factor is None or self.piece.after == NEVER:
            return 0.0
        return self._begun + (self.piece.after - self._start) / 1000 / self.source.factor - time.monotonic()

    @property
    def time(self) -> int:
        """Time that is reached while nothing happens: up to the next event where the order of events is known."""
        if not self.source.by_time or self.source.factor is None or self.piece is None:
            return self.cursor.latest
        times = self.piece.block.frame["time"]
        now = self._start + int((time.monotonic() - self._begun) * 1000 * self.source.factor)
        return max(self.cursor.latest, min(now, int(times[0]))) if len(times) else self.cursor.latest


class Replay(ClusterStep):
    """Turn a live source into blocks of events, in turns of a fraction of a second."""

    @beam.DoFn.unbounded_per_element()  # type: ignore[untyped-decorator]
    @discreetly
    def process(
        self,
        element: bytes,
        tracker: Any = beam.DoFn.RestrictionParam(Everything()),
        watermark: Any = beam.DoFn.WatermarkEstimatorParam(ManualWatermarkEstimator.default_provider()),
    ) -> Iterator[Any]:
        """Emit what is due; leave the rest for the next turn."""
        try:
            reader = take_reader(self.plan, tracker.current_restriction())
            yield from self._turn(reader, tracker, watermark)
            # Not where the turn failed or was given up: the rest of its reader would look like the end of the input.
            _readers[str(self.plan.folder)] = reader
        except PenstockError as error:
            # The engine would try for ever; the driver ends the run with this.
            words = str(error) if self.plan.config.mode == "simulation" else type(error).__name__
            parts.write_json(parts_folder(self.plan, "failed") / "failed.json", words)
            raise

    def _turn(self, reader: Reader, tracker: Any, watermark: Any) -> Iterator[Any]:
        turn_ends = time.monotonic() + TURN
        furthest = max(reader.cursor.latest, self.plan.calendar.from_ms) + TURN_WINDOWS * self.plan.calendar.step
        if reader.piece is None and not reader.ended:
            reader.advance()
        while not reader.ended:
            piece, wait = reader.piece, reader.wait
            turn_is_over = time.monotonic() > turn_ends or reader.cursor.latest > furthest
            if piece is None or wait > 0 or turn_is_over:
                self._reach(watermark, reader.time)
                tracker.defer_remainder(Duration(max(0.0, wait)))
                return
            if not tracker.try_claim(Cursor.after(piece)):
                return
            reader.advance()
            yield self._block(piece)
            self._reach(watermark, piece.after)
        # Never at the end of time: Flink clears state then that timers have not been called for yet.
        if (end := end_of_input(self.plan)) is not None:
            self._reach(watermark, end + live_source(self.plan).disorder)
        tracker.defer_remainder(Duration(REST))

    def _block(self, piece: Slice) -> Any:
        closed = closed_before(piece, self.plan)
        data = encode_block(f"{piece.number:012d}", piece.block, closed if closed.any() else None)
        otherwise = piece.before if piece.before != NEVER else self.plan.calendar.from_ms
        return TimestampedValue(data, Timestamp(micros=1000 * earliest(piece.block, self.plan.calendar, otherwise)))

    def _reach(self, watermark: Any, reached: int) -> None:
        """Let the watermark move on; what is at the time reached may still come."""
        instant = Timestamp(micros=1000 * (reached - live_source(self.plan).disorder)) if reached != NEVER else None
        if instant is not None and instant > (watermark.current_watermark() or MIN_TIMESTAMP):
            watermark.set_watermark(instant)


#: Readers between two turns, by the folder of their run.
_readers: dict[str, Reader] = {}


def take_reader(plan: Plan, cursor: Cursor) -> Reader:
    """The reader that the latest turn of a run left in this process if it stands at the cursor, otherwise a new one.

    It is the caller's alone: a turn that the engine has given up may still go on in another thread.
    """
    known = _readers.pop(str(plan.folder), None)
    return known if known is not None and known.cursor == cursor else Reader(plan, cursor)


def live_source(plan: Plan) -> LiveSource:
    """The source of a cluster's plan."""
    source = plan.config.source
    if not isinstance(source, LiveSource):
        raise TypeError(f"{type(source).__name__} is not live; as_cluster_plan makes it so")
    return source


def read(root: beam.Pipeline, plan: Plan) -> Any:
    """Blocks of the source of a plan, as `pipeline.cluster.blocks` wants them."""
    return root | "Source" >> beam.Impulse() | "Replay" >> beam.ParDo(Replay(plan)).with_output_types(bytes)
