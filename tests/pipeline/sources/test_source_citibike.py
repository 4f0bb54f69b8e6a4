"""Citi Bike: both formats of the publisher, both clock changes, trips instead of people."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest

from penstock.mechanisms.core.plugin import DataError, ParameterError
from penstock.pipeline.sources.citibike import Citibike
from tests.tools.citibike_files import NEW, OLD, new, old
from tests.tools.source_rows import blocks_of as read


def times(path: Path) -> list[str]:
    frame = pl.concat(block.frame for block in read(Citibike(path=str(path))))
    return [f"{datetime.fromtimestamp(time / 1000, UTC):%d %H:%M:%S}" for time in frame["time"].to_list()]


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_trips_are_not_people() -> None:
    assert not Citibike(path="trips.csv").has_people
    with pytest.raises(ParameterError, match="events_of"):
        Citibike(path="x", events_of="middle")


@pytest.mark.parametrize(
    ("events_of", "stations"), [("start", ["3202"]), ("end", ["3203"]), ("both", ["3202", "3203"])]
)
def test_ends_of_a_trip(tmp_path: Path, events_of: str, stations: list[str]) -> None:
    path = write(tmp_path / "JC-tripdata.csv", OLD + old("2020-03-01 00:14:07.0000", "2020-03-01 00:20:36.0880", 389))
    blocks = read(Citibike(path=str(path), events_of=events_of))
    frame = pl.concat(block.frame for block in blocks)
    assert frame["place"].to_list() == stations
    assert frame.columns == ["user", "time", "latitude", "longitude", "place"]
    assert frame["user"].unique().to_list() == ["JC-tripdata.csv:2"]
    assert sum(block.n_rows for block in blocks) == len(stations)
    start, end = (1_583_039_647_000, 40.75, -74.25), (1_583_040_036_088, 40.5, -74.5)
    rows = [row[1:4] for row in frame.rows()]
    assert rows == {"start": [start], "end": [end], "both": [start, end]}[events_of]


def test_the_clocks_go_back(tmp_path: Path) -> None:
    """01:00 to 02:00 exists twice: a trip is placed early, unless it ended before it started."""
    trips = [
        new("A", "2021-11-07 01:55:00", "2021-11-07 01:05:00"),
        new("B", "2021-11-07 01:10:00", "2021-11-07 01:20:00"),
        new("C", "2021-11-07 01:10:00", "never"),
    ]
    path = write(tmp_path / "tripdata.csv", NEW + "".join(trips))
    assert times(path) == ["07 05:55:00", "07 05:10:00", "07 05:10:00", "07 06:05:00", "07 05:20:00"]


def test_the_clocks_go_forward(tmp_path: Path) -> None:
    trips = old("2020-03-08 02:30:00", "2020-03-08 03:10:00", 600) + old(
        "2020-03-08 01:55:00", "2020-03-08 03:05:00", 600
    )
    path = write(tmp_path / "tripdata.csv", OLD + trips)
    blocks = read(Citibike(path=str(path)))
    (reject,) = [reject for block in blocks for reject in block.rejects]
    assert (reject.line, reject.reason) == (2, "time cannot be read")
    assert times(path) == ["08 06:55:00", "08 07:10:00", "08 07:05:00"]


def test_a_trip_of_days_and_older_formats_of_times(tmp_path: Path) -> None:
    trips = old("1/1/2015 0:01", "1/3/2015 13:05", 219_840) + old("9/1/2015 00:00:03", "9/1/2015 00:05:00", 297)
    titled = (
        OLD.replace("starttime", "Start Time").replace("stoptime", "Stop Time").replace("tripduration", "Trip Duration")
    )
    path = write(tmp_path / "201501-citibike-tripdata.csv", titled + trips)
    assert times(path) == ["01 05:01:00", "01 04:00:03", "03 18:05:00", "01 04:05:00"]


def test_the_format_since_2021_and_rides_without_a_station(tmp_path: Path) -> None:
    trips = [
        new("A1", "2021-02-01 00:04:23", "2021-02-01 00:27:28"),
        new("B2", "2021-02-01 00:04:23", "2021-02-01 00:27:28", end=",", position=","),
        new("C3", "2021-02-01 00:04:23", "2021-02-01 00:27:28", position="0.0,0.0"),
        "D4,too,short\n",
    ]
    with zipfile.ZipFile(tmp_path / "JC-202102-citibike-tripdata.csv.zip", "w") as archive:
        archive.writestr("JC-202102-citibike-tripdata.csv", NEW + "".join(trips))
        archive.writestr("__MACOSX/._JC-202102-citibike-tripdata.csv", "junk")
    blocks = read(Citibike(path=str(tmp_path)))
    frame = pl.concat(block.frame for block in blocks)
    assert sorted(zip(frame["user"], frame["place"])) == [
        ("A1", "HB102"),
        ("A1", "JC066"),
        ("B2", "JC066"),
        ("C3", "JC066"),
    ]
    reasons = [(reject.line, reject.reason) for block in blocks for reject in block.rejects]
    assert reasons == [
        (5, "3 fields instead of 13"),
        (3, "latitude is not a finite number"),
        (4, "a coordinate is zero: no position"),
    ]


def test_a_station_called_null_is_none(tmp_path: Path) -> None:
    path = write(tmp_path / "tripdata.csv", OLD + old("2020-03-01 00:14:07", "2020-03-01 00:20:36", 389, "NULL"))
    (reject,) = [reject for block in read(Citibike(path=str(path))) for reject in block.rejects]
    assert reject.reason == "place is empty"


def test_a_missing_column(tmp_path: Path) -> None:
    path = write(tmp_path / "tripdata.csv", "ride_id,started_at\nx,2021-02-01 00:04:23\n")
    with pytest.raises(DataError, match=r"tripdata.csv: no column is known as the end_time of trips"):
        read(Citibike(path=str(path)))


@pytest.mark.data
def test_the_real_trips(data_folder: Callable[[str], Path]) -> None:
    blocks = read(Citibike(path=str(data_folder("citibike_jc"))))
    frame = pl.concat(block.frame for block in blocks)
    assert (frame.height, sum(len(block.rejects) for block in blocks)) == (2 * 59_956, 0)
    trips = frame.group_by("user").agg(start=pl.col("time").first(), end=pl.col("time").last(), n=pl.len())
    assert (trips.height, trips["n"].unique().to_list()) == (59_956, [2])
    took = trips["end"] - trips["start"]
    assert took.min() >= 0  # type: ignore[operator]
    assert (took > 86_400_000).sum() == 57
