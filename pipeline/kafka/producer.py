"""Writes messages to topics: in order, each at least once, and known to have arrived before anything goes on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mechanisms.core.errors import DataError
from pipeline.kafka.client import PATIENCE, library, resolved_options, silent

#: Messages that may wait to be sent.
_WAITING = 100_000


class Producer:
    """An idempotent producer that reports what could not be delivered.

    Parameters
    ----------
    brokers, options
        As in the configuration.
    """

    def __init__(self, brokers: str, options: Mapping[str, str]) -> None:
        ours = {"enable.idempotence": True, "error_cb": self._note, "logger": silent()}
        defaults = {"linger.ms": 5, "queue.buffering.max.messages": _WAITING, "compression.type": "lz4"}
        self._kafka = library()
        self._trouble = ""
        self._failed: list[str] = []
        self._client = self._kafka.Producer(defaults | resolved_options(brokers, options) | ours)

    def send(self, topic: str, key: str, value: str | bytes, partition: int | None = None) -> None:
        """Queue one message; raises `DataError` where earlier ones could not be delivered."""
        place = {} if partition is None else {"partition": partition}
        while True:
            try:
                self._client.produce(topic, key=key, value=value, on_delivery=self._delivered, **place)
                break
            except BufferError:
                self._client.poll(0.1)
        self._client.poll(0)
        self._check()

    def flush(self) -> None:
        """Wait until everything has been delivered; raises `DataError` otherwise."""
        waiting = self._client.flush(3 * PATIENCE)
        self._check()
        if waiting:
            raise DataError(f"{waiting} messages could not be delivered to Kafka ({self._trouble or 'no answer'})")

    def close(self) -> None:
        """Deliver what is left as far as that is possible at once."""
        self._client.flush(1.0)

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self._failed.append(f"topic {message.topic()}: {error.str()}")

    def _check(self) -> None:
        if self._failed:
            raise DataError(f"a message could not be delivered to Kafka: {self._failed[0]}")

    def _note(self, error: Any) -> None:
        self._trouble = error.str()
