"""Report permanent failures of steps to the driver, which then cancels a job that the engine would retry forever."""

from __future__ import annotations

import errno
import json
from pathlib import Path

from penstock.mechanisms.core import plugin
from penstock.mechanisms.core.plugin import ConfigError, ParameterError, PenstockError, UnknownPlugin
from penstock.pipeline import atomic
from penstock.pipeline.monitoring.redaction import errno_of

#: What is wrong with a machine's files and stays so until an operator repairs it.
_PERMANENT = {errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EDQUOT, errno.EROFS}
#: Errors that are raised again as what they were: their message is all that they hold.
_PLAIN = ("DataError", "RowEquationError", "StateVersionError", "UnsupportedEvent")


def is_permanent(error: BaseException) -> bool:
    """Return whether retrying the step would fail with the same error.

    >>> [is_permanent(error) for error in (PermissionError(13, "Permission denied"), ConnectionError(), KeyError(1))]
    [True, False, False]
    """
    return isinstance(error, (PenstockError, ImportError)) or (
        isinstance(error, OSError) and errno_of(error) in _PERMANENT
    )


def note_failure(folder: Path, error: BaseException) -> None:
    """Report a permanent error, redacted in a deployment, to the driver, which keeps the first."""
    if not is_permanent(error) or not (folder / "operator").exists():
        return
    kind = "ConfigError" if isinstance(error, (ParameterError, UnknownPlugin)) else type(error).__name__
    words = list(error.problems) if isinstance(error, ConfigError) else [str(error)]
    atomic.write_first(_path(folder), json.dumps({"error": kind, "words": words}).encode())


def forget_failure(folder: Path) -> None:
    """Remove the failure recorded by an earlier attempt."""
    _path(folder).unlink(missing_ok=True)


def raise_failure(folder: Path) -> None:
    """Raise the permanent failure recorded by a step, if there is one."""
    if not _path(folder).exists():
        return
    record = json.loads(_path(folder).read_bytes())
    if record["error"] == "ConfigError":
        raise ConfigError(tuple(record["words"]))
    kind = getattr(plugin, record["error"]) if record["error"] in _PLAIN else PenstockError
    raise kind(record["words"][0])


def _path(folder: Path) -> Path:
    return folder / "operator" / "parts" / "failed" / "failed.json"
