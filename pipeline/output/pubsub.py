"""Publish releases and public accounts to Pub/Sub, at least once, after they are durable on disk."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.mechanisms.core.plugin import DataError
from penstock.pipeline.output.sinks import ACCOUNT_KEY, RELEASE_KEY, ROWS, Sink, messages
from penstock.pipeline.sources.reading.kafka_client import MissingLibrary

if TYPE_CHECKING:
    from penstock.pipeline.config.sections import PubSubOutput


#: Seconds that the service may take to take what was sent.
PATIENCE = 60.0
#: Messages and bytes of one request at most: the service's own limits are 1,000 and 10 MB.
_MESSAGES, _BYTES = 1000, 4 << 20


class PubSub(Sink):
    """Sends the tables of a run to the topics that its configuration names, each row at least once, in order.

    A row is a JSON object with the columns of its file. The attribute ``id`` says which row it is, as a key of Kafka
    does, so that who reads can drop a repeat: it has the same bytes. The ordering key is the stream: a subscription
    with message ordering gets windows in order. The service is not contacted before there is something to send.

    Parameters
    ----------
    output
        Topics and endpoint.
    """

    def __init__(self, output: PubSubOutput) -> None:
        self.output = output
        self._client: Any = None

    def releases(self, table: pa.Table) -> None:
        """Send releases; returns when the service has every row, and raises `DataError` where it refuses one."""
        self._publish(self.output.releases, table, RELEASE_KEY)

    def accounts(self, table: pa.Table) -> None:
        """Send rows of public accounts, as `releases` does."""
        self._publish(self.output.accounts, table, ACCOUNT_KEY)

    def _publish(self, topic: str | None, table: pa.Table, key: tuple[str, ...]) -> None:
        if topic is None:
            return
        client = self._client = self._client or _client(self.output.endpoint)
        try:
            for first in range(0, len(table), ROWS):
                sent = [
                    client.publish(topic, text, ordering_key=name.partition("/")[0], id=name)
                    for name, text in messages(table.slice(first, ROWS), key)
                ]
                for answer in sent:
                    answer.result(timeout=PATIENCE)
        except Exception as error:
            self._client = None  # it refuses all that follows under the same ordering key
            reason = str(error) or type(error).__name__
            raise DataError(f"a message could not be delivered to Pub/Sub, topic {topic}: {reason}") from error


def _client(endpoint: str | None) -> Any:
    """The official client; raises `MissingLibrary` that names the extra where it is not installed."""
    try:
        pubsub: Any = importlib.import_module("google.cloud.pubsub_v1")
    except ImportError:
        raise MissingLibrary("Pub/Sub needs a client that is not installed: pip install 'penstock[pubsub]'") from None
    return pubsub.PublisherClient(
        batch_settings=pubsub.types.BatchSettings(max_messages=_MESSAGES, max_bytes=_BYTES),
        publisher_options=pubsub.types.PublisherOptions(enable_message_ordering=True),
        client_options={"api_endpoint": endpoint} if endpoint else {},
    )
