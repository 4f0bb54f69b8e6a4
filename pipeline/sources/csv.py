"""Delimited text files with one event per row."""

from __future__ import annotations

import codecs
import csv
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from penstock.mechanisms.core.plugin import DataError, ParameterError, parameter
from penstock.pipeline.sources.reading.columns import MappedColumns
from penstock.pipeline.sources.reading.text import (
    Dialect,
    ParsedRows,
    TextBatch,
    TextSource,
    as_numbers,
    numbered,
)

NOT_CSV = "is not text; is it a CSV file?"
#: Characters that are taken for the separator of a file whose header is one column with them.
_SEPARATORS = (";", "\t", "|", ",")
_USER_TYPES: dict[str, type[pl.DataType]] = {"string": pl.String, "integer": pl.Int64}


@dataclass(frozen=True, kw_only=True)
class Csv(MappedColumns, TextSource):
    """Read events from CSV files: one or many, compressed or in an archive.

    Parameters
    ----------
    path, columns, time_format, time_zone
        Where, which columns, and how times are written.
    separator, quote
        One ASCII character each; ``quote`` may be empty if quotes are ordinary text. Quoting follows RFC 4180.
    header
        Whether the first line names the columns; without, they are named ``column_1``, ``column_2``, …
    encoding
        Of text that is not UTF-8, by its name in Python.
    user_type
        ``integer`` is faster and takes less memory; a user that is none is rejected.

    Notes
    -----
    Cost: about that of polars reading the same columns, plus one pass over the bytes that checks the number of
    fields of every row. Memory: a few times the bytes of ``block_rows`` rows.

    Examples
    --------
    >>> source = Csv(path="trips/*.csv", columns={"user": "rider", "time": "at"}, time_zone="Europe/Zurich")
    >>> source.find_columns(["rider", "at", "latitude", "longitude"], "trips/a.csv")["user"]
    'rider'
    """

    separator: str = parameter(",", doc="character between fields; tab is written \\t")
    quote: str = parameter('"', doc="character around fields that hold separators; empty for none")
    decimal: str = parameter(".", choices=(".", ","), doc="decimal separator")
    encoding: str = parameter("utf-8", doc="encoding of text, such as latin-1 or cp1252")
    header: bool = parameter(True, choices=(True, False), doc="the first line names the columns")
    user_type: str = parameter("string", choices=tuple(_USER_TYPES), doc="type of the user's identifier")

    patterns = ("*.csv", "*.tsv", "*.txt")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, minimum in (("separator", 1), ("quote", 0)):
            value = getattr(self, name)
            if not (minimum <= len(value) <= 1 and value.isascii() and value not in "\r\n") and value:
                raise ParameterError(name, value, "one ASCII character")
        if not self.separator or self.separator == self.quote:
            raise ParameterError("separator", self.separator, "one ASCII character that is not the quote")
        if self.decimal == self.separator and not self.quote:
            raise ParameterError("separator", self.separator, "another character than decimal, where nothing is quoted")
        try:
            codecs.getincrementaldecoder(self.encoding)
            "a".encode(self.encoding)
        except (LookupError, UnicodeError, ValueError):
            expected = "the name of an encoding of text, such as cp1252 or utf-16"
            raise ParameterError("encoding", self.encoding, expected) from None

    def dialect_of(self, file: str, head: bytes) -> Dialect:
        """Return the dialect, with names from the first line or, without a header, ``column_1``, ``column_2``, …"""
        for start, kind in ((b"PAR1", "parquet"), (b"{", "json"), (b"[{", "json")):
            if head.lstrip().startswith(start):
                raise DataError(f"{file}: is {kind.capitalize()}, which source.type: {kind} reads")
        line = head.decode(self.encoding, "replace").removeprefix("\ufeff").split("\n", 1)[0]
        if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) and "\0" in line:
            raise DataError(f"{file}, line 1: is UTF-16, which source.encoding: utf-16 reads")
        if self.header and "\0" in line:
            raise DataError(f"{file}, line 1: {NOT_CSV}")
        how: Any = {"quotechar": self.quote} if self.quote else {"quoting": csv.QUOTE_NONE}
        try:
            fields = next(csv.reader([line.rstrip("\r")], delimiter=self.separator, **how), [])
        except csv.Error as error:
            why = "lines end with a carriage return alone: save it with line feeds" if b"\n" not in head else NOT_CSV
            raise DataError(f"{file}, line 1: {why}") from error
        other = next((mark for mark in _SEPARATORS if self.header and len(fields) == 1 and mark in fields[0]), None)
        if other is not None:
            written = json.dumps(other)
            raise DataError(
                f"{file}, line 1: is one column between {self.separator!r}; is source.separator: {written}?"
            )
        encoding = codecs.lookup(self.encoding).name
        decimal = "." if self._has_quoted_decimals else self.decimal
        columns = tuple(name.strip() if self.header else f"column_{i}" for i, name in enumerate(fields, 1))
        return Dialect(columns, int(self.header), self.separator, self.quote, encoding, decimal)

    def required_columns(self, columns: tuple[str, ...], file: str) -> Mapping[str, type[pl.DataType]]:
        """Return the mapped columns and types. Raise a `DataError` that lists the columns if one is missing."""
        types: dict[str, type[pl.DataType]] = dict.fromkeys(("time", "arrival"), self.time.dtype)
        types |= {"user": _USER_TYPES[self.user_type], **dict.fromkeys(("date", "place", "point"), pl.String)}
        number = pl.String if self._has_quoted_decimals else pl.Float64
        return {name: types.get(part, number) for part, name in self.find_columns(columns, file).items()}

    def events(self, rows: ParsedRows, batch: TextBatch) -> pl.DataFrame:
        """Rename the columns to the fields of an event, and parse the times."""
        columns = self.find_columns(batch.format.columns, batch.segments[0].file)
        parts = rows.raw.select(pl.col(name).alias(part) for part, name in columns.items())
        frame = self.joined(parts, [segment.file for segment in batch.segments], lambda: rows.segments(batch))
        if "user" not in columns:
            frame = frame.with_columns(numbered(rows, batch))
        if self._has_quoted_decimals:
            degrees = pl.col(name for name in ("latitude", "longitude") if name in columns)
            frame = frame.with_columns(as_numbers(degrees.str.replace(",", ".", literal=True)))
        return self.timed(frame)

    @property
    def _has_quoted_decimals(self) -> bool:
        """Return whether numbers with a decimal comma are quoted, which the number parser cannot read."""
        return self.decimal == self.separator
