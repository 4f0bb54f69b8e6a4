"""Atomic and durable writes of single files."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A temporary path that becomes ``path`` when the block ends well: readers see the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary(path)
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _temporary(path: Path) -> Path:
    # Workers of a cluster may be threads of one process, or processes of one number on several machines.
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")


def write_json(path: Path, value: Any) -> None:
    """Replace a file by a value as JSON, atomically."""
    with whole(path) as temporary:
        temporary.write_text(json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")


def write_text(path: Path, text: str) -> None:
    """Replace a file by a text, atomically."""
    with whole(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_first(path: Path, data: bytes) -> bool:
    """Create a file atomically and durably; if it exists, leave it: the first writer wins.

    Returns
    -------
    Whether this call created it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary(path)
    try:
        with temporary.open("xb") as file:
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
    """Make the names of the files in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
