"""Guess time formats by finding those in which nearly all values of a column parse as plausible times."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from datetime import datetime
from functools import cache

import polars as pl

from penstock.pipeline.sources.reading.times import TimeFormat

#: Values that a format is guessed from; those that all formats are tried on first, and the share that must fit one.
_VALUES, _SAMPLE_ROWS, _LIKELY = 1000, 20, 0.5
#: A column is of a kind where this share of its values is.
MAJORITY = 0.9

_SECONDS = (300_000_000, 5_000_000_000)  # 1979 to 2128
_AFTER_TICKS = 10**18  # nanoseconds until 2001 would as well be ticks since the year 1, which .NET writes today
UNIX = ("unix_s", "unix_ms", "unix_us", "unix_ns")
DAYS = (
    *("%Y-%m-%d", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d", "%d-%m-%Y", "%m-%d-%Y", "%Y.%m.%d", "%Y%m%d"),
    *("%d.%m.%y", "%d/%m/%y", "%m/%d/%y", "%d-%m-%y", "%m-%d-%y", "%y.%m.%d", "%y/%m/%d", "%y-%m-%d"),
    *("%Y年%m月%d日", "%Y년 %m월 %d일", "%Y. %m. %d."),
    *("%d %b %Y", "%d. %b %Y", "%b %d, %Y", "%b %d %Y", "%d-%b-%Y", "%d-%b-%y", "%d/%b/%Y"),
    *("%A, %b %d, %Y", "%A, %d %b %Y", "%A, %d. %b %Y"),
)
CLOCKS = (
    *("%H:%M:%S", "%H:%M", "%I:%M:%S %p", "%I:%M %p", "%H:%M:%S.%f", "%I:%M:%S.%f %p", "%H.%M", "%H.%M.%S"),
    *("%H.%M.%S.%f", "%I.%M.%S.%f %p", "%Hh%M", "%H时%M分", "%H时%M分%S秒", "%H時%M分", "%H時%M分%S秒"),
    *("%p %I:%M:%S", "%p %I:%M"),
)
WHOLE = (
    *("iso", *UNIX),
    *(f"{day}{between}{clock}" for day in DAYS for clock in CLOCKS for between in (" ", ", ", "T", ":", "-")),
    *("%a %b %d %H:%M:%S %z %Y", "%a, %d %b %Y %H:%M:%S %z", "%d/%b/%Y:%H:%M:%S %z", "%a %b %d %H:%M:%S %Y"),
    *("%Y%m%d%H%M%S", "%Y%m%d%H%M", "%Y%m%d_%H%M%S", "%Y:%m:%d %H:%M:%S", "%Y-%m-%d-%H-%M-%S"),
)


def share(mask: pl.Series) -> float:
    """Return the fraction of true values in a mask, counting nulls as false."""
    return float(mask.fill_null(False).mean() or 0.0)  # type: ignore[arg-type]


def numbers(column: pl.Series) -> pl.Series:
    """Convert a column to numbers. Values that are not numbers become null."""
    return column.cast(pl.Float64, strict=False)


def time_format(column: pl.Series, zone: str, formats: Sequence[str] = WHOLE) -> str | None:
    """Return the format that fits nearly all values of a column, preferring the smallest spread, or None."""
    values = column.drop_nulls().unique(maintain_order=True)
    if len(values) > _VALUES:
        values = values.gather_every(-(-len(values) // _VALUES))
    if share(values.str.contains(r"\d\D*\d")) < MAJORITY:
        return None
    sample = values.head(_SAMPLE_ROWS)
    shapes = {_shape(value) for value in sample}
    possible = [name for name in formats if "%" not in name or "%z" in name or _shape_of_format(name) in shapes]
    likely = [name for name in possible if fit(sample, name, zone) >= _LIKELY]
    fits = {name: (fit(values, name, zone), -time_span(values, name, zone)) for name in likely}
    best = max(fits, key=lambda name: fits[name], default=None)
    return best if best is not None and fits[best][0] >= MAJORITY else None


def _shape(text: str) -> str:
    """Remove spaces and decimals from a string and collapse each run of digits or letters to a single symbol."""
    text = re.sub(r"[^\W\d_]+", "a", re.sub(r"\d+", "0", re.sub(r"\s", "", text)))
    return re.sub("[.,]0", "", re.sub(r"a\.(a\.)?", "a", text))


@cache
def _shape_of_format(name: str) -> str:
    """Return the shape common to all times in a format."""
    return _shape(datetime(2024, 5, 1, 15, 5, 9, 250_000).strftime(name))


def time_span(values: pl.Series, name: str, zone: str) -> int:
    """Return the days spanned by the times, plus the days from now to the last time if it is in the future."""
    if "%" not in name:
        return 0
    times = TimeFormat(name, zone).milliseconds(values).drop_nulls()
    first, last = (int(moment or 0) for moment in (times.min(), times.max()))  # type: ignore[arg-type]
    return (last - first + max(0, last - int(time.time() * 1000))) // 86_400_000


def other_orders(form: str) -> list[str]:
    """Return variants of a format with day, month and year in each of the other common orders.

    >>> other_orders("%d/%m/%Y %H:%M"), other_orders("%d.%m.%Y %H:%M"), other_orders("%d.%m.%y")
    (['%m/%d/%Y %H:%M', '%Y/%m/%d %H:%M'], ['%Y.%m.%d %H:%M'], ['%y.%m.%d'])
    """
    begin = sorted(form[:8])
    return [day + form[8:] for day in DAYS if sorted(day) == begin and day != form[:8]]


def fit(values: pl.Series, name: str, zone: str) -> float:
    """Return the fraction of values that match a format and fall within plausible years."""
    if name in UNIX:
        scale = 1000 ** UNIX.index(name)
        begin = _AFTER_TICKS if name == "unix_ns" else _SECONDS[0] * scale
        return share(numbers(values).is_between(begin, _SECONDS[1] * scale))
    if name == "iso" and share(values.str.contains(r"\d[T :]?\d\d:?\d\d|\d[T ]\d(:\d\d|\dZ?$)")) < MAJORITY:
        return 0.0  # days alone
    return share(TimeFormat(name, zone).milliseconds(values).is_between(0, _SECONDS[1] * 1000))
