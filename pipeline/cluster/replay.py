"""Read a live source as an unbounded splittable step: the engine keeps its position, and its watermark moves."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import apache_beam as beam
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import MIN_TIMESTAMP, Duration, Timestamp

from mechanisms.core.plugin import StateVersionError
from pipeline.cluster.blocks import earliest, encode_block, end_of_input, whole_second
from pipeline.cluster.cursor import Cursor, CursorCoder, FromTheStart, UnreadableCursor, WatermarkByHand
from pipeline.cluster.reader import Reader, keep_reader, live_source, take_reader
from pipeline.cluster.step import ClusterStep, discreetly
from pipeline.sources.base import NEVER, Slice
from pipeline.steps.ingest import closed_before

if TYPE_CHECKING:
    from pipeline.config.plan import Plan


#: Seconds of reading after which the engine gets its turn: it takes positions and watermarks in between.
TURN = 0.25
#: Windows after which it gets its turn as well: what waits for its release stays little when much is caught up with.
TURN_WINDOWS = 64
#: Seconds to wait after the end.
REST = 5.0


class Readers(ClusterStep):
    """The beginning of every reader that has a share of the source."""

    @discreetly
    def process(self, _: bytes) -> Iterator[bytes]:
        """Emit a cursor for each."""
        for reader, position in enumerate(live_source(self.plan).starts(self.plan)):
            yield CursorCoder().encode(Cursor(position, reader=reader))


class Replay(ClusterStep):
    """Turn a live source into blocks of events, in turns of a fraction of a second."""

    @beam.DoFn.unbounded_per_element()  # type: ignore[untyped-decorator]
    @discreetly
    def process(
        self,
        element: bytes,
        tracker: Any = beam.DoFn.RestrictionParam(FromTheStart()),
        watermark: Any = beam.DoFn.WatermarkEstimatorParam(WatermarkByHand()),
    ) -> Iterator[Any]:
        """Emit what is due; leave the rest for the next turn."""
        cursor = tracker.current_restriction()
        if isinstance(cursor, UnreadableCursor):
            raise StateVersionError(cursor.reason)
        live_source(self.plan).taken(self.plan, cursor.position)
        reader = take_reader(self.plan, cursor)
        yield from self._turn(reader, tracker, watermark)
        # Not where the turn failed or was given up: the rest of its reader would look like the end of the input.
        keep_reader(reader)

    def _turn(self, reader: Reader, tracker: Any, watermark: Any) -> Iterator[Any]:
        turn_ends = time.monotonic() + TURN
        furthest = max(reader.cursor.latest, self.plan.calendar.from_ms) + TURN_WINDOWS * self.plan.calendar.step
        if reader.piece is None and not reader.ended:
            reader.advance()
        turn_is_over = False  # not before a slice: a machine that is held up comes on, if by one at a time
        while not reader.ended:
            piece, wait = reader.piece, reader.wait
            if piece is None or wait > 0 or turn_is_over:
                self._reach(watermark, reader.time)
                tracker.defer_remainder(Duration(max(0.0, wait)))
                return
            if not tracker.try_claim(reader.cursor.after(piece)):
                return
            reader.advance()
            yield self._block(piece, reader.cursor.reader)
            self._reach(watermark, piece.after)
            turn_is_over = time.monotonic() > turn_ends or reader.cursor.latest > furthest
        # Never at the end of time: Flink clears state then that timers have not been called for yet.
        if (end := end_of_input(self.plan)) is not None:
            self._reach(watermark, end + live_source(self.plan).disorder)
        tracker.defer_remainder(Duration(REST))

    def _block(self, piece: Slice, reader: int) -> Any:
        closed = closed_before(piece, self.plan)
        data = encode_block(f"{reader:03d}/{piece.number:012d}", piece.block, closed if closed.any() else None)
        otherwise = piece.before if piece.before != NEVER else self.plan.calendar.from_ms
        return TimestampedValue(data, Timestamp(micros=1000 * earliest(piece.block, self.plan.calendar, otherwise)))

    def _reach(self, watermark: Any, reached: int) -> None:
        """Let the watermark move on; what is at the time reached may still come."""
        if reached == NEVER:
            return
        instant = Timestamp(micros=1000 * whole_second(reached - live_source(self.plan).disorder))
        if instant > (watermark.current_watermark() or MIN_TIMESTAMP):
            watermark.set_watermark(instant)


def read(root: beam.Pipeline, plan: Plan) -> Any:
    """Blocks of the source of a plan, as `pipeline.cluster.blocks` wants them."""
    return (
        root
        | "Source" >> beam.Impulse()
        | "Readers" >> beam.ParDo(Readers(plan)).with_output_types(bytes)
        | "Replay" >> beam.ParDo(Replay(plan)).with_output_types(bytes)
    )
