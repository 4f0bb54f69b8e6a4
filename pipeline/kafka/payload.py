"""What messages hold: one event as JSON or Avro, or many as a block of Arrow. Every message is taken for hostile."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipeline.kafka.arrow import Malformed, read_block
from pipeline.kafka.avro import avro_parser
from pipeline.reading.times import TimeFormat


@dataclass(frozen=True)
class Rows:
    """The rows of some messages.

    Parameters
    ----------
    frame
        Columns of an `EventBlock`; null where a value is wrong.
    message
        Shape (n_rows,): number of the message that each row is from.
    problems
        What is wrong with messages that hold no rows, by number.
    """

    frame: pl.DataFrame
    message: NDArray[np.int64]
    problems: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Layout:
    """Which columns the messages have.

    Parameters
    ----------
    columns
        Name in the messages by part of an event.
    time
        How times are written.
    integer_users
        Whether users are whole numbers; otherwise text.
    """

    columns: Mapping[str, str]
    time: TimeFormat = field(default_factory=TimeFormat)
    integer_users: bool = False

    @property
    def schema(self) -> dict[str, type[pl.DataType]]:
        """Type of every column of an `EventBlock`."""
        types = {"time": pl.Int64, "latitude": pl.Float64, "longitude": pl.Float64, "place": pl.String}
        types["user"] = pl.Int64 if self.integer_users else pl.String
        return {part: types[part] for part in self.columns}

    @property
    def sent(self) -> dict[str, type[pl.DataType]]:
        """Type that every column has in a message."""
        return self.schema | {"time": self.time.dtype}


#: What reads one message as a dictionary; raises `Malformed`.
Parser = Callable[[bytes], Any]


@lru_cache
def parser_of(format: str, schema: str | None, header: bool) -> Parser | None:
    """What reads one message as a dictionary; None for blocks of Arrow.

    Raises
    ------
    ParameterError
        An Avro schema that is none, or that nests without bounds.
    """
    if format == "json":
        return _parse_json
    return None if format == "arrow" else avro_parser(schema or "", header)


def read_messages(values: Sequence[bytes | None], layout: Layout, parse: Parser | None) -> Rows:
    """Rows of some messages, in their order; a message that cannot be read becomes a problem, and nothing else.

    Examples
    --------
    >>> layout = Layout({"user": "who", "time": "time", "place": "place"})
    >>> rows = read_messages([b'{"who": "u", "time": "2024-01-01T00:00:00Z", "place": "a"}', b"{"], layout, _parse_json)
    >>> rows.frame.height, rows.problems
    (1, {1: 'not valid JSON'})
    """
    return _read_blocks(values, layout) if parse is None else _read_events(values, layout, parse)


def _read_events(values: Sequence[bytes | None], layout: Layout, parse: Parser) -> Rows:
    names = tuple(layout.columns.values())
    found: list[tuple[Any, ...]] = []
    message: list[int] = []
    problems: dict[int, str] = {}
    for number, value in enumerate(values):
        if value is None:
            problems[number] = "the message is empty"
            continue
        try:
            event = parse(value)
        except Malformed as error:
            problems[number] = str(error)
            continue
        found.append(tuple([event.get(name) for name in names]))
        message.append(number)
    columns = zip(*found) if found else [()] * len(names)
    series = [_series(part, dtype, own) for (part, dtype), own in zip(layout.sent.items(), columns)]
    return Rows(_timed(pl.DataFrame(series), layout), np.asarray(message, np.int64), problems)


def _timed(frame: pl.DataFrame, layout: Layout) -> pl.DataFrame:
    return frame.with_columns(layout.time.milliseconds(frame["time"]).alias("time"))


def _series(part: str, dtype: type[pl.DataType], values: Sequence[Any]) -> pl.Series:
    named = _identifier if part in ("user", "place") else _text
    convert: Callable[[Any], Any] = _number if dtype == pl.Float64 else _integer if dtype == pl.Int64 else named
    return pl.Series(part, [convert(value) for value in values], dtype=dtype)


def _number(value: Any) -> float | None:
    if type(value) is float:
        return value
    # Whole numbers that no coordinate and no time comes near may not fit a float.
    return float(value) if type(value) is int and -(2**63) <= value < 2**63 else None


def _integer(value: Any) -> int | None:
    return value if type(value) is int and -(2**63) <= value < 2**63 else None


def _identifier(value: Any) -> str | None:
    return str(value) if type(value) is int else _text(value)


def _text(value: Any) -> str | None:
    if type(value) is not str:
        return None
    if value.isascii():
        return value
    try:
        value.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON lets through
        return None
    return value


def _parse_json(value: bytes) -> dict[str, Any]:
    try:
        event = json.loads(value.decode())
    except (ValueError, RecursionError):
        raise Malformed("not valid JSON") from None
    if type(event) is not dict:
        raise Malformed("not a JSON object")
    return event


def _read_blocks(values: Sequence[bytes | None], layout: Layout) -> Rows:
    frames = [pl.DataFrame(schema=layout.schema)]
    message = [np.zeros(0, np.int64)]
    problems: dict[int, str] = {}
    for number, value in enumerate(values):
        try:
            frame = read_block(value or b"", layout.columns)
        except Malformed as error:
            problems[number] = str(error)
            continue
        frames.append(_timed(frame, layout).select(_as(frame, part, kind) for part, kind in layout.schema.items()))
        message.append(np.full(frame.height, number))
    return Rows(pl.concat(frames), np.concatenate(message), problems)


def _as(frame: pl.DataFrame, part: str, dtype: type[pl.DataType]) -> pl.Expr:
    column = pl.col(part)
    if dtype == pl.Int64 and frame.schema[part].is_float():
        column = pl.when(column == column.floor()).then(column)
    return column.cast(dtype, strict=False)
