"""Gowalla check-ins, as published by SNAP (Brightkite's have the same format)."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

import polars as pl

from penstock.pipeline.sources.reading.text import Dialect
from penstock.pipeline.sources.reading.times import TimeFormat
from penstock.pipeline.sources.reading.tracks import TrackSource


@dataclass(frozen=True, kw_only=True)
class Gowalla(TrackSource):
    """Read events from tab-separated check-ins without a header: user, time (UTC), latitude, longitude and place.

    From a directory only files named like check-ins are taken, not the lists of venues and samples often kept beside
    them; a file given by its own path is taken whatever its name. Coordinates are those of the check-in: some places
    have several.

    References
    ----------
    E. Cho, S. Myers, J. Leskovec. Friendship and mobility: user movement in location-based social networks. KDD 2011.

    Examples
    --------
    >>> Gowalla(path="loc-gowalla_totalCheckins.txt.gz").patterns
    ('*_totalCheckins.txt', 'gowalla_events.csv')
    """

    patterns = ("*_totalCheckins.txt", "gowalla_events.csv")
    bytes_per_row = 63

    dialect = Dialect(("user", "time", "latitude", "longitude", "place"), separator="\t")
    time = TimeFormat("iso")
    types = MappingProxyType(
        {"user": pl.Int64, "time": pl.String, "latitude": pl.Float64, "longitude": pl.Float64, "place": pl.String}
    )
