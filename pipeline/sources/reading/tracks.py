"""Base class for sources whose files have a fixed layout, such as device tracks and check-ins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import polars as pl

from penstock.pipeline.sources.reading.text import Dialect, ParsedRows, TextBatch, TextSource
from penstock.pipeline.sources.reading.times import TimeFormat


@dataclass(frozen=True, kw_only=True)
class TrackSource(TextSource):
    """Base class for sources whose files have a fixed layout, which is described by class variables.

    A subclass whose files are named after users gives `user_of`, and has no column ``user``.
    """

    dialect: ClassVar[Dialect]
    time: ClassVar[TimeFormat]
    types: ClassVar[Mapping[str, type[pl.DataType]]]  # of the columns that are read

    @staticmethod
    def user_of(file: str) -> str | None:
        """Return the user to whom a file belongs, or None if each row names its user."""
        return None

    def dialect_of(self, file: str, head: bytes) -> Dialect:
        """Return the dialect defined by the class."""
        return self.dialect

    def required_columns(self, columns: tuple[str, ...], file: str) -> Mapping[str, type[pl.DataType]]:
        """Return the columns defined by the class, with their types."""
        return self.types

    def events(self, rows: ParsedRows, batch: TextBatch) -> pl.DataFrame:
        """Parse the times and fill in the user of each file."""
        events = rows.raw.with_columns(self.time.milliseconds(rows.raw["time"]))
        users = pl.Series("user", [self.user_of(segment.file) for segment in batch.segments], dtype=pl.String)
        return events if "user" in events.columns else events.select(users[rows.segments(batch)], pl.all())
