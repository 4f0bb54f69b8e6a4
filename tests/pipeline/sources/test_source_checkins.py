"""Gowalla and Foursquare: synthetic files in the original formats, and the real ones where available."""

from __future__ import annotations

import gzip
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from penstock.mechanisms.core.plugin import DataError
from penstock.pipeline.sources.foursquare import Foursquare
from penstock.pipeline.sources.gowalla import Gowalla
from tests.tools.source_rows import read

GOWALLA = (
    "0\t2010-10-12T00:21:28Z\t40.5\t-73.75\t23261\n"
    "0\t2010-10-11T20:21:20Z\t40.25\t-73.5\t16907\n"
    "0\t2010-10-11T20:21:20Z\t40.25\t-73.5\t16907\n"
    "1\t2010-10-13 00:00:00+0000\t40.75\t-73.25\t23261\n"
)
GOWALLA_EVENTS = [
    (0, 1_286_842_888_000, 40.5, -73.75, "23261"),
    (0, 1_286_828_480_000, 40.25, -73.5, "16907"),
    (0, 1_286_828_480_000, 40.25, -73.5, "16907"),
    (1, 1_286_928_000_000, 40.75, -73.25, "23261"),
]


@pytest.mark.parametrize("name", ["gowalla_events.csv.gz", "gowalla_events.csv", "loc-gowalla_totalCheckins.txt.gz"])
@pytest.mark.parametrize("compress", [True, False])
def test_gowalla(tmp_path: Path, name: str, compress: bool) -> None:
    (tmp_path / name).write_bytes(gzip.compress(GOWALLA.encode()) if compress else GOWALLA.encode())
    (tmp_path / "gowalla_venues.csv").write_text("1391604\tConference House\t40.5\t-74.25\n")
    (tmp_path / "gowalla_events_cqlsh_sample.csv").write_text(GOWALLA)
    for path in (tmp_path, tmp_path / name):
        frame, rejects = read(Gowalla(path=str(path)))
        assert frame.rows() == GOWALLA_EVENTS
        assert rejects == []


def test_gowalla_compressed_inside_an_archive(tmp_path: Path) -> None:
    (tmp_path / "gowalla_events.csv.gz").write_bytes(gzip.compress(GOWALLA.encode()))
    with tarfile.open(tmp_path / "a.tar.xz", "w:xz") as tar, zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        tar.add(tmp_path / "gowalla_events.csv.gz", arcname="gowalla/gowalla_events.csv.gz")
        archive.write(tmp_path / "gowalla_events.csv.gz", "gowalla/gowalla_events.csv.gz")
    for name in ("a.tar.xz", "a.zip"):
        assert read(Gowalla(path=str(tmp_path / name)))[0].rows() == GOWALLA_EVENTS


def test_gowalla_rejects(tmp_path: Path) -> None:
    rows = ["x\t2010-10-12T00:21:28Z\t1\t1\t9", "1\tnever\t1\t1\t9", "1\t2010-10-12T00:21:28Z\t1\t1\t", "1\t2\t3"]
    (tmp_path / "a_totalCheckins.txt").write_text("\n".join(rows))
    _, rejects = read(Gowalla(path=str(tmp_path)))
    assert [(reject.line, reject.reason) for reject in rejects] == [
        (1, "user is missing (or is no integer)"),
        (2, "time cannot be read"),
        (3, "place is empty"),
        (4, "3 fields instead of 5"),
    ]


@pytest.mark.data
def test_the_real_gowalla(data_folder: Callable[[str], Path]) -> None:
    frame, rejects = read(Gowalla(path=str(data_folder("gowalla"))))
    assert (frame.height, len(rejects), frame["user"].n_unique()) == (138_957, 0, 7115)
    assert frame.height - frame.unique().height == 6
    positions = frame.unique(["place", "latitude", "longitude"]).group_by("place").len()
    assert positions.filter(pl.col("len") > 1).height == 127


