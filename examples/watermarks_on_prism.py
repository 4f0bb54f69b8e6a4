"""Show which clock Prism gives to a step behind two readers: that of the faster one, with Beam 2.77.

    python examples/watermarks_on_prism.py --prism_location=PRISM

Each reader has ten rows, a minute apart, and sets its watermark after each. The first does so ten times as fast. The
end of minute 5 has come when both have read six: a clock that holds the minimum of the readers' watermarks counts at
least 12 rows by then. Prism counts 7.
"""

import sys
from collections.abc import Iterator
from typing import Any

import apache_beam as beam
from apache_beam.coders import VarIntCoder
from apache_beam.io.restriction_trackers import OffsetRange, OffsetRestrictionTracker
from apache_beam.io.watermark_estimators import ManualWatermarkEstimator
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms.core import RestrictionProvider
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import ReadModifyWriteStateSpec, TimerSpec, on_timer
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Duration, Timestamp

N_ROWS, MINUTE = 10, 60


class Rows(RestrictionProvider):  # type: ignore[misc]
    """The rows that a reader has left."""

    def initial_restriction(self, reader: int) -> OffsetRange:
        """All of them."""
        return OffsetRange(0, N_ROWS)

    def create_tracker(self, restriction: OffsetRange) -> OffsetRestrictionTracker:
        """Track them by number."""
        return OffsetRestrictionTracker(restriction)

    def restriction_size(self, reader: int, restriction: OffsetRange) -> int:
        """Return their number."""
        return int(restriction.size())


class Read(beam.DoFn):  # type: ignore[misc]
    """Read one row a turn; the second reader waits for a second between two turns."""

    @beam.DoFn.unbounded_per_element()  # type: ignore[untyped-decorator]
    def process(
        self,
        reader: int,
        tracker: Any = beam.DoFn.RestrictionParam(Rows()),
        watermark: Any = beam.DoFn.WatermarkEstimatorParam(ManualWatermarkEstimator.default_provider()),
    ) -> Iterator[TimestampedValue]:
        """Emit a row and move the watermark to it."""
        row = tracker.current_restriction().start
        if tracker.try_claim(row):
            yield TimestampedValue(("all", row), Timestamp(MINUTE * row))
            watermark.set_watermark(Timestamp(MINUTE * row))
            tracker.defer_remainder(Duration(1.0 if reader else 0.1))


class CountRows(beam.DoFn):  # type: ignore[misc]
    """Count the rows that come before the clock has reached minute 5."""

    COUNT = ReadModifyWriteStateSpec("count", VarIntCoder())
    TIMER = TimerSpec("minute_5", TimeDomain.WATERMARK)

    def process(
        self,
        keyed: tuple[str, int],
        count: Any = beam.DoFn.StateParam(COUNT),
        timer: Any = beam.DoFn.TimerParam(TIMER),
    ) -> None:
        """Count one more; a row that comes later sets the timer again."""
        count.write((count.read() or 0) + 1)
        timer.set(Timestamp(5 * MINUTE))

    @on_timer(TIMER)  # type: ignore[untyped-decorator]
    def print_count(self, count: Any = beam.DoFn.StateParam(COUNT)) -> None:
        """Print the rows so far."""
        print(f"minute 5 has come after {count.read()} rows", flush=True)


def main() -> None:
    """Run the pipeline."""
    options = PipelineOptions(["--streaming", "--environment_type=LOOPBACK", *sys.argv[1:]])
    with beam.Pipeline(runner="PrismRunner", options=options) as pipeline:
        readers = pipeline | "Readers" >> beam.Create([0, 1])
        rows = readers | "Read" >> beam.ParDo(Read()).with_output_types(tuple[str, int])
        rows | "Count" >> beam.ParDo(CountRows())


if __name__ == "__main__":
    main()
