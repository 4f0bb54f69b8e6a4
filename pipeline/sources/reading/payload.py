"""Conversion of JSON and Avro messages to columns."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from penstock.mechanisms.core.plugin import ParameterError
from penstock.pipeline.sources.reading.times import TimeFormat


class Malformed(ValueError):
    """Raised if a message does not contain a valid event. The error message never quotes the contents."""


#: Avro's types without anything in them, which a hostile message cannot blow up.
_FLAT = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
#: Time formats by what Avro calls the type of a field.
_LOGICAL = {"timestamp-millis": "unix_ms", "timestamp-micros": "unix_us", "timestamp-nanos": "unix_ns"}
_NUMBERS, _TEXT = {"int", "long", "float", "double"}, {"string", "enum"}
_WRITTEN_NUMBER = re.compile(r"\s*[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?\s*")


def avro_parser(schema: str) -> Callable[[bytes], Any]:
    """Return a parser of messages of one Avro record, whose JSON schema must not have nested fields.

    >>> parse = avro_parser('{"type": "record", "name": "e", "fields": [{"name": "user", "type": "string"}]}')
    >>> parse(b"\\x04me")
    {'user': 'me'}
    """
    import fastavro

    try:
        parsed = fastavro.parse_schema(_flat(json.loads(schema)))
    except (ValueError, RecursionError, fastavro.schema.SchemaParseException) as error:
        raise ParameterError("schema", "…", f"an Avro schema of a record ({error})") from None

    def parse(value: bytes) -> dict[str, Any]:
        stream = io.BytesIO(value)
        try:
            event: Any = fastavro.schemaless_reader(stream, parsed, None)
        except Exception:  # whatever bytes can do to a reader: end of data, bad UTF-8, an index out of range, …
            raise Malformed("not a record of the Avro schema") from None
        if stream.read(1):
            raise Malformed("bytes after the Avro record")
        return dict(event)

    return parse


def avro_times(schema: str, name: str, stated: TimeFormat) -> TimeFormat:
    """Return the time format implied by a field's logical type, falling back to the declared format where possible."""
    members = _members(schema)
    named = members.get(name, [])
    types = {one["logicalType"] for one in named if "logicalType" in one and one.get("type") not in _TEXT}
    if others := sorted(types - _LOGICAL.keys() - {"uuid", "decimal"}):
        expected = f"of a field that holds instants ({', '.join(_LOGICAL)}, text or plain numbers), not {others[0]}"
        raise ParameterError("columns.time", name, expected)
    logical = {_LOGICAL[one] for one in types & _LOGICAL.keys()}
    if len(logical) > 1:
        raise ParameterError("columns.time", name, f"of a field with one unit, not {' and '.join(sorted(logical))}")
    if logical and stated.format in ("iso", *logical):
        return replace(stated, format=logical.pop())
    kinds = {one.get("type") for one in named}
    if logical or (name in members and kinds.isdisjoint(_NUMBERS if stated.is_number else _TEXT)):
        expected = "unix_s, unix_ms, unix_us or unix_ns: the schema's times are numbers"
        if logical:
            expected = f"{logical.pop()}, as the schema says"
        elif not kinds & (_NUMBERS | _TEXT):
            raise ParameterError(
                "columns.time", name, f"of a field of text or numbers, not {' or '.join(map(str, kinds)) or 'null'}"
            )
        elif stated.is_number:
            expected = "iso or a strptime format: the schema's times are text"
        raise ParameterError("time_format", stated.format, expected)
    return stated


def check_avro(schema: str, layout: Layout) -> None:
    """Raise `ParameterError` if a column is missing from the schema or if its type is not suitable."""
    fields = _members(schema)
    for part, name in layout.columns.items():
        if name not in fields:
            raise ParameterError(f"columns.{part}", name, f"a field of the schema ({', '.join(fields)})")
        whole = {"int", "long"}
        usable = _NUMBERS if part in ("latitude", "longitude") else whole if layout.integer_users else whole | _TEXT
        kinds = {str(one.get("type")) for one in fields[name]}
        if part != "time" and kinds.isdisjoint(usable):
            expected = f"of a field of {' or '.join(sorted(usable))}, not {' or '.join(sorted(kinds)) or 'null'}"
            raise ParameterError(f"columns.{part}", name, expected)


