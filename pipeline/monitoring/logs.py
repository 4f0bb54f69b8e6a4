"""Structured logs of a run, with one event per line as JSON or text.

An event has a name and facts, which are public or identify no one. Messages of other libraries may quote a row of the
input; a deployment redacts them to their place in the code.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

NAME = "penstock"
Style = Literal["json", "text"]

_logger = logging.getLogger(NAME)


def event(name: str, /, **facts: Any) -> None:
    """Log an event during a run."""
    _logger.info(name, extra={"facts": facts})


def caution(text: str) -> None:
    """Log a warning for the operator. If logging is not set up, it is written to standard error."""
    _logger.warning(text)


def problem(name: str, /, **facts: Any) -> None:
    """Log a failure."""
    _logger.error(name, extra={"facts": facts})


@contextmanager
def logging_to(stream: TextIO | None = None, style: Style | None = "json", deployment: bool = False) -> Iterator[None]:
    """Log the run's events and the warnings of other libraries for the duration of the block.

    ``stream``: None for standard error; ``style``: None for nothing but cautions; ``deployment``: redact the messages
    of others. To be entered before Beam is imported, which adds a handler of its own where the root logger has none.

    >>> with logging_to(sys.stdout, "text"):
    ...     event("windows released", last=7)
    20... info  windows released last=7
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    if style is None:
        handler.setFormatter(logging.Formatter("CAUTION   %(message)s"))
        handler.addFilter(lambda record: record.name == NAME and record.levelno == logging.WARNING)
    else:
        handler.setFormatter(_Formatter(style, deployment))
        handler.addFilter(lambda record: record.name == NAME or record.levelno >= logging.WARNING)
    root, level = logging.getLogger(), _logger.level
    root.addHandler(handler)
    _logger.setLevel(logging.INFO if style else level)
    try:
        yield
    except BaseException as error:
        problem("failed", error=type(error).__name__)
        raise
    finally:
        root.removeHandler(handler)
        _logger.setLevel(level)


class _Formatter(logging.Formatter):
    def __init__(self, style: Style, deployment: bool) -> None:
        super().__init__()
        self.as_json, self.deployment = style == "json", deployment

    def format(self, record: logging.LogRecord) -> str:
        """Format a record as one line. In a deployment, messages from other libraries are omitted."""
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        level = record.levelname.lower()
        facts: dict[str, Any] = getattr(record, "facts", {})
        name = record.getMessage() if record.name == NAME else f"{record.name}:{record.lineno}"
        if record.name != NAME and not self.deployment:
            facts = {"message": record.getMessage()}
        if record.exc_info and record.exc_info[0]:
            facts = facts | {"error": record.exc_info[0].__name__}
        if self.as_json:
            return json.dumps({"time": at, "level": level, "event": name} | facts, ensure_ascii=False, default=str)
        return " ".join([at, f"{level:5}", name, *(f"{key}={value}" for key, value in facts.items())])
