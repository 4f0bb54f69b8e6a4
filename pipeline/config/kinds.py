"""Kinds of scalar values with their YAML syntax, parsers, formatters, descriptions and JSON Schema."""

from __future__ import annotations

import glob
import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from penstock.evaluation.utility import metric_called, metric_names
from penstock.mechanisms.core.plugin import Parameter, nearest
from penstock.pipeline.windows.calendar import format_time


def find(text: str, folder: Path | None) -> str | None:
    """Resolve an input path, trying the working directory first and then the folder of the configuration.

    An address with a scheme (``gs://…``) is taken as it is; None if nothing exists.

    >>> find("gs://bucket/rides", None), find("no/such/file", None)
    ('gs://bucket/rides', None)
    """
    if "://" in text:
        return text
    for path in [text] if folder is None else [text, os.path.join(folder, text)]:
        if (
            text
            and "\0" not in text
            and (os.path.exists(path) or (glob.has_magic(path) and any(glob.iglob(path, recursive=True))))
        ):
            return path
    return None


# Durations and times: text in YAML, milliseconds in the program.

UNITS = {"w": 604_800_000, "d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}

#: One pattern for the parser and the JSON Schema: amounts with units, largest unit first.
DURATION_PATTERN = "^(?=.)" + "".join(rf"(\d+(\.\d+)?{unit})?" for unit in UNITS) + "$"
TIME_PATTERN = r"^\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(:\d{2}(\.\d{1,3})?)?(Z|[+-]\d{2}:\d{2})$"

EXPECTED_DURATION = "a duration such as 10m, 1h30m or 7d"
EXPECTED_TIME = "a time such as 2008-05-19T00:00:00Z"

_LONGEST = 10_000 * 366 * UNITS["d"]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_TIME, _LAST_TIME = -2_208_988_800_000, 13_569_465_600_000
_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)(ms|[wdhms])")


def parse_duration(text: str) -> int:
    """Parse a duration into milliseconds. Raises a ValueError that describes the expected form."""
    if not re.fullmatch(DURATION_PATTERN, text, re.ASCII):
        raise ValueError(EXPECTED_DURATION)
    milliseconds = sum(Decimal(amount) * UNITS[unit] for amount, unit in _AMOUNT.findall(text))
    if milliseconds != int(milliseconds):
        raise ValueError("a whole number of milliseconds")
    if milliseconds > _LONGEST:
        raise ValueError("shorter than 10,000 years")
    return int(milliseconds)


def format_duration(milliseconds: int) -> str:
    """Format a duration. Weeks are expressed in days."""
    text, rest = "", milliseconds
    for unit, size in UNITS.items():
        if unit != "w" and rest >= size:
            text += f"{rest // size}{unit}"
            rest %= size
    return text or "0s"


def parse_time(text: str) -> int:
    """Parse an ISO 8601 time into milliseconds since 1970 UTC. Raises a ValueError that describes the expected form.

    >>> parse_time("2008-05-19T02:00:00+02:00")
    1211155200000
    >>> parse_time("2008-05-18T24:00:00Z") == parse_time("2008-05-19T00:00:00Z")
    True
    >>> parse_time("2008-05-19T00:00:00")
    Traceback (most recent call last):
    ValueError: a time with its zone: add Z for UTC, or an offset such as +02:00
    """
    if not re.fullmatch(TIME_PATTERN, text, re.ASCII):
        if re.fullmatch(TIME_PATTERN, text + "Z", re.ASCII):
            raise ValueError("a time with its zone: add Z for UTC, or an offset such as +02:00")
        raise ValueError(EXPECTED_TIME)
    begin = re.sub(r"(?<=[T ])24(?=:00(:00(\.0+)?)?(Z|[+-]))", "00", text)  # of the day that ends
    try:
        since = datetime.fromisoformat(begin) - _EPOCH + timedelta(days=begin != text)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"a time that exists ({error})") from None
    milliseconds = since // timedelta(milliseconds=1)
    if not _FIRST_TIME <= milliseconds < _LAST_TIME:
        raise ValueError("a time between the years 1900 and 2400")
    return milliseconds


# Reading of a value that YAML has parsed.


class WrongValue(Exception):
    """Raised if a value cannot be parsed as the declared kind. ``expected`` refines the kind's description."""

    def __init__(self, expected: str | None = None) -> None:
        self.expected = expected


def _boolean(value: Any, folder: Path | None) -> bool:
    if not isinstance(value, bool):
        raise WrongValue
    return value


def _integer(value: Any, folder: Path | None) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value // 1:
        raise WrongValue
    if abs(value) >= 2**63:
        raise WrongValue("a whole number that fits in 64 bits")
    return int(value)


def _number(value: Any, folder: Path | None) -> float:
    if value in ("inf", "-inf"):
        return float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise WrongValue
    return float(value)


def _text(value: Any, folder: Path | None) -> str:
    if not isinstance(value, str):
        raise WrongValue("text (in quotes if it looks like something else)")
    return value


