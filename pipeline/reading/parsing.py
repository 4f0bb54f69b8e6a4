"""Batches of text to blocks of events: parse all columns at once, and keep every row that cannot be parsed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from mechanisms.core.errors import RowEquationError
from pipeline.block import EventBlock, Reject
from pipeline.reading.batches import Batch, Prologue
from pipeline.reading.checks import reasons, sound_rows
from pipeline.reading.columns import EVENT_COLUMNS
from pipeline.reading.records import Records, count_byte, is_regular, split

#: A rejected row is kept up to this many characters.
MAX_RAW_CHARACTERS = 1000


@dataclass(frozen=True)
class Rows:
    """Rows of a batch whose structure is sound, parsed; and the records whose structure is not.

    Parameters
    ----------
    raw
        The wanted columns; null where a value cannot be read as its type.
    records
        Outline of the batch, None where every line is a row.
    row_records
        Record of every row of ``raw``, None where they are the same.
    problems
        What is wrong with other records, by record index.
    """

    raw: pl.DataFrame
    records: Records | None
    row_records: NDArray[np.int64] | None
    problems: dict[int, str]

    def segments(self, batch: Batch) -> NDArray[np.int64]:
        """Segment of the batch that every row comes from."""
        if self.records is None:
            n_lines = [segment.n_lines for segment in batch.segments]
            return np.repeat(np.arange(len(n_lines)), n_lines)
        return batch.locate(self.lines())[0]

    def lines(self) -> NDArray[np.int64]:
        """0-based line of the batch on which every row starts."""
        if self.records is None or self.row_records is None:
            return np.arange(self.raw.height)
        return self.records.line[self.row_records]


def parse(batch: Batch, wanted: Mapping[str, type[pl.DataType]]) -> Rows:
    """Parse some columns of a batch; the other columns count for the structure only."""
    data, n_fields, separator = batch.data, len(batch.format.columns), batch.format.separator
    if batch.records is None and _is_utf8(data):
        raw = _regular(batch, wanted)
        if raw is not None:
            return Rows(raw, None, None, {})
    records = batch.records or split(data, separator, quote="")[0]
    problems = _structural_problems(data, records, n_fields)
    is_row = records.n_fields != 0
    is_row[list(problems)] = False
    row_records = np.flatnonzero(is_row)
    kept = data if len(row_records) == len(is_row) else _join_records(data, records, row_records)
    raw = _read_columns(kept, len(row_records), batch.format, wanted)
    return Rows(raw, records, row_records, problems)


def _regular(batch: Batch, wanted: Mapping[str, type[pl.DataType]]) -> pl.DataFrame | None:
    """The columns of a batch without quotes if every line of it has as many fields as there should be, or else None."""
    format, n_rows = batch.format, sum(segment.n_lines for segment in batch.segments)
    n_fields = len(format.columns)
    if count_byte(batch.data, ord(format.separator)) != n_rows * (n_fields - 1):
        return None
    last = format.columns[-1]
    if last not in wanted:
        regular = is_regular(batch.data, format.separator, n_fields)
        return _read_columns(batch.data, n_rows, format, wanted) if regular else None
    # No line has too few fields where the last one is there in each; then none has too many, or the sum were larger.
    try:
        raw = _read_columns(batch.data, n_rows, format, wanted)
    except (RowEquationError, pl.exceptions.PolarsError):
        return None
    return raw if not raw[last].null_count() or is_regular(batch.data, format.separator, n_fields) else None


def to_blocks(
    batch: Batch,
    rows: Rows,
    events: pl.DataFrame,
    explain: Callable[[pl.DataFrame], list[str | None]],
    block_rows: int,
) -> Iterator[EventBlock]:
    """Turn a parsed batch into blocks of about ``block_rows`` rows.

    Parameters
    ----------
    events
        Columns of an `EventBlock`, one row for each of ``rows.raw``, null where a value is wrong; perhaps a column
        ``problem`` with what else is wrong with a row.
    explain
        Given the raw rows that are wrong, what the source knows about them (None: what `reasons` says).
    """
    is_sound = sound_rows(events)
    position, reject_at, rejects = np.arange(0), np.arange(0), list[Reject]()
    if rows.problems or not is_sound.all():
        bad = (~is_sound).arg_true().to_numpy()
        given = explain(rows.raw[bad])
        found = [own or general for own, general in zip(given, reasons(events[bad]), strict=True)]
        row_records = np.arange(len(is_sound)) if rows.row_records is None else rows.row_records
        problems = dict(sorted({**rows.problems, **dict(zip(row_records[bad].tolist(), found))}.items()))
        reject_at = np.fromiter(problems, dtype=np.int64)
        rejects = _rejects(batch, rows.records or split(batch.data, "\n", "")[0], problems)
        position = row_records[is_sound.to_numpy()]
        events = events.filter(is_sound)
    events = events.select(column for column in EVENT_COLUMNS if column in events.columns)
    yield from cut(events, position, rejects, reject_at, block_rows)


def cut(
    events: pl.DataFrame,
    position: NDArray[np.int64],
    rejects: list[Reject],
    reject_at: NDArray[np.int64],
    block_rows: int,
) -> Iterator[EventBlock]:
    """Cut parsed rows into blocks of nearly equal size, at most one and a half times ``block_rows``.

    ``position`` and ``reject_at`` say where sound and rejected rows stood among all (increasing); without rejects
    they are not looked at.
    """
    n_rows = events.height + len(rejects)
    n_blocks = max(1, round(n_rows / block_rows))
    if not n_rows:
        return
    if n_blocks == 1:
        yield EventBlock(events, n_rows, tuple(rejects))
        return
    bounds = np.arange(n_blocks + 1) * n_rows // n_blocks
    starts = rejects_before = bounds
    if rejects:
        ordered = np.sort(np.concatenate([position, reject_at]))
        edges = np.append(ordered, ordered[-1] + 1)[bounds]
        starts, rejects_before = np.searchsorted(position, edges), np.searchsorted(reject_at, edges)
    else:
        rejects_before = np.zeros_like(bounds)
    for i in range(n_blocks):
        frame = events.slice(int(starts[i]), int(starts[i + 1] - starts[i]))
        mine = tuple(rejects[rejects_before[i] : rejects_before[i + 1]])
        yield EventBlock(frame, frame.height + len(mine), mine)


def _read_columns(data: bytes, n_rows: int, format: Prologue, wanted: Mapping[str, type[pl.DataType]]) -> pl.DataFrame:
    if not n_rows:
        return pl.DataFrame(schema=dict(wanted))
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


def _structural_problems(data: bytes, records: Records, n_fields: int) -> dict[int, str]:
    problems = {}
    for index in np.flatnonzero((records.n_fields != n_fields) & (records.n_fields != 0)).tolist():
        found = int(records.n_fields[index])
        problems[index] = f"{found} fields instead of {n_fields}" if found > 0 else "a quote is stray or never closed"
    if not _is_utf8(data):
        outside_ascii = np.flatnonzero(np.frombuffer(data, np.uint8) >= 128)
        for index in np.unique(np.searchsorted(records.start, outside_ascii, side="right") - 1).tolist():
            if not _is_utf8(data[records.start[index] : records.stop[index]]):
                problems.setdefault(index, "not valid UTF-8")
    return problems


def _join_records(data: bytes, records: Records, indices: NDArray[np.int64]) -> bytes:
    """The chosen records only, in long runs."""
    if not len(indices):
        return b""
    breaks = np.flatnonzero(np.diff(indices) != 1)
    first = indices[np.concatenate([[0], breaks + 1])]
    last = indices[np.concatenate([breaks, [len(indices) - 1]])]
    runs = zip(records.start[first].tolist(), records.stop[last].tolist())
    return b"".join(data[start:stop] + b"\n" for start, stop in runs)


def _rejects(batch: Batch, records: Records, problems: dict[int, str]) -> list[Reject]:
    indices = np.fromiter(problems, dtype=np.int64)
    segments, lines = batch.locate(records.line[indices])
    return [
        Reject(batch.segments[segment].file, line, reason, _text(batch.data[start:stop]))
        for segment, line, reason, start, stop in zip(
            segments.tolist(),
            lines.tolist(),
            problems.values(),
            records.start[indices].tolist(),
            records.stop[indices].tolist(),
        )
    ]


def _text(raw: bytes) -> str:
    return raw[: 4 * MAX_RAW_CHARACTERS].decode("utf-8", "backslashreplace")[:MAX_RAW_CHARACTERS]
