"""Parts become one file with the same bytes, however they were cut and whenever merging began."""

from __future__ import annotations

import threading
import time
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.output import files
from pipeline.output import files as merging_module
from pipeline.output.files import Merging, Target, merge, roll, stretch, write_beside, write_part

SCHEMA = pa.schema([("window", pa.int64()), ("cell", pa.dictionary(pa.int32(), pa.string())), ("value", pa.float64())])


def table(first: int, last: int) -> pa.Table:
    """Two rows a window; later windows name other cells, in another order."""
    rows = [(window, row) for window in range(first, last + 1) for row in range(2)]
    cells = pa.array([f"cell {(window * 7 + row) % 5}" for window, row in rows]).dictionary_encode()
    return pa.table([[window for window, _ in rows], cells, [float(row) for _, row in rows]], schema=SCHEMA)


def renumbered(table: pa.Table) -> pa.Table:
    """The same rows, with a dictionary in another order that holds more than occurs."""
    names = pa.array(["nowhere", *reversed(table["cell"].unique().to_pylist())])
    codes = [names.to_pylist().index(cell) for cell in table["cell"].to_pylist()]
    column = pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), names)
    return table.set_column(1, SCHEMA.field("cell"), column)


def cut(folder: Path, *borders: int) -> Target:
    """Windows 1 to 12 in parts that end at the borders."""
    first = 1
    for last in (*borders, 12):
        write_part(folder, stretch(first, last), table(first, last))
        first = last + 1
    return Target(folder, folder.parent / f"{folder.name}.parquet", SCHEMA, "window")


def ended(merging: Merging, target: Target) -> bytes:
    """The bytes of the whole file."""
    with merging:
        assert merging.end("releases") == 24
    return target.path.read_bytes()


def test_the_bytes_do_not_depend_on_how_parts_were_cut(tmp_path: Path) -> None:
    """One part, four, and parts that were merged while they were written."""
    one, four = cut(tmp_path / "one"), cut(tmp_path / "four", 1, 5, 6)
    assert merge(one) == merge(four) == 24
    assert one.path.read_bytes() == four.path.read_bytes()
    assert pq.read_table(four.path)["window"].to_pylist() == table(1, 12)["window"].to_pylist()

    ahead = Target(tmp_path / "ahead", tmp_path / "ahead.parquet", SCHEMA, "window")
    merging = Merging({"releases": ahead}, ahead=True)
    for last in range(1, 13):
        write_part(ahead.folder, stretch(last, last), table(last, last))
        time.sleep(0.01)
    assert ended(merging, ahead) == one.path.read_bytes()
    assert not list(tmp_path.rglob("*.tmp"))


def test_a_part_that_comes_too_late_is_merged_in_its_place(tmp_path: Path) -> None:
    """What was begun is of no use then, and nothing of it stays in the file."""
    wanted = cut(tmp_path / "wanted", 6)
    merge(wanted)
    target = Target(tmp_path / "late", tmp_path / "late.parquet", SCHEMA, "window")
    merging = Merging({"releases": target}, ahead=True)
    write_part(target.folder, stretch(7, 12), table(7, 12))
    waited_for = time.monotonic() + 10
    while not (target.folder / ".merged.tmp").exists() and time.monotonic() < waited_for:
        time.sleep(0.01)
    write_part(target.folder, stretch(1, 6), table(1, 6))
    assert ended(merging, target) == wanted.path.read_bytes()


def test_the_bytes_do_not_depend_on_dictionaries(tmp_path: Path) -> None:
    """Values are numbered in order of appearance, and only those that appear."""
    one = cut(tmp_path / "one")
    merge(one)
    other = Target(tmp_path / "other", tmp_path / "other.parquet", SCHEMA, "window")
    write_part(other.folder, stretch(1, 12), renumbered(table(1, 12)))
    merge(other)
    assert other.path.read_bytes() == one.path.read_bytes()


def test_rows_that_were_written_twice_count_once(tmp_path: Path) -> None:
    """Two parts of a resumed run overlap: windows up to those seen are left out."""
    target = Target(tmp_path / "twice", tmp_path / "twice.parquet", SCHEMA, "window")
    write_part(target.folder, stretch(1, 8), table(1, 8))
    write_part(target.folder, stretch(5, 12), table(5, 12))
    assert merge(target) == 24


