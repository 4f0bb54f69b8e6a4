"""Input files: how they are listed, unpacked, decompressed and hashed."""

from __future__ import annotations

import bz2
import glob
import gzip
import hashlib
import io
import lzma
import os
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import IO, Any, ClassVar, NamedTuple

import pyarrow as pa

from penstock.mechanisms.core.plugin import DataError, parameter
from penstock.pipeline.sources.base import FileSource, Span

#: Endings that a pattern may carry in addition, because the content is decompressed or unpacked on the way.
COMPRESSED = ("", ".gz", ".zst", ".xz", ".bz2")
ARCHIVES = ("*.tar", "*.tar.*", "*.tgz", "*.txz", "*.zip")


def list_files(path: str, patterns: tuple[str, ...]) -> list[str]:
    """List the files below a path, sorted by name. Raise `DataError` if there are none.

    ``path``: a file (taken whatever its name), a glob (``**`` allowed), or a directory, from which and below which
    those named like ``patterns`` are taken, compressed or not, or else archives.
    """
    if "://" in path:
        raise DataError(f"{path}: only files that keep arriving (source.type: folder) are read from there")
    if os.path.isfile(path):
        return [path]
    if os.path.isdir(path):
        below = sorted(str(file) for file in Path(path).rglob("*") if file.is_file())
        wanted = [file for file in below if matches(file, patterns)]
        wanted = wanted or [file for file in below if any(fnmatch(os.path.basename(file).lower(), a) for a in ARCHIVES)]
        if not wanted:
            names = ", ".join(os.path.basename(file) for file in below[:5]) or "nothing"
            raise DataError(f"{path}: no file named like {' or '.join(patterns)} in this directory (found: {names})")
        return wanted
    input_files = sorted(file for file in glob.glob(path, recursive=True) if os.path.isfile(file))
    if not input_files:
        kind = "no file matches this pattern" if glob.has_magic(path) else "no such file or directory"
        raise DataError(f"{path}: {kind}")
    return input_files


def matches(file: str, patterns: tuple[str, ...]) -> bool:
    """Return whether a file name, in any case, matches one of the patterns with or without a compression suffix.

    >>> matches("a/new_abc.TXT.gz", ("new_*.txt",)), matches("a/._new_abc.txt", ("*.txt",))
    (True, False)
    """
    name = os.path.basename(file).lower()
    if name.startswith("."):
        return False
    return any(fnmatch(name, pattern.lower() + ending) for pattern in patterns for ending in COMPRESSED)


@dataclass(frozen=True, kw_only=True)
class PathSource(FileSource):
    """Base class for sources that read files. Each worker reads whole files: one large file or several small ones."""

    path: str = parameter(kind="path", doc="a file, a directory, a pattern such as data/*.csv, or an archive")

    patterns: ClassVar[tuple[str, ...]]
    #: Bytes of a file that a row is taken for.
    bytes_per_row: ClassVar[int]

    def files(self) -> list[str]:
        """Return the input files in the order in which they are read."""
        return list_files(self.path, self.patterns)

    def spans(self) -> list[Span]:
        """Group the files into spans of about ``block_rows`` rows. A file is never split."""
        groups: list[list[str]] = []
        size = 0
        for file in self.files():
            n_bytes = os.path.getsize(file)
            if not groups or size + n_bytes > self.block_rows * self.bytes_per_row:
                groups.append([])
                size = 0
            groups[-1].append(file)
            size += n_bytes
        return [Span(index, tuple(group)) for index, group in enumerate(groups)]

    def digests(self) -> dict[str, str]:
        """Return every input file's SHA-256 digest, by its path relative to ``path``, or by name."""

        def digest(file: str) -> str:
            with open(file, "rb") as stream:
                return hashlib.file_digest(stream, "sha256").hexdigest()

        files, is_folder = self.files(), os.path.isdir(self.path)
        names = [os.path.relpath(file, self.path) if is_folder else os.path.basename(file) for file in files]
        with ThreadPoolExecutor(2) as pool:  # hashing releases Python's lock
            return dict(zip(names, pool.map(digest, files)))


# Reading plain and compressed files and members of archives.
#
# Members are never extracted to disk, so path traversal has no effect; such names are refused all the same.
# Decompressed bytes are counted, and an input that expands out of proportion (a decompression bomb) is refused.


class Limits(NamedTuple):
    """Limits on the size of a file after unpacking."""

    free_bytes: int = 64 << 20
    expansion: int = 200  # bytes beyond the free ones, for each byte of the file
    members: int = 1_000_000


