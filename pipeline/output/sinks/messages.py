"""Kafka and Pub/Sub sinks, which send each row as a message at least once after it has been written to disk."""

from __future__ import annotations

import importlib
import io
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa

from penstock.mechanisms.core.plugin import DataError, MissingLibrary
from penstock.pipeline.output.sinks import Sink
from penstock.pipeline.sources.reading.kafka_client import Producer

if TYPE_CHECKING:
    from penstock.pipeline.config.sections import KafkaOutput, PubSubOutput


#: What makes two rows the same one, wherever they are sent.
RELEASE_KEY = ("stream", "window", "cell")
ACCOUNT_KEY = ("stream", "accountant", "subject", "window", "name")
#: Rows that are made into messages together.
ROWS = 20_000
#: Seconds that Pub/Sub may take to take what was sent.
PATIENCE = 60.0
#: Messages and bytes of one request to it at most: the service's own limits are 1,000 and 10 MB.
_MESSAGES, _BYTES = 1000, 4 << 20


class MessageSink(Sink):
    """Base class for sinks that send each table's rows to its topic, if it has one, in order and at least once.

    What is released again after a kill is sent again under the same key. The service is not contacted before there is
    something to send.
    """

    def __init__(self, output: Any) -> None:
        self.output = output
        self._client: Any = None

    def releases(self, table: pa.Table) -> None:
        """Send releases and wait until every row has been delivered. Raises `DataError` on failure."""
        self._publish(self.output.releases, table, RELEASE_KEY)

    def accounts(self, table: pa.Table) -> None:
        """Send rows of the public accounts in the same way as `releases`."""
        self._publish(self.output.accounts, table, ACCOUNT_KEY)

    def _publish(self, topic: str | None, table: pa.Table, key: tuple[str, ...]) -> None:
        if topic is None:
            return
        if self._client is None:
            self._client = self._connect()
        try:
            for first in range(0, len(table), ROWS):
                self._send(topic, messages(table.slice(first, ROWS), key))
        except Exception:
            self._client = None  # it would refuse all that follows; an engine tries again with the same sink
            raise

    def _connect(self) -> Any:
        """Return the client that sends messages."""
        raise NotImplementedError

    def _send(self, topic: str, rows: list[tuple[str, bytes]]) -> None:
        """Send messages, each consisting of a key and a string, and wait until all have been delivered."""
        raise NotImplementedError


def messages(table: pa.Table, key: tuple[str, ...]) -> list[tuple[str, bytes]]:
    """Return each row's key and JSON text.

    >>> messages(pa.table({"stream": ["main"], "window": [1], "value": [2.0]}), ("stream", "window"))
    [('main/1', b'{"stream":"main","window":1,"value":2.0}')]
    """
    frame = pl.DataFrame(table).with_columns(
        pl.col(pl.Categorical).cast(pl.String), pl.col(pl.Datetime).dt.strftime("%Y-%m-%dT%H:%M:%S%.3fZ")
    )
    keys = frame.select(pl.concat_str([pl.col(name).cast(pl.String).fill_null("") for name in key], separator="/"))
    lines = io.BytesIO()
    frame.write_ndjson(lines)
    return list(zip(keys.to_series(), lines.getvalue().splitlines()))


class Publisher(MessageSink):
    """Sink that sends a run's tables to the configured Kafka topics."""

    output: KafkaOutput

    def _connect(self) -> Producer:
        return Producer(self.output.brokers, self.output.options)

    def _send(self, topic: str, rows: list[tuple[str, bytes]]) -> None:
        for name, text in rows:
            self._client.send(topic, name, text)
        self._client.flush()


class PubSub(MessageSink):
    """Sink that sends a run's tables to Pub/Sub topics, each row as a JSON object of the file's columns.

    The attribute ``id`` says which row it is, so that readers can drop a repeat: it has the same bytes. The ordering
    key is the stream: a subscription with message ordering gets windows in order.
    """

    output: PubSubOutput

    def _connect(self) -> Any:
        """Return the official client. Raises `MissingLibrary`, naming the extra to install, if it is missing."""
        try:
            pubsub: Any = importlib.import_module("google.cloud.pubsub_v1")
        except ImportError:
            raise MissingLibrary(
                "Pub/Sub needs a client that is not installed: pip install 'penstock[pubsub]'"
            ) from None
        return pubsub.PublisherClient(
            batch_settings=pubsub.types.BatchSettings(max_messages=_MESSAGES, max_bytes=_BYTES),
            publisher_options=pubsub.types.PublisherOptions(enable_message_ordering=True),
            client_options={"api_endpoint": self.output.endpoint} if self.output.endpoint else {},
        )

    def _send(self, topic: str, rows: list[tuple[str, bytes]]) -> None:
        try:
            publish = self._client.publish
            sent = [publish(topic, text, ordering_key=name.partition("/")[0], id=name) for name, text in rows]
            for answer in sent:
                answer.result(timeout=PATIENCE)
        except Exception as error:
            reason = str(error) or type(error).__name__
            raise DataError(f"a message could not be delivered to Pub/Sub, topic {topic}: {reason}") from error
