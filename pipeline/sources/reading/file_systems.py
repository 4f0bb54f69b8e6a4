"""Files on a local disk, or on any file system that Beam supports, such as object stores and HDFS."""

from __future__ import annotations

import glob
import importlib
import io
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

from penstock.mechanisms.core.plugin import ConfigError, DataError, MissingLibrary, PenstockError
from penstock.pipeline.sources.reading.inputs import ARCHIVES, PathSource, matches
from penstock.pipeline.sources.reading.services import resolved_value
from penstock.pipeline.sources.reading.text import TextSource

#: Module that a scheme needs, and what it comes with.
_NEEDED = {
    "gs": ("google.cloud.storage", "apache-beam[gcp]"),
    "s3": ("boto3", "apache-beam[aws]"),
    "azfs": ("azure.storage.blob", "apache-beam[azure]"),
    "hdfs": ("hdfs", "apache-beam[hadoop]"),
}


def is_url(path: str) -> bool:
    """Return whether a path names a remote file system.

    >>> is_url("s3://bucket/in"), is_url("/var/spool/in")
    (True, False)
    """
    return "://" in path


def file_system(path: str, options: Mapping[str, str], field: str) -> Any:
    """Return Beam's file system for a path; raise `MissingLibrary` or `ConfigError` if there is none.

    ``options`` are Beam's; a value may stand for a secret (``env:``, ``file:``). ``field``: key of the path in the
    configuration, for errors.
    """
    from apache_beam.io import filesystems  # registers those that are installed
    from apache_beam.io.filesystem import FileSystem
    from apache_beam.options.pipeline_options import PipelineOptions

    scheme = filesystems.FileSystems.get_scheme(path)
    if scheme in _NEEDED:
        module, extra = _NEEDED[scheme]
        try:
            importlib.import_module(module)
        except ImportError:
            raise MissingLibrary(f"{scheme}:// needs a library that is not installed: pip install '{extra}'") from None
    kinds = {kind.scheme(): kind for kind in FileSystem.get_all_subclasses()}
    if scheme not in kinds:
        known = ", ".join(f"{name}://" for name in sorted({*_NEEDED, *kinds} - {None}))
        raise ConfigError((f"{field}: Beam has no file system for {scheme}://, but for {known}",))
    values = {name: resolved_value(name, value) for name, value in options.items()}
    return kinds[scheme](pipeline_options=PipelineOptions.from_dictionary(values))


def opened(how: Any, place: str) -> io.IOBase:
    """Open a file through the ``open`` or ``create`` method of a file system, without decompression."""
    from apache_beam.io.filesystem import CompressionTypes

    file: io.IOBase = how(place, compression_type=CompressionTypes.UNCOMPRESSED)
    return file


class File(NamedTuple):
    """Metadata of a file: modification time (nanoseconds since 1970), name and size."""

    written: int
    name: str
    size: int

    @property
    def arrival(self) -> int:
        """The arrival time of the file's rows, in milliseconds since 1970."""
        return self.written // 1_000_000


class Unanswered(DataError):
    """Raised if files cannot be listed or read at present but another attempt may succeed."""


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
        """Return the existing files by name, or raise `Unanswered` if they cannot be listed."""
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
        """Yield the local path of a file, or of a copy of it.

        Raises `Unanswered` if it cannot be read, `DataError` if it is gone or is not what it was when it was found.
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
            raise Unanswered(f"{self._folder}: is on another file system than before (is it mounted?)")

    @staticmethod
    def _status(name: str) -> File:
        status = os.stat(name)
        return File(status.st_mtime_ns, name, status.st_size)


class RemoteFiles:
    """Files on a Beam file system, which are copied to a temporary folder for reading.

    Raises `ConfigError` if Beam would date the objects wrongly on this machine.
    """

    def __init__(self, source: PathSource, options: Mapping[str, str]) -> None:
        self._path = source.path
        # As on a disk: a pattern says itself what is wanted, and leaves out only hidden names and those of folders.
        self._patterns = ("?*",) if glob.has_magic(self._path) else _patterns(source)
        if self._path.startswith("gs://") and time.daylight:
            # Beam takes the time of an object, which is UTC, for one that summer time may apply to (`gcsio` of 2.77).
            text = "objects of gs:// are dated an hour early on a machine with summer time; set its TZ=UTC"
            raise ConfigError((f"source.of.path: {text}",))
        self._system = file_system(self._path, options, "source.of.path")

    def listing(self) -> dict[str, File]:
        """Return the existing files by name, as `LocalFiles.listing` does."""
        pattern = self._path if glob.has_magic(self._path) else f"{self._path.rstrip('/')}/**"
        with _translate_errors(self._path, "listed"):
            (result,) = self._system.match([pattern])
        files = (self._status(metadata) for metadata in result.metadata_list)
        return {file.name: file for file in files if matches(file.name, self._patterns)}

    @contextmanager
    def local(self, file: File) -> Iterator[str]:
        """Yield the local path of a copy of a file."""
        with tempfile.TemporaryDirectory(prefix="penstock-") as folder:
            path = os.path.join(folder, os.path.basename(file.name))
            with _translate_errors(file.name, "read"):
                if not self._system.exists(file.name):
                    raise _missing_file(file)
                with opened(self._system.open, file.name) as source, open(path, "wb") as target:
                    shutil.copyfileobj(source, target)
                # Afterwards: what is replaced while it is copied shows then.
                _check_same(self._status(self._system.metadata(file.name)), file)
            yield path

    @staticmethod
    def _status(metadata: Any) -> File:
        written = round(metadata.last_updated_in_seconds * 1000) * 1_000_000
        return File(written, metadata.path, metadata.size_in_bytes)


@contextmanager
def _translate_errors(path: str, action: str) -> Iterator[None]:
    """Convert any error of a file system or its client to `Unanswered`."""
    try:
        yield
    except PenstockError:
        raise
    except Exception as error:
        raise Unanswered(f"{path}: cannot be {action} ({type(error).__name__}: {error})") from error


#: Place where files keep arriving.
Files = LocalFiles | RemoteFiles


def _patterns(source: PathSource) -> tuple[str, ...]:
    """Return the file name patterns of a source, including those of archives if the source unpacks them."""
    return source.patterns + ARCHIVES if isinstance(source, TextSource) else source.patterns


def _missing_file(file: File) -> DataError:
    return DataError(f"{file.name}: is gone, and was not read to its end; put it back")


def _check_same(now: File, file: File) -> None:
    if now != file:
        raise DataError(f"{file.name}: has changed since the run found it; put the file back that it was")
