"""Message settings, and conversion of messages to events and rejects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from penstock.mechanisms.core.plugin import ParameterError, duration, parameter
from penstock.pipeline.sources.base import EventBlock, LiveSource, Reject
from penstock.pipeline.sources.reading.columns import MappedColumns
from penstock.pipeline.sources.reading.payload import Layout, Parser, avro_times, check_avro, parser_of, read_messages
from penstock.pipeline.sources.reading.text import MAX_RAW_CHARACTERS, raw_text, split_valid


@dataclass(frozen=True, kw_only=True)
class MessageSettings(MappedColumns, LiveSource):
    """The format of the events in a live source's messages."""

    format: str = parameter("json", choices=("json", "avro"), doc="one JSON object or Avro record per message")
    schema: str | None = parameter(None, doc="Avro schema: JSON text, or file: and a path")
    schema_ids: bool = parameter(
        False, choices=(True, False), doc="messages begin with five bytes of a registry's schema id"
    )
    user_type: str = parameter("string", choices=("string", "integer"), doc="type of the user's identifier")
    ahead: int = duration(86_400_000, doc="most that an event is ahead of its message's timestamp; others are rejected")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.has_arrival:
            expected = "left out: a row arrives at the timestamp of its message"
            raise ParameterError("columns.arrival", self.columns["arrival"], expected)
        if self.columns.get("date"):
            raise ParameterError("columns.date", self.columns["date"], "left out: a message holds its whole time")
        if self.columns.get("point"):
            expected = "left out: a message holds latitude and longitude, such as geometry.coordinates.1 and .0"
            raise ParameterError("columns.point", self.columns["point"], expected)
        if not self.has_people:
            raise ParameterError("columns.user", "", "the name of a field: a message says whom it is about")
        if (self.format == "avro") != (self.schema is not None):
            expected = "given for avro" if self.format == "avro" else "left out, but for avro"
            raise ParameterError("schema", self.schema, expected)
        self.parser  # noqa: B018 (what is wrong is refused here rather than on a worker)
        self.layout  # noqa: B018

    @property
    def layout(self) -> Layout:
        """The column layout of the messages."""
        parts = ["user", "time"]
        if "place" not in self.columns or "latitude" in self.columns or "longitude" in self.columns:
            parts += ["latitude", "longitude"]
        parts += ["place"] if "place" in self.columns else []
        names = {part: self.columns.get(part, part) for part in parts}
        time, schema = self.time, self._schema_text
        if schema is not None:
            time = avro_times(schema, names["time"], time)
        layout = Layout(names, time, self.user_type == "integer")
        if schema is not None:
            check_avro(schema, layout)
        return layout

    @property
    def _schema_text(self) -> str | None:
        if self.schema is None or not self.schema.startswith("file:"):
            return self.schema
        try:
            return Path(self.schema.removeprefix("file:")).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ParameterError("schema", self.schema, f"a file that can be read ({error})") from None

    @property
    def parser(self) -> Parser:
        """The function that parses a single message."""
        return parser_of(self.format, self._schema_text, self.schema_ids)


def events_of(
    source: MessageSettings,
    values: Sequence[bytes | None],
    arrivals: NDArray[np.int64],
    place: Callable[[int], tuple[str, int]],
) -> EventBlock:
    """Return the events in the given messages, with an ``arrival`` column. Every message is either parsed or rejected.

    ``place``: file and line that stand for a message, by its number here, in a reject.
    """
    rows = read_messages(values, source.layout, source.parser)
    arrival = arrivals[rows.message]
    is_ahead = pl.Series(rows.frame["time"].fill_null(0).to_numpy() - source.ahead > arrival)
    events = rows.frame.with_columns(
        pl.Series("arrival", arrival),
        pl.when(is_ahead)
        .then(pl.lit("time is later than its message was sent"))
        .otherwise(rows.time_problems)
        .alias("problem"),
    )
    sound, _, unsound = split_valid(events)
    rejects = [Reject(*place(i), reason, raw_text(values[i] or b"")) for i, reason in rows.problems.items()]
    rejects += [
        Reject(*place(int(rows.message[row])), reason, str(rows.frame.row(row))[:MAX_RAW_CHARACTERS])
        for row, reason in unsound.items()
    ]
    frame = sound.drop("problem")
    return EventBlock(frame, frame.height + len(rejects), tuple(rejects))
