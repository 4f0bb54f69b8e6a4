"""T-Drive: GPS reports of taxis in Beijing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from penstock.pipeline.sources.reading.text import Batch, Prologue, Rows, TextSource, without_position
from penstock.pipeline.sources.reading.times import TimeFormat

_TIME = TimeFormat("%Y-%m-%d %H:%M:%S", "Asia/Shanghai")


@dataclass(frozen=True, kw_only=True)
class Tdrive(TextSource):
    """Events from ``<taxi>.txt``: taxi, local time in Beijing, *longitude*, latitude.

    The user is the taxi's number. A line of column names is skipped where there is one (the publisher's files have
    none). Rows at zero longitude and latitude have no position and are rejected; rows elsewhere far from Beijing are
    events, which the space leaves out.

    References
    ----------
    J. Yuan, Y. Zheng, C. Zhang, W. Xie, X. Xie, G. Sun, Y. Huang. SIGSPATIAL 2010; J. Yuan, Y. Zheng, X. Xie, G. Sun.
    KDD 2011.

    Examples
    --------
    >>> Tdrive(path="taxis").prologue("1.txt", b"id,time,long,lat").n_lines
    1
    """

    names_users = True
    patterns = ("[0-9]*.txt",)
    bytes_per_row = 45

    def prologue(self, file: str, head: bytes) -> Prologue:
        """One line of header if it does not start with a number."""
        n_lines = 1 if head[:1].isalpha() else 0
        return Prologue(("user", "time", "longitude", "latitude"), n_lines)

    def wanted(self, columns: tuple[str, ...], file: str) -> Mapping[str, type[pl.DataType]]:
        """All columns."""
        return {"user": pl.Int64, "time": pl.String, "latitude": pl.Float64, "longitude": pl.Float64}

    def events(self, rows: Rows, batch: Batch) -> pl.DataFrame:
        """Rows, those without a position marked."""
        return rows.raw.with_columns(_TIME.milliseconds(rows.raw["time"]), without_position().alias("problem"))
