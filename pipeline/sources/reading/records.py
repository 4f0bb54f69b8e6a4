"""Locate records and count their fields in delimited text, using array operations.

The parser (polars) is fast but forgiving: it drops surplus fields where columns are selected, and a stray quote
changes how everything after it is read. So structure is checked here first, and only sound records are parsed.

A record is one line, whatever its quotes. Were a line end inside quotes part of a field, two lines of one person could
enclose the rows of others, and what one person adds would decide whether others are counted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_NEWLINE, _RETURN = 10, 13
_CACHED_BYTES = 64 << 10
_COUNTED_BYTES = 256 << 10

Bytes = NDArray[np.uint8]
Positions = NDArray[np.int64]


@dataclass(frozen=True)
class Records:
    """The records in a text, in order."""

    # First byte, and the byte after the last one (the line end not included); shape (n_records,)
    start: Positions
    stop: Positions
    n_fields: Positions  # fields of the record; 0 where it is blank, −1 where a quote is stray or never closed


def count_byte(data: bytes, byte: int) -> int:
    r"""Count the occurrences of a byte, many times faster than `bytes.count`.

    >>> count_byte(b"1,2\n3,4\n", 10)
    2
    """
    values = np.frombuffer(data, np.uint8)
    pieces = (values[start : start + _COUNTED_BYTES] for start in range(0, len(values), _COUNTED_BYTES))
    return sum(int(np.count_nonzero(piece == byte)) for piece in pieces)


def is_regular(data: bytes, separator: str, n_fields: int) -> bool:
    r"""Return whether every line of unquoted text has exactly ``n_fields`` fields. The bytes are scanned only once.

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


def split(data: bytes, separator: str, quote: str) -> tuple[Records, int]:
    r"""Locate the records in all complete lines of a text.

    Quotes follow RFC 4180, but for line ends: they surround a whole field, are doubled inside, and may enclose
    separators. A line on which that fails is one damaged record, and no other line is read differently for it. Returns
    the records, and how many bytes they take up; ``quote`` may be empty for none.

    >>> records, n_bytes = split(b'1,"a,b"\n\n2,b\n3,"c\n4"', ",", '"')
    >>> records.n_fields.tolist(), n_bytes
    ([2, 0, 2, -1], 18)
    """
    values = np.frombuffer(data, np.uint8)
    newlines = np.flatnonzero(values == _NEWLINE)
    quotes = np.flatnonzero(values == ord(quote)) if quote and quote.encode() in data else np.zeros(0, np.int64)
    line = np.searchsorted(newlines, quotes)
    damaged = np.zeros(len(newlines) + 1, bool)
    damaged[line[~_has_valid_quotes(values, quotes, line, separator, quote)]] = True
    separators = np.flatnonzero(values == ord(separator))
    # Every line that is not damaged has an even number of quotes.
    sound = quotes[~damaged[line]]
    separators = separators[np.searchsorted(sound, separators) % 2 == 0]
    start = np.concatenate([[0], newlines[:-1] + 1])[: len(newlines)]
    stop = newlines - ((newlines > start) & (values[newlines - 1] == _RETURN))
    n_fields = np.diff(np.searchsorted(separators, newlines), prepend=0) + 1
    n_fields[stop == start] = 0
    n_fields[damaged[:-1]] = -1
    return Records(start, stop, n_fields), int(newlines[-1]) + 1 if len(newlines) else 0


def _has_valid_quotes(
    values: Bytes, quotes: Positions, line: Positions, separator: str, quote: str
) -> NDArray[np.bool_]:
    """Return a mask of valid quotes: opening, closing or doubled within a field, with an even number per line."""
    if not len(quotes):
        return np.zeros(0, bool)
    first = np.searchsorted(line, line)
    opens = (np.arange(len(quotes)) - first) % 2 == 0
    padded = np.concatenate([[_NEWLINE], values, [_NEWLINE, _NEWLINE]])
    before, after, second = padded[quotes], padded[quotes + 2], padded[quotes + 3]
    boundary = (ord(separator), _NEWLINE, ord(quote))
    is_start = np.isin(before, boundary)
    is_end = np.isin(after, boundary) | ((after == _RETURN) & (second == _NEWLINE))
    is_even = (np.searchsorted(line, line, "right") - first) % 2 == 0
    return np.asarray(np.where(opens, is_start, is_end) & is_even)
