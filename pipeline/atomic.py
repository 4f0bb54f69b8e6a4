"""Atomic, durable writes of single files that inherit their folder's privacy."""

from __future__ import annotations

import errno
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

#: Folders of a run: what its owner alone may read, and what may be published.
PRIVATE, PUBLIC = "operator", "public"


def is_private(folder: Path) -> bool:
    """Return whether a path is inside the operator's folder.

    >>> is_private(Path("runs/a/operator/parts")), is_private(Path("/home/operator/a/public"))
    (True, False)
    """
    return next((part for part in reversed(folder.parts) if part in (PRIVATE, PUBLIC)), PUBLIC) == PRIVATE


def make_folder(path: Path, private: bool = False) -> None:
    """Create a folder and its parents, owner-only if it belongs to the operator or if ``private`` is set."""
    if not path.is_dir():
        if path.exists():
            raise NotADirectoryError(errno.ENOTDIR, "is a file, and a folder is needed there", str(path))
        make_folder(path.parent)
        path.mkdir(mode=0o700 if private or is_private(path) else 0o777, exist_ok=True)


def opener(path: str, flags: int) -> int:
    """Opener for `open` that makes any new file in the operator's folder owner-only."""
    return os.open(path, flags, 0o600 if is_private(Path(path).parent) else 0o666)


def private_opener(path: str, flags: int) -> int:
    """Opener for `open` that makes any new file owner-only."""
    return os.open(path, flags, 0o600)


@contextmanager
def replacing(path: Path, private: bool = False) -> Iterator[Path]:
    """Yield a temporary path that replaces ``path`` on success, so that readers see either the old or the new file.

    ``private``: for its owner alone, whatever its folder.
    """
    make_folder(path.parent)
    temporary = _temporary(path)
    try:
        open(temporary, "xb", opener=private_opener if private else opener).close()
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _temporary(path: Path) -> Path:
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "is a folder, and a file is to be written there", str(path))
    # Workers of a cluster may be threads of one process, or processes of one number on several machines.
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")


def read_json(path: Path, default: Any = None) -> Any:
    """Read a JSON file, or return the default if the file does not exist."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else default


def write_json(path: Path, value: Any, private: bool = False) -> None:
    """Write a value to a JSON file atomically."""
    write_text(path, json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n", private)


def write_text(path: Path, text: str, private: bool = False) -> None:
    """Write text to a file atomically."""
    with replacing(path, private) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_durably(path: Path, data: bytes) -> None:
    """Replace a file atomically and durably."""
    with replacing(path) as temporary, temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    sync_folder(path.parent)


def write_first(path: Path, data: bytes, private: bool = False) -> bool:
    """Create a file atomically and durably unless it exists (the first writer wins). Return whether it was created."""
    make_folder(path.parent)
    temporary = _temporary(path)
    try:
        with open(temporary, "xb", opener=private_opener if private else opener) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(temporary, path)  # unlike a rename, it replaces no file
            return True
        except FileExistsError:
            return False
    finally:
        temporary.unlink(missing_ok=True)
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Flush a folder's directory entries to disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
