"""Gowalla check-ins, as published by SNAP (Brightkite's have the same format)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from penstock.pipeline.sources.reading.text import Batch, Prologue, Rows, TextSource
from penstock.pipeline.sources.reading.times import TimeFormat

_TIME = TimeFormat("iso")


@dataclass(frozen=True, kw_only=True)
class Gowalla(TextSource):
    """Events from tab-separated check-ins: user, time (UTC), latitude, longitude, place; no header.

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

    def prologue(self, file: str, head: bytes) -> Prologue:
        """No header, separated by tabs."""
        return Prologue(("user", "time", "latitude", "longitude", "place"), separator="\t")

    def wanted(self, columns: tuple[str, ...], file: str) -> Mapping[str, type[pl.DataType]]:
        """All columns."""
        coordinates: dict[str, type[pl.DataType]] = {"latitude": pl.Float64, "longitude": pl.Float64}
        return {"user": pl.Int64, "time": pl.String, **coordinates, "place": pl.String}

    def events(self, rows: Rows, batch: Batch) -> pl.DataFrame:
        """Rows as they are, times parsed."""
        return rows.raw.with_columns(_TIME.milliseconds(rows.raw["time"]))
