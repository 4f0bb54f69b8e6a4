"""Text of many files, large or small, as batches of whole records that can be parsed in one go."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import IO

import numpy as np
from numpy.typing import NDArray

from mechanisms.core.errors import DataError
from pipeline.reading.records import Records, count_byte, split

#: A line longer than this is not a row of a table.
MAX_LINE_BYTES = 16 << 20

_HEAD_BYTES = 64 << 10
_NEWLINE = 10
_MAX_BATCH_BYTES = 9 << 20
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Prologue:
    """How a file is written.

    Parameters
    ----------
    columns
        Names of all columns, in order.
    n_lines
        Lines before the first row.
    separator, quote
        As for `split`.
    encoding
        Of the text, one byte a character where it is not UTF-8.
    """

    columns: tuple[str, ...]
    n_lines: int = 0
    separator: str = ","
    quote: str = ""
    encoding: str = "utf-8"


@dataclass(frozen=True)
class Segment:
    """The part of a batch that comes from one file: ``n_lines`` lines from the 1-based ``first_line`` on."""

    file: str
    first_line: int
    n_lines: int


@dataclass(frozen=True)
class Batch:
    """Whole records of files that are written alike, and where they come from.

    ``records`` is their outline where there are quotes; otherwise every line is a record.
    """

    format: Prologue
    data: bytes
    segments: tuple[Segment, ...]
    records: Records | None = None

    def locate(self, lines: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Segment, and 1-based line in its file, of 0-based lines of the batch."""
        ends = np.cumsum([segment.n_lines for segment in self.segments])
        segments = np.searchsorted(ends, lines, side="right")
        offsets = np.array([segment.first_line for segment in self.segments]) - np.concatenate([[0], ends[:-1]])
        return segments, lines + offsets[segments]


def batches(
    inputs: Iterable[tuple[str, IO[bytes]]], prologue: Callable[[str, bytes], Prologue], n_rows: int
) -> Iterator[Batch]:
    """Cut inputs into batches of about ``n_rows`` lines: small files are joined, large ones cut between records.

    Parameters
    ----------
    inputs
        (name, stream) pairs; each stream is read to its end before the next is taken.
    prologue
        Tells from a file's name and its first bytes (up to 64 KiB) how it is written.

    Raises
    ------
    DataError
        A line of more than `MAX_LINE_BYTES`.
    """
    waiting: list[Batch] = []
    n_waiting = 0
    for name, stream in inputs:
        for part in _parts(name, stream, prologue, n_rows):
            n_lines = part.segments[0].n_lines
            fits = waiting and waiting[0].format == part.format and n_waiting + n_lines <= n_rows
            # Parts with quotes are never joined: a quote left open in one file must not swallow the next.
            if waiting and not (fits and part.records is None and waiting[0].records is None):
                yield _joined(waiting)
                waiting, n_waiting = [], 0
            waiting.append(part)
            n_waiting += n_lines
    if waiting:
        yield _joined(waiting)


def _joined(parts: list[Batch]) -> Batch:
    if len(parts) == 1:
        return parts[0]
    segments = tuple(segment for part in parts for segment in part.segments)
    return Batch(parts[0].format, b"".join(part.data for part in parts), segments)


def _parts(name: str, stream: IO[bytes], prologue: Callable[[str, bytes], Prologue], n_rows: int) -> Iterator[Batch]:
    """One file as batches of whole records."""
    data = _read(stream, _HEAD_BYTES)
    is_final = len(data) < _HEAD_BYTES
    data = data.removeprefix(_BYTE_ORDER_MARK)
    start = prologue(name, data)
    for _ in range(start.n_lines):
        data = data[data.find(b"\n") + 1 :] if b"\n" in data else b""
    line = 1 + start.n_lines
    n_bytes = min(_MAX_BATCH_BYTES, n_rows * max(1, len(data) // max(1, data.count(b"\n"))))
    while data or not is_final:
        if not is_final and len(data) < n_bytes:
            n_wanted = n_bytes - len(data)
            more = _read(stream, n_wanted)
            is_final = len(more) < n_wanted
            data += more
        if is_final and data and not data.endswith(b"\n"):
            data += b"\n"
        records, n_whole = _whole(data, start, is_final)
        if n_whole:
            whole = data if n_whole == len(data) else data[:n_whole]
            n_lines = count_byte(whole, _NEWLINE)
            if start.encoding != "utf-8":
                whole = whole.decode(start.encoding).encode()
            yield Batch(start, whole, (Segment(name, line, n_lines),), records)
            line += n_lines
            data = data[n_whole:]
        elif not is_final:
            if len(data) > MAX_LINE_BYTES:
                raise DataError(f"{name}, line {line}: longer than {MAX_LINE_BYTES:,} bytes; this is no table of text")
            n_bytes = 2 * len(data)


def _whole(data: bytes, format: Prologue, is_final: bool) -> tuple[Records | None, int]:
    """Outline of the whole records (where there are quotes), and how many bytes they take up."""
    if format.quote and format.quote.encode() in data:
        return split(data, format.separator, format.quote, is_final)
    return None, data.rfind(b"\n") + 1


def _read(stream: IO[bytes], n_bytes: int) -> bytes:
    """Read exactly so many bytes unless the stream ends (a decompressor may give less at once)."""
    data = stream.read(n_bytes)
    if len(data) == n_bytes or not data:
        return data
    pieces = [data]
    n_left = n_bytes - len(data)
    while n_left and (data := stream.read(n_left)):
        pieces.append(data)
        n_left -= len(data)
    return b"".join(pieces)
