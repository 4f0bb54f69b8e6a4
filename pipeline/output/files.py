"""A run's files: atomic writes, parts with first-write-wins semantics, merging and folder locks."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.mechanisms.core.plugin import ConfigError
from penstock.pipeline.atomic import PRIVATE, make_folder, private_opener, replacing, write_first

if TYPE_CHECKING:
    from penstock.pipeline.config.plan import Plan


# One run at a time in a folder: two would mix their releases, of which neither's budget counts the other's.


#: Its file, which is there only while a run goes on, or where one was killed.
LOCK = ".lock"


@contextmanager
def exclusive_lock(folder: Path) -> Iterator[None]:
    """Lock a folder during the block. Raise a `ConfigError` that names the process that holds the lock."""
    make_folder(folder)
    path = folder / LOCK
    with _lock_file(path) as file:
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def lock_holder(folder: Path) -> str | None:
    """Return the live process that holds a folder's lock, or None, without acquiring the lock."""
    try:
        holder = (folder / LOCK).read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return None
    except PermissionError:
        return "a process of another account"
    process, _, host = holder.removeprefix("process ").partition(" on ")
    if host == socket.gethostname() and process.isdigit():
        try:
            with suppress(PermissionError):  # it is there, and belongs to another user
                os.kill(int(process), 0)
        except ProcessLookupError:
            return None
    return holder or None


def _lock_file(path: Path) -> TextIO:
    """Lock the file at a path and check that it has not been replaced in the meantime."""
    while True:
        # For its owner alone, since others who could read it could hold it.
        file = open(path, "a+", encoding="utf-8", opener=private_opener)  # noqa: SIM115
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with file:
                file.seek(0)
                holder = file.read().strip() or "another process"
            text = f"output.path: {holder} is running in {path.parent}; wait for its end, or choose another folder"
            raise ConfigError((text,)) from None
        # The process that held it may have removed it since it was opened.
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return file
        file.close()


# Files that appear whole or not at all, and parts of files.


def read_part(path: Path) -> pa.Table:
    """Read one part."""
    with pq.ParquetFile(path) as file:  # read_table starts pyarrow's engine for data sets first
        return file.read()


def write_part(folder: Path, name: str, table: pa.Table) -> pa.Table:
    """Write a part durably and return what is stored: the first write under a name wins."""
    path = folder / f"{name}.parquet"
    if path.exists():
        return read_part(path)
    data = pa.BufferOutputStream()
    pq.write_table(table, data, compression="zstd", compression_level=1, write_statistics=False)
    return table if write_first(path, data.getvalue().to_pybytes()) else read_part(path)


def part_name(first: int, last: int) -> str:
    """Return a part's name, given its windows. A resumed run may divide the windows differently."""
    return f"{first:012d}" if first == last else f"{first:012d}~{last:012d}"


def windows_of(stem: str) -> range:
    """Parse a part's windows from its name.

    >>> windows_of(part_name(3, 3)), windows_of(part_name(3, 12)), part_name(3, 12)
    (range(3, 4), range(3, 13), '000000000003~000000000012')
    """
    first, _, last = stem.partition("~")
    return range(int(first), int(last or first) + 1)


# Parts become one file at the end of a run; its bytes do not depend on how the parts were cut.


#: Rows of a row group of a merged file, whatever parts it was made from.
ROW_GROUP = 125_000
#: Columns that grow from row group to row group.
SEARCHED = ("window", "window_start", "window_end", "time")


def merge(folder: Path, path: Path, schema: pa.Schema, once: str | None = None, row_group: int = ROW_GROUP) -> int:
    """Merge all parts in a folder into one file in order of their names, and return the number of rows.

    ``once``: a column that only grows from part to part (``window``); rows that do not go beyond earlier parts were
    written twice, and are left out.
    """
    # Least and largest values are worth their time only if they say which rows can be skipped.
    searched = [name for name in schema.names if name in SEARCHED]
    options = {"compression": "zstd", "write_statistics": searched}
    waiting: list[pa.Table] = []
    n_rows, n_waiting, seen = 0, 0, -1
    with replacing(path) as temporary, pq.ParquetWriter(temporary, schema, **options) as writer:
        for part in sorted(folder.glob("*.parquet")):
            table = read_part(part)
            table = table if table.schema.equals(schema) else table.cast(schema)
            if once is not None and len(table):
                keys = table.column(once).to_numpy()
                table = table if keys[0] > seen else table.filter(pa.array(keys > seen))
                seen = max(seen, int(np.max(keys)))
            waiting.append(table)
            n_rows, n_waiting = n_rows + len(table), n_waiting + len(table)
            while n_waiting >= row_group:
                joined = pa.concat_tables(waiting)
                writer.write_table(canonical(joined[:row_group]))
                waiting, n_waiting = [joined[row_group:]], n_waiting - row_group
        if n_waiting:
            writer.write_table(canonical(pa.concat_tables(waiting)))
    return n_rows


def canonical(table: pa.Table) -> pa.Table:
    """Combine a table into one chunk, whose dictionaries list the values in order of first appearance."""
    table = table.combine_chunks()
    for index, field in enumerate(table.schema):
        chunks = table.column(index)
        if not pa.types.is_dictionary(field.type) or not chunks.num_chunks:
            continue
        column: Any = chunks.unify_dictionaries().combine_chunks()
        column = column.chunk(0) if isinstance(column, pa.ChunkedArray) else column
        # By NumPy, since Arrow's compute functions take 30 ms to load, and a small run needs nothing else of them.
        codes, values = column.indices.to_numpy(zero_copy_only=False), column.dictionary.to_pylist()
        first = np.full(len(values), len(codes))
        first[codes[::-1]] = np.arange(len(codes))[::-1]  # of several rows with one code, the last to be assigned
        occurring = np.argsort(first)[: np.count_nonzero(first < len(codes))]
        renamed = np.zeros(len(values), np.int32)
        renamed[occurring] = np.arange(len(occurring))
        names = pa.array([values[code] for code in occurring], column.dictionary.type)
        encoded = pa.DictionaryArray.from_arrays(pa.array(renamed[codes]), names)
        table = table.set_column(index, field, encoded)
    return table


# Where a run keeps what.


#: Rows of one part file; also bounds how much is released between two writes of the ledger.
PART_ROWS = 500_000


def readable_by_others(folder: Path) -> list[Path]:
    """Return the paths in the operator's folder that other accounts can read."""
    operator = folder / PRIVATE
    readable = []
    for root, _, names in os.walk(operator):  # which passes over what an engine removes meanwhile
        for path in map(Path(root).joinpath, ("", *names)):
            with suppress(FileNotFoundError):
                if path.stat().st_mode & 0o077:
                    readable.append(path)
    return sorted(readable)


#: Outputs that may leave the operator.
PUBLIC = ("releases", "accounts_public")


#: Kind of the parts that hold how far each reader of a stream on an engine has come, and how many turns it has had.
READERS = "readers"


def parts_folder(plan: Plan, kind: str) -> Path:
    """Return the folder that stores an output's parts until they are merged."""
    return plan.folder / ("public" if kind in PUBLIC else "operator") / "parts" / kind


def has_truth(plan: Plan) -> bool:
    """Return whether true counts or traces are kept for the operator, which is never the case in a deployment."""
    return plan.config.mode == "simulation" and plan.config.output.truth
