"""GeoLife and T-Drive: synthetic files in the original formats, and the real ones where available."""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from penstock.pipeline.sources.geolife import Geolife
from penstock.pipeline.sources.tdrive import Tdrive
from tests.tools.source_rows import read

HEADER = "Geolife trajectory\r\nWGS 84\r\nAltitude is in Feet\r\nReserved 3\r\n0,2,255,My Track,0,0,2,8421376\r\n0\r\n"
POINT = "39.5,116.25,0,-777,39744.1201851852,2008-10-23,02:53:04"
MOMENT = 1_224_730_384_000


@pytest.fixture
def tracks(tmp_path: Path) -> Path:
    """Two users, one point over the edge of the world, one far too old, a repetition, a missing last line end."""
    for user, name, points in (
        ("000", "20081023025304.plt", [POINT, POINT]),
        ("017", "20081024000000.plt", [POINT.replace("39.5", "400.17"), POINT.replace("116.25", "-179.999")]),
        ("017", "20000101231219.plt", [POINT.replace("2008-10-23", "2000-01-01")]),
    ):
        folder = tmp_path / "Data" / user / "Trajectory"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(HEADER + "\r\n".join(points), newline="")
        (folder.parent / "labels.txt").write_text("Start Time\tEnd Time\tTransportation Mode\r\n")
    return tmp_path


@pytest.mark.parametrize("block_rows", [1, 2, 1_000_000])
def test_geolife(tracks: Path, block_rows: int) -> None:
    frame, rejects = read(Geolife(path=str(tracks), block_rows=block_rows))
    old = MOMENT - (14_175 - 10_957) * 86_400_000
    assert frame.rows() == [
        ("000", MOMENT, 39.5, 116.25),
        ("000", MOMENT, 39.5, 116.25),
        ("017", old, 39.5, 116.25),
        ("017", MOMENT, 39.5, -179.999),
    ]
    (reject,) = rejects
    assert reject.file == str(tracks / "Data/017/Trajectory/20081024000000.plt")
    assert (reject.line, reject.reason) == (7, "latitude is no number of degrees")
    assert reject.raw == POINT.replace("39.5", "400.17")


def test_geolife_from_an_archive_and_one_user(tracks: Path, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "geolife.tar.xz", "w:xz") as archive:
        archive.add(tracks / "Data", arcname="geolife/Data")
    assert read(Geolife(path=str(tmp_path / "geolife.tar.xz")))[0]["user"].unique().sort().to_list() == ["000", "017"]
    assert read(Geolife(path=str(tracks / "Data" / "017")))[0]["user"].to_list() == ["017", "017"]


@pytest.mark.parametrize("clock", ["25:00:00", "", "02:53"])
def test_geolife_rejects_what_is_no_time(tmp_path: Path, clock: str) -> None:
    (tmp_path / "a.plt").write_text(HEADER + POINT.replace("02:53:04", clock) + "\r\n" + POINT, newline="")
    frame, (reject,) = read(Geolife(path=str(tmp_path)))
    assert frame.height == 1
    assert (reject.line, reject.reason) == (7, "time cannot be read")


@pytest.mark.data
def test_the_real_geolife(data_folder: Callable[[str], Path]) -> None:
    frame, rejects = read(Geolife(path=str(data_folder("geolife"))))
    assert (frame.height + len(rejects), len(rejects), frame["user"].n_unique()) == (2_079_779, 1, 53)
    assert frame.height - frame.unique().height == 720
    assert frame["longitude"].min() < -179 < 179 < frame["longitude"].max()  # type: ignore[operator]


@pytest.mark.parametrize("header", ["", "id,time,long,lat\n"])
def test_tdrive(tmp_path: Path, header: str) -> None:
    rows = ["7,2008-02-02 16:06:08,116.5,39.75", "7,2008-02-02 16:16:08,0.0,0.0", "7,2008-02-02 16:26:08,7.0,0.0"]
    (tmp_path / "7.txt").write_text(header + "\n".join([*rows, "7,2008-02-03 00:00:00,116.5,39.5"]) + "\n")
    (tmp_path / "8.txt").write_text("")
    (tmp_path / "user_guide.txt").write_text("not data")
    frame, rejects = read(Tdrive(path=str(tmp_path)))
    # 16:06 in Beijing is 08:06 UTC.
    assert frame.rows() == [(7, 1_201_939_568_000, 39.75, 116.5), (7, 1_201_968_000_000, 39.5, 116.5)]
    first = 2 + bool(header)
    assert [(reject.line, reject.raw) for reject in rejects] == [(first, rows[1]), (first + 1, rows[2])]
    assert {reject.reason for reject in rejects} == {"a coordinate is zero: no position"}


@pytest.mark.data
def test_the_real_tdrive(data_folder: Callable[[str], Path]) -> None:
    source = Tdrive(path=str(data_folder("tdrive")))
    frame, rejects = read(source)
    assert frame.height + len(rejects) == 151_007
    assert (len(source.files()), len(rejects)) == (8643, 271)
    # The hour is 16:00 to 17:00 in Beijing, and no taxi has more than one row after it.
    after = frame.filter(pl.col("time") >= 1_201_942_800_000)
    assert frame["time"].min() == 1_201_939_200_000
    assert after["user"].n_unique() == after.height
