"""Base class for sources whose files share a fixed layout: device tracks and check-ins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import polars as pl

from penstock.pipeline.sources.reading.text import Dialect, ParsedRows, TextBatch, TextSource
from penstock.pipeline.sources.reading.times import TimeFormat


@dataclass(frozen=True, kw_only=True)
class TrackSource(TextSource):
    """Base class for sources with a fixed file layout described by class variables.

    A subclass whose files are named after users gives `user_of`, and has no column ``user``.
    """

    dialect: ClassVar[Dialect]
    time: ClassVar[TimeFormat]
    types: ClassVar[Mapping[str, type[pl.DataType]]]  # of the columns that are read

    @staticmethod
    def user_of(file: str) -> str | None:
        """Return the user of a file, or None if its rows name the user."""
        return None

    def dialect_of(self, file: str, head: bytes) -> Dialect:
        """Return the dialect set on the class."""
        return self.dialect

    def wanted(self, columns: tuple[str, ...], file: str) -> Mapping[str, type[pl.DataType]]:
        """Return the columns set on the class, with their types."""
        return self.types

    def events(self, rows: ParsedRows, batch: TextBatch) -> pl.DataFrame:
        """Return the rows with parsed times and the user of each file filled in."""
        events = rows.raw.with_columns(self.time.milliseconds(rows.raw["time"]))
        users = pl.Series("user", [self.user_of(segment.file) for segment in batch.segments], dtype=pl.String)
        return events if "user" in events.columns else events.select(users[rows.segments(batch)], pl.all())