def test_a_damaged_part_is_told_at_the_end(tmp_path: Path) -> None:
    """Merging ahead leaves an error to the end, where it is not swallowed."""
    target = Target(tmp_path / "damaged", tmp_path / "damaged.parquet", SCHEMA, "window")
    target.folder.mkdir()
    (target.folder / f"{stretch(1, 2)}.parquet").write_bytes(b"no Parquet")
    with Merging({"releases": target}, ahead=True) as merging:
        time.sleep(0.1)
        with pytest.raises(pa.ArrowException):
            merging.end("releases")
    assert not target.path.exists()


def test_whatever_goes_wrong_ahead_is_begun_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what is no error of files: a part that was half added must not stay so."""
    monkeypatch.setattr(merging_module, "ROW_GROUP", 4)
    wanted, target = cut(tmp_path / "wanted", 6), cut(tmp_path / "failing", 6)
    merge(wanted)
    calls: list[int] = []
    write = pq.ParquetWriter.write_table

    def fails_once(writer: pq.ParquetWriter, rows: pa.Table) -> None:
        calls.append(len(rows))
        write(writer, rows)
        if len(calls) == 1:
            raise MemoryError

    monkeypatch.setattr(pq.ParquetWriter, "write_table", fails_once)
    merging = Merging({"releases": target}, ahead=True)
    waited_for = time.monotonic() + 10
    while not calls and time.monotonic() < waited_for:
        time.sleep(0.01)
    assert ended(merging, target) == wanted.path.read_bytes()


def test_parts_that_are_written_beside_are_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are on disk as others are, in the order of the calls, and the file has the same bytes."""
    wanted, target = cut(tmp_path / "wanted", 6), Target(tmp_path / "beside", tmp_path / "b.parquet", SCHEMA, "window")
    merge(wanted)
    read: list[Path] = []
    monkeypatch.setattr(pq, "read_table", lambda path, own=pq.read_table: read.append(path) or own(path))
    merging = Merging({"releases": target}, ahead=True)
    begun: list[int] = []
    for last in range(1, 13):
        name = stretch(last, last)

        def write(last: int = last, name: str = name) -> pa.Table:
            begun.append(last)
            return write_part(target.folder, name, table(last, last))

        write_beside(target.folder, name, write)
    merging.stop()
    assert begun == list(range(1, 13))
    assert [part.stem for part in sorted(target.folder.glob("*.parquet"))] == [stretch(w, w) for w in range(1, 13)]
    assert ended(merging, target) == wanted.path.read_bytes()
    assert len(read) <= 1  # one may have been found on disk before its table was handed over


