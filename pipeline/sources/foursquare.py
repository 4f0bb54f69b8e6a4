"""Foursquare check-ins in New York and Tokyo (TSMC2014), either as published or as split by later papers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import polars as pl

from penstock.mechanisms.core.plugin import DataError
from penstock.pipeline.sources.base import EventBlock, Span
from penstock.pipeline.sources.reading.text import Dialect, ParsedRows, TextBatch, TextSource, to_blocks
from penstock.pipeline.sources.reading.times import TimeFormat, first_matching_format

#: Columns of the publisher's files, which have no header; the later ones name theirs likewise.
_PUBLISHED = ("user_id", "POI_id", "POI_catid", "POI_catname", "latitude", "longitude", "timezone", "UTC_time")
_WANTED: dict[str, type[pl.DataType]] = {
    "user_id": pl.Int64,
    "POI_id": pl.String,
    "latitude": pl.Float64,
    "longitude": pl.Float64,
    "UTC_time": pl.String,
}
_CHECK_IN = ("user", "place", "time")


@dataclass(frozen=True, kw_only=True)
class Foursquare(TextSource):
    """Read events from check-ins in one of three formats, detected from the first line.

    * the publisher's ``dataset_TSMC2014_*.txt``: tab-separated, no header, Latin-1,
      ``Tue Apr 03 18:00:09 +0000 2012``;
    * CSV with the same columns by name, and more (``iPCM_*``);
    * CSV with ISO times in ``UTC_time`` (``GANPOI_*``).

    Only the UTC time is used: some offsets beside it are of another continent. The later files overlap, so a check-in
    (user, place, time) that an earlier file has too is rejected; a repetition within one file is kept.

    All files are one span, because each is compared with those before. Memory: three numbers a check-in.

    References
    ----------
    D. Yang, D. Zhang, V. Zheng, Z. Yu. Modeling user activity preference by leveraging user spatial temporal
    characteristics in LBSNs. IEEE Transactions on Systems, Man, and Cybernetics: Systems 45 (1), 2015.

    Examples
    --------
    >>> Foursquare(path="foursquare").dialect_of("a.csv", b"user_id,POI_id\\n1,x\\n").columns
    ('user_id', 'POI_id')
    """

    patterns = ("*TSMC2014*.txt", "*.csv")
    bytes_per_row = 150

    def dialect_of(self, file: str, head: bytes) -> Dialect:
        """Return the dialect; without a header, the columns are those of the published data set."""
        line = head.split(b"\n", 1)[0].decode("latin-1").strip()
        if not line.startswith("user_id"):
            return Dialect(_PUBLISHED, separator="\t", encoding="latin-1")
        return Dialect(tuple(line.split(",")), n_lines=1, quote='"')

    def required_columns(self, columns: tuple[str, ...], file: str) -> Mapping[str, type[pl.DataType]]:
        """Return the columns for user, place, coordinates and UTC time. Raise `DataError` if one is missing."""
        missing = [name for name in _WANTED if name not in columns]
        if missing:
            raise DataError(f"{file}: there is no column {missing[0]!r} (columns: {', '.join(columns)})")
        return _WANTED

    def spans(self) -> list[Span]:
        """Return a single span that contains all files."""
        return [Span(0, tuple(self.files()))]

    def events(self, rows: ParsedRows, batch: TextBatch) -> pl.DataFrame:
        """Rename the columns to the fields of an event, and parse the times."""
        time = first_matching_format(rows.raw["UTC_time"], map(TimeFormat, ("iso", "%a %b %d %H:%M:%S %z %Y")))
        return rows.raw.select("latitude", "longitude", user="user_id", time=time, place="POI_id")

    def read(self, span: Span) -> Iterator[EventBlock]:
        """Read a span's files. Rows that duplicate a row of an earlier file are rejected."""
        seen: pl.DataFrame | None = None
        order: dict[str, int] = {}
        for batch in self.batches(span):
            rows = self.parse(batch)
            events = self.events(rows, batch)
            files = pl.Series([order.setdefault(segment.file, len(order)) for segment in batch.segments])
            keys = events.select(*_CHECK_IN, files[rows.segments(batch)].alias("file"))
            seen = keys if seen is None else pl.concat([seen, keys])
            seen = seen.group_by(_CHECK_IN).agg(pl.col("file").min())
            first = keys.join(seen, on=_CHECK_IN, how="left", maintain_order="left")
            repeats = pl.when(first["file"] > first["file_right"]).then(pl.lit("same check-in as in an earlier file"))
            events = events.with_columns(repeats.alias("problem"))
            yield from to_blocks(batch, rows, events, self.block_rows)
