"""GeoLife, a data set of GPS trajectories recorded mostly in and around Beijing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import PurePath
from types import MappingProxyType

import polars as pl

from penstock.pipeline.sources.reading.text import Dialect, ParsedRows, TextBatch
from penstock.pipeline.sources.reading.times import TimeFormat
from penstock.pipeline.sources.reading.tracks import TrackSource


@dataclass(frozen=True, kw_only=True)
class Geolife(TrackSource):
    """Read events from ``Data/<user>/Trajectory/*.plt``: latitude, longitude, 0, altitude, days, date, time (GMT).

    The user is the folder's name, as text. Altitudes and transport modes (``labels.txt``) are not read. One published
    latitude of 400.17 is rejected; points dated years off are events, which ``from`` and ``until`` leave out; repeated
    points count once in distinct counts.

    References
    ----------
    Y. Zheng, L. Zhang, X. Xie, W.-Y. Ma. WWW 2009; Y. Zheng et al. UbiComp 2008; Y. Zheng, X. Xie, W.-Y. Ma. IEEE Data
    Engineering Bulletin 2010.

    Examples
    --------
    >>> Geolife.user_of("geolife/Data/017/Trajectory/20090204001246.plt")
    '017'
    """

    has_user_names = True
    patterns = ("*.plt",)
    bytes_per_row = 65

    dialect = Dialect(("latitude", "longitude", "zero", "altitude", "days", "date", "clock"), n_lines=6)
    time = TimeFormat("%Y-%m-%d %H:%M:%S")
    types = MappingProxyType({"latitude": pl.Float64, "longitude": pl.Float64, "date": pl.String, "clock": pl.String})

    @staticmethod
    def user_of(file: str) -> str:
        """Return a track's user, which is the closest folder not named ``Trajectory``, or the file name."""
        path = PurePath(file.rpartition("!")[2])
        return next((folder for folder in reversed(path.parent.parts) if folder != "Trajectory"), path.stem)

    def events(self, rows: ParsedRows, batch: TextBatch) -> pl.DataFrame:
        """Combine date and time into timestamps, and set the user to the one whose folder contains the file."""
        time = pl.concat_str("date", pl.lit(" "), "clock")
        return super().events(replace(rows, raw=rows.raw.select("latitude", "longitude", time=time)), batch)
