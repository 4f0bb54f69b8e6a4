"""Durations and times: how they are written in YAML and what they are in the program (milliseconds)."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal

UNITS = {"w": 604_800_000, "d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}

#: One pattern for the parser and the JSON Schema: amounts with units, largest unit first.
DURATION_PATTERN = "^(?=.)" + "".join(rf"(\d+(\.\d+)?{unit})?" for unit in UNITS) + "$"
TIME_PATTERN = r"^\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(:\d{2}(\.\d{1,3})?)?(Z|[+-]\d{2}:\d{2})$"

A_DURATION = "a duration such as 10m, 1h30m or 7d"
A_TIME = "a time such as 2008-05-19T00:00:00Z"

_LONGEST = 10_000 * 366 * UNITS["d"]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_TIME, _LAST_TIME = -2_208_988_800_000, 13_569_465_600_000
_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)(ms|[wdhms])")


def parse_duration(text: str) -> int:
    """Milliseconds of a duration; raises ValueError saying what would be right.

    >>> [parse_duration(text) for text in ("250ms", "10m", "1h30m", "1.5h", "7d")]
    [250, 600000, 5400000, 5400000, 604800000]
    """
    if not re.fullmatch(DURATION_PATTERN, text, re.ASCII):
        raise ValueError(A_DURATION)
    milliseconds = sum(Decimal(amount) * UNITS[unit] for amount, unit in _AMOUNT.findall(text))
    if milliseconds != int(milliseconds):
        raise ValueError("a whole number of milliseconds")
    if milliseconds > _LONGEST:
        raise ValueError("shorter than 10,000 years")
    return int(milliseconds)


def format_duration(milliseconds: int) -> str:
    """A duration as it is written; weeks stay days.

    >>> format_duration(5_400_000), format_duration(0), format_duration(604_800_000)
    ('1h30m', '0s', '7d')
    """
    text, rest = "", milliseconds
    for unit, size in UNITS.items():
        if unit != "w" and rest >= size:
            text += f"{rest // size}{unit}"
            rest %= size
    return text or "0s"


def parse_time(text: str) -> int:
    """Milliseconds since 1970 UTC of an ISO 8601 time; raises ValueError saying what would be right.

    >>> parse_time("2008-05-19T02:00:00+02:00")
    1211155200000
    >>> parse_time("2008-05-19T00:00:00")
    Traceback (most recent call last):
    ValueError: a time with its zone: add Z for UTC, or an offset such as +02:00
    """
    if not re.fullmatch(TIME_PATTERN, text, re.ASCII):
        if re.fullmatch(TIME_PATTERN, text + "Z", re.ASCII):
            raise ValueError("a time with its zone: add Z for UTC, or an offset such as +02:00")
        raise ValueError(A_TIME)
    try:
        since = datetime.fromisoformat(text) - _EPOCH
    except (ValueError, OverflowError) as error:
        raise ValueError(f"a time that exists ({error})") from None
    milliseconds = since // timedelta(milliseconds=1)
    if not _FIRST_TIME <= milliseconds < _LAST_TIME:
        raise ValueError("a time between the years 1900 and 2400")
    return milliseconds


def format_time(milliseconds: int) -> str:
    """A time as it is written, in UTC.

    >>> format_time(1211155200000), format_time(1211155200250)
    ('2008-05-19T00:00:00Z', '2008-05-19T00:00:00.250Z')
    """
    moment = _EPOCH + timedelta(milliseconds=milliseconds)
    precision = "milliseconds" if milliseconds % 1000 else "seconds"
    return moment.isoformat(timespec=precision).replace("+00:00", "Z")
