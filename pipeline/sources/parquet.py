"""Parquet files with one event per row."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.mechanisms.core.plugin import DataError, parameter
from penstock.pipeline.sources.base import EventBlock, RowOrder, Span
from penstock.pipeline.sources.reading.columns import MappedColumns
from penstock.pipeline.sources.reading.inputs import PathSource, single_line
from penstock.pipeline.sources.reading.text import (
    MAX_RAW_CHARACTERS,
    as_numbers,
    is_whole,
    numbered_rows,
    table_blocks,
)
from penstock.pipeline.sources.reading.times import TimeFormat, polars_timestamps

TOO_LARGE = (
    "user is too large an integer (exact are floats below 2⁵³, or 2²⁴, and others below 2⁶³, or 2⁶⁴ if unsigned): "
    "write ids as text"
)
#: Rows that are checked together at most: several batches are in memory at a time.
_BATCH_ROWS = 1 << 18
#: Bytes that are read together from each column.
_BUFFER = 1 << 16

#: What the library raises for files that are damaged or none.
_DAMAGE = (OSError, ValueError, OverflowError, MemoryError, NotImplementedError, pa.ArrowException)


@dataclass(frozen=True, kw_only=True)
class Parquet(MappedColumns, PathSource):
    """Read events from Parquet files, loading only the columns that are needed.

    Users may be integers (whole floats below 2⁵³, too; unsigned ones from 2⁶³ on are counted as negative) or text;
    times may be timestamps (without a zone: local in ``time_zone``), or numbers or text in ``time_format``. What
    `penstock convert` writes needs no further settings.

    Examples
    --------
    >>> Parquet(path="events.parquet", columns={"user": "rider"}).columns
    {'user': 'rider'}
    """

    path: str = parameter(kind="path", doc="a file, a directory or a pattern such as data/*.parquet")

    patterns = ("*.parquet", "*.pq")

    def spans(self) -> list[Span]:
        """Split the input into spans of about ``block_rows`` rows each, at row group boundaries.

        Raises `DataError` for a file that is no Parquet, a missing column, or users of different types.
        """
        spans: list[Span] = []
        small: list[str] = []
        n_small, kinds = 0, dict[type[pl.DataType], str]()
        for file in self.files():
            with _open(file) as parquet:
                kinds.setdefault(self._user_type(parquet.schema_arrow, file), file)
                groups = [parquet.metadata.row_group(i).num_rows for i in range(parquet.num_row_groups)]
            if small and n_small + sum(groups) > self.block_rows:
                spans.append(Span(len(spans), tuple(small)))
                small, n_small = [], 0
            if sum(groups) <= self.block_rows:
                small.append(file)
                n_small += sum(groups)
                continue
            spans += [Span(len(spans) + i, (file,), *ends) for i, ends in enumerate(_runs(groups, self.block_rows))]
        if len(kinds) > 1:
            raise DataError(f"{' and '.join(kinds.values())}: users are of different types; convert them to one")
        return [*spans, Span(len(spans), tuple(small))] if small else spans

    def read(self, span: Span) -> Iterator[EventBlock]:
        """Read whole files, or some row groups of one. A reject's line number is its 1-based row."""
        n_rows, order = min(self.block_rows, _BATCH_ROWS), RowOrder(self, span.after)
        for file in span.files:
            with _open(file) as parquet:
                columns = self.find_columns(parquet.schema_arrow.names, file)
                ends = np.cumsum([parquet.metadata.row_group(i).num_rows for i in range(parquet.num_row_groups)])
                stop = span.stop if span.stop is not None else parquet.metadata.num_rows
                groups = np.flatnonzero((ends > span.start) & (ends <= stop)).tolist()
                row = span.start
                with _read_from(file):
                    batches = parquet.iter_batches(n_rows, groups, sorted(set(columns.values())), use_threads=True)
                while (batch := _next(batches, file)) is not None:
                    yield from self._blocks(batch, columns, file, row, order)
                    row += batch.num_rows

    def _blocks(
        self, batch: pa.RecordBatch, columns: dict[str, str], file: str, first_row: int, order: RowOrder
    ) -> Iterator[EventBlock]:
        raw = pl.DataFrame(polars_timestamps(pa.table(batch.columns, batch.schema.names)))
        events = self.joined(raw.select(pl.col(name).alias(part) for part, name in columns.items()), [file])
        if "user" not in columns:
            events = events.with_columns(numbered_rows(file, first_row, raw.height))
        user, written = _users(events["user"]), events["time"]
        times = {name: _times(events[name], self.time, file) for name in ("time", "arrival") if name in columns}
        # Of a timestamp only a local time that never existed is explained.
        is_time = TimeFormat().milliseconds(written) if written.dtype.is_temporal() else written
        unread = self.time.problems(written, times["time"]).set(is_time.is_null(), None)
        events = events.with_columns(
            user,
            pl.coalesce(
                *(["problem"] if "problem" in events.columns else []),
                _too_large(events["user"], user),
                unread,
            ),
            *times.values(),
            *(_degrees(events[name]) for name in ("latitude", "longitude") if name in events.columns),
            *(pl.col(name).cast(pl.String) for name in ("place",) if name in columns),
        )

        def as_text(rows: list[int]) -> list[str]:
            """Return the given rows as text, including rows whose times are outside the range that Python supports."""
            columns = {}
            for name, column in zip(raw.columns, batch.take(pa.array(rows, pa.int64())).columns if rows else ()):
                if pa.types.is_timestamp(column.type):  # its zone may be one that nobody knows
                    column = column.cast(pa.timestamp(column.type.unit))
                columns[name] = column.cast(pa.string()) if pa.types.is_temporal(column.type) else column
            return [str(values)[:MAX_RAW_CHARACTERS] for values in pa.table(columns).to_pylist()]

        return table_blocks(events, file, first_row, "row", as_text, order, self.block_rows)

    def _user_type(self, schema: pa.Schema, file: str) -> type[pl.DataType]:
        columns = self.find_columns(schema.names, file)
        for part, name in columns.items():
            kind = schema.field(name).type
            is_binary = "binary" in str(kind) and part != "point"
            if pa.types.is_nested(kind) or isinstance(kind, pa.BaseExtensionType) or is_binary:
                raise DataError(f"{file}: column {name!r} for {part}: {kind} is neither a number nor text nor a time")
        if (column := columns.get("user")) is None:
            return pl.String
        # Without the notes that files carry on columns: Polars stops the process where they are no UTF-8.
        empty = pl.Series(pa.nulls(0, schema.field(column).type))
        try:
            return type(_users(empty).dtype)
        except TypeError as error:
            raise DataError(f"{file}: column {column!r} for user: {error}") from error


