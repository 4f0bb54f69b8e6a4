"""Files that appear whole or not at all, and parts of files."""

from __future__ import annotations

import json
import os
import secrets
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

#: Parts of so many rows are not joined with others any more.
ROLLED = 100_000


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A temporary path that becomes ``path`` when the block ends well: readers see the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Workers of a cluster may be threads of one process, or processes of one number on several machines.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Write JSON, whole."""
    with whole(path) as temporary:
        temporary.write_text(json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")


def write_text(path: Path, text: str) -> None:
    """Write text, whole."""
    with whole(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_first(path: Path, data: bytes) -> None:
    """Write bytes, whole and durable when this returns, unless somebody has; of several at once one succeeds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(temporary, path)  # unlike a renamed file, it replaces none
    finally:
        os.unlink(temporary)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


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
