"""Files of a run: atomic writes, first-write-wins parts, merging, and the lock of a folder."""

from __future__ import annotations

import fcntl
import os
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TextIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from mechanisms.core.plugin import ConfigError
from pipeline.atomic import sync_folder as sync_folder
from pipeline.atomic import whole as whole
from pipeline.atomic import write_first as write_first
from pipeline.atomic import write_json as write_json
from pipeline.atomic import write_text as write_text

if TYPE_CHECKING:
    from pipeline.config.plan import Plan


# One run at a time in a folder: two would mix their releases, of which neither's budget counts the other's.


#: Its file, which is there only while a run goes on, or where one was killed.
LOCK = ".lock"


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Keep other runs out of a folder until the block ends; the lock of a killed process is gone with it.

    Parameters
    ----------
    folder
        Where the run writes; made if it is not there.

    Raises
    ------
    ConfigError
        If a run is writing there; it names the process.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / LOCK
    with _locked(path) as file:
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _locked(path: Path) -> TextIO:
    """The file at a path, locked, and still the one that others find there."""
    while True:
        file = path.open("a+", encoding="utf-8")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with file:
                file.seek(0)
                holder = file.read().strip() or "another process"
            text = f"output.path: {holder} is running in {path.parent}; wait for its end, or choose another folder"
            raise ConfigError((text,)) from None
        # Whoever held it may have removed it since it was opened.
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return file
        file.close()


# Files that appear whole or not at all, and parts of files.


#: Parts of so many rows are not joined with others any more.
ROLLED = 100_000


def part_path(folder: Path, name: str) -> Path:
    """Where a part of a folder is."""
    return folder / f"{name}.parquet"


def read_part(path: Path) -> pa.Table:
    """What one part holds."""
    with pq.ParquetFile(path) as file:  # read_table starts pyarrow's engine for data sets first
        return file.read()


def write_part(folder: Path, name: str, table: pa.Table) -> pa.Table:
    """Write one part; the first write of a name wins, so that a repeated bundle changes nothing.

    Returns
    -------
    What the part holds: the table, or what somebody has written before.
    """
    path = part_path(folder, name)
    if path.exists():
        return read_part(path)
    with whole(path) as temporary:
        _write(table, temporary)
    return table


def write_shared_part(folder: Path, name: str, table: pa.Table) -> pa.Table:
    """The same where several may write at once: of these one wins, and its part is what all are given."""
    path = part_path(folder, name)
    if not path.exists():
        data = pa.BufferOutputStream()
        _write(table, data)
        write_first(path, data.getvalue().to_pybytes())
    return read_part(path)


def stretch(first: int, last: int) -> str:
    """Name of a part that holds some windows; how windows are shared out to parts may differ when a run goes on.

    >>> stretch(3, 3), stretch(3, 12)
    ('000000000003', '000000000003~000000000012')
    """
    return f"{first:012d}" if first == last else f"{first:012d}~{last:012d}"


def windows_of(stem: str) -> range:
    """Windows that a part holds, by its name.

    >>> windows_of(stretch(3, 3)), windows_of(stretch(3, 12))
    (range(3, 4), range(3, 13))
    """
    first, _, last = stem.partition("~")
    return range(int(first), int(last or first) + 1)


def _write(table: pa.Table, path: Any) -> None:
    """Write a part, which nobody searches."""
    pq.write_table(table, path, compression="zstd", compression_level=1, write_statistics=False)


def roll(folder: Path, at_least: int = 64) -> None:
    """Join small parts that follow each other, once there are many, into one named ``first~last`` that stands for all.

    Names with a dash are joined only with those that begin alike (those of one accountant). Parts of `ROLLED` rows
    and more are left alone, so that every row is written again only a few times, and joining takes little memory.
    """
    growing: dict[str, list[Path]] = {}
    ended: list[list[Path]] = []
    for part in settle(folder):
        kind = part.stem.partition("-")[0] if "-" in part.stem else ""
        is_small = pq.read_metadata(part).num_rows < ROLLED
        # Nothing is joined across a large part, which would be covered, nor with one that has some of the same windows.
        if kind in growing and not (is_small and _first(part) > _last(growing[kind][-1])):
            ended.append(growing.pop(kind))
        if is_small:
            growing.setdefault(kind, []).append(part)
    many = [small for small in growing.values() if len(small) >= at_least]
    for small in many + [small for small in ended if len(small) > 1]:
        with whole(folder / f"{_first(small[0])}~{_last(small[-1])}.parquet") as temporary:
            _write(pa.concat_tables([read_part(part) for part in small]), temporary)
        settle(folder)


def settle(folder: Path) -> list[Path]:
    """Parts of a folder in order of their names, without those that a joined one stands for; these are removed."""
    kept: list[Path] = []
    covered = ""
    for part in sorted(folder.glob("*.parquet"), key=_stretch):
        last = _last(part)
        if kept and last <= covered:
            part.unlink()
        else:
            kept.append(part)
            covered = last
    return kept


