"""External services: options and secrets, missing client libraries, Google resource names, and outages."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from penstock.mechanisms.core.noise_keys import NoiseKeyError, read_private
from penstock.mechanisms.core.plugin import DataError, ParameterError

#: Options whose values are secrets.
_SECRET = re.compile(
    r"password|secret|token|connection_string|account_key|credential$|key\.pem|assertion|oauthbearer\.config"
)
#: Options that would break guarantees made here or load code.
_FIXED_OPTIONS = re.compile(
    r"bootstrap\.servers|metadata\.broker\.list|group\.|enable\.auto|auto\.offset|isolation\.level|enable\.partition"
    r"|enable\.idempotence|max\.in\.flight|transactional\.|acks|request\.required\.acks|plugin\.|.*_cb$|debug$|log"
    r"|ssl\.engine|ssl\.providers|sasl\.kerberos\.kinit"
)


def check_options(options: Mapping[str, str], field: str = "options") -> None:
    """Raise `ParameterError` if an option is not supported or contains a secret in plain text.

    >>> check_options({"security.protocol": "SASL_SSL", "sasl.password": "env:KAFKA_PASSWORD"})
    >>> check_options({"sasl.password": "hunter2"})
    Traceback (most recent call last):
    penstock.mechanisms.core.plugin.ParameterError: options: ...
    >>> check_options({"connection_string": "AccountName=city;AccountKey=hunter2"})
    Traceback (most recent call last):
    penstock.mechanisms.core.plugin.ParameterError: options: ...
    """
    for name, value in options.items():
        if _FIXED_OPTIONS.match(name):
            expected = "a section without it: it is set by penstock, or would undo what is promised"
            raise ParameterError(f"{field}.{name}", value, expected)
        if _SECRET.search(name) and not value.startswith(("env:", "file:")):
            raise ParameterError(f"{field}.{name}", "…", "env: and the name of a variable, or file: and a path")


def resolved_value(name: str, value: str) -> str:
    """Return the value of an environment variable, the first line of a file, or the given value itself.

    Raises `DataError` if there is no value, or if a file that contains a secret can be read by other users.
    """
    if value.startswith("env:"):
        resolved = os.environ.get(value.removeprefix("env:"))
        if not resolved:
            raise DataError(f"{name}: the environment variable {value.removeprefix('env:')} is not set")
        return resolved
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


def required_form(name: str, form: str) -> str | None:
    """Return None if a name has the required form; otherwise return the form, with placeholders in capital letters.

    >>> required_form("projects/city-1/topics/footfall", "projects/PROJECT/topics/TOPIC")
    >>> required_form("footfall", "projects/PROJECT/topics/TOPIC")
    'projects/PROJECT/topics/TOPIC'
    """
    return None if re.fullmatch(re.sub("[A-Z]+", "[^/]+", form), name) else form


#: Default number of seconds for which a service may be unreachable.
PATIENCE = 300.0


class Outage:
    """Tracks a service outage: attempts are repeated until it has lasted too long, which ends the run.

    During an outage, the run's clocks stand still: nothing is lost, and nothing is released while events may be
    missing. Failed attempts are repeated after 1, 2, 4, … seconds, at most ``longest``; others after ``every`` seconds.

    >>> now = [0.0]
    >>> outage = Outage("topic events", 60.0, clock=lambda: now[0])
    >>> for now[0] in (10.0, 40.0, 70.0):
    ...     outage.record_failure("no broker answers")
    Traceback (most recent call last):
    penstock.mechanisms.core.plugin.DataError: topic events: out of reach for 60 s (no broker answers) ...
    """

    def __init__(
        self,
        subject: str,
        patience: float | None = None,
        every: float = 0.0,
        longest: float = 30.0,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._subject, self._patience, self._every, self._longest = subject, patience, every, longest
        self._clock = clock or (lambda: time.monotonic())
        self.record_success()

    def probe(self, reason: Callable[[], str | None]) -> None:
        """Check a service if an attempt is due. ``reason`` returns why it cannot be reached, or None."""
        if self.is_attempt_due:
            if (why := reason()) is None:
                self.record_success()
            else:
                self.record_failure(why)

    def record_success(self) -> None:
        """Record that the service is reachable."""
        #: Time of the first failed attempt. There may have been no attempt for hours before it.
        self.since: float | None = None
        self._pause, self._next_attempt = 0.0, self._clock() + self._every

    @property
    def is_attempt_due(self) -> bool:
        """True if the next attempt is due."""
        return self._clock() >= self._next_attempt

    def record_failure(self, reason: str) -> None:
        """Record a failed attempt. Raise `DataError` if the service has been unreachable for too long."""
        now, patience = self._clock(), PATIENCE if self._patience is None else self._patience
        if self.since is None:
            self.since = now
            message = f"{self._subject}: out of reach ({reason}); the run waits {patience:g} s for it"
            logging.getLogger("penstock").warning(message)
        elif now - self.since >= patience:
            raise DataError(
                f"{self._subject}: out of reach for {now - self.since:.0f} s ({reason}). Nothing is lost: what was "
                "counted is in the run's checkpoint, and --resume goes on from it once the service is back"
            )
        self._pause = min(2 * self._pause, self._longest) or min(1.0, self._longest)
        self._next_attempt = now + self._pause
