"""The files of a run as tables: merged where the run is over, the parts so far while it goes on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from mechanisms.core.errors import DataError

T = TypeVar("T")

#: Rows of a long table that are read at once: their columns stay in the processor's cache.
PIECE = 1 << 16

#: Where the parts of each table are before they are merged.
PARTS = {
    "public/releases": "public/parts/releases",
    "public/accounts": "public/parts/accounts_public",
    "operator/accounts": "operator/parts/accounts",
    "operator/truth": "operator/parts/truth",
    "public/traces": "public/parts/traces",
}


@dataclass(frozen=True)
class RunFiles:
    """Read access to one run's folder.

    Parameters
    ----------
    folder
        The folder; raises `DataError` on first use where it holds no run.
    """

    folder: Path

    @cached_property
    def public(self) -> dict[str, Any]:
        """The public manifest, written when a run begins."""
        path = self.folder / "public" / "manifest.json"
        if not path.is_file():
            raise DataError(f"{self.folder}: no run here (public/manifest.json is missing)")
        return _read_json(path)

    @cached_property
    def operator(self) -> dict[str, Any] | None:
        """The operator's manifest; None until the run is over."""
        path = self.folder / "operator" / "manifest.json"
        return _read_json(path) if path.is_file() else None

    @property
    def configuration(self) -> dict[str, Any]:
        """The configuration, whole where the operator's manifest is there."""
        manifest = self.operator or self.public
        configuration: dict[str, Any] = manifest["configuration"]
        return configuration

    def table(self, name: str) -> pl.DataFrame | None:
        """A table such as ``public/accounts``, text columns as strings; None if nothing of it is there."""
        read = self._read(name, lambda paths: [_read(path) for path in paths])
        return pl.concat(read) if read else None

    def each(
        self, name: str, columns: Sequence[str], take: Callable[[pa.RecordBatch], T], helper: Executor
    ) -> list[T] | None:
        """What a function makes of each piece of a long table, in their order; None if nothing of it is there.

        Parameters
        ----------
        name
            As in `table`.
        columns
            Those that the function needs; text comes as codes into the few different texts.
        take
            Called with some rows after the other, so that memory for columns it does not keep is used again.
        helper
            Another thread, which begins with the first row groups: reading holds no lock of Python.
        """

        def taken(path: Path, row_group: int) -> list[T]:
            return [take(piece) for piece in _pieces(path, row_group, columns)]

        def read(paths: list[Path]) -> list[T]:
            groups = [(path, group) for path in paths for group in range(pq.read_metadata(path).num_row_groups)]
            tasks = [helper.submit(taken, *group) for group in groups]
            # From the last one on, those that the helper has not begun.
            own = {i: taken(*groups[i]) for i in reversed(range(len(groups))) if tasks[i].cancel()}
            return list(chain.from_iterable(own[i] if i in own else task.result() for i, task in enumerate(tasks)))

        return self._read(name, read)

    def _read(self, name: str, read: Callable[[list[Path]], list[T]]) -> list[T] | None:
        """What is read from the merged file, or the parts so far; None if there is neither."""
        path = self.folder / f"{name}.parquet"
        try:
            if path.is_file():
                return read([path])
            parts = sorted((self.folder / PARTS[name]).glob("*.parquet")) if name in PARTS else []
            return read(parts) if parts else None
        except (OSError, pl.exceptions.PolarsError, pa.ArrowException) as error:
            if self.operator is None:
                return None  # merged while we looked, or still being written
            raise DataError(f"{path}: cannot be read ({error})") from error

    def rejects(self, n_most: int) -> list[dict[str, Any]]:
        """The first rejected rows."""
        path = self.folder / "operator" / "rejects.jsonl"
        if not path.is_file():
            return []
        with path.open(encoding="utf-8", errors="replace") as lines:
            return [json.loads(line) for line, _ in zip(lines, range(n_most))]


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{path}: not JSON ({error})") from error
    return value


def _read(path: Path) -> pl.DataFrame:
    table = pl.read_parquet(path)
    coded = [name for name, kind in table.schema.items() if isinstance(kind, pl.Categorical | pl.Enum)]
    return table.with_columns(pl.col(coded).cast(pl.String)) if coded else table


def _pieces(path: Path, row_group: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(path) as file:
        missing = [name for name in columns if name not in file.schema_arrow.names]
        if missing:
            raise pa.ArrowInvalid(f"no column {missing[0]}")
        yield from file.iter_batches(PIECE, [row_group], list(columns), use_threads=False)
