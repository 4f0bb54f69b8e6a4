"""Grid cells: every point of the box is in exactly one cell, the one whose polygon contains it."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.mechanisms.core.plugin import ParameterError
from penstock.pipeline.spaces.base import SPACES
from penstock.pipeline.spaces.grid import Grid

CITY = {"south": 37.74, "north": 37.82, "west": -122.47, "east": -122.37}


def place(grid: Grid, latitude: list[float], longitude: list[float]) -> list[str | None]:
    frame = pl.DataFrame({"latitude": latitude, "longitude": longitude}, schema_overrides={"latitude": pl.Float64})
    return [grid.cells[i] if i >= 0 else None for i in grid.place(frame).tolist()]


def test_names_are_stable_and_row_by_row_from_the_south_west():
    grid = Grid(**CITY, rows=10, columns=10)
    assert grid.cells[:3] == ("r00c00", "r00c01", "r00c02")
    assert grid.cells[37] == "r03c07"
    assert len(set(grid.cells)) == 100
    assert Grid(**CITY, rows=1000, columns=2).cells[-1] == "r999c01"
    assert SPACES.get("grid") is Grid
    assert not grid.derived_from_data
    assert grid.resolve(None) is grid


def test_cells_are_those_of_the_plain_formula():
    grid = Grid(**CITY, rows=10, columns=10)
    ticks = np.arange(37.74, 37.82, 0.0001).round(5), np.arange(-122.47, -122.37, 0.0001).round(5)
    latitude, longitude = (axis.ravel() for axis in np.meshgrid(*ticks))
    frame = pl.DataFrame({"latitude": latitude, "longitude": longitude})
    row = ((pl.col("latitude") - 37.74) / (37.82 - 37.74) * 10).floor().clip(0, 9)
    column = ((pl.col("longitude") + 122.47) / (-122.37 + 122.47) * 10).floor().clip(0, 9)
    assert grid.place(frame).tolist() == frame.select((row * 10 + column).cast(pl.Int64)).to_series().to_list()


def test_the_outer_north_and_east_belong_to_the_last_cells():
    grid = Grid(**CITY, rows=10, columns=10)
    assert place(grid, [37.82, 37.82, 37.74], [-122.37, -122.47, -122.37]) == ["r09c09", "r09c00", "r00c09"]
    outside = [np.nextafter(37.82, 90), np.nextafter(37.74, -90), 37.8, 37.8]
    assert place(grid, outside, [-122.4, -122.4, np.nextafter(-122.37, 0), np.nextafter(-122.47, -180)]) == [None] * 4


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_the_drawn_polygon_holds_the_point(data):
    south = data.draw(st.floats(-89, 88, allow_nan=False))
    west = data.draw(st.floats(-179, 178, allow_nan=False))
    north = data.draw(st.floats(south + 1e-3, 90))
    east = data.draw(st.floats(west + 1e-3, 180))
    rows, columns = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 40))
    grid = Grid(south=south, north=north, west=west, east=east, rows=rows, columns=columns)
    polygons = np.array([cell["polygon"] for cell in grid.geometry()])
    lows, highs = polygons[:, 0], polygons[:, 2]
    edges_of = [np.unique(polygons[..., axis]) for axis in (1, 0)]
    points = []
    for edges in edges_of:
        near = np.concatenate([edges, np.nextafter(edges, -400), np.nextafter(edges, 400)])
        points.append(np.concatenate([near, data.draw(st.lists(st.floats(edges[0], edges[-1]), max_size=5))]))
    latitude, longitude = (axis.ravel() for axis in np.meshgrid(*points))
    keep = (np.abs(latitude) <= 90) & (np.abs(longitude) <= 180)
    latitude, longitude = latitude[keep], longitude[keep]
    placed = grid.place(pl.DataFrame({"latitude": latitude, "longitude": longitude}))
    for axis, values, top in ((1, latitude, north), (0, longitude, east)):
        low, high = lows[:, axis][placed], highs[:, axis][placed]
        inside = placed >= 0
        rounding = 1e-13 * max(1.0, np.abs(values).max())
        assert (low[inside] <= values[inside] + rounding).all()
        assert ((values < high + rounding) | (values == top))[inside].all()
    in_box = (latitude >= south) & (latitude <= north) & (longitude >= west) & (longitude <= east)
    assert ((placed >= 0) == in_box).all()


def test_polygons_tile_the_box_as_closed_rings():
    geometry = Grid(**CITY, rows=3, columns=4).geometry()
    assert [cell["cell"] for cell in geometry][:2] == ["r00c00", "r00c01"]
    rings = np.array([cell["polygon"] for cell in geometry])
    assert (rings[:, 0] == rings[:, -1]).all()
    areas = (rings[:, 2] - rings[:, 0]).prod(axis=1)
    assert areas.sum() == pytest.approx(0.08 * 0.1)
    assert (areas > 0).all()
    assert rings[0, 0].tolist() == [-122.47, 37.74]
    assert rings[-1, 2].tolist() == [-122.37, 37.82]


def test_many_rows_are_placed_as_one_by_one():
    grid = Grid(**CITY, rows=7, columns=3)
    rng = np.random.default_rng(1)
    frame = pl.DataFrame(
        {"latitude": rng.uniform(37.7, 37.9, 150_000), "longitude": rng.uniform(-122.5, -122.3, 150_000)}
    )
    placed = grid.place(frame)
    assert placed.dtype == np.int64
    assert np.concatenate([grid.place(frame[a : a + 999]) for a in range(0, 150_000, 999)]).tolist() == placed.tolist()
    assert grid.place(frame[:0]).shape == (0,)


def test_a_box_across_the_180th_meridian():
    grid = Grid(south=-20, north=-10, west=170, east=190, rows=1, columns=2)
    assert place(grid, [-15] * 5, [175, 180, -180, -175, 165]) == ["r00c00", "r00c01", "r00c01", "r00c01", None]
    assert place(grid, [-15.0], [-169.0]) == [None]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"north": 37.74}, "north: 37.74 is not allowed; it must be above south"),
        ({"north": 37.0}, "north"),
        ({"east": -122.5}, "east: -122.5 .*above west"),
        ({"south": -91}, "south: -91"),
        ({"west": -181}, "west: -181"),
        ({"north": float("nan")}, "north: nan"),
        ({"rows": 0}, "rows: 0"),
        ({"columns": -1}, "columns: -1"),
        ({"rows": 10**9}, "rows: 1000000000"),
        ({"west": -170.0, "east": 200.0}, "at most 360 degrees"),
    ],
)
def test_impossible_boxes_are_refused(change, message):
    with pytest.raises(ParameterError, match=message):
        Grid(**({**CITY, "rows": 10, "columns": 10} | change))