def _members(schema: str) -> dict[str, list[dict[str, Any]]]:
    """Return the types that the schema allows for each field, except null."""
    kinds = {field["name"]: field["type"] for field in json.loads(schema)["fields"]}
    lists = {name: kind if isinstance(kind, list) else [kind] for name, kind in kinds.items()}
    return {
        name: [member if isinstance(member, dict) else {"type": member} for member in members if member != "null"]
        for name, members in lists.items()
    }


def _flat(schema: Any) -> dict[str, Any]:
    """Return a schema without logical types. Raise `ValueError` unless it is a record of plain fields."""
    if not isinstance(schema, dict) or schema.get("type") != "record" or not isinstance(schema.get("fields"), list):
        raise ValueError("the schema must be a record")
    fields = [{"name": field["name"], "type": _flat_type(field["type"])} for field in schema["fields"]]
    return {"type": "record", "name": schema.get("name", "event"), "fields": fields}


def _flat_type(kind: Any) -> Any:
    if isinstance(kind, list):
        return [_flat_type(member) for member in kind]
    if isinstance(kind, dict) and kind.get("type") in ("enum", "fixed"):
        return kind
    name = kind.get("type") if isinstance(kind, dict) else kind
    if name not in _FLAT:
        raise ValueError("its fields must be plain: no records, arrays or maps")
    return name


@dataclass(frozen=True)
class MessageRows:
    """Rows that were parsed from messages."""

    frame: pl.DataFrame  # columns of an `EventBlock`; null where a value is wrong
    message: NDArray[np.int64]  # shape (n_rows,): number of the message that each row is from
    problems: dict[int, str]  # what is wrong with messages that hold no rows, by number
    time_problems: pl.Series  # why each row's time cannot be read; null where it can


@dataclass(frozen=True)
class Layout:
    """Names and formats of the columns in a message."""

    columns: Mapping[str, str]  # name in the messages by part of an event
    time: TimeFormat = field(default_factory=TimeFormat)  # how times are written
    integer_users: bool = False  # whether users are whole numbers; otherwise text

    @property
    def schema(self) -> dict[str, type[pl.DataType]]:
        """The type of each column in an `EventBlock`."""
        types = {"time": pl.Int64, "latitude": pl.Float64, "longitude": pl.Float64, "place": pl.String}
        types["user"] = pl.Int64 if self.integer_users else pl.String
        return {part: types[part] for part in self.columns}

    @property
    def sent(self) -> dict[str, type[pl.DataType]]:
        """The type of each column as sent in a message."""
        return self.schema | {"time": self.time.dtype}


#: Length of what a registry of schemas puts first.
_MAGIC = 5
#: What reads one message as a dictionary; raises `Malformed`.
Parser = Callable[[bytes], Any]


@lru_cache
def parser_of(format: str, schema: str | None, header: bool) -> Parser:
    """Return a function that parses a message into a dictionary.

    ``header``: whether five bytes come before the event, as registries of schemas have it; they are skipped. Raises
    `ParameterError` for an Avro schema that is none, or nests without bounds.
    """
    parse = _parse_json if format == "json" else avro_parser(schema or "")

    def without_id(value: bytes) -> Any:
        """Skip the schema id and parse the payload that follows it."""
        if len(value) < _MAGIC or value[0] != 0:
            raise Malformed("no schema id before the event")
        return parse(value[_MAGIC:])

    return without_id if header else parse


