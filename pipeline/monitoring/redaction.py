"""Redaction of unexpected errors in deployments: type and location are reported, never the message."""

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
    """A redacted unexpected error that keeps only its type and its location in the code."""


@contextmanager
def redact_errors(deployment: bool) -> Iterator[None]:
    """Redact errors of other libraries in a deployment, since their messages may quote a row.

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
def explained() -> Iterator[None]:
    """Explain the consequences of a failed write for the run.

    Raises `DiskError` in place of such an error of the operating system.

    >>> with explained():
    ...     raise OSError(errno.ENOSPC, "No space left on device", "runs/a/operator/ledger")
    Traceback (most recent call last):
    penstock.pipeline.monitoring.redaction.DiskError: No space left on device; nothing is lost: ...
    """
    try:
        yield
    except OSError as error:
        if (explanation := _of_disk(error)) is None:
            raise
        raise explanation from error


def _of_disk(error: OSError) -> DiskError | None:
    """Return a failed write as a `DiskError`, or None for any other error."""
    match = _NUMBER.search(str(error))  # what others have raised again, or say in Rust, has its number in words only
    number = error.errno or (int(match[1]) if match else 0)
    if number not in _DISK:
        return None
    return DiskError(
        f"{os.strerror(number)}; nothing is lost: what was released and charged is on disk. Once the file systems of "
        "the run's folder, its ledger and temporary files take data again, --resume goes on"
    )


def redact(error: Exception) -> Exception:
    """Return an error unchanged if its message cannot quote a row; otherwise reduce it to type and location.

    Of an error of the operating system it says what is wrong as well, without the file: it may be named after a person.

    >>> redact(KeyError("ann"))
    UnforeseenError('KeyError at an unknown place; a deployment does not repeat its words, ...
    >>> redact(PermissionError(13, "Permission denied", "ann.csv"))
    UnforeseenError('PermissionError at an unknown place: Permission denied; ... does not tell which file, ...
    """
    if isinstance(error, (PenstockError, BrokenPipeError)):
        return error
    if isinstance(error, OSError) and (redacted := _of_disk(error)) is not None:
        return redacted
    place, text = place_of(error), "a deployment does not repeat its words, which may quote a row; try made-up data"
    if isinstance(error, OSError) and error.errno:
        place = f"{place}: {os.strerror(error.errno)}"
        text = "a deployment does not tell which file, since it may be named after a person"
    return UnforeseenError(f"{place}; {text}")


def place_of(error: BaseException) -> str:
    """Return the type of an error and its location in the code, based on its innermost cause."""
    while error.__cause__ is not None:
        error = error.__cause__
    frames = traceback.extract_tb(error.__traceback__)
    place = f"{'/'.join(Path(frames[-1].filename).parts[-2:])}:{frames[-1].lineno}" if frames else "an unknown place"
    return f"{type(error).__name__} at {place}"
