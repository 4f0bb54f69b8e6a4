"""Parse delimited text into columns. Defines batches of records, validity checks, and the base class for text
sources.
"""

from __future__ import annotations

import codecs
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import PurePath
from typing import IO, Any, ClassVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from penstock.mechanisms.core.plugin import RowEquationError
from penstock.pipeline.sources.base import EventBlock, Reject, RowOrder, Span
from penstock.pipeline.sources.reading.columns import EVENT_COLUMNS
from penstock.pipeline.sources.reading.inputs import PathSource, open_inputs
from penstock.pipeline.sources.reading.records import Records, count_byte, is_regular, split

#: A line longer than this is read no further: it is a row that is rejected.
MAX_LINE_BYTES = 16 << 20
#: What is read of it.
_LONG_LINE = f"(a line of more than {MAX_LINE_BYTES:,} bytes)".encode()

_HEAD_BYTES = 64 << 10
_NEWLINE = 10
_MAX_BATCH_BYTES = 9 << 20
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Dialect:
    """Format of a text file: columns, header, separator, quote character, encoding and decimal separator."""

    columns: tuple[str, ...]  # names of all columns, in order
    n_lines: int = 0  # lines before the first row
    separator: str = ","
    quote: str = ""
    encoding: str = "utf-8"
    decimal: str = "."  # between whole and fraction of a number


@dataclass(frozen=True)
class Segment:
    """The part of a batch that comes from one file: ``n_lines`` lines, beginning at the 1-based line ``first_line``."""

    file: str
    first_line: int
    n_lines: int


