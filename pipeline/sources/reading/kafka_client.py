"""Kafka client library: options, secrets and producer."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.mechanisms.core.noise_keys import NoiseKeyError, read_private
from penstock.mechanisms.core.plugin import DataError, ParameterError, PenstockError

#: Seconds that a broker may take to answer.
PATIENCE = 20.0
#: Options whose values are secrets.
_SECRET = re.compile(r"password|secret|token|connection_string|key\.pem|assertion|oauthbearer\.config")
#: Options that would undo what is promised here, or load code.
_OURS = re.compile(
    r"bootstrap\.servers|metadata\.broker\.list|group\.|enable\.auto|auto\.offset|isolation\.level|enable\.partition"
    r"|enable\.idempotence|max\.in\.flight|transactional\.|acks|request\.required\.acks|plugin\.|.*_cb$|debug$|log"
    r"|ssl\.engine|ssl\.providers|sasl\.kerberos\.kinit"
)


class MissingLibrary(PenstockError):
    """The configuration needs a library that is not installed."""


def library() -> Any:
    """The client library; raises `MissingLibrary` that names the extra where it is not installed."""
    try:
        import confluent_kafka
    except ImportError:
        raise MissingLibrary("Kafka needs a client that is not installed: pip install 'penstock[kafka]'") from None
    return confluent_kafka


def silent() -> logging.Logger:
    """Where clients log to: nowhere, since their lines may hold what messages hold; errors are raised instead."""
    logger = logging.getLogger("penstock.kafka")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    return logger


def check_options(options: Mapping[str, str], field: str = "options") -> None:
    """Raise `ParameterError` for options that are not passed on, and for secrets that are written out.

    >>> check_options({"security.protocol": "SASL_SSL", "sasl.password": "env:KAFKA_PASSWORD"})
    >>> check_options({"sasl.password": "hunter2"})
    Traceback (most recent call last):
    penstock.mechanisms.core.plugin.ParameterError: options: ...
    >>> check_options({"azure_connection_string": "AccountName=city;AccountKey=hunter2"})
    Traceback (most recent call last):
    penstock.mechanisms.core.plugin.ParameterError: options: ...
    """
    for name, value in options.items():
        if _OURS.match(name):
            expected = "a section without it: it is set by penstock, or would undo what is promised"
            raise ParameterError(f"{field}.{name}", value, expected)
        if _SECRET.search(name) and not value.startswith(("env:", "file:")):
            raise ParameterError(f"{field}.{name}", "…", "env: and the name of a variable, or file: and a path")


def resolved_options(brokers: str, options: Mapping[str, str]) -> dict[str, Any]:
    """Options as a client takes them, with what ``env:`` and ``file:`` stand for; never write the result anywhere."""
    values = {name: resolved_value(name, value) for name, value in options.items()}
    return {"bootstrap.servers": brokers, "client.id": "penstock", **values}


def resolved_value(name: str, value: str) -> str:
    """What stands for a value: an environment variable, the first line of a file, or the value itself.

    Raises `DataError` for a variable that is not set, a file that cannot be read, and a file with a secret that others
    can read too.
    """
    if value.startswith("env:"):
        found = os.environ.get(value.removeprefix("env:"))
        if not found:
            raise DataError(f"{name}: the environment variable {value.removeprefix('env:')} is not set")
        return found
    if not value.startswith("file:"):
        return value
    path = Path(value.removeprefix("file:"))
    try:
        text = read_private(path) if _SECRET.search(name) else path.read_text(encoding="utf-8")
    except NoiseKeyError as error:
        raise DataError(f"{name}: {error}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{name}: {path} cannot be read ({getattr(error, 'strerror', 'not text')})") from None
    return text if ".pem" in name else text.split("\n", 1)[0].rstrip("\r")


#: Messages that may wait to be sent.
_WAITING = 100_000


class Producer:
    """An idempotent producer, in order and at least once, that reports what could not be delivered."""

    def __init__(self, brokers: str, options: Mapping[str, str]) -> None:
        # One request at a time: where a partition is new or changes its leader, a broker may refuse the first request
        # and accept the second one; the messages of the first are lost although idempotence is on (KAFKA-15591).
        ours = {"enable.idempotence": True, "max.in.flight": 1, "error_cb": self._note, "logger": silent()}
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
        """Deliver what is left as far as that is possible without waiting."""
        self._client.flush(1.0)

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self._failed.append(f"topic {message.topic()}: {error.str()}")

    def _check(self) -> None:
        if self._failed:
            raise DataError(f"a message could not be delivered to Kafka: {self._failed[0]}")

    def _note(self, error: Any) -> None:
        self._trouble = error.str()
