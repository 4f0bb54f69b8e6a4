"""File access: local files, or remote files on HDFS and in object stores (S3, Google Cloud Storage, Azure) by way of
fsspec.

A process that reads or writes objects does so for itself, on every runner: Beam's file systems serve only what Beam
itself keeps, such as the staging of a job.
"""

from __future__ import annotations

import glob
import inspect
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

from penstock.mechanisms.core.plugin import ConfigError, DataError, MissingLibrary, PenstockError
from penstock.pipeline.sources.reading.inputs import ARCHIVES, PathSource, matches
from penstock.pipeline.sources.reading.services import resolved_value
from penstock.pipeline.sources.reading.text import TextSource

#: Library by which fsspec reaches each scheme; those that are not required come with the extra of the scheme's name.
LIBRARIES = {"abfs": "adlfs", "gs": "gcsfs", "hdfs": "pyarrow", "s3": "s3fs"}


def is_url(path: str) -> bool:
    """Return whether a path refers to a remote file system.

    >>> is_url("s3://bucket/in"), is_url("/var/spool/in")
    (True, False)
    """
    return "://" in path


def file_system(url: str, options: Mapping[str, str], field: str) -> Any:
    """Return the fsspec file system for a URL. Raise `MissingLibrary` or `ConfigError` if it is not available.

    ``options`` are those of its class; a value may stand for a secret (``env:``, ``file:``). ``field``: key of the URL
    in the configuration, for errors.
    """
    import fsspec  # only a run with a URL needs it

    scheme = url.partition("://")[0]
    if scheme not in LIBRARIES:
        known = ", ".join(f"{name}://" for name in LIBRARIES)
        raise ConfigError((f"{field}: there is no file system for {scheme}://, but for {known}",))
    try:
        cls = fsspec.get_filesystem_class(scheme)
    except ImportError:
        text = f"{scheme}:// needs {LIBRARIES[scheme]}, which is not installed: pip install 'penstock[{scheme}]'"
        raise MissingLibrary(text) from None
    taken = {name for base in cls.__mro__ for name in inspect.signature(base.__init__).parameters}
    taken -= {"self", "args", "kwargs", "storage_options"}
    if unknown := [name for name in options if name not in taken]:  # which fsspec would pass over
        section = field.removesuffix(".path").removesuffix(".of")
        text = f"{section}.options.{unknown[0]}: {cls.__name__} of {LIBRARIES[scheme]} has no such option, but "
        raise ConfigError((text + ", ".join(sorted(taken)),))
    values = {name: resolved_value(name, value) for name, value in options.items()}
    try:
        # Every look is to show what is there now.
        return fsspec.core.url_to_fs(url, use_listings_cache=False, skip_instance_cache=True, **values)[0]
    except Exception as error:  # of any client
        cause = (str(error).splitlines() or [type(error).__name__])[0]
        raise ConfigError((f"{field}: {url} cannot be reached ({cause})",)) from error


class File(NamedTuple):
    """A file's metadata: its modification time in nanoseconds since the Unix epoch, its name and its size."""

    written: int
    name: str
    size: int

    @property
    def arrival(self) -> int:
        """The arrival time of the file's rows, in milliseconds since the Unix epoch."""
        return self.written // 1_000_000


class StorageUnavailable(DataError):
    """Raised if files cannot be listed or read at the moment, but a retry may succeed."""


