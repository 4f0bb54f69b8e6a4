"""Base of sources whose files share one layout: tracks of devices, and check-ins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import polars as pl

from penstock.pipeline.sources.reading.text import Dialect, ParsedRows, TextBatch, TextSource
from penstock.pipeline.sources.reading.times import TimeFormat


@dataclass(frozen=True, kw_only=True)
class TrackSource(TextSource):
    """Base of sources of one layout, described by class variables.

    A subclass whose files are named after users gives `user_of`, and has no column ``user``.
    """

    #: How files are written, and how their times are.
    dialect: ClassVar[Dialect]
    time: ClassVar[TimeFormat]
    #: Types of the columns that are read.
    types: ClassVar[Mapping[str, type[pl.DataType]]]

    @staticmethod
    def user_of(file: str) -> str | None:
        """User of a file; None if its rows state the user."""
        return None

    def dialect_of(self, file: str, head: bytes) -> Dialect:
        """Return the dialect of the class."""
        return self.dialect

    def wanted(self, columns: tuple[str, ...], file: str) -> Mapping[str, type[pl.DataType]]:
        """Return the columns of the class."""
        return self.types

    def events(self, rows: ParsedRows, batch: TextBatch) -> pl.DataFrame:
        """Rows with times parsed, and with the user of their file."""
        events = rows.raw.with_columns(self.time.milliseconds(rows.raw["time"]))
        users = pl.Series("user", [self.user_of(segment.file) for segment in batch.segments], dtype=pl.String)
        return events if "user" in events.columns else events.select(users[rows.segments(batch)], pl.all())
