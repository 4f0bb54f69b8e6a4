"""Payloads of Kafka messages: JSON, Avro and Arrow, into columns."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from penstock.mechanisms.core.plugin import ParameterError
from penstock.pipeline.sources.reading.text import is_whole
from penstock.pipeline.sources.reading.times import TimeFormat, plain_times

# Arrow: untrusted metadata is validated before any buffer is decompressed.


#: What one message may hold at most: rows, and bytes after unpacking.
MAX_ROWS, MAX_BYTES = 1_000_000, 256 << 20
#: Fields of the tables of Arrow's message format: header of a message; rows, buffers and compression of a batch.
_HEADER, _LENGTH, _BUFFERS, _COMPRESSION = 2, 0, 2, 3


class Malformed(ValueError):
    """A message that holds no event; says why in words that tell nothing of its content."""


def read_block(data: bytes, columns: Mapping[str, str]) -> pl.DataFrame:
    """Some columns of a message in Arrow's streaming format, with the types that they have there.

    ``columns``: name in the message by the name that is wanted. Raises `Malformed` for anything but record batches of
    plain columns within `MAX_ROWS` and `MAX_BYTES`.

    >>> table = pa.table({"who": [7, 8]})
    >>> sink = pa.BufferOutputStream()
    >>> with pa.ipc.new_stream(sink, table.schema) as writer:
    ...     writer.write_table(table)
    >>> read_block(sink.getvalue().to_pybytes(), {"user": "who"})["user"].to_list()
    [7, 8]
    """
    try:
        batches = _batches(data, sorted(set(columns.values())))
    except Malformed:
        raise
    except (pa.ArrowException, OSError, ValueError, struct.error, IndexError, StopIteration):
        raise Malformed("not a sound block of Arrow") from None
    frame = pl.DataFrame(plain_times(pa.Table.from_batches(batches)))
    return frame.select(pl.col(name).alias(part) for part, name in columns.items())


def _batches(data: bytes, names: list[str]) -> list[pa.RecordBatch]:
    reader = pa.ipc.MessageReader.open_stream(pa.BufferReader(data))
    first = reader.read_next_message()
    if first.type != "schema":  # reading it all the same would end the process
        raise Malformed("not a sound block of Arrow")
    schema = pa.ipc.read_schema(first)
    if any(schema.get_field_index(name) < 0 for name in names):
        raise Malformed("a column is missing, or there twice")
    if not all(map(_is_plain, schema.types)):
        raise Malformed("a column is neither a number nor text nor a time")
    batches, n_rows, n_bytes = [_empty(schema)], 0, 0
    for message in reader:
        if message.type != "record batch":
            raise Malformed("dictionaries are not read")
        rows, size = _claims(message)
        n_rows, n_bytes = n_rows + rows, n_bytes + size
        if not (rows >= 0 and n_rows <= MAX_ROWS and n_bytes <= MAX_BYTES):
            raise Malformed("more rows or bytes than a message may hold")
        batch = pa.ipc.read_record_batch(message, schema)
        batch.validate(full=True)
        batches.append(batch)
    return [batch.select(names) for batch in batches]


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], kind) for kind in schema.types], schema=schema)


def _is_plain(kind: pa.DataType) -> bool:
    plain = (pa.types.is_integer, pa.types.is_floating, pa.types.is_string, pa.types.is_large_string)
    return any(test(kind) for test in (*plain, pa.types.is_timestamp, pa.types.is_boolean))


def _claims(message: Any) -> tuple[int, int]:
    """Rows and unpacked bytes that a record batch says it has."""
    head, body = bytes(message.metadata), message.body
    batch = _follow(head, _field(head, _follow(head, 0), _HEADER))
    at = _field(head, batch, _LENGTH)
    n_rows = struct.unpack_from("<q", head, at)[0] if at else 0
    if not _field(head, batch, _COMPRESSION):
        return n_rows, len(body)
    vector = _follow(head, _field(head, batch, _BUFFERS))
    (n_buffers,) = struct.unpack_from("<I", head, vector)
    total = 0
    for number in range(n_buffers):
        offset, length = struct.unpack_from("<qq", head, vector + 4 + 16 * number)
        if length:
            (size,) = struct.unpack_from("<q", body, offset)
            total += length if size == -1 else size
            if size < -1:
                raise Malformed("not a sound block of Arrow")
    return n_rows, total


def _follow(data: bytes, at: int) -> int:
    """Return where an offset of a flat buffer leads."""
    return at + int(struct.unpack_from("<I", data, at)[0])


def _field(data: bytes, table: int, number: int) -> int:
    """Return where a table of a flat buffer keeps one of its fields; 0 where it is left out."""
    index = table - int(struct.unpack_from("<i", data, table)[0])
    (size,) = struct.unpack_from("<H", data, index)
    entry = 4 + 2 * number
    offset = struct.unpack_from("<H", data, index + entry)[0] if entry < size else 0
    return table + int(offset) if offset else 0


# Avro: one record a message; the schema bounds its size.


#: Avro's types without anything in them, which a hostile message cannot blow up.
_FLAT = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
#: Time formats by what Avro calls the type of a field.
_LOGICAL = {"timestamp-millis": "unix_ms", "timestamp-micros": "unix_us", "timestamp-nanos": "unix_ns"}
_NUMBERS = {"int", "long", "float", "double"}


def avro_parser(schema: str) -> Callable[[bytes], Any]:
    """Return what reads messages of one Avro record each, written with a schema (JSON text) of plain fields.

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
        """Decode one record."""
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
    """Format of a field's times: as its logical type says, or else the stated one.

    Raises `ParameterError` where the stated one cannot be that of any value of the field.
    """
    fields = {field["name"]: field["type"] for field in json.loads(schema)["fields"]}
    kind = fields.get(name, "null")
    members = [member for member in (kind if isinstance(kind, list) else [kind]) if member != "null"]
    named = [member if isinstance(member, dict) else {"type": member} for member in members]
    types = {one["logicalType"] for one in named if "logicalType" in one}
    if others := sorted(types - _LOGICAL.keys() - {"uuid", "decimal"}):
        expected = f"of a field that holds instants ({', '.join(_LOGICAL)}, text or plain numbers), not {others[0]}"
        raise ParameterError("columns.time", name, expected)
    logical = {_LOGICAL[one] for one in types & _LOGICAL.keys()}
    if len(logical) == 1 and stated.format in ("iso", *logical):
        return replace(stated, format=logical.pop())
    kinds = {one.get("type") for one in named}
    if logical or (kinds and kinds <= (_NUMBERS if not stated.is_number else {"string", "enum", "bytes"})):
        expected = (
            f"{' or '.join(sorted(logical))}, as the schema says"
            if logical
            else (
                "iso or a strptime format: the schema's times are text"
                if stated.is_number
                else "unix_s, unix_ms, unix_us or unix_ns: the schema's times are numbers"
            )
        )
        raise ParameterError("time_format", stated.format, expected)
    return stated


