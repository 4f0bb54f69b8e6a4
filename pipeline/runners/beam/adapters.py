"""Both ends of the graph for a Beam pipeline of one's own: single events in, rows of releases out."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import apache_beam as beam
import polars as pl
from apache_beam.typehints import Any as AnyType
from apache_beam.typehints import Dict
from apache_beam.typehints.decorators import with_input_types, with_output_types

from penstock.mechanisms.core.plugin import DataError
from penstock.pipeline.counting.spec import STREAM
from penstock.pipeline.output.tables import releases_table
from penstock.pipeline.releasing.release import Batch
from penstock.pipeline.runners.beam.coders import NamedBlock, decode_rows
from penstock.pipeline.runners.beam.step import PlanTransform, Step, redacted
from penstock.pipeline.sources.base import EventBlock

#: Events that travel together: what each element of a pipeline costs is paid once for all of them.
BLOCK_ROWS = 100_000
_COLUMNS = {"time": pl.Int64, "latitude": pl.Float64, "longitude": pl.Float64, "place": pl.String}
_ROW = Dict[str, AnyType]


@with_output_types(NamedBlock)
class EventsToBlocks(beam.PTransform[Any, Any]):  # type: ignore[misc]
    """Batch events of finite input into the blocks that `CountDistinctUsers` takes.

    An event is a mapping with ``user`` (whole number or text), ``time`` (milliseconds since 1970 UTC), and ``place``
    (text) or ``latitude`` and ``longitude`` (degrees), as the configured space reads them. It holds no null.

    Parameters
    ----------
    block_rows
        Most events of a block.

    Returns
    -------
    ``PCollection[NamedBlock]``

    Examples
    --------
    >>> with beam.Pipeline(runner="apache_beam.runners.portability.fn_api_runner.FnApiRunner") as pipeline:
    ...     events = pipeline | beam.Create([{"user": "ann", "time": 1704067260000, "place": "harbour"}])
    ...     _ = events | EventsToBlocks() | beam.Map(lambda named: print(named.block.n_rows))
    1
    """

    def __init__(self, block_rows: int = BLOCK_ROWS) -> None:
        super().__init__()
        self.block_rows = block_rows

    def expand(self, events: Any) -> Any:
        """Attach the steps."""
        batches = events | "Batch" >> beam.BatchElements(min_batch_size=1_000, max_batch_size=self.block_rows)
        return batches | "Block" >> beam.Map(_block).with_output_types(NamedBlock)


@with_input_types(Batch)
@with_output_types(_ROW)
class ReleasesToRows(PlanTransform):
    """Turn releases into rows with the columns of ``public/releases.parquet``.

    Only rows of `WriteReleases` should leave the operator: it has held them back for ``output.delay``.

    Parameters
    ----------
    plan
        The run.

    Returns
    -------
    ``PCollection[dict[str, Any]]``: one for each window and active cell.
    """

    def expand(self, releases: Any) -> Any:
        """Attach the step."""
        return releases | "Rows" >> beam.ParDo(_Rows(self.plan)).with_output_types(_ROW)


class _Rows(Step):
    @redacted
    def process(self, batch: Batch) -> Iterator[dict[str, Any]]:
        """Emit the rows of a batch."""
        if batch.releases:
            windows = self.plan.grid.windows(batch.releases[0].window, batch.releases[-1].window)
            table = releases_table(batch.releases, windows, self.plan.space.cells, STREAM, self.plan.grid.lateness_ms)
            yield from table.to_pylist()


def _block(events: Iterable[Mapping[str, Any]]) -> NamedBlock:
    """A block of events; the same events have the same name, which a repeated bundle must keep."""
    rows = list(events)
    known = {name: kind for name, kind in _COLUMNS.items() if name in rows[0]}
    users = pl.Int64 if isinstance(rows[0]["user"], int) else pl.String
    frame = pl.DataFrame(rows, schema={"user": users, **known})
    name = hashlib.sha256(repr(rows).encode()).hexdigest()[:24]
    return NamedBlock(f"events/{name}", EventBlock(frame, len(rows)))


def require_used(tally: bytes) -> dict[str, int]:
    """Row counts by outcome, from what `TallyRows` returns; fail the pipeline where no row was used.

    Events are counted in the same pipeline that releases them, so that this is known at its end only: publish what it
    wrote after it has ended well.

    Raises
    ------
    DataError
        If no row was used: most likely columns, times or cells are wrong.
    """
    counts, _ = decode_rows(tally)
    outcomes = {name: getattr(counts, name) for name in ("rows", "used", "late", "out_of_area", "out_of_time")}
    outcomes["rejected"] = sum(counts.rejected.values())
    if not counts.used:
        said = ", ".join(f"{n:,} {name.replace('_', ' ')}" for name, n in outcomes.items() if name != "used")
        raise DataError(f"no row could be used ({said}): what was released counts no one")
    return outcomes
