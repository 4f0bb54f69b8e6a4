"""Redact unexpected errors in deployment mode: report type and location, never the message."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.mechanisms.core.plugin import PenstockError


class UnforeseenError(PenstockError):
    """Redacted form of an unexpected error: its type and location in the code."""


@contextmanager
def discreet(deployment: bool) -> Iterator[None]:
    """Redact the errors of other libraries in a deployment: their messages may quote a row.

    Parameters
    ----------
    deployment
        Otherwise nothing is done.

    Raises
    ------
    UnforeseenError
        In place of any error that is not of the project's own family.

    Examples
    --------
    >>> with discreet(deployment=True):
    ...     float("51.4778, home")
    Traceback (most recent call last):
    pipeline.output.redaction.UnforeseenError: ValueError at ...; a deployment does not repeat its words, ...
    """
    if not deployment:
        yield
        return
    try:
        yield
    except Exception as error:
        if (told := without_words(error)) is error:
            raise
        raise told from None


def without_words(error: Exception) -> Exception:
    """The error itself where its message cannot quote a row; otherwise a redacted one with its type and location.

    Of an error of the operating system it says what is wrong as well, without the file: it may be named after a person.

    >>> without_words(KeyError("ann"))
    UnforeseenError('KeyError at an unknown place; a deployment does not repeat its words, ...
    >>> without_words(PermissionError(13, "Permission denied", "ann.csv"))
    UnforeseenError('PermissionError at an unknown place: Permission denied; ... does not tell which file, ...
    """
    if isinstance(error, (PenstockError, BrokenPipeError)):
        return error
    if isinstance(error, OSError) and error.errno:
        what = f"{place_of(error)}: {os.strerror(error.errno)}"
        return UnforeseenError(f"{what}; a deployment does not tell which file, since it may be named after a person")
    return UnforeseenError(
        f"{place_of(error)}; a deployment does not repeat its words, which may quote a row; try made-up data"
    )


def place_of(error: BaseException) -> str:
    """Type of an error and its location in the code, from the innermost of its causes.

    >>> place_of(KeyError("ann"))
    'KeyError at an unknown place'
    """
    while error.__cause__ is not None:
        error = error.__cause__
    frames = traceback.extract_tb(error.__traceback__)
    place = f"{'/'.join(Path(frames[-1].filename).parts[-2:])}:{frames[-1].lineno}" if frames else "an unknown place"
    return f"{type(error).__name__} at {place}"
