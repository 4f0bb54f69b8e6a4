"""Publish releases and public accounts to Kafka, at least once, after they are durable on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.pipeline.output.sinks import MessageSink
from penstock.pipeline.sources.reading.kafka_client import Producer

if TYPE_CHECKING:
    from penstock.pipeline.config.sections import KafkaOutput


class Publisher(MessageSink):
    """Sends the tables of a run to the topics of Kafka that its configuration names.

    Parameters
    ----------
    output
        Brokers and topics.
    """

    def __init__(self, output: KafkaOutput) -> None:
        super().__init__(output.releases, output.accounts)
        self.output = output

    def _connect(self) -> Producer:
        return Producer(self.output.brokers, self.output.options)

    def _send(self, topic: str, rows: list[tuple[str, bytes]]) -> None:
        for name, text in rows:
            self._client.send(topic, name, text)
        self._client.flush()
