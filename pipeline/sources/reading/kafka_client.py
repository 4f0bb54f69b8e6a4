"""Kafka client: topic settings, library options, the producer, and dead letters for messages that were rejected."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.mechanisms.core.plugin import DataError, MissingLibrary, ParameterError, duration, parameter
from penstock.pipeline.sources.base import Reject
from penstock.pipeline.sources.reading.messages import MessageSettings
from penstock.pipeline.sources.reading.services import check_options, resolved_value

#: Seconds that a broker may take to answer.
ANSWER = 20.0


@dataclass(frozen=True, kw_only=True)
class KafkaSettings(MessageSettings):
    """Topic, brokers and message format. The parameters are documented in `penstock.pipeline.sources.kafka.Kafka`."""

    brokers: str = parameter(doc="bootstrap servers: host:port, separated by commas")
    topic: str = parameter(doc="topic to read")
    offset: str = parameter("earliest", choices=("earliest", "latest"), doc="where a new run begins to read")
    disorder: int = duration(1_000, doc="delay of the watermark: most that brokers' clocks differ, or are set back")
    watermark: str = parameter(
        "broker",
        choices=("broker", "events"),
        doc="source of time and lateness: the broker's timestamps and clock; or the latest event (simulations)",
    )
    idle_after: int = duration(
        60_000,
        above=0,
        doc="delay of the clock at the end of a partition, more than the broker's clock may be behind; with "
        "watermark: events, silence after which a partition is left out",
    )
    patience: int | None = duration(
        None,
        above=0,
        doc="time that the topic may be unreachable before the run ends with exit code 1, for --resume to "
        "go on; unset: 5m",
    )
    group: str | None = parameter(None, doc="consumer group for committed offsets, to monitor the lag; never read")
    dead_letters: str | None = parameter(None, doc="topic to which every message with rejected rows is reported")
    options: dict[str, str] = parameter(factory=dict, doc="options of the client, such as those of TLS and SASL")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_options(self.options)
        if not self.topic or self.topic == self.dead_letters:
            raise ParameterError("topic", self.topic, "the name of a topic that is not the one of dead letters")

    @property
    def by_broker(self) -> bool:
        """True if broker timestamps decide whether rows are late."""
        return self.watermark == "broker"

    @property
    def lateness_flaw(self) -> tuple[str, str] | None:
        """See `LiveSource.lateness_flaw`. None for broker timestamps, with which no other row can make a row late."""
        return None if self.by_broker else ("watermark", "broker (from a topic with LogAppendTime)")


def library() -> Any:
    """Return the client library. Raise a `MissingLibrary` that names the extra to install if it is not installed."""
    try:
        import confluent_kafka
        import confluent_kafka.admin
    except ImportError:
        raise MissingLibrary("Kafka needs a client that is not installed: pip install 'penstock[kafka]'") from None
    return confluent_kafka


def null_logger() -> logging.Logger:
    """Return a logger that drops the client's messages, which may quote events; errors are raised."""
    logger = logging.getLogger("penstock.kafka")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    return logger


def resolved_options(brokers: str, options: Mapping[str, str]) -> dict[str, Any]:
    """Return client options with ``env:`` and ``file:`` references resolved. Never write them anywhere."""
    values = {name: resolved_value(name, value) for name, value in options.items()}
    return {"bootstrap.servers": brokers, "client.id": "penstock", **values}


#: Messages that may wait to be sent.
_WAITING = 100_000


class Producer:
    """Idempotent producer with ordered, at-least-once delivery. It reports messages that could not be delivered."""

    def __init__(self, brokers: str, options: Mapping[str, str], *, client: Any = None) -> None:
        # One request at a time: where a partition is new or changes its leader, a broker may refuse the first request
        # and accept the second one; the messages of the first are lost although idempotence is on (KAFKA-15591).
        fixed = {"enable.idempotence": True, "max.in.flight": 1, "error_cb": self._note, "logger": null_logger()}
        defaults = {"linger.ms": 5, "queue.buffering.max.messages": _WAITING, "compression.type": "lz4"}
        self._kafka = client or library()
        self._trouble = ""
        self._failed: list[str] = []
        self._client = self._kafka.Producer(defaults | resolved_options(brokers, options) | fixed)

    def send(self, topic: str, key: str, value: str | bytes, partition: int | None = None) -> None:
        """Queue a message. Raise `DataError` if an earlier message could not be delivered."""

        def on_delivery(error: Any, message: Any) -> None:
            if error is not None:
                self._failed.append(f"topic {message.topic()}: {error.str()}")

        place = {} if partition is None else {"partition": partition}
        while True:
            try:
                self._client.produce(topic, key=key, value=value, on_delivery=on_delivery, **place)
                break
            except BufferError:
                self._client.poll(0.1)
        self._client.poll(0)
        self._check()

    def flush(self) -> None:
        """Wait until all messages have been delivered. Raise `DataError` if delivery fails."""
        waiting = self._client.flush(3 * ANSWER)
        self._check()
        if waiting:
            raise DataError(f"{waiting} messages could not be delivered to Kafka ({self._trouble or 'no answer'})")

    def close(self) -> None:
        """Close the producer, waiting only briefly for outstanding messages."""
        self._client.flush(1.0)

    def _check(self) -> None:
        if self._failed:
            raise DataError(f"a message could not be delivered to Kafka: {self._failed[0]}")

    def _note(self, error: Any) -> None:
        self._trouble = error.str()


def send_letters(producer: Producer, dead_letters: str, rejects: Iterable[Reject]) -> None:
    """Send a dead letter for every rejected message. The message counts as read once the letter is delivered.

    Its key is ``topic/partition/offset``, so that one that is sent again after a kill replaces itself in a compacted
    topic.
    """
    for (file, offset, reason), n_rows in Counter((r.file, r.line, r.reason) for r in rejects).items():
        topic, _, partition = file.rpartition("/")
        letter = {"topic": topic, "partition": int(partition), "offset": offset, "reason": reason, "rows": n_rows}
        producer.send(dead_letters, f"{file}/{offset}", json.dumps(letter))
    producer.flush()
