"""Taxi traces from San Francisco: the Cabspotting data set (CRAWDAD epfl/mobility)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath
from types import MappingProxyType

import polars as pl

from penstock.pipeline.sources.reading.text import Dialect, ParsedRows, TextBatch, parse
from penstock.pipeline.sources.reading.times import TimeFormat
from penstock.pipeline.sources.reading.tracks import TrackSource


@dataclass(frozen=True, kw_only=True)
class Cabspotting(TrackSource):
    """Read events from ``new_<cab>.txt``: latitude, longitude, occupied, Unix seconds, separated by spaces.

    The user is the cab, which only the file name tells. Files may run backwards in time (as published) or forwards;
    ``path`` may be the directory or an archive of it.

    References
    ----------
    M. Piorkowski, N. Sarafijanovic-Djukic, M. Grossglauser. CRAWDAD data set epfl/mobility, 2009.

    Examples
    --------
    >>> Cabspotting(path="data/cabspotting").dialect.columns
    ('latitude', 'longitude', 'occupied', 'time')
    """

    has_user_names = True
    patterns = ("new_*.txt",)
    bytes_per_row = 33

    dialect = Dialect(("latitude", "longitude", "occupied", "time"), separator=" ")
    time = TimeFormat("unix_s")
    types = MappingProxyType({"time": pl.Float64, "latitude": pl.Float64, "longitude": pl.Float64})

    @staticmethod
    def user_of(file: str) -> str:
        """Return the cab whose trace is stored in the given file.

        >>> Cabspotting.user_of("cabs.tar.xz!cabspotting/new_abboip.txt.gz")
        'abboip'
        """
        return PurePath(file.rpartition("!")[2]).name.split(".")[0].removeprefix("new_")

    def parse(self, batch: TextBatch) -> ParsedRows:
        """Parse the requested columns of a batch. Times are read as integers where possible, which is faster."""
        rows = parse(batch, {**self.types, "time": pl.Int64})
        return super().parse(batch) if rows.raw["time"].null_count() else rows
