"""Publish a run's public files to a folder in an object store, on HDFS (through fsspec) or on a local disk."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.mechanisms.core.plugin import ConfigError, DataError
from penstock.pipeline.atomic import replacing
from penstock.pipeline.output.cells import CELLS
from penstock.pipeline.output.checkpoint import public_name
from penstock.pipeline.output.files import canonical
from penstock.pipeline.output.maps import OUTLINES
from penstock.pipeline.output.sinks import Sink
from penstock.pipeline.sources.reading.file_systems import file_system, is_url

if TYPE_CHECKING:
    from penstock.pipeline.config.plan import Plan
    from penstock.pipeline.config.sections import StoreOutput


#: The object that says which run a folder of a store belongs to.
MARK = "run.json"
#: What of ``public/`` is published, as far as a run writes it; the manifest comes last: with it all others are there.
FILES = ("releases.parquet", "traces.parquet", "accounts.parquet", CELLS, OUTLINES, "report.html", "manifest.json")


class Store(Sink):
    """Sink that writes each of a run's public files once. Objects in a store are never overwritten.

    Files are there when the run has ended, byte for byte. A stream also has ``releases/WINDOW.parquet`` once its window
    is released, and ``manifests/DIGEST.json`` for each manifest that it began or went on with. An object that exists
    with the same bytes is left; one with other bytes ends the run with an error that names it.
    """

    def __init__(self, plan: Plan, output: StoreOutput) -> None:
        self.plan, self.objects = plan, Objects(output)

    def begin(self) -> None:
        """Claim the folder in the store and publish a stream's first files. Raise `ConfigError` if it is taken."""
        if not self.objects.put(MARK, f'{{"run": "{public_name(self.plan)}"}}\n'.encode()):
            text = f"{self.objects.place(MARK)} is of another run; choose another folder of the store"
            raise ConfigError((f"output.store.path: {text} (a deployment that has begun then goes on with --resume)",))
        if not self.plan.streaming:
            return
        public = self.plan.folder / "public"
        manifest = (public / "manifest.json").read_bytes()
        self._put(f"manifests/{hashlib.sha256(manifest).hexdigest()[:16]}.json", manifest)
        for name in (CELLS, OUTLINES):
            if (public / name).exists():
                self._put(name, (public / name).read_bytes())

    def releases(self, table: pa.Table) -> None:
        """Write a stream's windows, one object per window."""
        if self.plan.streaming:
            for name, rows in by_window(table):
                data = pa.BufferOutputStream()
                pq.write_table(rows, data, compression="zstd")
                self._put(f"releases/{name}.parquet", bytes(data.getvalue()))

    def end(self) -> None:
        """Copy a completed run's files."""
        for name in FILES:
            if (path := self.plan.folder / "public" / name).exists():
                self._put(name, path.read_bytes())

    def _put(self, name: str, data: bytes) -> None:
        if not self.objects.put(name, data):
            raise DataError(
                f"{self.objects.place(name)}: is there with other content, and is not replaced; nothing is lost: what "
                "was released is in the run's folder. Remove the object if it is wrong, and --resume"
            )


def by_window(table: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """Yield each of a stream's windows by name with its rows, in order and regardless of batching.

    >>> rows = pa.table({"window": [3, 3, 4]})
    >>> [(name, len(rows_of_window)) for name, rows_of_window in by_window(rows)]
    [('000000000003', 2), ('000000000004', 1)]
    """
    windows = table.column("window").to_numpy()
    edges = [0, *(np.flatnonzero(np.diff(windows)) + 1).tolist(), len(windows)]
    for first, end in pairwise(edges):
        if first < end:
            yield f"{windows[first]:012d}", canonical(table[first:end])


class Objects:
    """Objects below a path. Each is written once and becomes visible as a whole."""

    def __init__(self, output: StoreOutput) -> None:
        self.output = output

    @cached_property
    def system(self) -> Any:
        """The file system for a URL, or None for a local folder. Raises `MissingLibrary` if a library is missing."""
        path = self.output.path
        return file_system(path, self.output.options, "output.store.path") if is_url(path) else None

    def place(self, name: str) -> str:
        """Return an object's full path."""
        return f"{self.output.path.rstrip('/')}/{name}"

    def put(self, name: str, data: bytes) -> bool:
        """Write an object unless it exists, and return whether it has these bytes. Raise `DataError` on failure."""
        place, system = self.place(name), self.system
        try:
            if system is None:
                if not (path := Path(place)).exists():
                    with replacing(path) as temporary:
                        temporary.write_bytes(data)
                return path.read_bytes() == data
            if not system.exists(place):
                with suppress(FileExistsError):  # of another process, which is compared
                    self._create(place, data)
            return bytes(system.cat_file(place)) == data
        except Exception as error:
            raise DataError(f"{place}: cannot be published ({type(error).__name__}: {error})") from error

    def _create(self, place: str, data: bytes) -> None:
        if not place.startswith("hdfs://"):
            self.system.pipe_file(place, data, mode="create")  # one conditional request
            return
        # A file of HDFS is seen while it is written, and a rename there replaces none.
        folder, _, last = place.rpartition("/")
        temporary = f"{folder}/.{last}.{secrets.token_hex(4)}.tmp"
        self.system.pipe_file(temporary, data)
        self.system.mv(temporary, place)