class LocalFiles:
    """Files on a local disk.

    A folder that is unmounted leaves an empty one behind. So the file system that it is on has to stay the same.
    """

    def __init__(self, source: PathSource) -> None:
        self._path, self._patterns = source.path, _patterns(source)
        fixed = Path(*takewhile(lambda part: not glob.has_magic(part), Path(self._path).parts))
        self._is_folder = not glob.has_magic(self._path) and not fixed.is_file()
        self._folder = fixed.parent if fixed.is_file() else fixed
        self._device: int | None = None

    def listing(self) -> dict[str, File]:
        """Return all existing files by name. Raise `StorageUnavailable` if they cannot be listed."""
        listed = {}
        with _translate_errors(str(self._folder), "listed"):
            os.scandir(self._folder).close()  # what may not be read would look empty
            if self._is_folder:
                below = (str(file) for file in self._folder.rglob("*") if file.is_file())
                names = [name for name in below if matches(name, self._patterns)]
            else:
                names = [name for name in glob.glob(self._path, recursive=True) if os.path.isfile(name)]
            for name in names:
                try:
                    listed[name] = self._status(name)
                except FileNotFoundError:
                    continue  # it was moved away after it was listed
            self._check_mounted()
        return listed

    @contextmanager
    def local(self, file: File) -> Iterator[str]:
        """Check that a file has not changed, and yield its path.

        Raises `StorageUnavailable` if it cannot be read, `DataError` if it is gone or has changed since it was listed.
        """
        with _translate_errors(file.name, "read"):
            try:
                _check_same(self._status(file.name), file)
            except FileNotFoundError:
                self._check_mounted()
                raise _missing_file(file) from None
        yield file.name

    def _check_mounted(self) -> None:
        device = os.stat(self._folder).st_dev
        if self._device is None:
            self._device = device
        if device != self._device:
            raise StorageUnavailable(f"{self._folder}: is on another file system than before (is it mounted?)")

    @staticmethod
    def _status(name: str) -> File:
        status = os.stat(name)
        return File(status.st_mtime_ns, name, status.st_size)


class RemoteFiles:
    """Remote objects under a URL or pattern, each copied to a temporary folder before it is read."""

    def __init__(self, source: PathSource, options: Mapping[str, str]) -> None:
        self._path, self._is_pattern = source.path, glob.has_magic(source.path)
        # As on a disk: a pattern says itself what is wanted, and leaves out only hidden names and those of folders.
        self._patterns = ("?*",) if self._is_pattern else _patterns(source)
        self._system = file_system(self._path, options, "source.of.path")

    def listing(self) -> dict[str, File]:
        """Return all existing files by name, like `LocalFiles.listing`."""
        look = self._system.glob if self._is_pattern else self._system.find
        with _translate_errors(self._path, "listed"):
            objects = look(self._path, detail=True).values()
            files = [self._status(entry) for entry in objects if entry["type"] == "file"]
        return {file.name: file for file in files if matches(file.name, self._patterns)}

    @contextmanager
    def local(self, file: File) -> Iterator[str]:
        """Copy the file to a temporary folder, and yield the path of the copy."""
        with tempfile.TemporaryDirectory(prefix="penstock-") as folder:
            path = os.path.join(folder, os.path.basename(file.name))
            with _translate_errors(file.name, "read"):
                try:
                    self._system.get_file(file.name, path)
                    # Afterwards: what is replaced while it is copied shows then.
                    _check_same(self._status(self._system.info(file.name)), file)
                except FileNotFoundError:
                    raise _missing_file(file) from None
            yield path

    def _status(self, entry: Mapping[str, Any]) -> File:
        written = next(entry[key] for key in _MODIFIED if key in entry)
        seconds = written.timestamp() if isinstance(written, datetime) else written
        return File(round(seconds * 1000) * 1_000_000, self._system.unstrip_protocol(entry["name"]), entry["size"])


#: Names that the libraries of `LIBRARIES` have for the time at which an object was written.
_MODIFIED = ("LastModified", "last_modified", "mtime", "created")


@contextmanager
def _translate_errors(path: str, action: str) -> Iterator[None]:
    """Convert any error raised by a file system or its client library to `StorageUnavailable`."""
    try:
        yield
    except PenstockError:
        raise
    except Exception as error:
        raise StorageUnavailable(f"{path}: cannot be {action} ({type(error).__name__}: {error})") from error


#: Place where files keep arriving.
Files = LocalFiles | RemoteFiles


def _patterns(source: PathSource) -> tuple[str, ...]:
    """Return the file name patterns that a source accepts, including archives if the source can unpack them."""
    return source.patterns + ARCHIVES if isinstance(source, TextSource) else source.patterns


def _missing_file(file: File) -> DataError:
    return DataError(f"{file.name}: is gone, and was not read to its end; put it back")


def _check_same(now: File, file: File) -> None:
    if now != file:
        raise DataError(f"{file.name}: has changed since the run found it; put the file back that it was")
