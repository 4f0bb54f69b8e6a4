"""Which column of a table is the user, the time and the place."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

from mechanisms.core.errors import DataError, ParameterError
from mechanisms.core.parameters import Checked, parameter
from pipeline.reading.times import TimeFormat

#: What an event consists of; coordinates or a place may be missing, not both.
EVENT_COLUMNS = ("user", "time", "latitude", "longitude", "place")


@dataclass(frozen=True, kw_only=True)
class MappedColumns(Checked):
    """Parameters of sources whose tables may have any columns in any order."""

    columns: dict[str, str] = parameter(
        factory=dict, doc="name of the column that holds the user, time, latitude, longitude or place, if it differs"
    )
    time_format: str = parameter("iso", doc="iso, unix_s, unix_ms or a strptime format such as %d/%m/%Y %H:%M:%S")
    time_zone: str = parameter("UTC", doc="zone of times written without an offset, such as Europe/Zurich")

    def __post_init__(self) -> None:
        super().__post_init__()
        unknown = [key for key in self.columns if key not in EVENT_COLUMNS]
        if unknown:
            raise ParameterError("columns", unknown[0], "one of " + ", ".join(EVENT_COLUMNS))
        TimeFormat(self.time_format, self.time_zone)

    def reading(self, columns: Collection[str]) -> Self:
        """As in `Source`: a column that nothing looks at is not read, so that nothing in it can be wrong."""
        left_out = [part for part in EVENT_COLUMNS[2:] if part not in columns]
        return replace(self, columns=self.columns | dict.fromkeys(left_out, ""))

    def find_columns(self, names: Sequence[str], file: str) -> dict[str, str]:
        """Name in the table of every part of an event that is there.

        A column that is named in ``columns`` must exist; the others are taken under their own name if they exist.

        Raises
        ------
        DataError
            No user, no time, neither coordinates nor place, or a named column is missing or there twice; says which
            columns there are.
        """
        return find_columns(self.columns, names, file)


def find_columns(mapping: Mapping[str, str], names: Sequence[str], file: str) -> dict[str, str]:
    """See `MappedColumns.find_columns`; a part whose name is empty is left out.

    >>> find_columns({"user": "cab"}, ["cab", "time", "place"], "a.csv")
    {'user': 'cab', 'time': 'time', 'place': 'place'}
    """
    there = f"(columns: {', '.join(names) or 'none'})"
    named = {part: mapping.get(part, part) for part in EVENT_COLUMNS if part in mapping or part in names}
    found = {part: name for part, name in named.items() if name}
    for part, name in found.items():
        if name not in names:
            raise DataError(f"{file}: there is no column {name!r} for {part} {there}")
        if list(names).count(name) > 1:
            raise DataError(f"{file}: column {name!r} for {part} is there more than once {there}")
    missing = [part for part in ("user", "time") if part not in found]
    if ("latitude" in found) != ("longitude" in found):
        missing.append("longitude" if "latitude" in found else "latitude")
    elif "latitude" not in found and "place" not in found:
        missing.append("latitude and longitude, or place")
    if missing:
        raise DataError(f"{file}: no column is named as {', nor '.join(missing)}; map them in columns: {there}")
    return found
