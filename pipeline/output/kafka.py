"""Publish releases and public accounts to Kafka, at least once, after they are durable on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.pipeline.output.sinks import ACCOUNT_KEY, RELEASE_KEY, ROWS, Sink, messages
from penstock.pipeline.sources.reading.kafka_client import Producer

if TYPE_CHECKING:
    from penstock.pipeline.config.sections import KafkaOutput


class Publisher(Sink):
    """Sends the tables of a run to the topics that its configuration names, each row at least once and in order.

    What is released again after a kill is the same, and is sent again under the same key. The broker is not contacted
    before there is something to send.

    Parameters
    ----------
    output
        Brokers and topics.
    """

    def __init__(self, output: KafkaOutput) -> None:
        self.output = output
        self._producer: Producer | None = None

    def releases(self, table: pa.Table) -> None:
        """Send releases; returns when every row has been delivered, and raises `DataError` where one could not be."""
        self._publish(self.output.releases, table, RELEASE_KEY)

    def accounts(self, table: pa.Table) -> None:
        """Send rows of public accounts, as `releases` does."""
        self._publish(self.output.accounts, table, ACCOUNT_KEY)

    def _publish(self, topic: str | None, table: pa.Table, key: tuple[str, ...]) -> None:
        if topic is None:
            return
        if self._producer is None:
            self._producer = Producer(self.output.brokers, self.output.options)
        try:
            for first in range(0, len(table), ROWS):
                for name, text in messages(table.slice(first, ROWS), key):
                    self._producer.send(topic, name, text)
            self._producer.flush()
        except Exception:
            # It would fail for ever; an engine tries again with the same writer.
            self._producer = None
            raise
