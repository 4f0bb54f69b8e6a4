"""San Francisco cabs: the Cabspotting traces (CRAWDAD epfl/mobility)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath

import polars as pl

from penstock.pipeline.sources.reading.text import Batch, Prologue, Rows, TextSource, parse
from penstock.pipeline.sources.reading.times import TimeFormat

_TIME = TimeFormat("unix_s")


@dataclass(frozen=True, kw_only=True)
class Cabspotting(TextSource):
    """Events from ``new_<cab>.txt``: latitude, longitude, occupied, Unix seconds, separated by spaces.

    The user is the cab, which only the file name tells. Files may run backwards in time (as published) or forwards;
    ``path`` may be the directory or an archive of it.

    References
    ----------
    M. Piorkowski, N. Sarafijanovic-Djukic, M. Grossglauser. CRAWDAD data set epfl/mobility, 2009.

    Examples
    --------
    >>> Cabspotting(path="data/cabspotting").prologue("new_abc.txt", b"").columns
    ('latitude', 'longitude', 'occupied', 'time')
    """

    names_users = True
    patterns = ("new_*.txt",)
    bytes_per_row = 33

    def prologue(self, file: str, head: bytes) -> Prologue:
        """No header, separated by single spaces."""
        return Prologue(("latitude", "longitude", "occupied", "time"), separator=" ")

    def wanted(self, columns: tuple[str, ...], file: str) -> Mapping[str, type[pl.DataType]]:
        """Everything but whether the cab was occupied."""
        return {"time": _TIME.dtype, "latitude": pl.Float64, "longitude": pl.Float64}

    def parse(self, batch: Batch) -> Rows:
        """The wanted columns of a batch; times as the whole numbers that they are, unless one of them is not."""
        wanted = dict(self.wanted(batch.format.columns, batch.segments[0].file))
        rows = parse(batch, wanted | {"time": pl.Int64})
        return parse(batch, wanted) if rows.raw["time"].null_count() else rows

    def events(self, rows: Rows, batch: Batch) -> pl.DataFrame:
        """Rows with the cab of their file."""
        cabs = pl.Series("user", [cab_of(segment.file) for segment in batch.segments])
        user = cabs[rows.segments(batch)]
        return rows.raw.select(user, _TIME.milliseconds(rows.raw["time"]), "latitude", "longitude")


def cab_of(file: str) -> str:
    """Cab that a file is about.

    >>> cab_of("cabs.tar.xz!cabspotting/new_abboip.txt.gz")
    'abboip'
    """
    return PurePath(file.rpartition("!")[2]).name.split(".")[0].removeprefix("new_")