def _first(part: Path) -> str:
    """First name that a part stands for."""
    return part.stem.partition("~")[0]


def _last(part: Path) -> str:
    """Last name that a part stands for."""
    return part.stem.rpartition("~")[2]


def _stretch(part: Path) -> tuple[str, str]:
    """First name that a part stands for, and the last one downwards: the widest part of a beginning comes first."""
    return _first(part), "".join(chr(0x10FFFF - ord(letter)) for letter in _last(part))


def remove_from(folder: Path, is_later: Callable[[str], bool]) -> None:
    """Remove the parts whose name says that they came after something."""
    for part in settle(folder):
        if is_later(part.stem):
            part.unlink()


# Parts become one file: at the end of a run, or beside it as they are written.


#: Rows of a row group of a merged file, whatever parts it was made from.
ROW_GROUP = 125_000
#: Columns that grow from row group to row group.
SEARCHED = ("window", "window_start", "window_end", "time")
#: Seconds between two looks for new parts.
_PAUSE = 0.05
#: Parts that may wait to be written, and of one folder to be merged without being read again: a slow disk must not
#: fill the memory.
_WAITING, _HELD = 32, 8

#: Writes a part; returns what it holds.
Write = Callable[[], pa.Table]

_merging: dict[Path, Merging] = {}


def write_beside(folder: Path, name: str, write: Write) -> None:
    """Write a part of a folder beside the run, where its parts are merged while they are written; else now.

    Parts are written in the order of the calls. An error is raised by a later call, or by the end of the merging.
    """
    merging = _merging.get(folder)
    if merging is None:
        write()
    else:
        merging.put(folder, name, write)


class Target(NamedTuple):
    """A file to be made from parts.

    Parameters
    ----------
    folder
        Where the parts are; they stay there.
    path
        The file to write; with the schema alone if there are no parts.
    schema
        Of the file.
    once
        Column that only ever grows from part to part (``window``): rows of a later part that do not go beyond the
        earlier ones were written twice and are left out.
    """

    folder: Path
    path: Path
    schema: pa.Schema
    once: str | None = None


class Merged:
    """One file that parts are added to in order of their names; its bytes do not depend on how they were cut."""

    def __init__(self, target: Target, path: Path) -> None:
        self.target = target
        self.path = path
        self.added: list[Path] = []
        # Least and largest values are worth their time only where they tell which rows can be skipped.
        searched = [name for name in target.schema.names if name in SEARCHED]
        self._writer = pq.ParquetWriter(path, target.schema, compression="zstd", write_statistics=searched)
        self._waiting: list[pa.Table] = []
        self._n_waiting, self._seen, self._n_rows = 0, -1, 0

    def add(self, part: Path, held: pa.Table | None = None) -> None:
        """Add the rows of one part; ``held``: what it holds, where that is known already."""
        table = (read_part(part) if held is None else held).cast(self.target.schema)
        if self.target.once is not None and len(table):
            keys = table.column(self.target.once).to_numpy()
            table = table if keys[0] > self._seen else table.filter(pa.array(keys > self._seen))
            self._seen = max(self._seen, int(np.max(keys)))
        self.added.append(part)
        self._waiting.append(table)
        self._n_rows, self._n_waiting = self._n_rows + len(table), self._n_waiting + len(table)
        while self._n_waiting >= ROW_GROUP:
            joined = pa.concat_tables(self._waiting)
            self._writer.write_table(canonical(joined[:ROW_GROUP]))
            self._waiting, self._n_waiting = [joined[ROW_GROUP:]], self._n_waiting - ROW_GROUP

    def end(self) -> int:
        """Add what is still missing, close the file and return its number of rows."""
        for part in self.missing():
            self.add(part)
        if self._n_waiting:
            self._writer.write_table(canonical(pa.concat_tables(self._waiting)))
        self.close()
        return self._n_rows

    def missing(self) -> list[Path]:
        """Parts that were not added yet; raises `OutOfOrder` if one of them should have come earlier."""
        parts = settle(self.target.folder)
        if parts[: len(self.added)] != self.added:
            raise OutOfOrder(str(self.target.folder))
        return parts[len(self.added) :]

    def close(self) -> None:
        """Close the file as it is."""
        self._writer.close()


class OutOfOrder(Exception):
    """A part came after one that it goes before: what was merged so far is of no use."""


def merge(target: Target) -> int:
    """Merge all parts of a folder; returns the number of rows."""
    with whole(target.path) as temporary:
        merged = Merged(target, temporary)
        try:
            return merged.end()
        finally:
            merged.close()