_GZIP, _ZSTD, _XZ, _BZIP2, _ZIP = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\xfd7zXZ\x00", b"BZh", b"PK\x03\x04"
#: What the libraries raise for damaged or hostile files: LookupError and ValueError for headers that make no sense,
#: RuntimeError for methods they lack or encryption, MemoryError for a dictionary larger than the machine.
_DAMAGE = (
    OSError,
    EOFError,
    ValueError,
    OverflowError,
    MemoryError,
    LookupError,
    RuntimeError,
    struct.error,
    lzma.LZMAError,
    zlib.error,
    tarfile.TarError,
    zipfile.BadZipFile,
    pa.ArrowException,
)


def open_inputs(
    files: Iterable[str], patterns: tuple[str, ...], *, limits: Limits = Limits()
) -> Iterator[tuple[str, IO[bytes]]]:
    """Yield each input's name (``archive!member`` in an archive) and its stream, which must be read before the next.

    ``files``: plain files, files compressed with gzip, Zstandard, xz or bzip2, tar archives (compressed too), zip
    archives. The first bytes of a file say what it is, not its name. ``patterns``: which members of an archive
    are taken; hidden ones never are. Raises `DataError` for a file that is damaged, is out of all proportion when
    unpacked, or has a member that points outside the archive.
    """
    for file in files:
        try:
            with open(file, "rb") as raw:
                allowance = _Allowance(file, limits)
                stream = _decompress(file, raw, allowance)
                is_zip = stream.peek(4).startswith(_ZIP)
                if not is_zip and stream.peek(512)[257:262] != b"ustar":
                    yield file, stream
                    continue
                for name, open_member in _members(stream, is_zip):
                    allowance.count_member(file, name)
                    if open_member is not None and matches(name, patterns):
                        name = f"{file}!{name}"
                        guarded = _Guarded(name, open_member(), allowance)
                        yield name, _decompress(name, io.BufferedReader(guarded), allowance)
        except _DAMAGE as error:
            raise DataError(f"{file}: cannot be read: {single_line(error)}") from error


class _Allowance:
    """The number of bytes and archive members that may still be unpacked from a file."""

    def __init__(self, file: str, limits: Limits) -> None:
        self.limit = self.left = limits.free_bytes + limits.expansion * os.path.getsize(file)
        self.max_members = self.members = limits.members

    def count_member(self, file: str, member: str) -> None:
        """Count an archive member. Raise `DataError` if there are too many or if its path leads outside the archive."""
        self.members -= 1
        if self.members < 0:
            raise DataError(f"{file}: has more than {self.max_members:,} members; unpack it yourself if you trust it")
        parts = member.replace("\\", "/").split("/")
        if member.startswith(("/", "\\")) or ".." in parts or ":" in parts[0]:
            raise DataError(f"{file}: member {member!r} points outside the archive")


class _Guarded(io.RawIOBase):
    """A decompressed stream that raises an error once too many bytes have been unpacked."""

    def __init__(self, name: str, stream: IO[bytes], allowance: _Allowance) -> None:
        self._name, self._stream, self._allowance = name, stream, allowance

    def readable(self) -> bool:
        """Return True, since the stream can be read from."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read bytes into a buffer, counting them towards the limit."""
        try:
            data = self._stream.read(len(buffer))
        except _DAMAGE as error:
            raise DataError(f"{self._name}: cannot be read: {single_line(error)}") from error
        self._allowance.left -= len(data)
        if self._allowance.left < 0:
            raise DataError(
                f"{self._name}: unpacks to more than {self._allowance.limit:,} bytes, out of proportion to its size; "
                "unpack it yourself if you trust it"
            )
        buffer[: len(data)] = data
        return len(data)


def _decompress(name: str, raw: io.BufferedReader, allowance: _Allowance) -> io.BufferedReader:
    """Return a stream's decompressed contents. The allowance applies only if the stream is compressed."""
    head = raw.peek(6)
    if head.startswith(_GZIP):
        stream: Any = gzip.GzipFile(fileobj=raw)
    elif head.startswith(_ZSTD):
        stream = pa.CompressedInputStream(pa.PythonFile(raw, "r"), "zstd")
    elif head.startswith(_XZ):
        stream = lzma.open(raw)  # noqa: SIM115
    elif head.startswith(_BZIP2):
        stream = bz2.open(raw)  # noqa: SIM115
    else:
        return raw
    return io.BufferedReader(_Guarded(name, stream, allowance))


def _members(stream: IO[bytes], is_zip: bool) -> Iterator[tuple[str, Callable[[], Any] | None]]:
    """Yield each archive member's name and a function that opens it, or None if it is not a file."""
    if is_zip:
        with zipfile.ZipFile(stream) as zipped:
            for entry in zipped.infolist():
                yield entry.filename, None if entry.is_dir() else partial(zipped.open, entry)
        return
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        for member in archive:
            yield member.name, partial(archive.extractfile, member) if member.isfile() else None


def single_line(error: BaseException) -> str:
    """Return a third-party error message as a single printable line."""
    return " ".join(str(error).split()).encode("ascii", "backslashreplace").decode() or type(error).__name__
