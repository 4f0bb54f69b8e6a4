"""T-Drive, a data set of GPS positions reported by taxis in Beijing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType

import polars as pl

from penstock.pipeline.sources.reading.text import Dialect, ParsedRows, TextBatch, missing_position
from penstock.pipeline.sources.reading.times import TimeFormat
from penstock.pipeline.sources.reading.tracks import TrackSource


@dataclass(frozen=True, kw_only=True)
class Tdrive(TrackSource):
    """Read events from ``<taxi>.txt``: taxi, local time in Beijing, *longitude*, latitude.

    The user is the taxi's number. A line of column names is skipped where there is one (the publisher's files have
    none). Rows at zero longitude and latitude have no position and are rejected; rows elsewhere far from Beijing are
    events, which the space leaves out.

    References
    ----------
    J. Yuan, Y. Zheng, C. Zhang, W. Xie, X. Xie, G. Sun, Y. Huang. SIGSPATIAL 2010; J. Yuan, Y. Zheng, X. Xie, G. Sun.
    KDD 2011.

    Examples
    --------
    >>> Tdrive(path="taxis").dialect_of("1.txt", b"id,time,long,lat").n_lines
    1
    """

    has_user_names = True
    patterns = ("[0-9]*.txt",)
    bytes_per_row = 45

    dialect = Dialect(("user", "time", "longitude", "latitude"))
    time = TimeFormat("%Y-%m-%d %H:%M:%S", "Asia/Shanghai")
    types = MappingProxyType({"user": pl.Int64, "time": pl.String, "latitude": pl.Float64, "longitude": pl.Float64})

    def dialect_of(self, file: str, head: bytes) -> Dialect:
        """Determine from the first character of a file whether it has a header line."""
        return replace(self.dialect, n_lines=int(head[:1].isalpha()))

    def events(self, rows: ParsedRows, batch: TextBatch) -> pl.DataFrame:
        """Convert the rows to events, and mark those without a position."""
        return super().events(rows, batch).with_columns(missing_position().alias("problem"))
