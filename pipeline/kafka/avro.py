"""Messages of one Avro record each, by a schema that bounds what a message can hold."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

from mechanisms.core.errors import ParameterError
from pipeline.kafka.arrow import Malformed

#: Avro's types without anything in them, which a hostile message cannot blow up.
_FLAT = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
#: Length of what a registry of schemas puts first.
_MAGIC = 5


def avro_parser(schema: str, header: bool) -> Callable[[bytes], Any]:
    """What reads messages of one Avro record each, written with a schema of plain fields.

    Parameters
    ----------
    schema
        JSON text of the schema.
    header
        Whether five bytes come before the record, as registries of schemas have it; they are skipped.

    Examples
    --------
    >>> parse = avro_parser('{"type": "record", "name": "e", "fields": [{"name": "user", "type": "string"}]}', False)
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
        if header and (len(value) < _MAGIC or value[0] != 0):
            raise Malformed("no schema id before the Avro record")
        stream.seek(_MAGIC if header else 0)
        try:
            event: Any = fastavro.schemaless_reader(stream, parsed, None)
        except Exception:  # whatever bytes can do to a reader: end of data, bad UTF-8, an index out of range, …
            raise Malformed("not a record of the Avro schema") from None
        if stream.read(1):
            raise Malformed("bytes after the Avro record")
        return dict(event)

    return parse


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