def _flat(schema: Any) -> dict[str, Any]:
    """A schema without logical types; `ValueError` where a message could hold more than the schema is long."""
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


# Messages to columns: one event as JSON or Avro, or many as an Arrow block. Every message is untrusted.


@dataclass(frozen=True)
class MessageRows:
    """The rows of some messages."""

    frame: pl.DataFrame  # columns of an `EventBlock`; null where a value is wrong
    message: NDArray[np.int64]  # shape (n_rows,): number of the message that each row is from
    problems: dict[int, str] = field(default_factory=dict)  # what is wrong with messages that hold no rows, by number


@dataclass(frozen=True)
class Layout:
    """Columns of the messages."""

    columns: Mapping[str, str]  # name in the messages by part of an event
    time: TimeFormat = field(default_factory=TimeFormat)  # how times are written
    integer_users: bool = False  # whether users are whole numbers; otherwise text

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


#: Length of what a registry of schemas puts first.
_MAGIC = 5
#: What reads one message as a dictionary; raises `Malformed`.
Parser = Callable[[bytes], Any]


@lru_cache
def parser_of(format: str, schema: str | None, header: bool) -> Parser | None:
    """Return what reads one message as a dictionary; None for blocks of Arrow.

    ``header``: whether five bytes come before the event, as registries of schemas have it; they are skipped. Raises
    `ParameterError` for an Avro schema that is none, or nests without bounds.
    """
    if format == "arrow":
        return None
    parse = _parse_json if format == "json" else avro_parser(schema or "")
    return partial(_without_id, parse) if header else parse


def _without_id(parse: Parser, value: bytes) -> Any:
    """Parse what comes after the id of a schema."""
    if len(value) < _MAGIC or value[0] != 0:
        raise Malformed("no schema id before the event")
    return parse(value[_MAGIC:])


def read_messages(values: Sequence[bytes | None], layout: Layout, parse: Parser | None) -> MessageRows:
    """Rows of some messages, in their order; a message that cannot be read becomes a problem, and nothing else.

    >>> layout = Layout({"user": "who", "time": "time", "place": "place"})
    >>> rows = read_messages([b'{"who": "u", "time": "2024-01-01T00:00:00Z", "place": "a"}', b"{"], layout, _parse_json)
    >>> rows.frame.height, rows.problems
    (1, {1: 'not valid JSON'})
    """
    return _read_blocks(values, layout) if parse is None else _read_events(values, layout, parse)


def _read_events(values: Sequence[bytes | None], layout: Layout, parse: Parser) -> MessageRows:
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
    series = [column_of(part, dtype, own) for (part, dtype), own in zip(layout.sent.items(), columns)]
    return MessageRows(_timed(pl.DataFrame(series), layout), np.asarray(message, np.int64), problems)


def _timed(frame: pl.DataFrame, layout: Layout) -> pl.DataFrame:
    return frame.with_columns(layout.time.milliseconds(frame["time"]).alias("time"))


def column_of(part: str, dtype: type[pl.DataType], values: Sequence[Any]) -> pl.Series:
    """A part of some events as a column of a type; null where a value is none of it, ``True`` and ``"7"`` no number.

    >>> column_of("user", pl.String, ["ann", 7, True]).to_list()
    ['ann', '7', None]
    """
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


def _read_blocks(values: Sequence[bytes | None], layout: Layout) -> MessageRows:
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
    return MessageRows(pl.concat(frames), np.concatenate(message), problems)


def _as(frame: pl.DataFrame, part: str, dtype: type[pl.DataType]) -> pl.Expr:
    column = pl.col(part)
    if dtype == pl.Int64 and frame.schema[part].is_float():
        column = pl.lit(frame[part].set(~is_whole(frame[part]), None))
    return column.cast(dtype, strict=False)
