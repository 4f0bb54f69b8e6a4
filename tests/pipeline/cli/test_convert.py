"""`penstock convert`: every event and reject is kept; a failure leaves no file."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from penstock.mechanisms.core.plugin import DataError
from penstock.pipeline.cli.data import convert
from penstock.pipeline.sources.base import Source
from penstock.pipeline.sources.csv import Csv
from penstock.pipeline.sources.parquet import Parquet
from penstock.pipeline.sources.synthetic import Synthetic

CSV = """user,time,latitude,longitude,place
ann,2008-05-17T10:00:00Z,1,2,a
bob,never,1,2,a
bob,2008-05-17T09:00:00Z,1,2,é
"""


def frame(source: Source) -> pl.DataFrame:
    return pl.concat(block.frame for span in source.spans() for block in source.read(span))


@pytest.mark.parametrize("block_rows", [1, 1_000_000])
def test_events_and_rejects(tmp_path: Path, block_rows: int) -> None:
    (tmp_path / "a.csv").write_text(CSV)
    source = Csv(path=str(tmp_path / "a.csv"), block_rows=block_rows)
    out = str(tmp_path / "a.parquet")
    summary = convert(source, out)
    assert frame(Parquet(path=out)).equals(frame(source))
    assert (summary["n_rows"], summary["n_events"], summary["n_rejected"], summary["n_users"]) == (3, 2, 1, 2)
    assert (summary["first"], summary["last"]) == (1_211_014_800_000, 1_211_018_400_000)
    assert summary["rejects_path"] is not None
    (reject,) = [json.loads(line) for line in Path(summary["rejects_path"]).read_text().splitlines()]
    assert (reject["line"], reject["reason"]) == (3, "time is not ISO 8601")
    assert summary["n_bytes"] == Path(out).stat().st_size
    assert pl.read_parquet(out).schema["time"] == pl.Datetime("ms", "UTC")


def test_a_generated_city_reads_back(tmp_path: Path) -> None:
    summary = convert(Synthetic(n_users=30, days=2.0, seed=4, block_rows=100), tmp_path / "city.parquet")
    city = frame(Synthetic(n_users=30, days=2.0, seed=4))
    assert frame(Parquet(path=summary["path"])).equals(city)
    assert summary["n_events"] == summary["n_rows"] == city.height
    assert [file.name for file in tmp_path.iterdir()] == ["city.parquet"]


def test_a_failure_keeps_the_old_file_and_leaves_no_other(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(CSV)
    (tmp_path / "b.csv").write_text("user,time\n1,2\n")
    out = tmp_path / "out.parquet"
    out.write_text("old")
    with pytest.raises(DataError):
        convert(Csv(path=str(tmp_path / "*.csv")), out)
    assert out.read_text() == "old"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.csv", "b.csv", "out.parquet"]


def test_nothing_to_convert(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("user,time,place\n")
    with pytest.raises(DataError, match="no row"):
        convert(Csv(path=str(tmp_path / "a.csv")), tmp_path / "out.parquet")
