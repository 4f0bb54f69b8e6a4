"""Citi Bike trips in New York and Jersey City: the start and end of each ride, without rider ids."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import polars as pl

from penstock.mechanisms.core.plugin import DataError, parameter
from penstock.pipeline.sources.base import EventBlock
from penstock.pipeline.sources.reading.text import (
    Dialect,
    ParsedRows,
    TextBatch,
    TextSource,
    missing_position,
    numbered,
    to_blocks,
)
from penstock.pipeline.sources.reading.times import TimeFormat, first_matching_format

ZONE = "America/New_York"

_FORMATS = ("iso", "%m/%d/%Y %H:%M:%S", "%m/%d/%Y %H:%M")

#: What is needed of both ends of a trip, under the names it has had, without regard to case, spaces and underscores.
_NAMES = {
    "start_time": ("starttime", "startedat"),
    "end_time": ("stoptime", "endedat"),
    "start_station": ("startstationid",),
    "end_station": ("endstationid",),
    "start_latitude": ("startstationlatitude", "startlat"),
    "end_latitude": ("endstationlatitude", "endlat"),
    "start_longitude": ("startstationlongitude", "startlng"),
    "end_longitude": ("endstationlongitude", "endlng"),
}
#: Since 2021 rides have an identifier.
_OPTIONAL = {"ride": ("rideid",)}


@dataclass(frozen=True, kw_only=True)
class Citibike(TextSource):
    """Read events from the publisher's trip files, before 2021 (``starttime``) and since (``started_at``).

    There is no rider, so the user is the trip: what is counted is trips at stations, not distinct people
    (``has_people`` is False). Times are local in New York. A trip that starts or ends in the hour that exists twice is
    placed as early as possible without ending before it starts. Trips of any length are kept.

    Parameters
    ----------
    events_of
        ``start``, ``end`` or ``both`` ends of each trip; with ``both`` a trip is two rows.

    References
    ----------
    Citi Bike system data, Motivate International / NYC Bike Share, under its data use policy.

    Examples
    --------
    >>> Citibike(path="JC-202003-citibike-tripdata.csv").has_people
    False
    """

    events_of: str = parameter("both", choices=("start", "end", "both"), doc="ends of a trip that are events")

    patterns = ("*tripdata*.csv",)
    bytes_per_row = 180
    has_people = False  # trips do not identify their riders

    def dialect_of(self, file: str, head: bytes) -> Dialect:
        """Return the file's dialect, with the column names in its header mapped to the current ones."""
        line = head.split(b"\n", 1)[0].decode("utf-8", "replace").rstrip("\r")
        try:
            header = next(csv.reader([line]), [])
        except csv.Error:
            header = [line]  # no header that one could read: `required_columns` says which columns it lacks
        return Dialect(trip_columns(header), n_lines=1, quote='"')

    def required_columns(self, columns: tuple[str, ...], file: str) -> Mapping[str, type[pl.DataType]]:
        """Return the time, station and coordinate columns of a trip's two ends. Raise `DataError` if one is missing."""
        missing = [name for name in _NAMES if name not in columns]
        if missing:
            raise DataError(f"{file}: no column is known as the {missing[0]} of trips (columns: {', '.join(columns)})")
        present = [name for name in columns if name in _NAMES or name in _OPTIONAL]
        return {name: pl.Float64 if name.endswith("itude") else pl.String for name in present}

    def blocks(self, batch: TextBatch) -> Iterator[EventBlock]:
        """Yield the start of every trip in a batch, followed by the end of every trip."""
        ends = ("start", "end") if self.events_of == "both" else (self.events_of,)
        rows = self.parse(batch)
        both = self.events(rows, batch)
        for end in ends:
            events = both.select("user", pl.col(f"^{end}_.*$").name.map(lambda name: name.split("_")[1]))
            events = events.with_columns(missing_position().alias("problem"))
            yield from to_blocks(batch, rows, events, self.block_rows)
            # A row that is no trip at all is rejected once.
            rows = replace(rows, problems={})

    def events(self, rows: ParsedRows, batch: TextBatch) -> pl.DataFrame:
        """Return a row per trip: ``user``, and an `EventBlock`'s columns for each end (``start_time`` …)."""
        raw = rows.raw
        trips = raw["ride"] if "ride" in raw.columns else numbered(rows, batch)
        start, early = (_milliseconds(raw[f"{end}_time"], "earliest") for end in ("start", "end"))
        late = _milliseconds(raw["end_time"], "latest")
        # Where clocks went back, a trip does not end before it starts.
        end_time = early.zip_with((early >= start).fill_null(True), late)
        columns = {"start_time": start, "end_time": end_time}
        for end in ("start", "end"):
            station = raw[f"{end}_station"]
            columns[f"{end}_place"] = station.set(station == "NULL", None)
            columns[f"{end}_latitude"] = raw[f"{end}_latitude"]
            columns[f"{end}_longitude"] = raw[f"{end}_longitude"]
        return pl.DataFrame({"user": trips, **columns})


def trip_columns(header: Iterable[str]) -> tuple[str, ...]:
    """Map the column names in a header to the current names of the columns for both ends of a trip.

    >>> trip_columns(["Start Time", "ended_at", "gender"])
    ('start_time', 'end_time', 'gender')
    """
    names = {old: new for new, old_names in (_NAMES | _OPTIONAL).items() for old in old_names}
    given = ["".join(name.lower().split()).replace("_", "") for name in header]
    return tuple(names.get(name, name) for name in given)


def has_trips(header: Iterable[str]) -> bool:
    """Return whether a header contains all of the columns that trips require."""
    return set(_NAMES) <= set(trip_columns(header))


def _milliseconds(text: pl.Series, ambiguous: Literal["earliest", "latest"]) -> pl.Series:
    return first_matching_format(text, (TimeFormat(format, ZONE, ambiguous) for format in _FORMATS))
