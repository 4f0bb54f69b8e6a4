"""Kafka topic as a live source: events are counted and released while they arrive."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from penstock.mechanisms.core.state import State
from penstock.pipeline.sources.base import Checkpointed, LiveInput, MicroBatch
from penstock.pipeline.sources.reading import kafka
from penstock.pipeline.sources.reading.kafka_client import KafkaSettings
from penstock.pipeline.sources.reading.offsets import OffsetRange, OffsetsRead


@dataclass(frozen=True, kw_only=True)
class Kafka(KafkaSettings):
    """A topic whose messages hold events.

    A row arrives when the broker appended its message (``message.timestamp.type=LogAppendTime``). Every partition has a
    clock: its latest timestamp, or at its end the time of day less ``idle_after``. The watermark is the earliest of
    these clocks less ``disorder``, and passes a deadline only with a list of the topic's partitions that is younger, by
    ``idle_after``: partitions may be added at any time. With ``until`` the run ends when the watermark has passed it
    (and what is allowed to be late); without, it goes on until it is stopped.

    With ``watermark: events`` the clock of a partition is the latest time of its events, and a partition that has shown
    nothing for ``idle_after`` is left out until it has something again: for simulations with recorded events.

    Parameters
    ----------
    columns
        What messages call the parts of an event. A place is read only where it is named here, and coordinates then only
        where they are named too.
    schema
        Of Avro: JSON text, or ``file:`` and a path.
    options
        Passed on to the client, such as ``security.protocol``. A secret is given as ``env:`` and the name of a
        variable, or ``file:`` and the path of a file that no other user can read.

    Notes
    -----
    **Privacy**: a row is late if the broker appended it at the deadline of all its windows or later. That depends on
    the row and the broker's clock alone, provided that the brokers' clocks differ, and are set back, by no more than
    ``disorder``, and are behind this machine's by no more than ``idle_after``, within which brokers also know of a
    partition that is added. With ``watermark: events`` one person's
    event can make other people's rows late, so that a deployment is refused.

    What the clock decided is written down, so that a run that is continued decides the same.

    Examples
    --------
    >>> source = Kafka(brokers="localhost:9092", topic="events", columns={"place": "stop"})
    >>> source.layout.columns
    {'user': 'user', 'time': 'time', 'place': 'stop'}
    """

    has_offsets = True

    @property
    def recorded(self) -> Kafka:
        """The topic alone, whatever the way it is read."""
        plain = replace(self, disorder=0, checkpoint=0, options={}, group=None, patience=None)
        return replace(plain, dead_letters=None, dead_letter_content=False)

    def micro_batches(
        self, run: LiveInput, folder: Path, start: State, number: int, latest: int, checkpointed: Checkpointed
    ) -> Iterator[MicroBatch | None]:
        """Messages as they arrive; a journal with the run keeps what was decided since the latest checkpoint."""
        return kafka.micro_batches(self, run, start, number, latest, checkpointed)

    def starts(self, run: LiveInput) -> list[State]:
        """One for each partition, up to a limit."""
        return kafka.starts(self, run)

    def check_beginning(self, run: LiveInput, counted: Sequence[OffsetRange]) -> None:
        """As in `LiveSource`: retention deletes messages, and a topic may be created again."""
        kafka.check_beginning(self, run, counted)

    def topic_id(self, run: LiveInput) -> str | None:
        """Identity that brokers gave the topic when it was created."""
        return kafka.topic_id(run)

    def unread(self, read: OffsetsRead) -> list[str]:
        """Messages that brokers appended before the last window was final, or whole partitions."""
        return kafka.unread(self, read)

    def digests(self) -> dict[str, str]:
        """SHA-256 of the topic's address; its content has no end."""
        text = json.dumps([self.brokers, self.topic])
        return {f"kafka:{self.topic}": hashlib.sha256(text.encode()).hexdigest()}
