"""Long tables become the same matrices however they are cut into pieces, whatever rows they lack."""

from __future__ import annotations

import base64
import json
import re
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest
from report_runs import run_folder

from mechanisms.core.plugin import DataError
from pipeline.output.tables import RELEASES
from pipeline.reporting import data as files
from pipeline.reporting.data import SAMPLE, Counts, RunFiles, counts, pack
from pipeline.reporting.page import write_report

CELLS = ("d", "b", "a", "c")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return run_folder(tmp_path, n_windows=6, cells=CELLS)


def change(folder: Path, made_of: Any) -> pl.DataFrame:
    """Write other releases, made of the ones that are there."""
    path = folder / "public" / "releases.parquet"
    rows = made_of(pl.read_parquet(path).with_columns(pl.col(pl.Categorical).cast(pl.String)))
    pq.write_table(rows.to_arrow().cast(RELEASES), path)
    return rows


def shown(folder: Path, monkeypatch: pytest.MonkeyPatch, n_rows: int = 1 << 15) -> Counts:
    monkeypatch.setattr(files, "PIECE", n_rows)
    found = counts(RunFiles(folder))
    assert found is not None
    return found


def same(one: Counts, other: Counts) -> None:
    assert (one.cells, one.n_all_windows, one.n_all_cells) == (other.cells, other.n_all_windows, other.n_all_cells)
    for name, column in vars(one.windows).items():
        np.testing.assert_array_equal(column, vars(other.windows)[name])
    for name in ("released", "truth", "margin"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


def as_they_came(rows: pl.DataFrame) -> pl.DataFrame:
    return rows


def with_holes(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.filter((pl.int_range(pl.len()) * 7) % 5 > 1)


def shuffled(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.sample(fraction=1, shuffle=True, seed=1)


def of_two_streams(rows: pl.DataFrame) -> pl.DataFrame:
    second = rows.with_columns(
        stream=pl.lit("second"),
        cell=pl.col("cell") + "2",
        epsilon=pl.lit(0.25),
        noise=pl.lit("gaussian"),
        action=pl.when(pl.col("window") < 3).then(pl.lit("suppressed")).otherwise(pl.lit("published")),
    )
    return pl.concat([rows, second]).sort("window", maintain_order=True)


@pytest.mark.parametrize("made_of", [as_they_came, with_holes, shuffled, of_two_streams])
def test_matrices_are_what_the_rows_say_however_they_are_cut(folder, monkeypatch, made_of):
    rows = change(folder, made_of)
    whole = shown(folder, monkeypatch)
    assert whole.cells == tuple(rows["cell"].unique(maintain_order=True))
    expected = np.full((6, len(whole.cells)), np.nan)
    for window, cell, value in rows.select("window", "cell", "value").iter_rows():
        expected[window - 1, whole.cells.index(cell)] = value
    np.testing.assert_array_equal(whole.released, expected)
    np.testing.assert_array_equal(np.isnan(whole.margin), np.isnan(expected))
    for n_rows in (1, 3, 4, 6, 23):
        same(whole, shown(folder, monkeypatch, n_rows))


@pytest.mark.parametrize("made_of", [as_they_came, shuffled])
def test_row_groups_are_put_together_in_their_order(folder, monkeypatch, made_of):
    change(folder, made_of)
    whole = shown(folder, monkeypatch)
    for path in (folder / "public" / "releases.parquet", folder / "operator" / "truth.parquet"):
        pq.write_table(pq.read_table(path), path, row_group_size=3)
    assert pq.read_metadata(folder / "public" / "releases.parquet").num_row_groups == 8
    same(whole, shown(folder, monkeypatch))


def test_pieces_of_small_large_and_broken_numbers_make_one_matrix(folder, monkeypatch):
    values = np.arange(24.0)
    values[9], values[13], values[17] = 300, 70_000, 0.1
    change(folder, lambda rows: rows.with_columns(value=pl.Series(values)))
    for n_rows in (4, 24):
        np.testing.assert_array_equal(shown(folder, monkeypatch, n_rows).released, values.reshape(6, 4))


def test_streams_add_their_budgets_and_the_worst_action_counts(folder, monkeypatch):
    change(folder, of_two_streams)
    windows = shown(folder, monkeypatch).windows
    assert windows.epsilon.tolist() == [0.75] * 6
    assert windows.done() == [("published", 4), ("suppressed", 2)]


@pytest.mark.parametrize("made_of", [as_they_came, with_holes])
def test_the_busiest_cells_are_shown_in_their_order(folder, monkeypatch, made_of):
    rows = change(folder, made_of)
    monkeypatch.setattr("pipeline.reporting.data.MOST_CELLS", 2)
    found = shown(folder, monkeypatch, 5)
    totals = dict(rows.group_by("cell").agg(pl.col("value").sum()).iter_rows())
    assert set(found.cells) == set(sorted(totals, key=totals.get)[-2:])
    assert list(found.cells) == [cell for cell in rows["cell"].unique(maintain_order=True) if cell in found.cells]
    assert found.n_all_cells == 4
    assert found.truth is not None
    assert found.truth[:, 0].tolist() == [window + CELLS.index(found.cells[0]) for window in range(1, 7)]


def test_the_latest_windows_are_shown(folder, monkeypatch):
    monkeypatch.setattr("pipeline.reporting.data.MOST_WINDOWS", 2)
    found = shown(folder, monkeypatch, 7)
    assert (found.windows.index.tolist(), found.n_all_windows) == ([5, 6], 6)
    np.testing.assert_array_equal(found.released, np.add.outer([6.0, 7.0], np.arange(4)))
    np.testing.assert_array_equal(found.truth, found.released - 1)


def test_a_map_needs_no_source(tmp_path):
    space = {"type": "grid", "south": 0, "north": 1, "west": 10, "east": 12, "rows": 1, "columns": 2}
    gone = {"source": {"type": "csv", "path": str(tmp_path / "gone.csv"), "columns": {"user": "u", "time": "t"}}}
    written = write_report(run_folder(tmp_path, cells=("r00c00", "r00c01"), space=space, configuration=gone))
    (found,) = re.findall(r'id="report-data">(.*?)</script>', written.read_text(encoding="utf-8"), re.DOTALL)
    assert len(json.loads(found)["geometry"]) == 2


def test_long_arrays_are_packed_whole_and_as_small_as_may_be():
    rng = np.random.default_rng(1)
    noisy = rng.integers(-9, 9, 9 * SAMPLE)
    repeated = np.tile(noisy[:1000], 9 * SAMPLE // 1000)
    for array in (noisy, repeated):
        packed = base64.b64decode(pack(array)["packed"])
        with ThreadPoolExecutor(1) as pool:
            assert base64.b64decode(pack(array, later=pool)["packed"].result()) == packed
        assert np.array_equal(np.frombuffer(zlib.decompress(packed), np.int8), array)
        assert len(packed) <= len(zlib.compress(array.astype(np.int8).tobytes(), 1))


@pytest.mark.parametrize("at", [4, -12], ids=["page", "footer"])
def test_a_damaged_file_is_named(folder: Path, at: int) -> None:
    path = folder / "public" / "releases.parquet"
    data = bytearray(path.read_bytes())
    data[at : at + 8] = bytes(255 - byte for byte in data[at : at + 8])
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"releases\.parquet: cannot be read"):
        counts(RunFiles(folder))
