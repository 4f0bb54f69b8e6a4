"""GeoLife: GPS tracks of people in and around Beijing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath

import polars as pl

from penstock.pipeline.sources.reading.text import Batch, Prologue, Rows, TextSource
from penstock.pipeline.sources.reading.times import TimeFormat

_N_HEADER_LINES = 6
_TIME = TimeFormat("%Y-%m-%d %H:%M:%S")


@dataclass(frozen=True, kw_only=True)
class Geolife(TextSource):
    """Events from ``Data/<user>/Trajectory/*.plt``: latitude, longitude, 0, altitude, days, date, time (GMT).

    The user is the folder's name, as text. Altitudes and transport modes (``labels.txt``) are not read. One published
    latitude of 400.17 is rejected; points dated years off are events, which ``from`` and ``until`` leave out; repeated
    points count once in distinct counts.

    References
    ----------
    Y. Zheng, L. Zhang, X. Xie, W.-Y. Ma. WWW 2009; Y. Zheng et al. UbiComp 2008; Y. Zheng, X. Xie, W.-Y. Ma. IEEE Data
    Engineering Bulletin 2010.

    Examples
    --------
    >>> user_of("geolife/Data/017/Trajectory/20090204001246.plt")
    '017'
    """

    names_users = True
    patterns = ("*.plt",)
    bytes_per_row = 65

    def prologue(self, file: str, head: bytes) -> Prologue:
        """Six lines of header."""
        return Prologue(("latitude", "longitude", "zero", "altitude", "days", "date", "clock"), _N_HEADER_LINES)

    def wanted(self, columns: tuple[str, ...], file: str) -> Mapping[str, type[pl.DataType]]:
        """Position, date and time of day."""
        return {"latitude": pl.Float64, "longitude": pl.Float64, "date": pl.String, "clock": pl.String}

    def events(self, rows: Rows, batch: Batch) -> pl.DataFrame:
        """Rows with the user of their folder."""
        users = pl.Series("user", [user_of(segment.file) for segment in batch.segments])
        time = rows.raw.select(time=pl.concat_str("date", pl.lit(" "), "clock"))["time"]
        return rows.raw.select(users[rows.segments(batch)], _TIME.milliseconds(time), "latitude", "longitude")


def user_of(file: str) -> str:
    """User whose folder a track is in, ``Trajectory`` not counted; the file's own name where there is no folder."""
    path = PurePath(file.rpartition("!")[2])
    return next((folder for folder in reversed(path.parent.parts) if folder != "Trajectory"), path.stem)
