"""Adapters for third-party Beam pipelines, which accept individual events and return release rows."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import apache_beam as beam
import numpy as np
import polars as pl
from apache_beam.typehints import Any as AnyType
from apache_beam.typehints import Dict
from apache_beam.typehints.decorators import with_input_types, with_output_types

from penstock.mechanisms.core.plugin import DataError, ParameterError
from penstock.pipeline.config.run import RunConfig
from penstock.pipeline.counting.ingest import redacted_reject
from penstock.pipeline.output.checkpoint import plan_in_folder
from penstock.pipeline.output.tables import releases_table
from penstock.pipeline.releasing.release import Batch
from penstock.pipeline.runners.beam.coders import NamedBlock
from penstock.pipeline.runners.beam.counts import describe_rows, require_used
from penstock.pipeline.runners.beam.graph import release_counts
from penstock.pipeline.runners.beam.step import PlanTransform, Step, redacted
from penstock.pipeline.sources.base import SOURCES, EventBlock, LiveSource, Reject
from penstock.pipeline.sources.reading.payload import column_of
from penstock.pipeline.sources.reading.text import MAX_RAW_CHARACTERS, split_valid
from penstock.pipeline.sources.reading.times import EARLIEST, LATEST, TimeFormat

#: Events that travel together: what each element of a pipeline costs is paid once for all of them.
BLOCK_ROWS = 100_000
_ROW = Dict[str, AnyType]
_TYPES: dict[str, type[pl.DataType]] = {"latitude": pl.Float64, "longitude": pl.Float64, "place": pl.String}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@with_output_types(NamedBlock)
class EventsToBlocks(beam.PTransform[Any, Any]):  # type: ignore[misc]
    """Batch a bounded collection of events into blocks for `CountDistinctUsers`.

    An event is a mapping, named tuple or `beam.Row` with ``user``, ``time``, and ``latitude`` and ``longitude`` or
    ``place``. Times are datetimes, dates, ISO 8601 texts, or milliseconds since 1970 UTC. What is missing, None, not
    finite or out of range makes a rejected row, with its reason, as in a file. Returns ``PCollection[NamedBlock]``.

    Parameters
    ----------
    block_rows
        Most events of a block.
    user_type
        ``string``: 7 and ``"7"`` are the same user; ``integer``, for whole numbers below 2⁶³: others are rejected.
    time_zone
        Zone of times written without an offset.
    columns
        Columns that are read, ``user`` and ``time`` apart; None: those that the first event of a batch has.

    Examples
    --------
    >>> events = [{"user": "ann", "time": "2024-01-01T00:01:00Z", "place": "harbour"}, {"user": None, "time": 0}]
    >>> with beam.Pipeline(runner="apache_beam.runners.portability.fn_api_runner.FnApiRunner") as pipeline:
    ...     blocks = pipeline | beam.Create([events]) | beam.FlatMap(list) | EventsToBlocks()
    ...     _ = blocks | beam.FlatMap(lambda named: named.block.rejects) | beam.Map(lambda one: print(one.reason))
    user is missing (or is no integer)
    """

    def __init__(
        self,
        block_rows: int = BLOCK_ROWS,
        user_type: Literal["string", "integer"] = "string",
        time_zone: str = "UTC",
        columns: Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        if user_type not in ("string", "integer"):
            raise ParameterError("EventsToBlocks.user_type", user_type, "string or integer")
        self.block_rows, self.columns = block_rows, columns
        self.users = {"string": pl.String, "integer": pl.Int64}[user_type]
        self.times = TimeFormat("iso", time_zone)

    def expand(self, events: Any) -> Any:
        """Apply the steps of this transform."""
        if not getattr(events, "is_bounded", True):
            raise DataError("EventsToBlocks: the events are unbounded; a stream needs the watermarks of ReadEvents")
        batches = events | "Batch" >> beam.BatchElements(min_batch_size=1_000, max_batch_size=self.block_rows)
        return batches | "Block" >> beam.Map(self._block).with_output_types(NamedBlock)

    def _block(self, events: Iterable[Any]) -> NamedBlock:
        """Convert events to a block named after its contents, so that a retried bundle yields the same name."""
        rows = [row._asdict() if hasattr(row, "_asdict") else row for row in events]
        kinds = [type(row).__name__ for row in rows if not isinstance(row, Mapping)]
        if kinds:  # without the event: it names a person, and logs keep errors
            raise DataError(f"EventsToBlocks: an event is a mapping with user, time and place; not a {kinds[0]}")
        columns = self.columns or [name for name in ("latitude", "longitude", "place") if name in rows[0]]
        name = f"events/{hashlib.sha256(repr(rows).encode()).hexdigest()[:24]}"
        plain = {part: [_plain_value(row.get(part)) for row in rows] for part in ("user", *columns)}
        parts = [column_of(part, _TYPES.get(part, self.users), values) for part, values in plain.items()]
        frame = pl.DataFrame([parts[0], *self._times([row.get("time") for row in rows]), *parts[1:]])
        sound, _, unsound = split_valid(frame)
        rejects = [Reject(name, i + 1, reason, str(rows[i])[:MAX_RAW_CHARACTERS]) for i, reason in unsound.items()]
        return NamedBlock(name, EventBlock(sound.drop("problem"), len(rows), tuple(rejects)))

    def _times(self, times: Sequence[Any]) -> tuple[pl.Series, pl.Series]:
        """Convert times to milliseconds since 1970 UTC, and explain why others are null."""
        read = [_text_or_instant(time) for time in times]
        texts = pl.Series("time", [text for text, _ in read], dtype=pl.String)
        numbers = pl.Series("time", [instant for _, instant in read], dtype=pl.Int64)
        parsed = numbers.zip_with(texts.is_null(), self.times.milliseconds(texts))
        kinds = pl.Series([None if time is None else type(time).__name__ for time in times], dtype=pl.String)
        problem = "time is no datetime, ISO 8601 text or whole number of milliseconds since 1970, but of type " + kinds
        problem = problem.set(parsed.is_not_null(), None)
        unread = (parsed.is_null() & texts.is_not_null()).arg_true()
        return parsed, problem.scatter(unread, self.times.explain(texts[unread])).alias("problem")


def _text_or_instant(time: Any) -> tuple[str | None, int | None]:
    """Return a time as (string, None) if it has no known UTC offset, as (None, milliseconds) if it does, or as
    (None, None).
    """
    if isinstance(time, np.generic):  # microseconds, so that nanoseconds become no number
        time = time.astype("datetime64[us]").item() if isinstance(time, np.datetime64) else time.item()
    if isinstance(time, datetime) and time == time:  # pandas' NaT is not itself
        return (time.isoformat(), None) if time.tzinfo is None else (None, (time - _EPOCH) // timedelta(milliseconds=1))
    if isinstance(time, date) and not isinstance(time, datetime):
        return time.isoformat(), None
    is_whole = isinstance(time, int | float) and not isinstance(time, bool) and time % 1 == 0
    instant = int(time) if is_whole and EARLIEST <= time <= LATEST else None
    return time if isinstance(time, str) else None, instant


def _plain_value(value: Any) -> Any:
    """Convert NumPy scalars and subclasses of strings and numbers to plain Python values."""
    if isinstance(value, np.generic):
        value = value.item()
    kind = next((kind for kind in (bool, str, int, float) if isinstance(value, kind)), None)
    return value if kind is None else kind(value)


class Release(beam.PTransform[Any, Any]):  # type: ignore[misc]
    """Release the counts of a bounded collection of events as configured, combining all transforms of a run.

    Everything that `penstock.run` writes into the folder of the run while it releases is written, charges first. No row
    leaves before all events are counted, and the pipeline fails if none of them could be used (``allow_empty``: not).

    Parameters
    ----------
    config
        The configuration, of whose ``source`` only ``from``, ``until`` and ``time_zone`` are used. It releases counts.
    folder
        Folder of this run alone, which all workers see; None: the configuration's ``output.path``.
    user_type
        As of `EventsToBlocks`.

    Returns
    -------
    ``{"rows": …, "rejects": …, "outcomes": …}``, each a PCollection of mappings: the released rows, with the columns of
    ``public/releases.parquet``; the rows that could not be read, as ``operator/rejects.jsonl`` has them; and once, the
    rows by outcome.

    Raises `DataError` at the end of the pipeline, if no row could be used, and at once for unbounded events;
    `ParameterError` if the configuration releases traces.
    """

    def __init__(
        self, config: RunConfig, folder: str | Path | None = None, user_type: Literal["string", "integer"] = "string"
    ) -> None:
        super().__init__()
        if not isinstance(config, RunConfig):
            raise ParameterError("Release.config", type(config).__name__, "what penstock.load returns")
        if any(step.guarantee.on_points for step in config.mechanism):
            raise ParameterError("Release.config", config.name, "of a release of counts; ReleaseTraces is for traces")
        if isinstance(config.source, LiveSource):
            kind, expected = SOURCES.name_of(type(config.source)), "one of finite input; penstock.run follows streams"
            raise ParameterError("Release.config.source.type", kind, expected)
        self.plan = plan_in_folder(config, Path(folder or config.output.path))
        time_zone = getattr(config.source, "time_zone", "UTC")
        self.blocks = EventsToBlocks(user_type=user_type, time_zone=time_zone, columns=config.space.reads)

    def expand(self, events: Any) -> dict[str, Any]:
        """Apply all transforms of a run."""
        plan = self.plan
        blocks = events | "EventsToBlocks" >> self.blocks
        written, tally = release_counts(blocks, plan)
        check = describe_rows if plan.config.allow_empty else require_used
        outcomes = tally | "RequireUsed" >> beam.Map(check).with_output_types(Dict[str, int])
        rows = written | "ReleasesToRows" >> ReleasesToRows(plan)
        used = beam.pvalue.AsSingleton(outcomes)
        return {
            "rows": rows | "AfterAllAreCounted" >> beam.Map(lambda row, _: row, used).with_output_types(_ROW),
            "rejects": blocks | "Rejects" >> beam.ParDo(_Rejects(plan)).with_output_types(_ROW),
            "outcomes": outcomes,
        }


class _Rejects(Step):
    @redacted
    def process(self, named: NamedBlock) -> Iterator[dict[str, Any]]:
        """Emit rejected rows as stored in ``rejects.jsonl``. Their contents are omitted in a deployment."""
        user_files = self.plan.config.source.recorded.has_user_names
        yield from (
            redacted_reject(reject, self.plan.keys.users, user_files).as_dict() for reject in named.block.rejects
        )


@with_input_types(Batch)
@with_output_types(_ROW)
class ReleasesToRows(PlanTransform):
    """Convert releases to rows with the columns of ``public/releases.parquet``.

    Only rows of `WriteReleases` should leave the operator: it has held them back for ``output.delay``. Returns
    ``PCollection[dict[str, Any]]``: one for each window and active cell.
    """

    def expand(self, releases: Any) -> Any:
        """Apply the only step of this transform."""
        return releases | "Rows" >> beam.ParDo(_Rows(self.plan)).with_output_types(_ROW)


class _Rows(Step):
    @redacted
    def process(self, batch: Batch) -> Iterator[dict[str, Any]]:
        """Emit the rows of a batch of releases."""
        if batch.releases:
            windows = self.plan.grid.windows(batch.releases[0].window, batch.releases[-1].window)
            table = releases_table(batch.releases, windows, self.plan.space.cells, self.plan.grid.lateness_ms)
            yield from table.to_pylist()
