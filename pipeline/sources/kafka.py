"""A Kafka topic as a live source. Events are counted and released as they arrive."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from penstock.mechanisms.core.plugin import DataError
from penstock.mechanisms.core.state import State
from penstock.pipeline.atomic import write_first
from penstock.pipeline.sources.base import Checkpointed, LiveInput, MicroBatch
from penstock.pipeline.sources.reading import kafka
from penstock.pipeline.sources.reading.kafka_client import KafkaSettings
from penstock.pipeline.sources.reading.kafka_progress import PartitionAssignment
from penstock.pipeline.sources.reading.offsets import OffsetRange, OffsetsRead

#: File with the identity of the topic that a run has begun with.
_TOPIC = "topic"


@dataclass(frozen=True, kw_only=True)
class Kafka(KafkaSettings):
    """Read events from the messages of a Kafka topic.

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
        What messages call the parts of an event. A place is read only if it is named here, and coordinates then only
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
        """The topic's configuration, without the options that concern reading it."""
        plain = replace(self, disorder=0, checkpoint=0, options={}, group=None, patience=None)
        return replace(plain, dead_letters=None)

    def micro_batches(
        self, run: LiveInput, folder: Path, start: State, number: int, latest: int, checkpointed: Checkpointed
    ) -> Iterator[MicroBatch | None]:
        """Yield messages as they arrive, journalling decisions since the checkpoint in the run's folder."""
        with closing(kafka.Consumer(self)) as consumer:
            self._check_topic(run, consumer)
            yield from kafka.micro_batches(self, run, consumer, start, number, latest, checkpointed)

    def starts(self, run: LiveInput) -> list[State]:
        """Return each reader's initial position. There is one reader per partition, up to ``run.max_readers``."""
        path = run.spool / "readers"
        if not path.exists():
            with closing(kafka.Consumer(self)) as consumer:
                write_first(path, str(min(run.max_readers, len(consumer.partitions()))).encode())
        n_readers = int(path.read_bytes())
        return [PartitionAssignment(reader, n_readers).as_state() for reader in range(n_readers)]

    def check_beginning(self, run: LiveInput, counted: Sequence[OffsetRange]) -> None:
        """Raise `DataError` if the topic no longer contains the offsets at which the run started."""
        with closing(kafka.Consumer(self)) as consumer:
            if self.topic_id(run) is not None:
                self._check_topic(run, consumer)
            for partition, first in {span.partition: span.first for span in reversed(counted)}.items():
                if (low := consumer.bounds(partition)[0]) > first:
                    raise consumer.lost_offsets_error(partition, first, low)

    def topic_id(self, run: LiveInput) -> str | None:
        """Return the identifier that the brokers assigned to the topic, or None if it has not been read yet."""
        path = run.spool / _TOPIC
        return path.read_text() if path.exists() else None

    def _check_topic(self, run: LiveInput, consumer: kafka.Consumer) -> None:
        """Raise `DataError` if the topic has been recreated since the run began."""
        consumer.partitions()  # says in words what is wrong where no broker answers
        now = consumer.topic_id()
        if not write_first(run.spool / _TOPIC, now.encode()) and (begun := self.topic_id(run)) != now:
            raise DataError(
                f"topic {self.topic} was created again since the run began (its id was {begun} and is {now}): what it "
                "held is gone, and its offsets mean other messages. Begin another run in another folder, on the same "
                "output.ledger, with 'from' at the first window that is not released"
            )

    def describe_unread_input(self, read: OffsetsRead) -> list[str]:
        """Describe unread messages, or whole unread partitions, appended before the last window was final.

        A row that its broker appended before the last window was final is part of the run; with ``watermark: events``
        the readers alone know how far it goes, but every partition with a message has one.
        """
        words = []
        with closing(kafka.Consumer(self)) as consumer:
            partitions = consumer.partitions()
            if (now := consumer.topic_id()) != read.topic_id and read.topic_id is not None:
                raise DataError(f"topic {self.topic} was created again (its id was {read.topic_id} and is {now})")
            for partition in partitions:
                low, high = consumer.bounds(partition)
                ranges = [span for span in read.ranges if span.partition == partition]
                if ranges and self.offset == "earliest" and low < ranges[0].first:
                    words.append(f"offsets {low} to {ranges[0].first} of partition {partition} were not read")
                if read.over is None:
                    continue
                begin = ranges[-1].end if ranges else low
                if self.by_broker:
                    high = consumer.end_before(partition, read.over)
                elif ranges:
                    continue
                # What a broker has deleted meanwhile it can say nothing of.
                first = consumer.next_message(partition, begin) if low <= begin < high else None
                if first is not None and first < high:
                    words.append(f"offsets {first} to {high} of partition {partition} were not read")
        return words

    def digests(self) -> dict[str, str]:
        """Return the SHA-256 digest of the topic's address. The contents are unbounded, so they have no digest."""
        text = json.dumps([self.brokers, self.topic])
        return {f"kafka:{self.topic}": hashlib.sha256(text.encode()).hexdigest()}
