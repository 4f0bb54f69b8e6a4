"""Parsing of timestamps, which are converted to milliseconds since the Unix epoch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Literal

import polars as pl

from penstock.mechanisms.core.plugin import ParameterError
from penstock.pipeline.windows.calendar import check_time_zone

if TYPE_CHECKING:
    import pyarrow as pa

#: Years 1 to 9999 in milliseconds since 1970 UTC; what lies outside is no time.
EARLIEST, LATEST = -62_135_596_800_000, 253_402_300_799_999
#: Times of events are before 2128, where a unit is guessed.
_FAR = 5_000_000_000_000

#: Directives of which a format of times of day has one.
_CLOCK = ("%H", "%I", "%k", "%l", "%T", "%R", "%X", "%c", "%r", "%s")

#: Units since 1970 UTC: milliseconds in one, and how many are in a millisecond.
_UNIX = {"unix_s": (1000, 1), "unix_ms": (1, 1), "unix_us": (1, 1000), "unix_ns": (1, 1_000_000)}
_WORDS = {"unix_s": "Unix seconds", "unix_ms": "Unix milliseconds"}
_WORDS |= {"unix_us": "Unix microseconds", "unix_ns": "Unix nanoseconds"}

#: ISO 8601 in the shapes seen in practice; a text that fits two of them is the same time in both. True: the time is
#: local, without an offset. ``%#z``: an offset may lack its minutes. The commonest come first: all are tried in turn.
_CLOCKS = ("%H:%M:%SZ", "%H:%M:%S", "%H:%M:%S%.fZ", "%H:%M:%S%.f", "%H:%M:%S%.f%#z", "%H:%M%#z", "%H:%M", "%H:%MZ")
_ISO = (
    *((f"%Y-%m-%d{between}{clock}", clock[-1] not in "zZ") for clock in _CLOCKS for between in ("T", " ")),
    ("%Y-%m-%d", True),
)
#: Other spellings of ISO 8601, in capitals and without blanks around them, as the ones above: pattern, replacement.
_SPELLINGS = (
    (r"(\d(?:\s*[+-]\d\d:?\d\d|Z))\[[\w/+-]+\]$", "${1}"),  # a zone's name beside an offset, which decides
    (r"(\d\s*[+-]\d\d:?\d\d) [A-Z]{3,5}$", "${1}"),
    (r"\s*(UTC|GMT|Z)$", "Z"),
    (r"\s+([+-]\d\d)", "${1}"),
    (r"^(\d{4})(\d\d)(\d\d)([T ]\d\d)", "${1}-${2}-${3}${4}"),
    (r"([T ]\d\d)(\d\d)(\d\d)", "${1}:${2}:${3}"),
    (r"([T ]\d\d)(\d\d)(Z|[+-]|$)", "${1}:${2}${3}"),
    (r"(-\d\d[T ]\d\d)(Z|[+-]|$)", "${1}:00${2}"),
    (r"(:\d\d),(\d)", "${1}.${2}"),
)
#: Dates of ISO 8601 by week or by day of the year, with what follows them, and their format without hyphens.
_DATES = ((r"^(\d{4}-?W\d\d-?\d)((?:[T ].*)?)$", "%GW%V%u"), (r"^(\d{4}-?\d{3})([T ].*)$", "%Y%j"))
#: Spellings of other formats, of a directive that they have: names of months beyond three letters, a.m., UTC, commas.
_SPELLINGS_OF = {
    "%b": (r"(?i)(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.?", "${1}"),
    "%p": (r"(?i)([ap])\.\s?m\.?", "${1}m"),
    "%z": (r"\s*(UTC|GMT|Z)$", "+0000"),
    "%f": (r"(:\d\d),(\d)", "${1}.${2}"),
}
#: The end of a day as its hour 24, which is the beginning of the next.
_MIDNIGHT = r"([T ])24(:00(?::00(?:\.0+)?)?(?:Z|[+-].*)?)$"


@dataclass(frozen=True)
class TimeFormat:
    """The format in which a column's times are written.

    A format without a time of day means midnight. Raises `ParameterError` for an unknown zone, and a format that does
    not give a date.

    >>> times = pl.Series(["2020-11-01 01:30:00", "2020-03-08 02:30:00"])
    >>> TimeFormat("iso", "America/New_York").milliseconds(times).to_list()
    [1604208600000, None]
    """

    # ``iso`` (ISO 8601 with or without offset); ``unix_s``, ``unix_ms``, ``unix_us`` or ``unix_ns`` (seconds to
    # nanoseconds since 1970 UTC, of all but the last with decimals); or a strptime format such as ``%d/%m/%Y %H:%M:%S``
    format: str = "iso"
    # Zone of times written without an offset. A local time that never existed (clocks went forward) is no time.
    zone: str = "UTC"
    # Which of the two is meant by a local time that exists twice (clocks went back)
    ambiguous: Literal["earliest", "latest"] = "earliest"

    def __post_init__(self) -> None:
        check_time_zone("time_zone", self.zone)
        if self.format == "iso" or self.format in _UNIX:
            return
        if "%Z" in self.format:  # it would be read over
            expected = "without %Z: CET is no offset. Write what the times end in, such as %H:%M CET, and set time_zone"
            raise ParameterError("time_format", self.format, expected)
        moment = datetime(2001, 2, 3, 14, 5, tzinfo=UTC)
        try:
            read = _parse(pl.Series([moment.strftime(self.format)]), self.format)[0]
            if not any(directive in self.format for directive in _CLOCK):
                moment = datetime.combine(moment.date(), datetime.min.time(), UTC)
            if "%" in self.format and read is not None and read.replace(tzinfo=UTC) == moment:
                return
        except (pl.exceptions.PolarsError, ValueError):
            pass
        expected = f"iso, {', '.join(_UNIX)} or a strptime format with a date, such as %d/%m/%Y %H:%M:%S"
        raise ParameterError("time_format", self.format, expected)

    @property
    def dtype(self) -> type[pl.DataType]:
        """The data type that a text column must be read as before it is passed to `milliseconds`."""
        if self.format == "unix_ns":  # beyond what a float holds exactly
            return pl.Int64
        return pl.Float64 if self.format in _UNIX else pl.String

    @property
    def is_number(self) -> bool:
        """Return whether the times are written as numbers."""
        return self.format in _UNIX

    def milliseconds(self, column: pl.Series) -> pl.Series:
        """Convert times to Int64 milliseconds since 1970, without fractions; invalid ones become null."""
        if column.dtype == pl.Date:
            column = column.cast(pl.Datetime("ms"))
        if isinstance(column.dtype, pl.Datetime):
            parsed = self._utc(column)
        elif self.format in _UNIX:
            factor, divisor = _UNIX[self.format]
            if column.dtype.is_integer() and factor == 1:
                parsed = column.cast(pl.Int64, strict=False) // divisor
            else:
                # A whole number of milliseconds stays one: dividing is exact where multiplying by a decimal is not.
                parsed = (column.cast(pl.Float64, strict=False) * factor / divisor).floor()
        elif self.format == "iso":
            parsed = self._iso(column.cast(pl.String))
        else:
            parsed = self._utc(self._as_formatted(column.cast(pl.String).str.strip_chars()))
        # Casting first would turn a huge or infinite number into null or, worse, an edge value.
        return parsed.set(~parsed.is_between(EARLIEST, LATEST), None).cast(pl.Int64)

    def problems(self, column: pl.Series, times: pl.Series) -> pl.Series:
        """Explain each time that `milliseconds` made null in ``times``. Others are null."""
        problem = pl.Series("problem", [None], pl.String).new_from_index(0, len(column))
        unread = times.is_null().arg_true()
        return problem.scatter(unread, self.explain(column[unread])) if len(unread) else problem

    def explain(self, column: pl.Series) -> pl.Series:
        """Explain why `milliseconds` returns null for the given values."""
        wall_clock = pl.Series([None], dtype=pl.Int64).new_from_index(0, len(column))
        if self.zone != "UTC":
            wall_clock = TimeFormat(self.format).milliseconds(column)
        missing = f"time is not {({'iso': 'ISO 8601'} | _WORDS).get(self.format, self.format)}"
        skipped = f"local time does not exist in {self.zone} (clocks went forward)"
        reasons = wall_clock.is_null().replace_strict({True: missing, False: skipped}, return_dtype=pl.String)
        if "%S" in self.format and "%f" not in self.format:
            exact = TimeFormat(self.format.replace("%S", "%S.%f"), self.zone)
            is_exact = exact.milliseconds(column).is_not_null()
            reasons = reasons.set(is_exact, f"{missing}; with its fraction of a second it is {exact.format}")
        finer = list(_UNIX)[list(_UNIX).index(self.format) + 1 :] if self.format in _UNIX else []
        for unit in reversed(finer):
            is_plausible = TimeFormat(unit).milliseconds(column).is_between(0, _FAR) & wall_clock.is_null()
            reasons = reasons.set(is_plausible.fill_null(False), f"{missing}; in {_WORDS[unit][5:]} it is {unit}")
        return reasons

    def _as_formatted(self, text: pl.Series) -> pl.Series:
        format = self.format.strip()
        parsed = _parse(text, format)
        if not (left := _plausible_times(text, parsed.is_null() & text.is_not_null())).any():
            return parsed
        rare = text.filter(left).str.normalize("NFKC")
        for directive, (pattern, replacement) in _SPELLINGS_OF.items():
            if directive in self.format:
                rare = rare.str.replace(pattern, replacement)
        rare, days = _normalise_hour_24(rare)
        return parsed.scatter(left.arg_true(), _parse(rare, format) + days)

    def _iso(self, column: pl.Series) -> pl.Series:
        parsed = self._iso_as_written(column, None)
        if not (left := _plausible_times(column, parsed.is_null() & column.is_not_null())).any():
            return parsed
        rare = column.filter(left).str.normalize("NFKC").str.strip_chars().str.to_uppercase()
        for pattern, replacement in _SPELLINGS:
            rare = rare.str.replace(pattern, replacement)
        for pattern, format in _DATES:
            day = rare.str.extract(pattern).str.replace_all("-", "", literal=True).str.to_date(format, strict=False)
            rare = rare.zip_with(day.is_null(), day.dt.strftime("%Y-%m-%d") + rare.str.extract(pattern, 2))
        return parsed.scatter(left.arg_true(), self._iso_as_written(*_normalise_hour_24(rare)))

    def _iso_as_written(self, column: pl.Series, days: pl.Series | None) -> pl.Series:
        """Parse times in common variants of ISO 8601, and add the given number of days."""
        out = pl.Series(column.name, [], dtype=pl.Int64).extend_constant(None, len(column))
        remaining = column.is_not_null()
        for format, is_local in _ISO:
            if not remaining.any():
                break
            everything = bool(remaining.all())
            parsed = _parse(column if everything else column.filter(remaining), format)
            if days is not None:
                parsed = parsed + (days if everything else days.filter(remaining))
            times = self._utc(parsed) if is_local else parsed.dt.epoch("ms")
            if everything:
                out, remaining = times, _plausible_times(column, parsed.is_null())
                continue
            rows = remaining.arg_true()
            out = out.scatter(rows, times)
            remaining = remaining.scatter(rows, parsed.is_null())
        return out

    def _utc(self, times: pl.Series) -> pl.Series:
        aware = isinstance(times.dtype, pl.Datetime) and times.dtype.time_zone is not None
        if not aware and self.zone != "UTC":
            times = times.dt.replace_time_zone(self.zone, ambiguous=self.ambiguous, non_existent="null")
        return times.dt.epoch("ms")


def first_matching_format(column: pl.Series, formats: Iterable[TimeFormat]) -> pl.Series:
    """Convert times to milliseconds since 1970 with the first format that matches, or to null.

    >>> first_matching_format(pl.Series(["1970-01-01", "2/1/1970"]), map(TimeFormat, ("iso", "%d/%m/%Y"))).to_list()
    [0, 86400000]
    """
    times = pl.Series(column.name, [None], pl.Int64).new_from_index(0, len(column))
    for format in formats:
        if times.null_count():
            times = times.zip_with(times.is_not_null(), format.milliseconds(column))
    return times


def polars_timestamps(table: pa.Table) -> pa.Table:
    """Convert timestamps to types that polars supports: UTC in place of time zones, milliseconds in place of seconds.

    Seconds after the year 9999 are missing: as milliseconds they would come round to other times.

    >>> import pyarrow as pa
    >>> table = pa.table({"time": pa.array([60, 2**62], pa.timestamp("s", "Mars/Base"))})
    >>> polars_timestamps(table)["time"].cast(pa.int64()).to_pylist()
    [60000, None]
    """
    import pyarrow as pa
    import pyarrow.compute as pc  # as much as a tenth of a small run, which only Parquet files need

    for position, kind in enumerate(table.schema.types):
        if not pa.types.is_timestamp(kind):
            continue
        column, zone = table.column(position), kind.tz and "UTC"
        if kind.unit == "s":
            seconds = column.cast(pa.int64())
            is_time = pc.and_(pc.greater_equal(seconds, EARLIEST // 1000), pc.less_equal(seconds, LATEST // 1000))
            column = pc.if_else(is_time, column, None)
        unit = "ms" if kind.unit == "s" else kind.unit
        table = table.set_column(position, table.schema.names[position], column.cast(pa.timestamp(unit, zone)))
    return table


def _normalise_hour_24(text: pl.Series) -> tuple[pl.Series, pl.Series]:
    """Replace hour 24 with hour 0, and return the number of days to add."""
    is_end = text.str.contains(_MIDNIGHT).fill_null(False)
    return text.str.replace(_MIDNIGHT, "${1}00${2}"), is_end.cast(pl.Int64) * timedelta(days=1)


def _plausible_times(column: pl.Series, left: pl.Series) -> pl.Series:
    """Limit the mask to rows with at least two digits, unless it is all true or all false."""
    if left.all() or not left.any():
        return left
    rows = left.arg_true()
    return left.scatter(rows, column[rows].str.contains(r"\d\D*\d").fill_null(False))


def _parse(column: pl.Series, format: str) -> pl.Series:
    if ",%f" in format:
        column, format = column.str.replace(r"(\d),(\d{1,9}[^,]*)$", "${1}.${2}"), format.replace(",%f", ".%f")
    format = format.replace(".%f", "%.f")
    if "%f" not in format:
        return column.str.to_datetime(format, time_unit="ms", strict=False)
    # Without a point, polars would count digits of a fraction as nanoseconds.
    first, *others = (_parse(column, format.replace("%f", f"%{n}f")) for n in (3, 6, 9))
    for parsed in others:
        first = first.zip_with(first.is_not_null(), parsed)
    return first