def _parsed(parse: Callable[[str], int]) -> Callable[[Any, Path | None], int]:
    """Return a parser for durations or times."""

    def read(value: Any, folder: Path | None) -> int:
        if value == 0 and not isinstance(value, bool) and parse is parse_duration:
            return 0
        if not isinstance(value, str):
            raise WrongValue
        try:
            return parse(value)
        except ValueError as error:
            raise WrongValue(None if str(error) in (EXPECTED_DURATION, EXPECTED_TIME) else str(error)) from None

    return read


def _input(value: Any, folder: Path | None) -> str:
    path = find(_text(value, folder), folder)
    if path is None:
        looked = "looked for from the working directory and beside the configuration"
        raise WrongValue(f"an existing file or folder ({looked})")
    return path


def _key(value: Any, folder: Path | None) -> str:
    text = _text(value, folder)
    if not text.startswith("env:"):
        return _input(text, folder)
    if not os.environ.get(text.removeprefix("env:")):
        raise WrongValue("the name of an environment variable that is set")
    return text


def _metric(value: Any, folder: Path | None) -> str:
    if metric_called(str(value)) is None:
        near = nearest(str(value), metric_names())
        raise WrongValue(f"one of {', '.join(metric_names())} (did you mean {near!r}?)" if near else None)
    return _text(value, folder)


# The table of kinds.


@dataclass(frozen=True)
class Kind:
    """A kind of scalar value."""

    read: Callable[[Any, Path | None], Any]  # YAML's value and the configuration's folder; may raise `WrongValue`
    phrase: Callable[[Parameter], str]  # what completes "must be …"
    schema: Callable[[Parameter], dict[str, Any]]
    show: Callable[[Any], Any] = lambda value: value  # a value as people write it


def kind_of(hint: Any, declared: Parameter) -> Kind | None:
    """Return a field's declared kind, or the kind of its type, or None if any value is allowed."""
    return KINDS.get(declared.kind if declared.kind in KINDS and hint is not bool else hint)


def show(value: Any, declared: Parameter) -> Any:
    """Format a value of a declared kind as YAML. Any other value is returned unchanged."""
    is_shown = declared.kind in ("duration", "time") and isinstance(value, int)
    return KINDS[declared.kind].show(value) if is_shown else value


def _limits(declared: Parameter, shown: Callable[[int], str]) -> str:
    """Describe a declaration's bounds, for example ``, above 1m``."""
    phrase = declared.limits_in_words(lambda limit: shown(int(limit)))
    return f", {phrase}" if phrase else ""


def _bounds(declared: Parameter) -> dict[str, float]:
    """Return a declaration's bounds as JSON Schema keywords."""
    words = {"above": "exclusiveMinimum", "at_least": "minimum", "below": "exclusiveMaximum", "at_most": "maximum"}
    return {words[name]: limit for name, limit in declared.limits.items()}


def _number_schema(declared: Parameter) -> dict[str, Any]:
    """Return the schema of a number, which may be infinite if it has no upper bound."""
    bounds = _bounds(declared)
    if bounds.keys() & {"maximum", "exclusiveMaximum"}:
        return {"type": "number"} | {word: limit for word, limit in bounds.items() if math.isfinite(limit)}
    return {"anyOf": [{"type": "number"} | bounds, {"enum": ["inf"] if bounds else ["inf", "-inf"]}]}


def _constant(value: Any) -> Callable[[Parameter], Any]:
    """Return a function that ignores its argument and always returns ``value``."""
    return lambda declared: value


_STRING = _constant({"type": "string"})
#: Every kind by its name in a declaration, and by the type of fields that declare none.
KINDS: dict[Any, Kind] = {
    "duration": Kind(
        _parsed(parse_duration),
        lambda declared: EXPECTED_DURATION + _limits(declared, format_duration),
        _constant({"anyOf": [{"type": "string", "pattern": DURATION_PATTERN}, {"const": 0}]}),
        format_duration,
    ),
    "time": Kind(
        _parsed(parse_time),
        lambda declared: EXPECTED_TIME + _limits(declared, format_time),
        _constant({"type": "string", "pattern": TIME_PATTERN}),
        format_time,
    ),
    "path": Kind(_input, _constant("an existing file or folder"), _STRING),
    "key": Kind(_key, _constant("an existing file, or env: and the name of a set environment variable"), _STRING),
    "metric": Kind(
        _metric, lambda declared: f"one of {', '.join(metric_names())}", lambda declared: {"enum": list(metric_names())}
    ),
    bool: Kind(_boolean, _constant("true or false"), _constant({"type": "boolean"})),
    int: Kind(
        _integer,
        lambda declared: "a whole number" + declared.expected().removeprefix("a number"),
        lambda declared: {"type": "integer"} | _bounds(declared),
    ),
    float: Kind(_number, Parameter.expected, _number_schema),
    str: Kind(_text, _constant("text"), _STRING),
    Path: Kind(_text, _constant("a file or folder"), _STRING),
}
