"""Cabspotting: synthetic files in the original format, and the real ones where available."""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from penstock.pipeline.sources.cabspotting import Cabspotting
from tests.tools.source_rows import blocks_of as read

FORWARDS = "37.5 -122.25 0 1211018400\n37.75 -122.5 1 1211018460\n"
BACKWARDS = "37.25 -122.75 1 1211018700\n37.0 -122.0 0 1211018640"


def write_all(directory: Path, files: dict[str, str]) -> str:
    for name, text in files.items():
        (directory / name).write_text(text, newline="")
    return str(directory)


@pytest.fixture
def directory(tmp_path: Path) -> str:
    files = {
        "new_abc.txt": FORWARDS,
        "new_xyz.txt": BACKWARDS,
        "new_empty.txt": "",
        "_cabs.txt": "<cab/>",
        "README": "x",
    }
    return write_all(tmp_path, files)


EXPECTED = [
    ("abc", 1_211_018_400_000, 37.5, -122.25),
    ("abc", 1_211_018_460_000, 37.75, -122.5),
    ("xyz", 1_211_018_700_000, 37.25, -122.75),
    ("xyz", 1_211_018_640_000, 37.0, -122.0),
]


@pytest.mark.parametrize("block_rows", [1, 2, 3, 1_000_000])
def test_files_in_either_order_and_without_a_last_line_end(directory: str, block_rows: int) -> None:
    blocks = read(Cabspotting(path=directory, block_rows=block_rows))
    assert [row for block in blocks for row in block.frame.rows()] == EXPECTED
    assert sum(block.n_rows for block in blocks) == 4
    assert all(block.n_rows <= 1.5 * block_rows for block in blocks)


def test_an_archive_reads_like_its_directory(directory: str, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "cabs.tar.xz", "w:xz") as archive:
        for file in sorted(Path(directory).iterdir()):
            archive.add(file, arcname="cabspotting/" + file.name)
    (block,) = read(Cabspotting(path=str(tmp_path / "cabs.tar.xz")))
    assert block.frame.rows() == EXPECTED


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("37.5 -122.25 0", "3 fields instead of 4"),
        ("37.5 -122.25 0 1211018400 9", "5 fields instead of 4"),
        ("37.5  -122.25 0 1211018400", "5 fields instead of 4"),
        ("37.5 -122.25 0 noon", "time cannot be read"),
        ("north -122.25 0 1211018400", "latitude is not a finite number"),
        ("97.5 -122.25 0 1211018400", "latitude out of range"),
        ("37.5 -1222.5 0 1211018400", "longitude is no number of degrees"),
    ],
)
def test_malformed_lines_name_file_and_line(tmp_path: Path, line: str, reason: str) -> None:
    text = FORWARDS + line + "\n" + FORWARDS
    path = write_all(tmp_path, {"new_abc.txt": FORWARDS, "new_bad.txt": "\r\n" + text, "new_xyz.txt": BACKWARDS})
    (block,) = read(Cabspotting(path=path))
    assert block.frame["user"].to_list() == ["abc"] * 2 + ["bad"] * 4 + ["xyz"] * 2
    (reject,) = block.rejects
    assert (reject.file, reject.line, reject.reason) == (str(tmp_path / "new_bad.txt"), 4, reason)
    assert reject.raw == line


def test_small_files_share_a_span(tmp_path: Path) -> None:
    path = write_all(tmp_path, {f"new_{i}.txt": FORWARDS for i in range(40)})
    spans = Cabspotting(path=path, block_rows=20).spans()
    assert 2 <= len(spans) <= 8
    assert sorted(file for span in spans for file in span.files) == sorted(str(f) for f in tmp_path.iterdir())


@pytest.mark.data
def test_the_real_cabs(data_folder: Callable[[str], Path]) -> None:
    source = Cabspotting(path=str(data_folder("cabspotting")))
    blocks = read(source)
    frame = pl.concat(block.frame for block in blocks)
    assert sum(block.n_rows for block in blocks) == frame.height == 11_220_058
    assert frame["user"].n_unique() == 537
    far = ~(pl.col("latitude").is_between(36.5, 39) & pl.col("longitude").is_between(-124, -120.5))
    assert 0 < frame.filter(far).height < 1000
    first, last = frame.select(a=pl.col("time").min(), b=pl.col("time").max()).cast(pl.Datetime("ms")).row(0)
    assert (f"{first:%Y-%m-%d}", f"{last:%Y-%m-%d}") == ("2008-05-17", "2008-06-10")


@pytest.mark.parametrize(
    ("written", "ms"),
    [
        ("1211018460", 1_211_018_460_000),
        ("+1211018460", 1_211_018_460_000),
        ("1211018460.5", 1_211_018_460_500),
        ("1.21101846e9", 1_211_018_460_000),
        ("-0", 0),
        ("soon", None),
        ("99999999999999999999", None),
    ],
)
def test_a_time_that_is_no_whole_number_changes_nothing_for_the_others(
    tmp_path: Path, written: str, ms: int | None
) -> None:
    (block,) = read(Cabspotting(path=write_all(tmp_path, {"new_a.txt": FORWARDS + f"37.5 -122.5 0 {written}\n"})))
    times = [1_211_018_400_000, 1_211_018_460_000, *([] if ms is None else [ms])]
    assert block.frame["time"].to_list() == times
    assert [reject.reason for reject in block.rejects] == ["time cannot be read"] * (3 - len(times))