class Merging:
    """Files made from parts, begun in a thread while a run still writes these: encoding needs no lock of Python.

    Another thread writes the parts that are given to `write_beside`, which need not be read again.

    Parameters
    ----------
    targets
        What to make, by name.
    ahead
        Whether to begin now. What is begun lies beside the parts, and goes with them if the run is killed.
    """

    def __init__(self, targets: Mapping[str, Target], ahead: bool) -> None:
        self._targets = targets
        self._begun: dict[str, Merged] = {}
        self._over = threading.Event()
        self._news = threading.Event()
        #: Tables of parts by folder, while its file is made from them.
        self._held: dict[Path, dict[Path, pa.Table]] = {target.folder: {} for target in targets.values()}
        self._writer = ThreadPoolExecutor(1, "penstock-writing")
        self._written: deque[Future[None]] = deque()
        self._putting = threading.Lock()
        self._failed = False
        self._thread = threading.Thread(target=self._work, name="penstock-merging", daemon=True)
        if ahead:
            _merging.update(dict.fromkeys((target.folder for target in targets.values()), self))
            self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            with suppress(BaseException) if kind else nullcontext():  # what ended the run is told
                self.stop()
        finally:
            for merged in self._begun.values():
                merged.close()

    def __iter__(self) -> Iterator[str]:
        return iter(self._targets)

    def put(self, folder: Path, name: str, write: Write) -> None:
        """Write a part in a thread, after those before it; raises what an earlier one has failed with.

        Waits while many are waiting already. Each of them ends: it is written, fails, or comes after one that has.
        """
        with self._putting:
            while self._written and (len(self._written) >= _WAITING or self._written[0].done()):
                self._written.popleft().result()
            self._written.append(self._writer.submit(self._write, part_path(folder, name), write))

    def stop(self) -> None:
        """Begin nothing any more; returns when all parts are written, and raises what one has failed with."""
        for target in self._targets.values():
            _merging.pop(target.folder, None)
        self._writer.shutdown()
        self._over.set()
        self._news.set()
        if self._thread.is_alive():
            self._thread.join()
        while self._written:
            self._written.popleft().result()

    def end(self, name: str) -> int:
        """Make one file whole once all its parts are there; returns its number of rows."""
        self.stop()
        target, merged = self._targets[name], self._begun.pop(name, None)
        if merged is not None:
            try:
                for part in merged.missing():
                    merged.add(part, self._held[target.folder].pop(part, None))
                n_rows = merged.end()
                os.replace(merged.path, target.path)
                return n_rows
            except OutOfOrder:
                merged.close()
        return merge(target)

    def _write(self, path: Path, write: Write) -> None:
        if self._failed:
            return  # no part without those before it
        try:
            table = write()
        except BaseException:
            self._failed = True
            raise
        if (held := self._held.get(path.parent)) is not None and len(held) < _HELD:
            held[path] = table
        self._news.set()

    def _work(self) -> None:
        targets = dict(self._targets)
        while not self._over.is_set():
            self._news.wait(_PAUSE)
            self._news.clear()
            for name, target in list(targets.items()):
                try:
                    self._go_on(name, target)
                except Exception:  # whatever it is, a part may be half added
                    # It is merged anew at the end, where an error that lasts is told.
                    del targets[name], self._held[target.folder]
                    if name in self._begun:
                        self._begun.pop(name).close()

    def _go_on(self, name: str, target: Target) -> None:
        """Add the next part, if there is one."""
        if name not in self._begun:
            if not settle(target.folder):
                return
            self._begun[name] = Merged(target, target.folder / ".merged.tmp")
        for part in self._begun[name].missing()[:1]:
            self._begun[name].add(part, self._held[target.folder].pop(part, None))


def canonical(table: pa.Table) -> pa.Table:
    """The same rows in one chunk, every dictionary with just the values that occur, in order of first appearance."""
    table = table.combine_chunks()
    for index, field in enumerate(table.schema):
        column = table.column(index)
        if pa.types.is_dictionary(field.type) and column.num_chunks:
            table = table.set_column(index, field, _canonical(column.unify_dictionaries().combine_chunks()))
    return table


def _canonical(column: Any) -> pa.Array:
    column = column.chunk(0) if isinstance(column, pa.ChunkedArray) else column
    occurring = column.indices.unique()
    if occurring.equals(pa.array(range(len(occurring)), occurring.type)):
        return pa.DictionaryArray.from_arrays(column.indices, column.dictionary[: len(occurring)])
    renamed = np.zeros(len(column.dictionary), np.int32)
    renamed[occurring.to_numpy()] = np.arange(len(occurring))
    codes = pa.array(renamed[column.indices.to_numpy(zero_copy_only=False)])
    return pa.DictionaryArray.from_arrays(codes, column.dictionary.take(occurring))


# Where a run keeps what.


#: Rows of one part file; also bounds how much is released between two writes of the ledger.
PART_ROWS = 500_000

#: Outputs that may leave the operator.
PUBLIC = ("releases", "accounts_public")


def parts_folder(plan: Plan, kind: str) -> Path:
    """Where parts of one output are kept until they are merged."""
    return plan.folder / ("public" if kind in PUBLIC else "operator") / "parts" / kind


def ledger_path(plan: Plan) -> Path:
    """The ledger of the run, or the shared one that the configuration names."""
    return Path(plan.config.output.ledger or plan.folder / "operator" / "ledger")
