"""Mapping from the columns of a table to the fields of an event, including the time format."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import Any, Self

import numpy as np
import polars as pl
from numpy.typing import NDArray

from penstock.mechanisms.core.plugin import Checked, DataError, ParameterError, parameter
from penstock.pipeline.sources.reading.times import TimeFormat

#: What an event consists of; coordinates or a place may be missing, not both.
EVENT_COLUMNS = ("user", "time", "latitude", "longitude", "place", "arrival")
#: What stands for other parts, only if it is named: a day before times of day, and both coordinates in one.
_JOINED = ("date", "point")
#: Stands for a column ``date`` where the names of files or of folders around them hold the day, and no column does.
FILE_NAME = "file name"
NO_POINT = "point is none as well-known text, such as POINT (8.54 47.37), or well-known binary"
SWAPPED = "latitude is beyond ±90 degrees in a point: longitude comes first there"
_DAY = re.compile(r"(?<!\d)(\d{4})([-_./]?)(\d{2})\2(\d{2})(?!\d)")


@dataclass(frozen=True, kw_only=True)
class MappedColumns(Checked):
    """Parameters shared by sources whose tables may have arbitrary column names."""

    columns: dict[str, str] = parameter(
        factory=dict,
        doc="names of the columns user (empty: each row is a person of its own), time, latitude, longitude "
        "and place, where they differ; of arrival (time of receipt, written like time), date (day of a time without "
        "one; file name: of a file such as 2026-11-28.csv) and point (both coordinates as WKT or WKB) always",
    )
    time_format: str = parameter(
        "iso", doc="iso, unix_s, unix_ms, unix_us, unix_ns or a strptime format such as %d/%m/%Y %H:%M:%S"
    )
    time_zone: str = parameter("UTC", doc="zone of times written without an offset, such as Europe/Zurich")

    def __post_init__(self) -> None:
        super().__post_init__()
        parts = (*EVENT_COLUMNS, *_JOINED)
        unknown = [key for key in self.columns if key not in parts]
        if unknown:
            raise ParameterError("columns", unknown[0], "one of " + ", ".join(parts))
        if self.time.is_number and self.columns.get("date"):
            raise ParameterError("columns.date", self.columns["date"], f"left out if times are {self.time_format}")
        if (point := self.columns.get("point")) and (self.columns.get("latitude") or self.columns.get("longitude")):
            raise ParameterError("columns.point", point, "left out if latitude and longitude have columns")

    @property
    def has_arrival(self) -> bool:
        """True if a column is mapped to the field ``arrival``."""
        return bool(self.columns.get("arrival"))

    @property
    def has_people(self) -> bool:
        """True if rows identify people. False if ``user`` is mapped to an empty column name."""
        return self.columns.get("user") != ""

    @property
    def time(self) -> TimeFormat:
        """The format in which times are written."""
        return TimeFormat(self.time_format, self.time_zone)

    def timed(self, events: pl.DataFrame) -> pl.DataFrame:
        """Parse the event times, and add a ``problem`` column that explains why a time could not be parsed."""
        instants = [name for name in ("time", "arrival") if name in events.columns]
        parsed = events.with_columns(
            self.time.milliseconds(events[name].cast(self.time.dtype, strict=False)) for name in instants
        )
        problem = self.time.problems(events["time"], parsed["time"])
        if "problem" in events.columns:
            problem = problem.zip_with(problem.is_not_null(), events["problem"])
        return parsed.with_columns(problem)

    def reading(self, columns: Collection[str]) -> Self:
        """Return a copy of the source without the columns that are not needed, so that errors in them do not matter."""
        left_out = [part for part in EVENT_COLUMNS[2:] if part not in columns]
        left_out += ["point"] if "latitude" in left_out else []
        return replace(self, columns=self.columns | dict.fromkeys(left_out, ""))

    def find_columns(self, names: Sequence[str], file: str) -> dict[str, str]:
        """Return the name of the column that holds each event field.

        A column that is named in ``columns`` must exist once, one with an empty name is left out, and the others are
        taken under their own name if they exist. Raises `DataError`, with the columns there are, if one is missing.
        """
        listed = f"(columns: {', '.join(names) or 'none'})"
        taken = {*self.columns, *(set(names) - {"arrival", *_JOINED})}
        if self.columns.get("point"):
            taken -= {"latitude", "longitude"}
        if self.columns.get("date") == FILE_NAME and FILE_NAME not in names:
            taken.remove("date")
            date_of_file(file)
        named = {part: self.columns.get(part, part) for part in (*EVENT_COLUMNS, *_JOINED) if part in taken}
        columns = {part: name for part, name in named.items() if name}
        for part, name in columns.items():
            if name not in names:
                raise DataError(f"{file}: there is no column {name!r} for {part} {listed}")
            if list(names).count(name) > 1:
                raise DataError(f"{file}: column {name!r} for {part} is there more than once {listed}")
        needed = ("user", "time") if self.has_people else ("time",)
        missing = [part for part in needed if part not in columns]
        if ("latitude" in columns) != ("longitude" in columns):
            missing.append("longitude" if "latitude" in columns else "latitude")
        elif not columns.keys() & {"latitude", "point", "place"}:
            missing.append("latitude and longitude, or place")
        if missing:
            raise DataError(f"{file}: no column is named as {', nor '.join(missing)}; map them in columns: {listed}")
        return columns

    def joined(
        self, parts: pl.DataFrame, files: Sequence[str], file_of: Callable[[], NDArray[np.int64]] | None = None
    ) -> pl.DataFrame:
        """Combine date and time into one column, and convert ``point`` to coordinates and a ``problem`` column.

        ``file_of``: returns each row's index in ``files``, where there may be several.
        """
        if "date" not in parts.columns and self.columns.get("date") == FILE_NAME:
            days = pl.Series("date", [date_of_file(file) for file in files], pl.String)
            parts = parts.with_columns(days[file_of()] if file_of else pl.lit(days[0]).alias("date"))
        parts = join_date(parts)
        return parts if "point" not in parts.columns else parts.drop("point").with_columns(positions(parts["point"]))


def date_of_file(file: str) -> str:
    """Return the date in the name of a file or of its closest dated folder. Raise `DataError` if there is none.

    >>> date_of_file("taps/2026-11-28.csv"), date_of_file("day=20261128/part-0.parquet")
    ('2026-11-28', '2026-11-28')
    >>> date_of_file("2026/11/28/taps.csv")
    '2026-11-28'
    """
    days = []
    for match in _DAY.finditer(file):
        try:
            days.append((match.start(), str(date(*map(int, match.group(1, 3, 4))))))
        except ValueError:
            continue
    at = file.rfind("/") + 1
    named = {day for start, day in days if start >= at} or {day for _, day in days[-1:]}
    if len(named) != 1:
        what = "several days" if named else "no day"
        raise DataError(
            f"{file}: its name holds {what}, and columns.date is '{FILE_NAME}', which takes one such as 2026-11-28.csv "
            "or day=20261128/part-0.csv"
        )
    return named.pop()


def join_date(frame: pl.DataFrame) -> pl.DataFrame:
    """Prepend the ``date`` column, if there is one, to the ``time`` column, separated by a space."""
    if "date" not in frame.columns:
        return frame
    day, clock = (pl.col(name).cast(pl.String) for name in ("date", "time"))
    if frame.schema["time"] == pl.Time:  # as text it would lose its fraction
        clock = pl.col("time").dt.to_string("iso")
    return frame.with_columns(time=pl.concat_str(day, clock, separator=" ")).drop("date")


def positions(points: pl.Series) -> list[pl.Series]:
    """Convert well-known text or binary points (WGS 84, longitude first) to latitudes, longitudes and errors.

    >>> [column.to_list() for column in positions(pl.Series(["SRID=4326;POINT (8.5 47.4)", "POINT EMPTY"]))][:2]
    [[47.4, None], [8.5, None]]
    """
    import shapely  # loaded where points are read

    if points.dtype == pl.Binary:
        shapes, stated = shapely.from_wkb(points.to_numpy(), on_invalid="ignore"), np.zeros(len(points), np.int64)
    else:
        text = points.cast(pl.String).str.strip_chars()
        code = text.str.extract(r"^(?i:SRID)=(\d+);")
        text = text.str.replace(r"^(?i:SRID)=\d+;\s*", "")
        binary = text.str.contains("^[0-9A-Fa-f]+$").fill_null(False).to_numpy()
        values = text.to_numpy()
        shapes = np.empty(len(values), object)
        shapes[binary] = shapely.from_wkb(values[binary], on_invalid="ignore")
        shapes[~binary] = shapely.from_wkt(values[~binary], on_invalid="ignore")
        stated = code.cast(pl.Int64, strict=False).fill_null(0).to_numpy()
    codes = np.maximum(stated, shapely.get_srid(shapes))
    shapes[shapely.is_empty(shapes)] = None
    longitude, latitude = (pl.Series(values(shapes)).fill_nan(None) for values in (shapely.get_x, shapely.get_y))
    wrong: Any = latitude.is_null() & points.is_not_null()
    problem = pl.Series("problem", [None], pl.String).new_from_index(0, len(points)).set(wrong, NO_POINT)
    problem = problem.set(latitude.abs().fill_null(0.0) > 90, SWAPPED)
    for code_of_another in np.unique(codes[(codes > 0) & (codes != 4326)]).tolist():
        text_of = f"point is in EPSG:{code_of_another}, not in longitude and latitude (WGS 84)"
        problem = problem.set(pl.Series(codes == code_of_another), text_of)
    return [latitude.alias("latitude"), longitude.alias("longitude"), problem]