def value_at(name: str, value: Any) -> Any:
    """Return the value at a path within another value, or None if the path does not exist.

    >>> value_at("payload.point.0", {"payload": {"point": [8.5, 47.4]}})
    8.5
    """
    for step in name.split("."):
        try:
            value = value[int(step)] if isinstance(value, list) else value.get(step)
        except (AttributeError, IndexError, ValueError):  # a plain value, a shorter list, no number
            return None
    return value


def read_messages(values: Sequence[bytes | None], layout: Layout, parse: Parser) -> MessageRows:
    """Parse messages into rows, in order. The reason why a message could not be read is recorded in ``problems``.

    >>> layout = Layout({"user": "who", "time": "time", "place": "place"})
    >>> rows = read_messages([b'{"who": "u", "time": "2024-01-01T00:00:00Z", "place": "a"}', b"{"], layout, _parse_json)
    >>> rows.frame.height, rows.problems
    (1, {1: 'not valid JSON'})
    """
    names = tuple(layout.columns.values())
    paths = [i for i, name in enumerate(names) if "." in name]
    rows: list[tuple[Any, ...]] = []
    message: list[int] = []
    problems: dict[int, str] = {}
    for number, value in enumerate(values):
        try:
            if value is None:
                raise Malformed("the message is empty")
            event = parse(value)
        except Malformed as error:
            problems[number] = str(error)
            continue
        row = [event.get(name) for name in names]
        for i in paths:
            row[i] = value_at(names[i], event) if row[i] is None else row[i]
        rows.append(tuple(row))
        message.append(number)
    columns = zip(*rows) if rows else [()] * len(names)
    series = [column_of(part, dtype, part_values) for (part, dtype), part_values in zip(layout.sent.items(), columns)]
    sent = series[list(layout.columns).index("time")]
    times = layout.time.milliseconds(sent)
    frame, why = pl.DataFrame(series).with_columns(times), layout.time.problems(sent, times)
    return MessageRows(frame, np.asarray(message, np.int64), problems, why)


def column_of(part: str, dtype: type[pl.DataType], values: Sequence[Any]) -> pl.Series:
    """Convert a field to a typed column. Values of other types, such as ``True`` or ``"7"``, become null.

    >>> column_of("user", pl.String, ["ann", 7, True]).to_list(), column_of("latitude", pl.Float64, ["47.4"]).to_list()
    (['ann', '7', None], [47.4])
    """
    named = _identifier if part in ("user", "place") else _text
    whole = _whole_number if part == "time" else _integer
    convert: Callable[[Any], Any] = _number if dtype == pl.Float64 else whole if dtype == pl.Int64 else named
    return pl.Series(part, [convert(value) for value in values], dtype=dtype)


def _number(value: Any) -> float | None:
    if type(value) is float:
        return value
    if type(value) is str:
        return float(value) if _WRITTEN_NUMBER.fullmatch(value) else None
    # Whole numbers that no coordinate and no time comes near may not fit a float.
    return float(value) if type(value) is int and -(2**63) <= value < 2**63 else None


def _integer(value: Any) -> int | None:
    return value if type(value) is int and -(2**63) <= value < 2**63 else None


def _whole_number(value: Any) -> int | None:
    return _integer(int(value) if type(value) is str and re.fullmatch("-?[0-9]{1,19}", value) else value)


def _identifier(value: Any) -> str | None:
    return str(value) if type(value) is int else _text(value)


def _text(value: Any) -> str | None:
    if type(value) is not str:
        return None
    try:
        return value if value.isascii() or value.encode() else None
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON lets through
        return None


def _parse_json(value: bytes) -> dict[str, Any]:
    try:
        event = json.loads(value.removeprefix(b"\xef\xbb\xbf").decode())
    except (ValueError, RecursionError):
        if value[:1] == b"\0" and value[_MAGIC : _MAGIC + 1] == b"{":
            raise Malformed("five bytes before the JSON, as of a schema id: see source.schema_ids") from None
        raise Malformed("not valid JSON") from None
    if type(event) is not dict:
        raise Malformed("not a JSON object")
    return event