def test_tables_that_are_of_no_more_use_are_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where merging ahead has been given up, the end reads the parts again."""
    target = Target(tmp_path / "given up", tmp_path / "given.parquet", SCHEMA, "window")

    def fails(*_: object) -> None:
        raise MemoryError

    merging = Merging({"releases": target}, ahead=True)
    with monkeypatch.context() as patched:
        patched.setattr(merging_module, "Merged", fails)
        for last in range(1, 13):
            name = stretch(last, last)
            write_beside(target.folder, name, lambda n=name, w=last: write_part(target.folder, n, table(w, w)))
            time.sleep(0.01)
        waited_for = time.monotonic() + 10
        while merging._held and time.monotonic() < waited_for:
            time.sleep(0.01)
        assert merging._held == {}
        merging.stop()
    wanted = cut(tmp_path / "wanted")
    merge(wanted)
    assert ended(merging, target) == wanted.path.read_bytes()


def test_an_error_of_a_write_beside_is_told_and_nothing_is_written_after_it(tmp_path: Path) -> None:
    """A later window must not leave without those before it."""
    target = Target(tmp_path / "failing", tmp_path / "failing.parquet", SCHEMA, "window")

    def fails() -> pa.Table:
        raise OSError("no space left")

    with Merging({"releases": target}, ahead=True) as merging:
        write_beside(target.folder, stretch(1, 1), fails)
        waited_for = time.monotonic() + 10
        while not merging._failed and time.monotonic() < waited_for:
            time.sleep(0.01)
        with pytest.raises(OSError, match="no space"):
            write_beside(target.folder, "later", lambda: write_part(target.folder, "later", table(2, 2)))
    assert not target.folder.exists()

    with Merging({"releases": target}, ahead=True) as merging:
        write_beside(target.folder, stretch(1, 1), fails)
        with pytest.raises(OSError, match="no space"):
            merging.stop()

    with pytest.raises(OSError, match="no space"), Merging({"releases": target}, ahead=True):
        write_beside(target.folder, stretch(1, 1), fails)

    def ends() -> None:
        with Merging({"releases": target}, ahead=True):
            write_beside(target.folder, stretch(1, 1), fails)
            raise KeyError("why the run ended")

    with pytest.raises(KeyError, match="why the run ended"):
        ends()


class Putting(threading.Thread):
    """Puts parts of one window each beside a run, of which the first waits until it may be written."""

    def __init__(self, target: Target, fails: bool = False) -> None:
        super().__init__(daemon=True)
        self.target, self.fails, self.go_on = target, fails, threading.Event()
        self.n_put, self.error = 0, ""
        self.start()

    def write(self, window: int) -> pa.Table:
        assert self.go_on.wait(10)
        if self.fails:
            raise OSError("no space left")
        return write_part(self.target.folder, stretch(window, window), table(window, window))

    def run(self) -> None:
        try:
            for window in range(1, 13):
                write_beside(self.target.folder, stretch(window, window), partial(self.write, window))
                self.n_put += 1
        except OSError as error:
            self.error = str(error)

    def waits_after(self, n_put: int) -> bool:
        """Whether it comes so far, and no farther."""
        waited_for = time.monotonic() + 10
        while self.n_put < n_put and time.monotonic() < waited_for:
            time.sleep(0.01)
        time.sleep(0.1)
        return self.n_put == n_put


def test_no_more_than_some_parts_wait_to_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging_module, "_WAITING", 3)
    wanted, target = cut(tmp_path / "wanted"), Target(tmp_path / "slow", tmp_path / "slow.parquet", SCHEMA, "window")
    merge(wanted)
    merging = Merging({"releases": target}, ahead=True)
    putting = Putting(target)
    assert putting.waits_after(3)
    putting.go_on.set()
    putting.join(10)
    assert (putting.n_put, putting.error) == (12, "")
    assert ended(merging, target) == wanted.path.read_bytes()


def test_who_waits_for_a_write_is_told_that_it_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging_module, "_WAITING", 3)
    target = Target(tmp_path / "failing", tmp_path / "failing.parquet", SCHEMA, "window")
    with Merging({"releases": target}, ahead=True):
        putting = Putting(target, fails=True)
        assert putting.waits_after(3)
        putting.go_on.set()
        putting.join(10)
        assert (putting.n_put, putting.error) == (3, "no space left")
    assert not target.folder.exists()


def test_no_more_than_some_tables_wait_to_be_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are read again."""
    monkeypatch.setattr(merging_module, "_HELD", 2)
    wanted, target = cut(tmp_path / "wanted"), Target(tmp_path / "slow", tmp_path / "slow.parquet", SCHEMA, "window")
    merge(wanted)
    go_on, merge_next = threading.Event(), Merging._go_on
    monkeypatch.setattr(Merging, "_go_on", lambda *arguments: go_on.wait(10) and merge_next(*arguments))
    merging = Merging({"releases": target}, ahead=True)
    putting = Putting(target)
    putting.go_on.set()
    putting.join(10)
    while len(list(target.folder.glob("*.parquet"))) < 12:
        time.sleep(0.01)
    assert len(merging._held[target.folder]) == 2
    go_on.set()
    assert ended(merging, target) == wanted.path.read_bytes()


def test_without_merging_a_part_is_written_at_once(tmp_path: Path) -> None:
    """So do streams and workers of a cluster, and whoever comes after the end of the merging."""
    target = Target(tmp_path / "now", tmp_path / "now.parquet", SCHEMA, "window")
    with Merging({"releases": target}, ahead=True):
        pass
    written: list[bool] = []
    write_beside(target.folder, stretch(1, 1), lambda: written.append(True) or table(1, 1))
    assert written == [True]


def test_a_large_part_among_small_ones_is_not_lost_when_these_are_joined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a silence many windows leave in one part."""
    monkeypatch.setattr(files, "ROLLED", 12)
    wanted, target = cut(tmp_path / "wanted"), cut(tmp_path / "rolled", 1, 2, 8, 9, 10, 11)
    roll(target.folder, at_least=4)
    assert [part.stem for part in files.settle(target.folder)] == [stretch(1, 2), stretch(3, 8), stretch(9, 12)]
    assert merge(target) == merge(wanted) == 24
    assert target.path.read_bytes() == wanted.path.read_bytes()


def test_parts_that_overlap_are_not_joined(tmp_path: Path) -> None:
    """A run that goes on may share out windows otherwise: in one part nobody would tell which rows are there twice."""
    wanted, target = cut(tmp_path / "wanted"), cut(tmp_path / "rolled", 1, 2, 3, 4, 8, 9, 10)
    write_part(target.folder, stretch(7, 9), table(7, 9))
    roll(target.folder, at_least=2)
    assert merge(target) == merge(wanted) == 24
    assert target.path.read_bytes() == wanted.path.read_bytes()
