"""H3 cells: equality with the library for every row, for lists and boxes."""

import numpy as np
import polars as pl
import pytest

from penstock.mechanisms.core.plugin import DataError, ParameterError, PenstockError
from penstock.pipeline.spaces.h3 import H3

h3 = pytest.importorskip("h3", reason="needs penstock[h3]")

BOX = {"south": 37.74, "north": 37.82, "west": -122.47, "east": -122.37}


def points(n: int, spread: float = 0.1) -> pl.DataFrame:
    rng = np.random.default_rng(1)
    return pl.DataFrame(
        {"latitude": 37.78 + rng.uniform(-spread, spread, n), "longitude": -122.42 + rng.uniform(-spread, spread, n)}
    )


def by_library(space: H3, frame: pl.DataFrame) -> list[int]:
    position = {cell: i for i, cell in enumerate(space.cells)}
    return [position.get(h3.latlng_to_cell(lat, lon, space.resolution), -1) for lat, lon in frame.rows()]


@pytest.mark.parametrize("resolution", [5, 7, 8])
def test_a_box_is_covered_and_every_row_is_where_the_library_says(resolution):
    space = H3(resolution=resolution, **BOX)
    frame = points(5000)
    placed = space.place(frame)
    assert placed.tolist() == by_library(space, frame)
    in_box = frame["latitude"].is_between(37.74, 37.82) & frame["longitude"].is_between(-122.47, -122.37)
    assert (placed[in_box.to_numpy()] >= 0).all()
    assert list(space.cells) == sorted(set(space.cells))
    assert not space.derived_from_data


def test_listed_cells_keep_their_order():
    cells = (h3.latlng_to_cell(37.78, -122.42, 7), h3.latlng_to_cell(37.75, -122.45, 7))
    for names in (cells, cells[::-1]):
        space = H3(resolution=7, list_=names)
        assert space.cells == names
        frame = points(2000)
        assert space.place(frame).tolist() == by_library(space, frame)
        assert set(space.place(frame).tolist()) == {-1, 0, 1}


def test_cells_across_the_180th_meridian_at_a_pole_and_around_the_globe():
    world = [(0.0, 179.99), (0.0, -179.99), (89.9, 10.0), (-89.9, 0.0), (10.0, 10.0)]
    frame = pl.DataFrame(world, schema=["latitude", "longitude"], orient="row")
    for chosen in (world[:2], world[2:3], world):
        space = H3(resolution=2, list_=tuple({h3.latlng_to_cell(*point, 2): None for point in chosen}))
        assert space.place(frame).tolist() == by_library(space, frame)
    everything = H3(resolution=0, list_=tuple(h3.get_res0_cells()))
    rng = np.random.default_rng(2)
    frame = pl.DataFrame({"latitude": rng.uniform(-90, 90, 3000), "longitude": rng.uniform(-180, 180, 3000)})
    assert everything.place(frame).tolist() == by_library(everything, frame)
    assert (everything.place(frame) >= 0).all()


@pytest.mark.parametrize("resolution", [0, 1, 2, 3])
def test_no_row_of_a_large_cell_is_lost_at_its_bulging_edges(resolution):
    rng = np.random.default_rng(resolution)
    frame = pl.DataFrame({"latitude": rng.uniform(50, 90, 20_000), "longitude": rng.uniform(-180, 180, 20_000)})
    cell = h3.latlng_to_cell(75.0, 20.0, resolution)
    space = H3(resolution=resolution, list_=(cell,))
    assert space.place(frame).tolist() == by_library(space, frame)


def test_a_file_lists_cells(tmp_path):
    cell = h3.latlng_to_cell(37.78, -122.42, 7)
    for text in (f"{cell}\n", f"name,cell\nx,{cell}\n"):
        (tmp_path / "cells.csv").write_text(text)
        assert H3(resolution=7, file=str(tmp_path / "cells.csv")).cells == (cell,)
    (tmp_path / "cells.csv").write_text(f"{cell}\nabc\n")
    with pytest.raises(DataError, match=r"cells\.csv: list: 'abc' .* an H3 cell of resolution 7"):
        _ = H3(resolution=7, file=str(tmp_path / "cells.csv")).cells


def test_polygons_are_closed_rings_of_longitude_and_latitude():
    space = H3(resolution=6, **BOX)
    for cell in space.geometry():
        ring = cell["polygon"]
        assert ring[0] == ring[-1]
        assert len(ring) == 7
        assert all(-123 < lon < -122 and 37 < lat < 38 for lon, lat in ring)


def test_without_the_library_the_error_names_the_extra(without):
    without("h3")
    with pytest.raises(PenstockError, match=r"penstock\[h3\]"):
        _ = H3(resolution=7, **BOX).cells


def test_cells_of_another_resolution_or_listed_twice_are_refused():
    cell = h3.latlng_to_cell(37.78, -122.42, 8)
    with pytest.raises(ParameterError, match="an H3 cell of resolution 7"):
        _ = H3(resolution=7, list_=(cell,)).cells
    for spelling in (cell, cell.upper(), f"0{cell}", f"0x{cell}"):
        with pytest.raises(ParameterError, match="once"):
            H3(resolution=8, list_=(cell, spelling))
    for spelling in (str(int(cell, 16)), f" {cell}", f"{cell}_", ""):
        with pytest.raises(ParameterError, match="in hexadecimal"):
            H3(resolution=8, list_=(spelling,))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"resolution": 16, **BOX}, "resolution: 16"),
        ({"resolution": 7}, "list: .* given, unless there is file or south"),
        ({"resolution": 7, "south": 1.0}, "north: None .* together with south, north, west, east"),
        ({"resolution": 7, "list_": ("a",), **BOX}, "south: 37.74 .* left out if list is given"),
        ({"resolution": 7, **(BOX | {"north": 37.0})}, "north: 37.0 .* above south"),
        ({"resolution": 7, **(BOX | {"east": -179.0})}, "east: -179.0 .* a box across the 180th meridian"),
    ],
)
def test_contradictions_are_refused(values, message):
    with pytest.raises(ParameterError, match=message):
        H3(**values)


def test_a_box_of_more_cells_than_a_machine_holds_is_refused_before_they_are_made():
    with pytest.raises(ParameterError, match=r"resolution: 15 .* at most 10,000,000 cells, not 9,329,847,631"):
        H3(resolution=15, south=47, north=48, west=8, east=9)


@pytest.mark.parametrize("resolution", [0, 2, 5])
def test_rows_in_pentagons_are_where_the_library_says(resolution):
    import h3

    cells = sorted(h3.get_pentagons(resolution))
    places = [h3.cell_to_latlng(cell) for cell in cells]
    frame = pl.DataFrame({"latitude": [north for north, _ in places], "longitude": [east for _, east in places]})
    space = H3(resolution=resolution, list_=tuple(reversed(cells)))
    assert [space.cells[at] for at in space.place(frame)] == cells
