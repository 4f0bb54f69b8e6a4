"""Merging of parts: the same bytes, however the parts were cut."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.pipeline.output import files
from penstock.pipeline.output.files import merge, part_name, write_part

SCHEMA = pa.schema([("window", pa.int64()), ("cell", pa.dictionary(pa.int32(), pa.string())), ("value", pa.float64())])


def table(first: int, last: int) -> pa.Table:
    """Two rows a window; later windows name other cells, in another order."""
    rows = [(window, row) for window in range(first, last + 1) for row in range(2)]
    cells = pa.array([f"cell {(window * 7 + row) % 5}" for window, row in rows]).dictionary_encode()
    return pa.table([[window for window, _ in rows], cells, [float(row) for _, row in rows]], schema=SCHEMA)


def renumbered(table: pa.Table) -> pa.Table:
    """Copy rows to a dictionary in another order that holds more than occurs."""
    names = pa.array(["nowhere", *reversed(table["cell"].unique().to_pylist())])
    codes = [names.to_pylist().index(cell) for cell in table["cell"].to_pylist()]
    column = pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), names)
    return table.set_column(1, SCHEMA.field("cell"), column)


def cut(folder: Path, *borders: int) -> Path:
    """Windows 1 to 12 in parts that end at the borders."""
    first = 1
    for last in (*borders, 12):
        write_part(folder, part_name(first, last), table(first, last))
        first = last + 1
    return folder


def merged(folder: Path, n_rows: int = 24, row_group: int = files.ROW_GROUP) -> Path:
    """The file made of a folder's parts, which has so many rows."""
    path = folder.with_suffix(".parquet")
    assert merge(folder, path, SCHEMA, "window", row_group) == n_rows
    return path


def test_the_bytes_do_not_depend_on_how_parts_were_cut(tmp_path: Path) -> None:
    one, four = merged(cut(tmp_path / "one")), merged(cut(tmp_path / "four", 1, 5, 6))
    assert one.read_bytes() == four.read_bytes()
    assert pq.read_table(four)["window"].to_pylist() == table(1, 12)["window"].to_pylist()
    assert not list(tmp_path.rglob("*.tmp"))


def test_the_bytes_do_not_depend_on_dictionaries(tmp_path: Path) -> None:
    """Values are numbered in order of appearance, and only those that appear."""
    one = merged(cut(tmp_path / "one"))
    write_part(tmp_path / "other", part_name(1, 12), renumbered(table(1, 12)))
    assert merged(tmp_path / "other").read_bytes() == one.read_bytes()


def test_rows_that_were_written_twice_count_once(tmp_path: Path) -> None:
    """Two parts of a resumed run overlap: windows up to those seen are left out."""
    write_part(tmp_path / "twice", part_name(1, 8), table(1, 8))
    write_part(tmp_path / "twice", part_name(5, 12), table(5, 12))
    assert pq.read_table(merged(tmp_path / "twice"))["window"].to_pylist() == table(1, 12)["window"].to_pylist()


def test_a_damaged_part_is_an_error_and_leaves_no_file(tmp_path: Path) -> None:
    folder = tmp_path / "damaged"
    folder.mkdir()
    (folder / f"{part_name(1, 2)}.parquet").write_bytes(b"no Parquet")
    with pytest.raises(pa.ArrowException):
        merged(folder)
    assert not folder.with_suffix(".parquet").exists()


def test_row_groups_do_not_depend_on_how_parts_were_cut(tmp_path: Path) -> None:
    one, four = merged(cut(tmp_path / "one"), row_group=5), merged(cut(tmp_path / "four", 1, 5, 6), row_group=5)
    assert one.read_bytes() == four.read_bytes()
    assert pq.ParquetFile(one).num_row_groups == 5


def test_the_first_write_of_a_part_wins(tmp_path: Path) -> None:
    actual = [write_part(tmp_path, "7", table(n, n))["window"].to_pylist() for n in (1, 2)]
    assert actual == [[1, 1], [1, 1]]
