"""Boundaries and field counts of records in delimited text, found by array operations.

The parser (polars) is fast but forgiving: it drops surplus fields where columns are selected, and a stray quote
changes how everything after it is read. So structure is checked here first, and only sound records are parsed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: A record with quotes that is longer than this has a quote that was never closed.
MAX_QUOTED_BYTES = 64 << 10

_NEWLINE, _RETURN, _SPACE = 10, 13, 32
_CACHED_BYTES = 64 << 10
_COUNTED_BYTES = 256 << 10

Bytes = NDArray[np.uint8]
Positions = NDArray[np.int64]


@dataclass(frozen=True)
class Records:
    """Records of a text, in order.

    Parameters
    ----------
    start, stop
        First byte, and the byte after the last one (the line end not included); shape (n_records,).
    line
        0-based line on which the record starts.
    n_fields
        Fields of the record; 0 where it is blank, −1 where a quote is stray or never closed.
    """

    start: Positions
    stop: Positions
    line: Positions
    n_fields: Positions


def count_byte(data: bytes, byte: int) -> int:
    r"""How often a byte occurs, many times faster than `bytes.count`.

    >>> count_byte(b"1,2\n3,4\n", 10)
    2
    """
    values = np.frombuffer(data, np.uint8)
    pieces = (values[start : start + _COUNTED_BYTES] for start in range(0, len(values), _COUNTED_BYTES))
    return sum(int(np.count_nonzero(piece == byte)) for piece in pieces)


def is_regular(data: bytes, separator: str, n_fields: int) -> bool:
    r"""Whether every line of an unquoted text has exactly ``n_fields`` fields, in one pass over the bytes.

    >>> is_regular(b"1,2\n3,4\n", ",", 2), is_regular(b"1,2,3\n4\n", ",", 2)
    (True, False)
    """
    values = np.frombuffer(data, np.uint8)
    is_line_end = np.zeros(_CACHED_BYTES + n_fields, dtype=bool)
    is_line_end[n_fields - 1 :: n_fields] = True
    n_seen = 0
    for start in range(0, len(values), _CACHED_BYTES):
        piece = values[start : start + _CACHED_BYTES]
        marks = piece[(piece == ord(separator)) | (piece == _NEWLINE)]
        phase = n_seen % n_fields
        if not np.array_equal(marks == _NEWLINE, is_line_end[phase : phase + len(marks)]):
            return False
        n_seen += len(marks)
    return True


def split(data: bytes, separator: str, quote: str, is_final: bool = True) -> tuple[Records, int]:
    r"""Find the records of a text that starts at the start of a record.

    Quotes follow RFC 4180: they surround a whole field, are doubled inside, and may enclose separators and line
    ends. A line on which that fails (a stray quote, or one not closed within `MAX_QUOTED_BYTES`) is one damaged
    record, and reading goes on with the next line: damage never spreads.

    Parameters
    ----------
    data
        Text whose lines end in ``\n`` or ``\r\n``.
    separator, quote
        One ASCII character each; ``quote`` may be empty for none.
    is_final
        Whether nothing follows; otherwise an unfinished record at the end is left for the next call.

    Returns
    -------
    (records, n_bytes)
        The records, and how many bytes they take up.

    Examples
    --------
    >>> records, n_bytes = split(b'1,"a\n,b"\n\n2,b\n3,"c', ",", '"', is_final=False)
    >>> records.n_fields.tolist(), records.line.tolist(), n_bytes
    ([2, 0, 2], [0, 2, 3], 14)
    """
    values = np.frombuffer(data, np.uint8)
    if not quote or quote.encode() not in data:
        return _outline(values, np.flatnonzero([]), separator)
    records, n_bytes = _outline(values, np.flatnonzero(values == ord(quote)), separator)
    longest = int((records.stop - records.start).max(initial=0))
    unfinished = len(data) - n_bytes
    is_closed = unfinished == 0 or (not is_final and unfinished <= MAX_QUOTED_BYTES)
    if is_closed and longest <= MAX_QUOTED_BYTES and _quotes_are_sound(values[:n_bytes], separator, quote):
        return records, n_bytes
    return _split_damaged(data, separator, quote, is_final)


def _outline(values: Bytes, quotes: Positions, separator: str) -> tuple[Records, int]:
    newlines = np.flatnonzero(values == _NEWLINE)
    separators = np.flatnonzero(values == ord(separator))
    ends = newlines
    if len(quotes):
        ends = newlines[np.searchsorted(quotes, newlines) % 2 == 0]
        separators = separators[np.searchsorted(quotes, separators) % 2 == 0]
    n_bytes = int(ends[-1]) + 1 if len(ends) else 0
    start = np.concatenate([[0], ends[:-1] + 1])[: len(ends)]
    stop = ends - ((ends > start) & (values[ends - 1] == _RETURN))
    n_fields = np.diff(np.searchsorted(separators, ends), prepend=0) + 1
    n_fields[stop == start] = 0
    return Records(start, stop, np.searchsorted(newlines, start), n_fields), n_bytes


def _quotes_are_sound(values: Bytes, separator: str, quote: str) -> bool:
    """Whether every opening quote starts a field and every closing quote ends one (or is doubled)."""
    quotes = np.flatnonzero(values == ord(quote))
    padded = np.concatenate([[_NEWLINE], values, [_NEWLINE, _NEWLINE]])
    before = padded[quotes[0::2]]
    after, second = padded[quotes[1::2] + 2], padded[quotes[1::2] + 3]
    boundary = (ord(separator), _NEWLINE, ord(quote))
    return bool(
        np.isin(before, boundary).all()
        and (np.isin(after, boundary) | ((after == _RETURN) & (second == _NEWLINE))).all()
    )


def _split_damaged(data: bytes, separator: str, quote: str, is_final: bool) -> tuple[Records, int]:
    """The same record by record, which finds the damaged lines; their quotes are then taken for ordinary text."""
    record = _record_pattern(separator, quote)
    mark = quote.encode()
    values = np.frombuffer(data, np.uint8).copy()
    damaged: list[int] = []
    at = 0
    while at < len(data):
        match = record.match(data, at, at + MAX_QUOTED_BYTES)
        if match:
            at = match.end()
            continue
        line_end = data.find(b"\n", at) + 1
        if line_end and mark not in data[at:line_end]:
            at = line_end
            continue
        if not is_final and (not line_end or len(data) - at < MAX_QUOTED_BYTES):
            break
        line_end = line_end or len(data)
        line = values[at:line_end]
        line[line == ord(quote)] = _SPACE
        damaged.append(at)
        at = line_end
    quotes = np.flatnonzero(values[:at] == ord(quote))
    records, n_bytes = _outline(values[:at], quotes, separator)
    records.n_fields[np.isin(records.start, damaged)] = -1
    return records, n_bytes


def _record_pattern(separator: str, quote: str) -> re.Pattern[bytes]:
    s, q = re.escape(separator).encode(), re.escape(quote).encode()
    parts: dict[bytes, Any] = {b"s": s, b"q": q}
    field = b"(?:%(q)s(?:[^%(q)s]|%(q)s%(q)s)*+%(q)s|[^%(q)s%(s)s\\n]*+)" % parts
    return re.compile(field + b"(?:" + s + field + b")*+\\r?\\n")
