"""JSON files in which each event is an object, either in a list or on a line of its own."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import IO, Any

import polars as pl

from penstock.mechanisms.core.plugin import DataError, parameter
from penstock.pipeline.sources.base import EventBlock, RowOrder, Span
from penstock.pipeline.sources.reading.columns import MappedColumns
from penstock.pipeline.sources.reading.inputs import PathSource, open_inputs
from penstock.pipeline.sources.reading.payload import column_of, value_at
from penstock.pipeline.sources.reading.text import (
    MAX_RAW_CHARACTERS,
    as_numbers,
    numbered_rows,
    raw_text,
    table_blocks,
)

#: Objects that are read together at most, and those that tell which columns there are.
_BATCH_OBJECTS, _FIRST = 1 << 16, 1000


@dataclass(frozen=True, kw_only=True)
class Json(MappedColumns, PathSource):
    """Read events from JSON: the objects of a list in a document, or one object per line.

    Names in ``columns`` are paths, such as ``start_location.lat``; numbers count the entries of lists from 0, and −1 is
    the last: ``route.features.-1.geometry.coordinates.0``. Trips of the Mobility Data Specification (MDS) have no
    rider: with an empty user each is protected by itself.

    Parameters
    ----------
    records
        Path to the list, such as ``data.trips``; not needed where it is the only list of objects.

    Notes
    -----
    Memory: a document is read as a whole and takes several times its size; lines are read piece by piece.

    Examples
    --------
    >>> Json(path="trips.json", columns={"user": "", "time": "start_time"}).has_people
    False
    """

    records: str = parameter("", doc="path to the list of events in a document, such as data.trips")

    patterns = ("*.json", "*.jsonl", "*.ndjson", "*.geojson")
    bytes_per_row = 400

    def read(self, span: Span) -> Iterator[EventBlock]:
        """Read a span's files. The line number of a reject is the 1-based index of its object."""
        order = RowOrder(self, span.after)
        for file, stream in open_inputs(span.files, self.patterns):
            columns, row = dict[str, str](), 0
            for objects in self.objects(file, stream):
                if not columns:
                    stated = (
                        name for name in self.columns.values() if any(value_at(name, x) is not None for x in objects)
                    )
                    columns = self.find_columns([*dict.fromkeys((*names_in(objects[:_FIRST]), *stated))], file)
                yield from self._blocks(objects, columns, file, row, order)
                row += len(objects)

    def objects(self, file: str, stream: IO[bytes]) -> Iterator[list[Any]]:
        """Yield a file's objects in batches. A line that does not contain an object is yielded as text."""
        lists = lists_of(file, stream)
        records = self.records or next(iter(lists if len(lists) == 1 else ("",)))
        if records not in lists:
            known = ", ".join(lists) or "none"
            raise DataError(f"{file}: source.records must say which list of objects holds the events (lists: {known})")
        entries = iter(lists[records])
        while batch := list(islice(entries, min(self.block_rows, _BATCH_OBJECTS))):
            yield batch

    def _blocks(
        self, objects: list[Any], columns: dict[str, str], file: str, row: int, order: RowOrder
    ) -> Iterator[EventBlock]:
        parts = pl.DataFrame([text_at(name, objects).alias(part) for part, name in columns.items()])
        events = self.joined(parts, [file])
        if "user" not in columns:
            events = events.with_columns(numbered_rows(file, row, len(objects)))
        is_object = pl.Series([isinstance(each, dict) for each in objects])
        degrees = [name for name in ("latitude", "longitude") if name in columns]
        events = self.timed(events.with_columns(as_numbers(pl.col(degrees))))
        problem = pl.when(is_object).then(pl.col("problem")).otherwise(pl.lit("not a JSON object"))

        def raw(rows: list[int]) -> list[str]:
            texts = (json.dumps(objects[row], ensure_ascii=False) for row in rows)
            return [raw_text(text.encode("utf-8", "replace")) for text in texts]

        events = events.with_columns(problem=problem)
        return table_blocks(events, file, row, "object", raw, order, self.block_rows)


def lists_of(file: str, stream: IO[bytes]) -> dict[str, Iterable[Any]]:
    """Return every list of objects in a document by its path. In a file with one object per line, the path is ""."""
    lines = (line for line in stream if line.strip())
    head = list(islice(lines, 2))
    first = _parsed(head[0]) if head else ""
    if isinstance(first, dict) and (len(head) > 1 or not lists_in(first)):
        return {"": map(_parsed, chain(head, lines))}
    try:
        return lists_in(json.loads(b"".join(chain(head, lines)) or b"[]"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{file}: is neither a JSON document nor an object a line ({error})") from error


def lists_in(value: Any, path: str = "") -> dict[str, Iterable[Any]]:
    """Return every list of objects in a JSON value by its path.

    >>> lists_in({"version": "1.2.0", "data": {"trips": [{"trip_id": "a"}]}, "ttl": [1]})
    {'data.trips': [{'trip_id': 'a'}]}
    """
    if isinstance(value, list) and (not value or any(isinstance(entry, dict) for entry in value)):
        return {path: value}
    inside = value.items() if isinstance(value, dict) else ()
    return {
        name: entries for key, part in inside for name, entries in lists_in(part, f"{path}.{key}".lstrip(".")).items()
    }


def names_in(objects: Iterable[Any]) -> dict[str, None]:
    """Return the paths of all scalars in the objects. Of a list, only the first entry counts, or two for numbers.

    >>> list(names_in([{"id": 7, "geometry": {"coordinates": [8.5, 47.4, 408]}}]))
    ['id', 'geometry.coordinates.0', 'geometry.coordinates.1']
    """

    def leaves(value: Any, path: str) -> Iterator[str]:
        if isinstance(value, list):
            value = dict(enumerate(value[: 2 if value and isinstance(value[0], int | float) else 1]))
        if not isinstance(value, dict):
            yield path
            return
        for key, part in value.items():
            yield from leaves(part, f"{path}.{key}" if path else str(key))

    return dict.fromkeys(name for each in objects for name in leaves(each, "") if name)


def text_at(name: str, objects: Iterable[Any]) -> pl.Series:
    """Return the value at a path in each object as text. Anything other than text or a number becomes null.

    >>> text_at("user", [{"user": 7}, {"user": 7.0}, {"user": 7.5}]).to_list()
    ['7', '7', '7.5']
    """
    values = (value_at(name, each) for each in objects)
    return column_of("place", pl.String, [_exact(value) if type(value) is float else value for value in values])


def _exact(value: float) -> int | str:
    """Return the integer that a float represents, or the float's text if the integer would be ambiguous."""
    return int(value) if value.is_integer() and abs(value) < 2**53 else repr(value)


def _parsed(line: bytes) -> Any:
    """Return the object on a line, or the text of the line if it does not contain an object."""
    try:
        value = json.loads(line.removeprefix(b"\xef\xbb\xbf"))
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else line[:MAX_RAW_CHARACTERS].decode("utf-8", "replace").strip()
