"""Which files a path means, how they are shared out between workers, and their digests."""

from __future__ import annotations

import glob
import hashlib
import os
from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path

from mechanisms.core.errors import DataError
from pipeline.prefetch import in_threads
from pipeline.source import Span

#: Endings that a pattern may carry in addition, because the content is decompressed or unpacked on the way.
COMPRESSED = ("", ".gz", ".zst", ".xz", ".bz2")
ARCHIVES = ("*.tar", "*.tar.*", "*.tgz", "*.txz", "*.zip")

_DIGESTED_BYTES = 1 << 20


def list_files(path: str, patterns: tuple[str, ...]) -> list[str]:
    """List the files that a path means, sorted by name.

    Parameters
    ----------
    path
        A file (taken whatever its name), a glob (``**`` allowed), or a directory.
    patterns
        What is taken from a directory and everything below it, for instance ``("new_*.txt",)``; compressed variants
        of the same names and, where nothing else is there, archives are taken too.

    Raises
    ------
    DataError
        Nothing is there, or nothing of that name.
    """
    if os.path.isfile(path):
        return [path]
    if os.path.isdir(path):
        below = sorted(str(file) for file in Path(path).rglob("*") if file.is_file())
        wanted = [file for file in below if matches(file, patterns)]
        wanted = wanted or [file for file in below if any(fnmatch(os.path.basename(file), a) for a in ARCHIVES)]
        if not wanted:
            found = ", ".join(os.path.basename(file) for file in below[:5]) or "nothing"
            raise DataError(f"{path}: no file named like {' or '.join(patterns)} in this directory (found: {found})")
        return wanted
    found_files = sorted(file for file in glob.glob(path, recursive=True) if os.path.isfile(file))
    if not found_files:
        kind = "no file matches this pattern" if glob.has_magic(path) else "no such file or directory"
        raise DataError(f"{path}: {kind}")
    return found_files


def matches(file: str, patterns: tuple[str, ...]) -> bool:
    """Whether a file's own name fits one of the patterns, compressed or not.

    >>> matches("a/new_abc.txt.gz", ("new_*.txt",)), matches("a/._new_abc.txt", ("*.txt",))
    (True, False)
    """
    name = os.path.basename(file)
    if name.startswith("."):
        return False
    return any(fnmatch(name, pattern + ending) for pattern in patterns for ending in COMPRESSED)


def share_out(files: Iterable[str], bytes_per_span: int) -> list[Span]:
    """Share whole files out into spans of about ``bytes_per_span`` each, in the order given."""
    groups: list[list[str]] = []
    size = 0
    for file in files:
        n_bytes = os.path.getsize(file)
        if not groups or size + n_bytes > bytes_per_span:
            groups.append([])
            size = 0
        groups[-1].append(file)
        size += n_bytes
    return [Span(index=index, files=tuple(group)) for index, group in enumerate(groups)]


def sha256(files: Iterable[str], root: str) -> dict[str, str]:
    """SHA-256 of every file, by its path below ``root`` (its own name where ``root`` is not a directory)."""
    files, is_folder = list(files), os.path.isdir(root)
    names = [os.path.relpath(file, root) if is_folder else os.path.basename(file) for file in files]
    return dict(zip(names, in_threads(_digest, files)))


def _digest(file: str) -> str:
    digest = hashlib.sha256()
    # In large pieces, so that Python's lock is seldom asked for while others hold it, and always the same memory.
    piece = memoryview(bytearray(_DIGESTED_BYTES))
    with open(file, "rb", buffering=0) as stream:
        while n_bytes := stream.readinto(piece):
            digest.update(piece[:n_bytes])
    return digest.hexdigest()
