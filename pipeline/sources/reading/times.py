"""Parsing of timestamps to milliseconds since 1970 UTC."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal
from zoneinfo import ZoneInfo

import polars as pl

from penstock.mechanisms.core.plugin import ParameterError

#: Years 1 to 9999 in milliseconds since 1970 UTC; what lies outside is no time.
EARLIEST, LATEST = -62_135_596_800_000, 253_402_300_799_999

_UNIX = {"unix_s": 1000.0, "unix_ms": 1.0}

#: ISO 8601 in the shapes seen in practice; a text that fits two of them is the same time in both. True: the time is
#: local, without an offset. ``%#z``: an offset may lack its minutes. The commonest come first: all are tried in turn.
_CLOCKS = ("%H:%M:%SZ", "%H:%M:%S", "%H:%M:%S%.fZ", "%H:%M:%S%.f", "%H:%M:%S%.f%#z", "%H:%M%#z", "%H:%M", "%H:%MZ")
_ISO = (
    *((f"%Y-%m-%d{between}{clock}", clock[-1] not in "zZ") for clock in _CLOCKS for between in ("T", " ")),
    ("%Y-%m-%d", True),
)


@dataclass(frozen=True)
class TimeFormat:
    """How one column says when.

    Raises `ParameterError` for an unknown zone, and a format that does not give a date with a time.

    >>> times = pl.Series(["2020-11-01 01:30:00", "2020-03-08 02:30:00"])
    >>> TimeFormat("iso", "America/New_York").milliseconds(times).to_list()
    [1604208600000, None]
    """

    # ``iso`` (ISO 8601 with or without offset), ``unix_s`` or ``unix_ms`` (seconds or milliseconds since 1970 UTC,
    # decimals allowed), or a strptime format such as ``%d/%m/%Y %H:%M:%S``
    format: str = "iso"
    # Zone of times written without an offset. A local time that never existed (clocks went forward) is no time.
    zone: str = "UTC"
    # Which of the two is meant by a local time that exists twice (clocks went back)
    ambiguous: Literal["earliest", "latest"] = "earliest"

    def __post_init__(self) -> None:
        try:
            ZoneInfo(self.zone)
        except (KeyError, OSError, ValueError) as error:
            raise ParameterError("time_zone", self.zone, "the name of a time zone, such as Europe/Zurich") from error
        if self.format != "iso" and self.format not in _UNIX and not _reads_what_it_writes(self.format):
            expected = "iso, unix_s, unix_ms or a strptime format of date and time, such as %d/%m/%Y %H:%M:%S"
            raise ParameterError("time_format", self.format, expected)

    @property
    def dtype(self) -> type[pl.DataType]:
        """Type in which text is best read before `milliseconds`."""
        return pl.Float64 if self.format in _UNIX else pl.String

    def milliseconds(self, column: pl.Series) -> pl.Series:
        """Milliseconds since 1970 UTC, Int64; null where a value is no time. Fractions of a millisecond are cut off."""
        if column.dtype == pl.Date:
            column = column.cast(pl.Datetime("ms"))
        if isinstance(column.dtype, pl.Datetime):
            parsed = self._utc(column)
        elif self.format in _UNIX:
            parsed = (column.cast(pl.Float64, strict=False) * _UNIX[self.format]).floor()
            # Casting would turn a huge or infinite number into null or, worse, an edge value.
            return parsed.set(~parsed.is_between(EARLIEST, LATEST), None).cast(pl.Int64)
        elif self.format == "iso":
            parsed = self._iso(column.cast(pl.String))
        else:
            parsed = self._utc(_parse(column.cast(pl.String), _to_polars(self.format)))
        return parsed.set(~parsed.is_between(EARLIEST, LATEST), None)

    def explain(self, column: pl.Series) -> pl.Series:
        """Say, for values that `milliseconds` makes null, why."""
        wall_clock = TimeFormat(self.format).milliseconds(column)
        expected = {"iso": "ISO 8601", "unix_s": "Unix seconds", "unix_ms": "Unix milliseconds"}
        missing = f"time is not {expected.get(self.format, self.format)}"
        skipped = f"local time does not exist in {self.zone} (clocks went forward)"
        return wall_clock.is_null().replace_strict({True: missing, False: skipped}, return_dtype=pl.String)

    def _iso(self, column: pl.Series) -> pl.Series:
        out = pl.Series(column.name, [], dtype=pl.Int64).extend_constant(None, len(column))
        todo = column.is_not_null()
        for format, is_local in _ISO:
            if not todo.any():
                break
            everything = bool(todo.all())
            parsed = _parse(column if everything else column.filter(todo), format)
            times = self._utc(parsed) if is_local else parsed.dt.epoch("ms")
            if everything:
                out, todo = times, parsed.is_null()
                continue
            rows = todo.arg_true()
            out = out.scatter(rows, times)
            todo = todo.scatter(rows, parsed.is_null())
        return out

    def _utc(self, times: pl.Series) -> pl.Series:
        aware = isinstance(times.dtype, pl.Datetime) and times.dtype.time_zone is not None
        if not aware and self.zone != "UTC":
            times = times.dt.replace_time_zone(self.zone, ambiguous=self.ambiguous, non_existent="null")
        return times.dt.epoch("ms")


def _parse(column: pl.Series, format: str) -> pl.Series:
    return column.str.to_datetime(format, time_unit="ms", strict=False)


def _to_polars(format: str) -> str:
    return format.replace(".%f", "%.f")


def _reads_what_it_writes(format: str) -> bool:
    moment = datetime(2001, 2, 3, 14, 5, tzinfo=UTC)
    try:
        read = _parse(pl.Series([moment.strftime(format)]), _to_polars(format))
        return "%" in format and read[0] is not None and read[0].replace(tzinfo=UTC) == moment
    except (pl.exceptions.PolarsError, ValueError):
        return False
