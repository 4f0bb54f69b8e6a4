"""Events from a topic of Kafka, counted and released while they arrive."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from mechanisms.core.plugin import DataError, ParameterError, parameter
from mechanisms.core.state import State
from pipeline.sources.base import EventBlock, LiveSource, Span
from pipeline.sources.reading.kafka_client import check_options
from pipeline.sources.reading.payload import Layout, Parser, parser_of
from pipeline.sources.reading.text import MappedColumns
from pipeline.sources.reading.times import TimeFormat

if TYPE_CHECKING:
    from pipeline.config.plan import Plan
    from pipeline.sources.base import Slice


@dataclass(frozen=True, kw_only=True)
class Kafka(MappedColumns, LiveSource):
    """A topic whose messages hold events.

    Every partition has a time of its own, the latest of its events so far. The watermark is the earliest of these times
    less ``disorder``; a partition that has been read to its end and has shown nothing for ``idle_after`` is left out
    until it has something again. With ``until`` the run ends when the watermark has passed it (and what is allowed to
    be late); without, it goes on until it is stopped.

    Parameters
    ----------
    columns
        What messages call the parts of an event. A place is read only where it is named here, and coordinates then only
        where they are named too.
    schema
        Of Avro: JSON text, or ``file:`` and a path.
    options
        Passed on to the client, such as ``security.protocol``. A secret is given as ``env:`` and the name of a
        variable, or ``file:`` and the path of a file that nobody else can read.

    Notes
    -----
    A row is late where its window was final as it arrived. That depends on its own partition alone, unless the
    partition had been left out as idle; what was left out when is written down, so that a run that is continued decides
    the same.

    Examples
    --------
    >>> source = Kafka(brokers="localhost:9092", topic="events", columns={"place": "stop"})
    >>> source.layout.columns
    {'user': 'user', 'time': 'time', 'place': 'stop'}
    """

    brokers: str = parameter(doc="addresses to begin with: host:port, several with commas between them")
    topic: str = parameter(doc="topic to read")
    format: str = parameter(
        "json", choices=("json", "avro", "arrow"), doc="a JSON object or an Avro record a message, or a block of Arrow"
    )
    schema: str | None = parameter(None, doc="Avro schema: JSON text, or file: and a path")
    schema_ids: bool = parameter(
        False, choices=(True, False), doc="whether five bytes with a registry's schema id begin an Avro message"
    )
    user_type: str = parameter("string", choices=("string", "integer"), doc="type of the user's identifier")
    offset: str = parameter("earliest", choices=("earliest", "latest"), doc="where a new run begins to read")
    idle_after: int = parameter(
        60_000, kind="duration", above=0, unit="ms", doc="time without an event after which a partition is left out"
    )
    clock: bool = parameter(
        False,
        choices=(True, False),
        doc="whether time goes on by the clock, less idle_after, while all partitions are idle; for live events",
    )
    ahead: int = parameter(
        86_400_000,
        kind="duration",
        at_least=0,
        unit="ms",
        doc="how far an event may be ahead of its message's timestamp; one that is further is rejected",
    )
    group: str | None = parameter(
        None, doc="consumer group that is told how far the run has come, for watching its lag; never read"
    )
    dead_letters: str | None = parameter(None, doc="topic that is told of every message with rows that were rejected")
    dead_letter_content: bool = parameter(
        False, choices=(True, False), doc="whether dead letters hold the message itself, which tells of people"
    )
    options: dict[str, str] = parameter(factory=dict, doc="options of the client, such as those of TLS and SASL")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_options(self.options)
        if not self.topic or self.topic == self.dead_letters:
            raise ParameterError("topic", self.topic, "the name of a topic that is not the one of dead letters")
        if (self.format == "avro") != (self.schema is not None):
            expected = "given for avro" if self.format == "avro" else "left out, but for avro"
            raise ParameterError("schema", self.schema, expected)
        self.parser  # noqa: B018 (what is wrong is refused here rather than on a worker)

    @property
    def layout(self) -> Layout:
        """Which columns the messages have."""
        parts = ["user", "time"]
        if "place" not in self.columns or "latitude" in self.columns or "longitude" in self.columns:
            parts += ["latitude", "longitude"]
        parts += ["place"] if "place" in self.columns else []
        names = {part: self.columns.get(part, part) for part in parts}
        return Layout(names, TimeFormat(self.time_format, self.time_zone), self.user_type == "integer")

    @property
    def parser(self) -> Parser | None:
        """What reads one message; None for blocks of Arrow."""
        schema = self.schema
        if schema is not None and schema.startswith("file:"):
            try:
                schema = Path(schema.removeprefix("file:")).read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise ParameterError("schema", self.schema, f"a file that can be read ({error})") from None
        return parser_of(self.format, schema, self.schema_ids)

    @property
    def recorded(self) -> Kafka:
        """The topic alone, whatever the way it is read."""
        plain = replace(self, disorder=0, checkpoint=0, options={}, group=None)
        return replace(plain, dead_letters=None, dead_letter_content=False)

    def slices(self, plan: Plan, folder: Path, start: State, number: int, latest: int) -> Iterator[Slice | None]:
        """Messages as they arrive; ``folder`` keeps what was decided since the latest checkpoint."""
        from pipeline.sources.reading.kafka import slices  # it needs plans, and these need sources

        return slices(self, plan, folder, start, number, latest)

    def starts(self, plan: Plan) -> list[State]:
        """One for each partition."""
        from pipeline.sources.reading.kafka import starts

        return starts(self, plan)

    def taken(self, plan: Plan, position: State) -> None:
        """The consumer group is told, if there is one."""
        from pipeline.sources.reading.kafka import taken

        taken(plan, position)

    def spans(self) -> list[Span]:
        """None: raises `DataError`, since a topic is read once, as it comes."""
        raise DataError(
            f"topic {self.topic}: is read as it comes, and not beforehand; give what would be read in a file"
        )

    def read(self, span: Span) -> Iterator[EventBlock]:
        """As `spans`."""
        raise DataError(f"topic {self.topic}: is read as it comes")

    def digests(self) -> dict[str, str]:
        """SHA-256 of the topic's address; its content has no end."""
        text = json.dumps([self.brokers, self.topic])
        return {f"kafka:{self.topic}": hashlib.sha256(text.encode()).hexdigest()}
