"""JSON files whose events are the objects of a list, or one object per line."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import PurePath
from typing import IO, Any

import polars as pl

from penstock.mechanisms.core.plugin import DataError, parameter
from penstock.pipeline.sources.base import EventBlock, FileSource, Reject, RowOrder, Span
from penstock.pipeline.sources.reading.columns import MappedColumns
from penstock.pipeline.sources.reading.inputs import list_files, open_inputs, sha256, share_out
from penstock.pipeline.sources.reading.payload import column_of
from penstock.pipeline.sources.reading.text import MAX_RAW_CHARACTERS, as_numbers, join_date, raw_text, sifted

#: Objects that are read together at most, and those that tell which columns there are.
_BATCH_OBJECTS, _FIRST = 1 << 16, 1000
#: Bytes of a file that an object is taken for.
_BYTES = 400


@dataclass(frozen=True, kw_only=True)
class Json(MappedColumns, FileSource):
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

    path: str = parameter(kind="path", doc="a file, a directory, a pattern such as data/*.json, or an archive")
    records: str = parameter("", doc="path to the list of events in a document, such as data.trips")

    patterns = ("*.json", "*.jsonl", "*.ndjson", "*.geojson")

    def files(self) -> list[str]:
        """Return the input files in reading order."""
        return list_files(self.path, self.patterns)

    def spans(self) -> list[Span]:
        """Group whole files into spans of about ``block_rows`` rows each."""
        return share_out(self.files(), self.block_rows * _BYTES)

    def digests(self) -> dict[str, str]:
        """Return the SHA-256 digest of every input file, by its path relative to ``path``."""
        return sha256(self.files(), self.path)

    def read(self, span: Span) -> Iterator[EventBlock]:
        """Read the files of a span. The line number of a reject is the 1-based index of its object."""
        order = RowOrder(self, span.after)
        for file, stream in open_inputs(span.files, self.patterns):
            columns, row = dict[str, str](), 0
            for objects in self.objects(file, stream):
                columns = columns or self.find_columns(self._names(objects), file)
                yield from self._blocks(objects, columns, file, row, order)
                row += len(objects)

    def objects(self, file: str, stream: IO[bytes]) -> Iterator[list[Any]]:
        """Yield the objects of a file in batches, with the text of any line that is not an object."""
        lists = lists_of(file, stream)
        records = self.records or next(iter(lists if len(lists) == 1 else ("",)))
        if records not in lists:
            known = ", ".join(lists) or "none"
            raise DataError(f"{file}: source.records must say which list of objects holds the events (lists: {known})")
        entries = iter(lists[records])
        while batch := list(islice(entries, min(self.block_rows, _BATCH_OBJECTS))):
            yield batch

    def _names(self, objects: Sequence[Any]) -> list[str]:
        """Return the paths of the values found in objects, and of further values that ``columns`` names."""
        stated = (name for name in self.columns.values() if any(_at(name, each) is not None for each in objects))
        return list(dict.fromkeys((*names_in(objects[:_FIRST]), *stated)))

    def _blocks(
        self, objects: list[Any], columns: dict[str, str], file: str, row: int, order: RowOrder
    ) -> Iterator[EventBlock]:
        events = join_date(pl.DataFrame([text_at(name, objects).alias(part) for part, name in columns.items()]))
        if "user" not in columns:
            number = pl.int_range(row + 1, row + 1 + len(objects), eager=True).cast(pl.String)
            events = events.with_columns(user=PurePath(file).name + ":" + number)
        is_object = pl.Series([isinstance(each, dict) for each in objects])
        degrees = (name for name in ("latitude", "longitude") if name in columns)
        events = self.timed(events.with_columns(as_numbers(pl.col(list(degrees)))))
        problem = pl.when(is_object).then(pl.col("problem")).otherwise(pl.lit("not a JSON object"))
        events, sound, unsound = sifted(events.with_columns(problem=problem))
        rejects = [
            Reject(
                file,
                row + i + 1,
                reason,
                raw_text(json.dumps(objects[i], ensure_ascii=False).encode("utf-8", "replace")),
            )
            for i, reason in unsound.items()
        ]
        order.check(events["time"].to_numpy(), lambda i: f"{file}, object {row + sound[i] + 1}")
        yield from EventBlock(events.drop("problem"), len(objects), tuple(rejects)).pieces(self.block_rows)


def lists_of(file: str, stream: IO[bytes]) -> dict[str, Iterable[Any]]:
    """Return the lists of objects in a document by path, or the lines of a file with one object per line under the
    path "".
    """
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
    """Return the lists of objects in a document, by path.

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
    """Return the paths of the plain values in objects. A list contributes its first entry, or its first two numbers.

    >>> list(names_in([{"id": 7, "geometry": {"coordinates": [8.5, 47.4, 408]}}]))
    ['id', 'geometry.coordinates.0', 'geometry.coordinates.1']
    """
    return dict.fromkeys(name for each in objects for name in _leaves(each) if name)


def _leaves(value: Any, path: str = "") -> Iterator[str]:
    if isinstance(value, list):
        value = dict(enumerate(value[: 2 if value and isinstance(value[0], int | float) else 1]))
    if not isinstance(value, dict):
        yield path
        return
    for key, part in value.items():
        yield from _leaves(part, f"{path}.{key}" if path else str(key))


def text_at(name: str, objects: Iterable[Any]) -> pl.Series:
    """Return the values at a path in objects as text, with null if there is no text or number."""
    values = (_at(name, each) for each in objects)
    return column_of("place", pl.String, [repr(value) if type(value) is float else value for value in values])


def _at(name: str, value: Any) -> Any:
    """Return the value at a path inside another value, or None if there is none."""
    for step in name.split("."):
        try:
            value = value[int(step)] if isinstance(value, list) else value.get(step)
        except (AttributeError, IndexError, ValueError):  # a plain value, a shorter list, no number
            return None
    return value


def _parsed(line: bytes) -> Any:
    """Return the object on a line, or the text of the line if it is not an object."""
    try:
        value = json.loads(line.removeprefix(b"\xef\xbb\xbf"))
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else line[:MAX_RAW_CHARACTERS].decode("utf-8", "replace").strip()
