"""Blocks of Arrow from strangers: what a message claims is checked before anything is unpacked."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import polars as pl
import pyarrow as pa

#: What one message may hold at most: rows, and bytes after unpacking.
MAX_ROWS, MAX_BYTES = 1_000_000, 256 << 20
#: Fields of the tables of Arrow's message format: header of a message; rows, buffers and compression of a batch.
_HEADER, _LENGTH, _BUFFERS, _COMPRESSION = 2, 0, 2, 3


class Malformed(ValueError):
    """A message that holds no event; says why in words that tell nothing of its content."""


def read_block(data: bytes, columns: Mapping[str, str]) -> pl.DataFrame:
    """Some columns of a message in Arrow's streaming format, with the types that they have there.

    Parameters
    ----------
    data
        The message.
    columns
        Name in the message by the name that is wanted.

    Raises
    ------
    Malformed
        Anything but record batches of plain columns within `MAX_ROWS` and `MAX_BYTES`.

    Examples
    --------
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
    frame = pl.DataFrame(pa.Table.from_batches(batches))
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
    """Where an offset of a flat buffer leads."""
    return at + int(struct.unpack_from("<I", data, at)[0])


def _field(data: bytes, table: int, number: int) -> int:
    """Where a table of a flat buffer keeps one of its fields; 0 where it is left out."""
    index = table - int(struct.unpack_from("<i", data, table)[0])
    (size,) = struct.unpack_from("<H", data, index)
    entry = 4 + 2 * number
    offset = struct.unpack_from("<H", data, index + entry)[0] if entry < size else 0
    return table + int(offset) if offset else 0
