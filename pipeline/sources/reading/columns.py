"""Mapping of table columns to event fields, and the format of their times."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Self

import polars as pl

from penstock.mechanisms.core.plugin import Checked, DataError, ParameterError, parameter
from penstock.pipeline.sources.reading.times import TimeFormat

#: What an event consists of; coordinates or a place may be missing, not both.
EVENT_COLUMNS = ("user", "time", "latitude", "longitude", "place", "arrival")


@dataclass(frozen=True, kw_only=True)
class MappedColumns(Checked):
    """Parameters of sources whose tables may have arbitrary columns."""

    columns: dict[str, str] = parameter(
        factory=dict,
        doc="names of the columns user (empty: each row is a person of its own), time, latitude, longitude "
        "and place, where they differ; of arrival (time of receipt, written like time) and date (day of "
        "a time without one) always",
    )
    time_format: str = parameter(
        "iso", doc="iso, unix_s, unix_ms, unix_us, unix_ns or a strptime format such as %d/%m/%Y %H:%M:%S"
    )
    time_zone: str = parameter("UTC", doc="zone of times written without an offset, such as Europe/Zurich")

    def __post_init__(self) -> None:
        super().__post_init__()
        parts = (*EVENT_COLUMNS, "date")
        unknown = [key for key in self.columns if key not in parts]
        if unknown:
            raise ParameterError("columns", unknown[0], "one of " + ", ".join(parts))
        if self.time.is_number and self.columns.get("date"):
            raise ParameterError("columns.date", self.columns["date"], f"left out if times are {self.time_format}")

    @property
    def has_arrival(self) -> bool:
        """Whether a column is mapped to ``arrival``."""
        return bool(self.columns.get("arrival"))

    @property
    def has_people(self) -> bool:
        """Whether rows identify people; False if ``user`` is mapped to an empty column name."""
        return self.columns.get("user") != ""

    @property
    def time(self) -> TimeFormat:
        """The time format."""
        return TimeFormat(self.time_format, self.time_zone)

    def timed(self, events: pl.DataFrame) -> pl.DataFrame:
        """Parse event times, and add a column ``problem`` that explains unreadable ones."""
        instants = [name for name in ("time", "arrival") if name in events.columns]
        parsed = events.with_columns(
            self.time.milliseconds(events[name].cast(self.time.dtype, strict=False)) for name in instants
        )
        problem = pl.Series("problem", [None], pl.String).new_from_index(0, events.height)
        if len(wrong := parsed["time"].is_null().arg_true()):
            problem = problem.scatter(wrong, self.time.explain(events["time"][wrong]))
        return parsed.with_columns(problem)

    def reading(self, columns: Collection[str]) -> Self:
        """Return the source without unneeded columns, so that errors in them are ignored."""
        left_out = [part for part in EVENT_COLUMNS[2:] if part not in columns]
        return replace(self, columns=self.columns | dict.fromkeys(left_out, ""))

    def find_columns(self, names: Sequence[str], file: str) -> dict[str, str]:
        """Return the column name of each available event field.

        A column that is named in ``columns`` must exist once, one with an empty name is left out, and the others are
        taken under their own name if they exist. Raises `DataError`, with the columns there are, if one is missing.
        """
        listed = f"(columns: {', '.join(names) or 'none'})"
        taken = {*self.columns, *(set(names) - {"arrival", "date"})}
        named = {part: self.columns.get(part, part) for part in (*EVENT_COLUMNS, "date") if part in taken}
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
        elif "latitude" not in columns and "place" not in columns:
            missing.append("latitude and longitude, or place")
        if missing:
            raise DataError(f"{file}: no column is named as {', nor '.join(missing)}; map them in columns: {listed}")
        return columns
