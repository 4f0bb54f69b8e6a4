"""The San Francisco cab data through the whole pipeline, against a plain polars count."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from penstock.pipeline.config.run import load
from penstock.pipeline.run import run

SOUTH, NORTH, WEST, EAST = 37.74, 37.82, -122.47, -122.37
START, N_WINDOWS, HOUR = 1211155200, 504, 3600


def plain_count(folder: Path) -> pl.DataFrame:
    """Distinct cabs per (window, row, column), computed independently."""
    frames = [
        pl.read_csv(path, separator=" ", has_header=False, new_columns=["lat", "lon", "occupied", "time"]).with_columns(
            pl.lit(path.stem).alias("cab")
        )
        for path in sorted(folder.glob("new_*.txt"))
    ]
    rows = pl.concat(frames).filter(
        pl.col("lat").is_between(SOUTH, NORTH),
        pl.col("lon").is_between(WEST, EAST),
        pl.col("time").is_between(START, START + N_WINDOWS * HOUR - 1),
    )
    rows = rows.with_columns(
        window=(pl.col("time") - START) // HOUR + 1,
        row=((pl.col("lat") - SOUTH) / (NORTH - SOUTH) * 10).floor().clip(0, 9).cast(pl.Int64),
        column=((pl.col("lon") - WEST) / (EAST - WEST) * 10).floor().clip(0, 9).cast(pl.Int64),
    )
    return rows.select("cab", "window", "row", "column").unique()


@pytest.mark.data
@pytest.mark.slow
def test_the_paper_s_cabs_cells_and_windows(data_folder, tmp_path):
    folder = data_folder("cabspotting")
    config = load("configs/datasets/sf_cabs.yaml", [f"source.path={folder}", f"output.path={tmp_path / 'cabs'}"])
    result = run(config)
    users = result.manifest["users"]
    assert result.manifest["rows"]["rows"] == 11_220_058
    # Pyrgelis et al. give 534 cabs, 78 ± 6 cells and 340 ± 94 active windows.
    assert users["users"] == 534
    assert [round(users["cells_per_user"][k]) for k in ("mean", "standard_deviation")] == [78, 6]
    assert [round(users["active_windows_per_user"][k]) for k in ("mean", "standard_deviation")] == [340, 94]

    distinct = plain_count(folder)
    expected = distinct.group_by("window", "row", "column").len()
    truth = pl.read_parquet(result.folder / "operator" / "truth.parquet").with_columns(pl.col("cell").cast(pl.String))
    assert truth.height == N_WINDOWS * 100
    cells = truth["cell"].unique().sort().to_list()
    names = {(int(c[1:3]), int(c[4:6])): c for c in cells}
    actual = {(w, c): n for w, c, n in truth.select("window", "cell", "count").iter_rows()}
    offset = min(row for row, _ in names)
    plain = {(w, names[r + offset, c + offset]): n for w, r, c, n in expected.iter_rows()}
    assert {k: n for k, n in actual.items() if n} == plain
    manifest = json.loads((result.folder / "operator" / "manifest.json").read_text())
    assert manifest["rows"]["used"] - manifest["rows"]["duplicates"] == distinct.height
