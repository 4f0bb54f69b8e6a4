"""Publish releases and public accounts to Pub/Sub, at least once, after they are durable on disk."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from penstock.mechanisms.core.plugin import DataError
from penstock.pipeline.output.sinks import MessageSink
from penstock.pipeline.sources.reading.kafka_client import MissingLibrary

if TYPE_CHECKING:
    from penstock.pipeline.config.sections import PubSubOutput


#: Seconds that the service may take to take what was sent.
PATIENCE = 60.0
#: Messages and bytes of one request at most: the service's own limits are 1,000 and 10 MB.
_MESSAGES, _BYTES = 1000, 4 << 20


class PubSub(MessageSink):
    """Sends the tables of a run to the topics of Pub/Sub that its configuration names.

    A row is a JSON object with the columns of its file. The attribute ``id`` says which row it is, as a key of Kafka
    does, so that who reads can drop a repeat: it has the same bytes. The ordering key is the stream: a subscription
    with message ordering gets windows in order.

    Parameters
    ----------
    output
        Topics and endpoint.
    """

    def __init__(self, output: PubSubOutput) -> None:
        super().__init__(output.releases, output.accounts)
        self.output = output

    def _connect(self) -> Any:
        """The official client; raises `MissingLibrary` that names the extra where it is not installed."""
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
            sent = [
                self._client.publish(topic, text, ordering_key=name.partition("/")[0], id=name) for name, text in rows
            ]
            for answer in sent:
                answer.result(timeout=PATIENCE)
        except Exception as error:
            reason = str(error) or type(error).__name__
            raise DataError(f"a message could not be delivered to Pub/Sub, topic {topic}: {reason}") from error