def _runs(groups: list[int], n_rows: int) -> Iterator[tuple[int, int]]:
    """Group consecutive row groups so that each group of them has about ``n_rows`` rows."""
    start = stop = 0
    for size in groups:
        if stop > start and stop + size - start > n_rows:
            yield start, stop
            start = stop
        stop += size
    yield start, stop


def _users(column: pl.Series) -> pl.Series:
    if column.dtype == pl.UInt64:  # hashes, often: those from 2⁶³ on are the negative numbers of the same bits
        return column.reinterpret(signed=True)
    if column.dtype.is_integer() or (isinstance(column.dtype, pl.Decimal) and not column.dtype.scale):
        return column.cast(pl.Int64, strict=False)
    if column.dtype.is_float():
        return column.set(~is_whole(column), None).cast(pl.Int64, strict=False)
    if column.dtype in (pl.String, pl.Categorical, pl.Enum):
        return column.cast(pl.String)
    raise TypeError(f"{column.dtype} is neither an integer nor text")


def _too_large(column: pl.Series, users: pl.Series) -> pl.Series:
    """Return an error message for each row whose integer user id is too large to be represented exactly."""
    problem = pl.Series("problem", [None], pl.String).new_from_index(0, len(column))
    if not column.dtype.is_numeric() or not (missing := users.is_null()).any():
        return problem
    return problem.set(missing & (column.cast(pl.Float64) % 1 == 0), TOO_LARGE)


def _degrees(column: pl.Series) -> pl.Series:
    if column.dtype == pl.String:
        return column.to_frame().select(as_numbers(pl.col(column.name)))[column.name]
    return column.cast(pl.Float64, strict=False)


def _times(column: pl.Series, time: TimeFormat, file: str) -> pl.Series:
    if column.dtype.is_numeric() and not time.is_number:
        raise DataError(
            f"{file}: times are numbers; say in time_format whether they are unix_s, unix_ms, unix_us or unix_ns"
        )
    if not (column.dtype.is_numeric() or column.dtype in (pl.String, pl.Categorical, pl.Date, pl.Datetime)):
        raise DataError(f"{file}: times are of type {column.dtype}, neither timestamps nor numbers nor text")
    if column.dtype == pl.Float32:
        raise DataError(f"{file}: times are 32-bit floats, which hold Unix times to minutes at best: write 64-bit ones")
    return time.milliseconds(column)


def _open(file: str) -> pq.ParquetFile:
    with _read_from(file):
        # As it is needed: what is fetched beforehand, all row groups at once, is most of a run's memory.
        # Old timestamps (INT96) as milliseconds: nanoseconds wrap before 1677 and after 2262.
        return pq.ParquetFile(file, pre_buffer=False, buffer_size=_BUFFER, coerce_int96_timestamp_unit="ms")


@contextmanager
def _read_from(file: str) -> Iterator[None]:
    """Convert errors that the Parquet library raises for damaged or unsupported files to `DataError`."""
    try:
        yield
    except _DAMAGE as error:
        raise DataError(f"{file}: cannot be read as Parquet: {single_line(error)}") from error


def _next(batches: Iterator[pa.RecordBatch], file: str) -> pa.RecordBatch | None:
    """Return the next batch after checking that its text is valid UTF-8, or None at the end of the file."""
    with _read_from(file):
        batch = next(batches, None)
        if batch is not None:
            batch.validate(full=True)
        return batch
