"""Files that hold a secret: read only where nobody else can, written so that nobody else ever could."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from mechanisms.core.errors import PenstockError

#: No key is longer; a device or a whole disk is not read to find out.
MAX_BYTES = 1 << 20


class NoiseKeyError(PenstockError):
    """A key is missing, malformed or readable by others; the message never contains any of it."""


def read_private(path: str | os.PathLike[str]) -> str:
    """Text of a file that only its owner can read.

    Parameters
    ----------
    path
        A regular file, or a link to one: what is judged is the file that was opened.

    Raises
    ------
    NoiseKeyError
        If it cannot be read; is no regular file, longer than a megabyte or no text; or if anybody else may read or
        change it, owns it, or may put another one in its place.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        with open(descriptor, "rb") as file:
            _refuse_shared(path, os.fstat(descriptor))
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise NoiseKeyError(f"{path}: cannot be read as a key: is longer than any")
        return data.decode("utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not text"
        raise NoiseKeyError(f"{path}: cannot be read as a key: {reason}") from None


def _refuse_shared(path: str | os.PathLike[str], found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise NoiseKeyError(f"{path}: cannot be read as a key: is no regular file")
    if os.name != "posix":
        return
    mode = stat.S_IMODE(found.st_mode)
    if mode & 0o077:
        raise NoiseKeyError(f"{path}: others may read this key (mode {mode:04o}); do chmod 600 and replace it")
    if found.st_uid not in (os.geteuid(), 0):
        raise NoiseKeyError(f"{path}: another user owns this key; copy it to a file of your own and replace it")
    folder = os.stat(Path(path).resolve().parent)
    if folder.st_mode & stat.S_IWOTH and not folder.st_mode & stat.S_ISVTX:
        raise NoiseKeyError(f"{path}: everybody may replace this key; do chmod o-w on its folder")


def write_private(path: str | os.PathLike[str], text: str, replace: bool = False) -> None:
    """Write a file of mode 0600, durable when this returns.

    Parameters
    ----------
    path
        Where to.
    replace
        Whether an existing file is replaced, in one step; otherwise it is an error.

    Raises
    ------
    NoiseKeyError
        If the file exists or cannot be written.
    """
    # mkstemp makes files of mode 0600, and linking fails where there is one.
    temporary = None
    try:
        descriptor, temporary = tempfile.mkstemp(dir=Path(path).parent, prefix=".key-")
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if replace:
            os.replace(temporary, path)
        else:
            os.link(temporary, path)
    except OSError as error:
        raise NoiseKeyError(f"{path}: cannot make a new key: {error.strerror}") from None
    finally:
        if temporary is not None and os.path.exists(temporary):
            os.unlink(temporary)