PUBLISHED = "470\t49bbd6c0\t4bf58dd8\tCaf\xe9\t40.5\t-74.25\t-240\tTue Apr 03 18:00:09 +0000 2012\n".encode("latin-1")
IPCM_HEADER = "user_id,POI_id,POI_catid,POI_catname,latitude,longitude,timezone,UTC_time,trajectory_id,time_period\r\n"
# The offset is of another continent; the UTC time counts.
IPCM = '470,49bbd6c0,4bf58dd8,"Caf\u00e9, Bar",40.5,-74.25,540,Tue Apr 03 18:00:09 +0000 2012,1_7,0.08\r\n'
GANPOI_HEADER = (
    "user_id,POI_id,POI_catid,POI_catid_code,POI_catname,latitude,longitude,UTC_time,local_time,day_of_week,"
    "trajectory_id,norm_in_day_time\n"
)
GANPOI = "470,49bbd6c0,c58,80,Cafe,40.5,-74.25,2012-04-03 18:00:09,2012-04-03 14:00:09,1,829_5,0.78\n"
EVENT = (470, 1_333_476_009_000, 40.5, -74.25, "49bbd6c0")


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("dataset_TSMC2014_NYC.txt", PUBLISHED),
        ("iPCM_NYC_val.csv", (IPCM_HEADER + IPCM).encode()),
        ("GANPOI_NYC_test.csv", (GANPOI_HEADER + GANPOI).encode()),
    ],
)
def test_foursquare_formats(tmp_path: Path, name: str, data: bytes) -> None:
    (tmp_path / name).write_bytes(data)
    frame, rejects = read(Foursquare(path=str(tmp_path)))
    assert frame.rows() == [EVENT]
    assert rejects == []


@pytest.mark.parametrize("block_rows", [1, 2, 1000])
def test_foursquare_files_that_overlap(tmp_path: Path, block_rows: int) -> None:
    other = IPCM.replace("18:00:09", "18:30:09")
    (tmp_path / "GANPOI_NYC_test.csv").write_text(GANPOI_HEADER + GANPOI + GANPOI)
    (tmp_path / "iPCM_NYC_test.csv").write_text(IPCM_HEADER + IPCM + other, newline="")
    (tmp_path / "iPCM_NYC_val.csv").write_text(IPCM_HEADER + other + "470,,x,y,1,1,0,never,1,1\r\n", newline="")
    frame, rejects = read(Foursquare(path=str(tmp_path), block_rows=block_rows))
    later = (470, EVENT[1] + 1_800_000, 40.5, -74.25, "49bbd6c0")
    # A repetition within one file stays: only what another file says again is left out.
    assert frame.rows() == [EVENT, EVENT, later]
    assert [(Path(reject.file).name, reject.line, reject.reason) for reject in rejects] == [
        ("iPCM_NYC_test.csv", 2, "same check-in as in an earlier file"),
        ("iPCM_NYC_val.csv", 2, "same check-in as in an earlier file"),
        ("iPCM_NYC_val.csv", 3, "time cannot be read"),
    ]


def test_foursquare_without_a_column(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("user_id,POI_id,latitude,longitude\n1,2,3,4\n")
    with pytest.raises(DataError, match=r"a.csv: there is no column 'UTC_time' \(columns: user_id, POI_id"):
        read(Foursquare(path=str(tmp_path)))


@pytest.mark.data
def test_the_real_foursquare(data_folder: Callable[[str], Path]) -> None:
    frame, rejects = read(Foursquare(path=str(data_folder("foursquare"))))
    assert frame.unique(["user", "place", "time"]).height == 27_634
    assert frame.height + len(rejects) == 21_987 + 10_944 + 10_462
    assert {reject.reason for reject in rejects} == {"same check-in as in an earlier file"}
    assert frame["user"].n_unique() == pytest.approx(1080, abs=5)
