"""What a step cannot go on with: told to the driver, which ends the run, since the engine would try for ever."""

from __future__ import annotations

import errno
import json
from pathlib import Path

from mechanisms.core import errors
from mechanisms.core.errors import ConfigError, ParameterError, PenstockError, UnknownPlugin
from pipeline import parts

#: What is wrong with a machine's files and stays so until somebody sees to it.
_LASTING = {errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EDQUOT, errno.EROFS}
#: Errors that are raised again as what they were: their message is all that they hold.
_PLAIN = ("DataError", "RowEquationError", "StateVersionError", "UnsupportedEvent")


def is_lasting(error: BaseException) -> bool:
    """Whether a step would fail again with the same error.

    >>> is_lasting(PermissionError(13, "Permission denied")), is_lasting(ConnectionError()), is_lasting(KeyError(1))
    (True, False, False)
    """
    return isinstance(error, (PenstockError, ImportError)) or (isinstance(error, OSError) and error.errno in _LASTING)


def note_failure(folder: Path, error: BaseException) -> None:
    """Tell the driver of an error that lasts; the first one counts.

    Parameters
    ----------
    folder
        Of the run.
    error
        Words of it that may quote a row must have been left out.
    """
    if not is_lasting(error) or not (folder / "operator").exists():
        return
    kind = "ConfigError" if isinstance(error, (ParameterError, UnknownPlugin)) else type(error).__name__
    words = list(error.problems) if isinstance(error, ConfigError) else [str(error)]
    parts.write_first(_path(folder), json.dumps({"error": kind, "words": words}).encode())


def forget_failure(folder: Path) -> None:
    """Leave behind what an earlier attempt has failed with."""
    _path(folder).unlink(missing_ok=True)


def raise_failure(folder: Path) -> None:
    """Raise what a step has failed with, if one has."""
    if not _path(folder).exists():
        return
    found = json.loads(_path(folder).read_bytes())
    if found["error"] == "ConfigError":
        raise ConfigError(tuple(found["words"]))
    kind = getattr(errors, found["error"]) if found["error"] in _PLAIN else PenstockError
    raise kind(found["words"][0])


def _path(folder: Path) -> Path:
    return folder / "operator" / "parts" / "failed" / "failed.json"
