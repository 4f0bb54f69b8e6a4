"""Clients of Kafka: the library, which is optional, and options that name secrets without holding them."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mechanisms.core.errors import DataError, ParameterError, PenstockError
from mechanisms.core.secret_files import NoiseKeyError, read_private

#: Seconds that a broker may take to answer.
PATIENCE = 20.0
#: Options whose values are secrets.
_SECRET = re.compile(r"password|secret|token|key\.pem|assertion|oauthbearer\.config")
#: Options that would undo what is promised here, or load code.
_OURS = re.compile(
    r"bootstrap\.servers|metadata\.broker\.list|group\.|enable\.auto|auto\.offset|isolation\.level|enable\.partition"
    r"|enable\.idempotence|transactional\.|acks|request\.required\.acks|plugin\.|.*_cb$|debug$|log"
    r"|ssl\.engine|ssl\.providers|sasl\.kerberos\.kinit"
)


class MissingLibrary(PenstockError):
    """Kafka is configured, and its client is not installed."""


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

    Examples
    --------
    >>> check_options({"security.protocol": "SASL_SSL", "sasl.password": "env:KAFKA_PASSWORD"})
    >>> check_options({"sasl.password": "hunter2"})
    Traceback (most recent call last):
    mechanisms.core.errors.ParameterError: options: ...
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

    Raises
    ------
    DataError
        A variable that is not set, a file that cannot be read, or a file with a secret that others can read too.
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
