"""Redact unexpected errors in deployments by reporting their type and location but never their message."""

from __future__ import annotations

import errno
import os
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.mechanisms.core.plugin import PenstockError


class UnforeseenError(PenstockError):
    """An unexpected error, redacted to its type and its location in the code."""


@contextmanager
def redact_errors(deployment: bool) -> Iterator[None]:
    """Redact errors raised by other libraries in a deployment because their messages may quote a row.

    Outside a deployment nothing is done. Raises `UnforeseenError` in place of any error that is not of the project's
    own family.

    >>> with redact_errors(deployment=True):
    ...     float("51.4778, home")
    Traceback (most recent call last):
    pipeline.monitoring.redaction.UnforeseenError: ValueError at ...; a deployment does not repeat its words, ...
    """
    try:
        yield
    except Exception as error:
        if not deployment or (redacted := redact(error)) is error:
            raise
        raise redacted from None


class DiskError(PenstockError):
    """Raised if a write fails because the disk is full, read-only or faulty."""


#: What an operating system calls a file system that takes nothing more.
_NUMBER = re.compile(r"(?:\(os error |\[Errno )(\d+)[\])]")
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)


@contextmanager
def explain_disk_errors() -> Iterator[None]:
    """Explain what a failed write means for the run.

    Raises `DiskError` in place of such an error of the operating system.

    >>> with explain_disk_errors():
    ...     raise OSError(errno.ENOSPC, "No space left on device", "runs/a/operator/ledger")
    Traceback (most recent call last):
    penstock.pipeline.monitoring.redaction.DiskError: No space left on device; nothing is lost: ...
    """
    try:
        yield
    except OSError as error:
        if (explanation := _disk_error(error)) is None:
            raise
        raise explanation from error


def errno_of(error: OSError) -> int:
    """Return an error's errno, parsed from the message if it was re-raised or comes from Rust, or 0."""
    match = _NUMBER.search(str(error))
    return error.errno or (int(match[1]) if match else 0)


def _disk_error(error: OSError) -> DiskError | None:
    """Convert the error from a failed write to a `DiskError`. Returns None for any other error."""
    if (number := errno_of(error)) not in _DISK:
        return None
    return DiskError(
        f"{os.strerror(number)}; nothing is lost: what was released and charged is on disk. Once the file systems of "
        "the run's folder, its ledger and temporary files take data again, --resume goes on"
    )


def redact(error: Exception) -> Exception:
    """Return an error unchanged if its message cannot quote a row, or reduced to its type and location otherwise.

    Of an error of the operating system it says what is wrong as well, without the file: it may be named after a person.

    >>> redact(KeyError("ann"))
    UnforeseenError('KeyError at an unknown place; a deployment does not repeat its words, ...
    >>> redact(PermissionError(13, "Permission denied", "ann.csv"))
    UnforeseenError('PermissionError at an unknown place: Permission denied; ... does not tell which file, ...
    """
    if isinstance(error, (PenstockError, BrokenPipeError)):
        return error
    if isinstance(error, OSError) and (redacted := _disk_error(error)) is not None:
        return redacted
    place, text = place_of(error), "a deployment does not repeat its words, which may quote a row; try made-up data"
    if isinstance(error, OSError) and error.errno:
        place = f"{place}: {os.strerror(error.errno)}"
        text = "a deployment does not tell which file, since it may be named after a person"
    return UnforeseenError(f"{place}; {text}")


def place_of(error: BaseException) -> str:
    """Return an error's type and location in the code, judging by its innermost cause."""
    while error.__cause__ is not None:
        error = error.__cause__
    frames = traceback.extract_tb(error.__traceback__)
    place = f"{'/'.join(Path(frames[-1].filename).parts[-2:])}:{frames[-1].lineno}" if frames else "an unknown place"
    return f"{type(error).__name__} at {place}"