@dataclass(frozen=True)
class TextBatch:
    """Complete records from files that share a dialect, along with the files and lines that they come from.

    ``records`` is their outline where there are quotes; otherwise every line is a record.
    """

    format: Dialect
    data: bytes
    segments: tuple[Segment, ...]
    records: Records | None = None

    def locate(self, lines: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return each batch line's segment (counted from 0) and 1-based line number in the file."""
        ends = np.cumsum([segment.n_lines for segment in self.segments])
        segments = np.searchsorted(ends, lines, side="right")
        offsets = np.array([segment.first_line for segment in self.segments]) - np.concatenate([[0], ends[:-1]])
        return segments, lines + offsets[segments]


def cut(
    inputs: Iterable[tuple[str, IO[bytes]]], dialect_of: Callable[[str, bytes], Dialect], n_rows: int
) -> Iterator[TextBatch]:
    """Divide inputs into batches of about ``n_rows`` lines, combining small files and splitting large ones.

    A line of much more than `MAX_LINE_BYTES` is a row with too many fields; memory is bounded all the same.

    ``inputs``: (name, stream) pairs; each stream is read to its end before the next is taken, and gives fewer bytes
    than it is asked for only at its end. ``dialect_of``: tells from a file's name and its first bytes (up to 64 KiB)
    how it is written.
    """
    waiting: list[TextBatch] = []
    n_waiting = 0

    def joined() -> TextBatch:
        segments = tuple(segment for part in waiting for segment in part.segments)
        return TextBatch(waiting[0].format, b"".join(part.data for part in waiting), segments, waiting[0].records)

    for name, stream in inputs:
        for part in _parts(name, stream, dialect_of, n_rows):
            n_lines = part.segments[0].n_lines
            fits = waiting and waiting[0].format == part.format and n_waiting + n_lines <= n_rows
            # Parts with quotes have outlines of their own.
            if waiting and not (fits and part.records is None and waiting[0].records is None):
                yield joined()
                waiting, n_waiting = [], 0
            waiting.append(part)
            n_waiting += n_lines
    if waiting:
        yield joined()


def _parts(
    name: str, stream: IO[bytes], dialect_of: Callable[[str, bytes], Dialect], n_rows: int
) -> Iterator[TextBatch]:
    """Yield a file's contents in batches of complete records."""
    data = stream.read(_HEAD_BYTES)
    start = dialect_of(name, data.removeprefix(_BYTE_ORDER_MARK))
    text: IO[bytes] | Recoded = stream
    if start.encoding != "utf-8":
        text = Recoded(data, stream, start.encoding)
        data = text.read(_HEAD_BYTES)
    is_final = len(data) < _HEAD_BYTES
    data = data.removeprefix(_BYTE_ORDER_MARK)
    for _ in range(start.n_lines):
        data = data[data.find(b"\n") + 1 :] if b"\n" in data else b""
    line = 1 + start.n_lines
    n_bytes = min(_MAX_BATCH_BYTES, n_rows * max(1, len(data) // max(1, data.count(b"\n"))))
    while data or not is_final:
        if not is_final and len(data) < n_bytes:
            n_wanted = n_bytes - len(data)
            more = text.read(n_wanted)
            is_final = len(more) < n_wanted
            data += more
        if is_final and data and not data.endswith(b"\n"):
            data += b"\n"
        if start.quote and start.quote.encode() in data:
            records, n_whole = split(data, start.separator, start.quote)
        else:
            records, n_whole = None, data.rfind(b"\n") + 1
        if n_whole:
            complete = data if n_whole == len(data) else data[:n_whole]
            n_lines = count_byte(complete, _NEWLINE)
            yield TextBatch(start, complete, (Segment(name, line, n_lines),), records)
            line += n_lines
            data = data[n_whole:]
        elif not is_final and len(data) <= MAX_LINE_BYTES:
            n_bytes = 2 * len(data)
        elif not is_final:
            while b"\n" not in data and not is_final:
                data = text.read(_MAX_BATCH_BYTES)
                is_final = len(data) < _MAX_BATCH_BYTES
            # One row, and one that is rejected, whatever its sender: it stops no run, and the next is read as usual.
            data = _LONG_LINE + start.separator.encode() * len(start.columns) + b"\n" + data.partition(b"\n")[2]


class Recoded:
    r"""A stream that converts text from another encoding to UTF-8. Invalid input becomes replacement characters.

    ``head``: what has been read of the stream.

    >>> import io
    >>> Recoded(b"Z", io.BytesIO(b"\xfcrich"), "latin-1").read(4).decode()
    'Zür'
    """

    def __init__(self, head: bytes, stream: IO[bytes], encoding: str) -> None:
        self._decoder = codecs.getincrementaldecoder(encoding)("replace")
        self._stream, self._ready = stream, self._decoder.decode(head).encode()
        self._is_final = False

    def read(self, n_bytes: int) -> bytes:
        """Return exactly ``n_bytes`` bytes, or fewer at the end of the stream."""
        while len(self._ready) < n_bytes and not self._is_final:
            data = self._stream.read(n_bytes)
            self._is_final = not data
            self._ready += self._decoder.decode(data, self._is_final).encode()
        data, self._ready = self._ready[:n_bytes], self._ready[n_bytes:]
        return data


#: End of the reason for a coordinate that is beyond all degrees, swapped or counted from 0 to 360.
NO_DEGREES = "is no number of degrees"

#: What makes a column's value wrong, checked in this order: column, condition of being right, reason.
_CHECKS: tuple[tuple[str, pl.Expr, str], ...] = (
    ("user", pl.col("user").cast(pl.String).str.len_bytes() > 0, "user is missing (or is no integer)"),
    ("time", pl.col("time").is_not_null(), "time cannot be read"),
    ("arrival", pl.col("arrival").is_not_null(), "arrival cannot be read"),
    ("latitude", pl.col("latitude").is_finite(), "latitude is not a finite number"),
    ("latitude", pl.col("latitude").is_between(-180, 180), f"latitude {NO_DEGREES}"),
    ("latitude", pl.col("latitude").is_between(-90, 90), "latitude out of range"),
    ("longitude", pl.col("longitude").is_finite(), "longitude is not a finite number"),
    ("longitude", pl.col("longitude").is_between(-360, 360), f"longitude {NO_DEGREES}"),
    ("longitude", pl.col("longitude").is_between(-180, 180), "longitude out of range"),
    ("place", pl.col("place").str.len_bytes() > 0, "place is empty"),
)


def is_whole(column: pl.Series) -> pl.Series:
    """Return a mask of the floats that represent exactly one integer: those below 2⁵³, or 2²⁴ in single precision.

    >>> is_whole(pl.Series([7.0, 7.5, 2.0**53])).to_list()
    [True, False, False]
    """
    return (column == column.floor()) & (column.abs() < 2.0 ** (24 if column.dtype == pl.Float32 else 53))


def valid_rows(events: pl.DataFrame) -> pl.Series:
    """Return a mask of the rows in which nothing is missing or out of range and ``problem`` is null."""
    checks = []
    for column in events.columns:
        if column == "problem":
            checks.append(pl.col(column).is_null())
        elif column in ("latitude", "longitude"):
            limit = 90 if column == "latitude" else 180
            checks.append(pl.col(column).is_between(-limit, limit))
        elif events.schema[column] == pl.String:
            checks.append(pl.col(column).str.len_bytes() > 0)
        else:
            checks.append(pl.col(column).is_not_null())
    return events.select(sound=pl.all_horizontal(checks).fill_null(False))["sound"]


def split_valid(events: pl.DataFrame) -> tuple[pl.DataFrame, NDArray[np.int64], dict[int, str]]:
    """Return the valid rows, their row numbers, and the reason why each invalid row is invalid, by row number."""
    is_sound = valid_rows(events)
    if is_sound.all():
        return events, np.arange(events.height), {}
    sound, bad = (rows.arg_true().to_numpy() for rows in (is_sound, ~is_sound))
    reason = pl.lit("unknown")
    for column, is_right, text in reversed(_CHECKS):
        if column in events.columns:
            reason = pl.when(is_right.fill_null(False)).then(reason).otherwise(pl.lit(text))
    if "problem" in events.columns:
        reason = pl.coalesce("problem", reason)
    reasons = events[bad].select(reason=reason)["reason"].to_list()
    return events.filter(is_sound), sound, dict(zip(bad.tolist(), reasons))


def missing_position() -> pl.Expr:
    """Return an error message for rows with a zero coordinate, which is how devices report a missing position."""
    is_zero = (pl.col("latitude") == 0) | (pl.col("longitude") == 0)
    return pl.when(is_zero).then(pl.lit("a coordinate is zero: no position"))


#: A rejected row is kept up to this many characters.
MAX_RAW_CHARACTERS = 1000


@dataclass(frozen=True)
class ParsedRows:
    """The rows that were parsed from a batch, and its malformed records."""

    raw: pl.DataFrame  # the wanted columns; null where a value cannot be read as its type
    records: Records | None  # outline of the batch, None if every line is a row
    row_records: NDArray[np.int64] | None  # record of every row of ``raw``, None if they are the same
    problems: dict[int, str]  # what is wrong with other records, by record index

    def segments(self, batch: TextBatch) -> NDArray[np.int64]:
        """Return the segment of the batch that each row comes from."""
        if self.records is None:
            n_lines = [segment.n_lines for segment in batch.segments]
            return np.repeat(np.arange(len(n_lines)), n_lines)
        return batch.locate(self.lines())[0]

    def lines(self) -> NDArray[np.int64]:
        """Return the first line of each row in the batch, counted from 0."""
        if self.records is None or self.row_records is None:
            return np.arange(self.raw.height)
        return self.row_records


def numbered(rows: ParsedRows, batch: TextBatch) -> pl.Series:
    """Return a user id for each row, made of its file and line number. Used for input that does not identify users."""
    segments, lines = batch.locate(rows.lines())
    files = pl.Series([PurePath(segment.file).name for segment in batch.segments], dtype=pl.String)[segments]
    return (files + ":" + pl.Series(lines).cast(pl.String)).alias("user")


def parse(batch: TextBatch, wanted: Mapping[str, type[pl.DataType]]) -> ParsedRows:
    """Parse the requested columns of a batch. For all other columns, only the record structure is checked."""
    data, n_fields, separator = batch.data, len(batch.format.columns), batch.format.separator
    if batch.records is None and _is_utf8(data):
        raw = _regular(batch, wanted)
        if raw is not None:
            return ParsedRows(raw, None, None, {})
    records = batch.records or split(data, separator, quote="")[0]
    problems = {}
    for index in np.flatnonzero((records.n_fields != n_fields) & (records.n_fields != 0)).tolist():
        n_actual = int(records.n_fields[index])
        problems[index] = f"{n_actual} fields instead of {n_fields}" if n_actual > 0 else _STRAY
    if not _is_utf8(data):
        outside_ascii = np.flatnonzero(np.frombuffer(data, np.uint8) >= 128)
        for index in np.unique(np.searchsorted(records.start, outside_ascii, side="right") - 1).tolist():
            if not _is_utf8(data[records.start[index] : records.stop[index]]):
                problems.setdefault(index, NOT_UTF8)
    is_row = records.n_fields != 0
    is_row[list(problems)] = False
    row_records = np.flatnonzero(is_row)
    if len(row_records) < len(is_row):
        # Copied in runs that are as long as possible.
        breaks = np.diff(row_records) != 1
        first = row_records[np.append(True, breaks)[: len(row_records)]]
        last = row_records[np.append(breaks, True)[: len(row_records)]]
        runs = zip(records.start[first].tolist(), records.stop[last].tolist())
        data = b"".join(data[start:stop] + b"\n" for start, stop in runs)
    raw = _read_columns(data, len(row_records), batch.format, wanted)
    return ParsedRows(raw, records, row_records, problems)


def _regular(batch: TextBatch, wanted: Mapping[str, type[pl.DataType]]) -> pl.DataFrame | None:
    """Return the columns of a batch without quotes, or None if a line has a different number of fields."""
    format, n_rows = batch.format, sum(segment.n_lines for segment in batch.segments)
    n_fields, last = len(format.columns), format.columns[-1]
    if count_byte(batch.data, ord(format.separator)) != n_rows * (n_fields - 1):
        return None
    if last not in wanted:
        regular = is_regular(batch.data, format.separator, n_fields)
        return _read_columns(batch.data, n_rows, format, wanted) if regular else None
    # No line has too few fields where the last one is there in each; then none has too many, or the sum were larger.
    try:
        raw = _read_columns(batch.data, n_rows, format, wanted)
    except (RowEquationError, pl.exceptions.PolarsError):
        return None
    return raw if not raw[last].null_count() or is_regular(batch.data, format.separator, n_fields) else None


def to_blocks(batch: TextBatch, rows: ParsedRows, events: pl.DataFrame, block_rows: int) -> Iterator[EventBlock]:
    """Convert a parsed batch to blocks of at most ``block_rows`` valid rows. The first block also contains all rejects.

    ``events``: columns of an `EventBlock`, one row for each of ``rows.raw``, null where a value is wrong; perhaps a
    column ``problem`` with what the source knows is wrong with a row.
    """
    events, _, unsound = split_valid(events)
    rejects: list[Reject] = []
    if rows.problems or unsound:
        lines = rows.lines()[list(unsound)].tolist()
        problems = dict(sorted({**rows.problems, **dict(zip(lines, unsound.values()))}.items()))
        records = rows.records or split(batch.data, "\n", "")[0]
        segments, numbers = batch.locate(np.fromiter(problems, dtype=np.int64))
        for (record, reason), segment, number in zip(problems.items(), segments.tolist(), numbers.tolist()):
            raw = raw_text(batch.data[records.start[record] : records.stop[record]])
            rejects.append(Reject(batch.segments[segment].file, number, reason, raw))
    events = events.select(column for column in EVENT_COLUMNS if column in events.columns)
    if events.height + len(rejects):
        yield from EventBlock(events, events.height + len(rejects), tuple(rejects)).pieces(block_rows)


def table_blocks(
    events: pl.DataFrame,
    file: str,
    before: int,
    word: str,
    raw: Callable[[list[int]], list[str]],
    order: RowOrder,
    block_rows: int,
) -> Iterator[EventBlock]:
    """Validate a table's rows, which follow ``before`` other rows in the file, and yield them in blocks.

    ``word``: what a row is called in errors. ``raw``: returns the text of rows that are rejected.
    """
    sound, places, unsound = split_valid(events)
    reasons = zip(unsound.items(), raw(list(unsound)))
    rejects = tuple(Reject(file, before + row + 1, reason, text) for (row, reason), text in reasons)
    order.check(sound["time"].to_numpy(), lambda row: f"{file}, {word} {before + places[row] + 1}")
    yield from EventBlock(sound.drop("problem", strict=False), events.height, rejects).pieces(block_rows)


def numbered_rows(file: str, before: int, n_rows: int) -> pl.Series:
    """Return a user id for each row, made of its file and 1-based number, for input that does not identify users."""
    numbers = pl.int_range(before + 1, before + 1 + n_rows, eager=True).cast(pl.String)
    return (PurePath(file).name + ":" + numbers).alias("user")


def _read_columns(data: bytes, n_rows: int, format: Dialect, wanted: Mapping[str, type[pl.DataType]]) -> pl.DataFrame:
    if not n_rows:
        return pl.DataFrame(schema=dict(wanted))
    frame = _read_csv(data, n_rows, format, wanted)
    # The parser takes no numbers with blanks around them, or a typographic minus.
    odd = {name: pl.String for name, kind in wanted.items() if kind.is_numeric() and frame[name].null_count()}
    if not odd:
        return frame
    text = _read_csv(data, n_rows, format, odd)
    if format.decimal == ",":
        text = text.with_columns(pl.all().str.replace_many([".", ","], ["?", "."]))  # a point is no decimal mark
    again = text.select(as_numbers(pl.col(name), wanted[name]) for name in odd)
    return frame.with_columns(pl.col(name).fill_null(again[name]) for name in odd)


def as_numbers(text: pl.Expr, kind: type[pl.DataType] = pl.Float64) -> pl.Expr:
    """Parse text as numbers. Surrounding spaces and a typographic minus are allowed. Anything else becomes null.

    >>> pl.DataFrame({"a": [" 12.5\\u00a0", "\\u22127", "12 5"]}).select(as_numbers(pl.col("a")))["a"].to_list()
    [12.5, -7.0, None]
    """
    return text.str.strip_chars().str.replace("\u2212", "-", literal=True).cast(kind, strict=False)


def _read_csv(data: bytes, n_rows: int, format: Dialect, wanted: Mapping[str, type[pl.DataType]]) -> pl.DataFrame:
    names = [f"column_{i}" for i in range(len(format.columns))]
    indices = {name: format.columns.index(name) for name in wanted}
    schema: dict[str, Any] = dict.fromkeys(names, pl.String)
    schema.update({names[index]: wanted[name] for name, index in indices.items()})
    frame = pl.read_csv(
        data,
        has_header=False,
        schema=schema,
        columns=sorted(set(indices.values())),
        separator=format.separator,
        quote_char=format.quote or None,
        decimal_comma=format.decimal == ",",
        ignore_errors=True,
    )
    if frame.height != n_rows:
        raise RowEquationError(f"{n_rows} rows found in the text, but {frame.height} parsed")
    return frame.select(pl.col(names[index]).alias(name) for name, index in indices.items())


def _is_utf8(data: bytes) -> bool:
    if data.isascii():
        return True
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


_STRAY = "a quote is stray, or not closed before the line end (source.quote: '' takes quotes as text)"
NOT_UTF8 = "not valid UTF-8"


def raw_text(raw: bytes) -> str:
    """Return the beginning of a row, which is kept with the reject."""
    return raw[: 4 * MAX_RAW_CHARACTERS].decode("utf-8", "backslashreplace")[:MAX_RAW_CHARACTERS]


#: Rows that are parsed together at most: several batches are in memory at a time.
_BATCH_ROWS = 1 << 18


@dataclass(frozen=True, kw_only=True)
class TextSource(PathSource):
    """Base class for sources that read delimited text. Subclasses define the columns and convert them to events.

    A row is a line, whatever its quotes; blank lines are no rows.
    """

    bytes_per_row: ClassVar[int] = 40

    @abstractmethod
    def dialect_of(self, file: str, head: bytes) -> Dialect:
        """Detect a file's dialect from its first bytes."""

    @abstractmethod
    def required_columns(self, columns: tuple[str, ...], file: str) -> Mapping[str, type[pl.DataType]]:
        """Return the columns to parse and their types. Raise `DataError` if a column is missing."""

    @abstractmethod
    def events(self, rows: ParsedRows, batch: TextBatch) -> pl.DataFrame:
        """Convert ``rows.raw`` to the columns of an `EventBlock`. Invalid values become null.

        A further column ``problem`` may say what else is wrong with a row (null: nothing).
        """

    def read(self, span: Span) -> Iterator[EventBlock]:
        """Read a span's files in batches, and parse the batches in order."""
        order = RowOrder(self, span.after)
        for batch in self.batches(span):
            row = 0
            for block in self.blocks(batch):
                order.check(block.frame["time"].to_numpy(), partial(self._place, batch, row))
                row += block.frame.height
                yield block

    def _place(self, batch: TextBatch, before: int, row: int) -> str:
        """Return the file and line of a valid row. ``row`` counts from the batch's valid row ``before``."""
        rows = self.parse(batch)
        sound = split_valid(self.events(rows, batch))[1]
        segment, line = batch.locate(rows.lines()[sound[before + row : before + row + 1]])
        return f"{batch.segments[segment[0]].file}, line {line[0]}"

    def batches(self, span: Span) -> Iterator[TextBatch]:
        """Divide a span's files into batches of complete records."""
        return cut(open_inputs(span.files, self.patterns), self.dialect_of, min(self.block_rows, _BATCH_ROWS))

    def blocks(self, batch: TextBatch) -> Iterator[EventBlock]:
        """Parse a batch into blocks. Subclasses override this if a row contains several events."""
        rows = self.parse(batch)
        return to_blocks(batch, rows, self.events(rows, batch), self.block_rows)

    def parse(self, batch: TextBatch) -> ParsedRows:
        """Parse the requested columns of a batch."""
        return parse(batch, self.required_columns(batch.format.columns, batch.segments[0].file))
