"""Stations: the nearest on the sphere within the radius."""

import numpy as np
import polars as pl
import pytest

from penstock.mechanisms.core.plugin import DataError, ParameterError
from penstock.pipeline.spaces.stations import Stations

EARTH_RADIUS = 6_371_008.8


def stations(tmp_path, text: str, radius: float = 500.0) -> Stations:
    file = tmp_path / "stations.csv"
    file.write_text(text)
    return Stations(file=str(file), radius=radius)


def haversine(latitude, longitude, station_latitude, station_longitude):
    """Metres between every point and every station."""
    a, b = np.radians(latitude)[:, None], np.radians(station_latitude)[None]
    c = np.radians(longitude)[:, None] - np.radians(station_longitude)[None]
    h = np.sin((a - b) / 2) ** 2 + np.cos(a) * np.cos(b) * np.sin(c / 2) ** 2
    return 2 * EARTH_RADIUS * np.arcsin(np.sqrt(h))


@pytest.mark.parametrize("centre", [(40.7, -74.0), (0.0, 180.0), (89.9, 20.0), (-89.9, -100.0)])
def test_the_nearest_by_great_circle_within_the_radius(tmp_path, centre):
    rng = np.random.default_rng(1)
    spread = np.array([0.05, 0.05 / max(np.cos(np.radians(centre[0])), 1e-3)])
    known = np.array(centre) + rng.uniform(-1, 1, (60, 2)) * spread
    points = np.array(centre) + rng.uniform(-1.3, 1.3, (4000, 2)) * spread
    for table in (known, points):
        table[:, 1] = (table[:, 1] + 180) % 360 - 180
    rows = "\n".join(f"s{i},{lat!r},{lon!r}" for i, (lat, lon) in enumerate(known.tolist()))
    space = stations(tmp_path, f"station,latitude,longitude\n{rows}\n", radius=700)
    distance = haversine(points[:, 0], points[:, 1], known[:, 0], known[:, 1])
    expected = np.where(distance.min(axis=1) <= 700, distance.argmin(axis=1), -1)
    placed = space.place(pl.DataFrame({"latitude": points[:, 0], "longitude": points[:, 1]}))
    assert placed.tolist() == expected.tolist()
    assert 0.05 < (placed >= 0).mean() < 1


def test_the_radius_is_in_metres_and_inclusive(tmp_path):
    text = "station,latitude,longitude\na,0,0\n"
    degree = np.pi / 180 * EARTH_RADIUS
    frame = pl.DataFrame({"latitude": [0.0, 1.0, 0.0], "longitude": [1.0, 0.0, 180.0]})
    assert stations(tmp_path, text, degree * (1 + 1e-12)).place(frame).tolist() == [0, 0, -1]
    assert stations(tmp_path, text, degree * (1 - 1e-9)).place(frame).tolist() == [-1, -1, -1]
    assert stations(tmp_path, text, 1e9).place(frame).tolist() == [0, 0, 0]
    assert stations(tmp_path, text, 1.0).place(pl.DataFrame({"latitude": [0.0], "longitude": [0.0]})).tolist() == [0]
    assert stations(tmp_path, text).place(frame[:0]).shape == (0,)


def test_of_two_stations_at_one_point_the_first_wins(tmp_path):
    space = stations(tmp_path, "station,latitude,longitude\nb,1,1\na,0,0\nc,0,0\n")
    assert space.place(pl.DataFrame({"latitude": [0.0, 1.0], "longitude": [0.0, 1.0]})).tolist() == [1, 0]


def test_groups_and_points(tmp_path):
    space = stations(tmp_path, "latitude,group,station,longitude\n40.5,north,s1,-74\n40.25,,s2,-74.5\n")
    assert space.cells == ("s1", "s2")
    assert space.geometry() == [
        {"cell": "s1", "point": [-74.0, 40.5], "group": "north"},
        {"cell": "s2", "point": [-74.5, 40.25]},
    ]
    without = stations(tmp_path, "station,latitude,longitude\ns1,1,1\n")
    assert without.geometry() == [{"cell": "s1", "point": [1.0, 1.0]}]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("station,latitude\ns,1\n", ":1: .* longitude is missing"),
        ("s1,40,-74\n", ":1: the header must name the columns station, latitude, longitude"),
        ("station,latitude,longitude\n", "no station"),
        ("station,latitude,longitude\na,1,1\nb,1,1\na,2,2\n", ":4: station 'a' is listed twice"),
        ("station,latitude,longitude\na,1,181\n", ":2: longitude '181'"),
        ("station,latitude,longitude\n,1,18\n", ":2: station is empty"),
    ],
)
def test_a_wrong_file_is_refused_with_its_line(tmp_path, text, message):
    with pytest.raises(DataError, match=message):
        _ = stations(tmp_path, text).cells


def test_a_radius_is_positive(tmp_path):
    with pytest.raises(ParameterError, match="radius: 0"):
        Stations(file="stations.csv", radius=0)
