"""The raster changes no answer: every point is in the cell that an exact question about it gives."""

from __future__ import annotations

import json

import h3
import numpy as np
import polars as pl
import pytest
import shapely

from penstock.pipeline.spaces.h3 import H3
from penstock.pipeline.spaces.raster import FEW_POINTS, _touched_squares
from penstock.pipeline.spaces.zones import Zones

MIXED = -2


def zones_of(folder, shapes) -> Zones:
    features = [
        {"type": "Feature", "properties": {"n": number}, "geometry": shapely.geometry.mapping(shape)}
        for number, shape in enumerate(shapes)
    ]
    path = folder / "zones.geojson"
    path.write_text(json.dumps({"type": "FeatureCollection", "features": features}))
    return Zones(path=str(path), name="n")


def brute_force(shapes, x, y):
    cell = np.full(len(x), -1)
    for number in reversed(range(len(shapes))):
        cell[shapely.intersects_xy(shapes[number], x, y)] = number
    return cell


def needles(rng, n):
    """Triangles as thin as a millionth of their length, at every angle."""
    for x, y, angle in rng.uniform(0, [1, 1, 2 * np.pi], (n, 3)):
        along, across = np.array([np.cos(angle), np.sin(angle)]), np.array([-np.sin(angle), np.cos(angle)])
        yield shapely.Polygon([(x, y), (x, y) + 0.5 * along, (x, y) + 0.5 * along + 1e-6 * across])


def discs(rng, n):
    """Discs that overlap, each with a hole."""
    for x, y, radius in rng.uniform([0, 0, 0.02], [1, 1, 0.2], (n, 3)):
        disc = shapely.Point(x, y).buffer(radius)
        yield disc.difference(shapely.Point(x, y).buffer(radius / 3))


def triangles(rng, n):
    """A triangulation: zones that touch along whole sides and in corners."""
    return list(shapely.delaunay_triangles(shapely.MultiPoint(rng.uniform(0, 1, (n, 2)))).geoms)


def several(rng, n):
    """Two zones of many polygons each, which overlap in places, and a far island that makes squares coarse."""
    parts = [list(discs(rng, n)), list(needles(rng, n))]
    return [shapely.union_all(parts[0]), shapely.MultiPolygon(parts[1]), shapely.box(170, -60, 180, -50)]


def far(rng, n):
    """A small triangulation and a far island: all triangles are in a few squares."""
    return [shapely.box(170, -60, 180, -50), *shapely.transform(triangles(rng, n), lambda corners: 0.15 * corners)]


def nested(rng, n):
    """Discs around one point, the smallest first or last, and between them a ring twice in the file."""
    sizes = rng.permutation(n) if rng.random() < 0.5 else np.arange(n)
    return [shapely.Point(0.5, 0.5).buffer(0.5 * (size + 1) / n) for size in [*sizes, n // 2]]


def stripes(rng, n):
    """Thin diagonal zones side by side, of which every box covers half of the others."""
    ends = np.sort(rng.uniform(-1, 1, (n, 2)), axis=0)
    return [shapely.Polygon([(0, low), (1, low + 1), (1, high + 1), (0, high)]) for low, high in ends if high > low]


@pytest.mark.parametrize("made", [needles, discs, triangles, several, far, nested, stripes])
@pytest.mark.parametrize("seed", range(3))
def test_zones_are_those_of_brute_force(tmp_path, made, seed):
    rng = np.random.default_rng(seed)
    shapes = list(made(rng, 60))
    zones = zones_of(tmp_path, shapes)
    raster = zones._raster
    corners = shapely.get_coordinates(shapes)
    on_sides = (corners[:-1] + corners[1:]) / 2
    columns = raster.west + raster.width * rng.integers(0, raster.answers.shape[1] + 1, 20_000)
    rows = raster.south + raster.height * rng.integers(0, raster.answers.shape[0] + 1, 20_000)
    x, y = np.concatenate([rng.uniform(-0.2, 1.2, (40_000, 2)), corners, on_sides, np.column_stack([columns, rows])]).T
    assert len(x) > FEW_POINTS
    assert {MIXED, -1} <= set(np.unique(raster.answers).tolist())
    assert (raster.answers >= 0).any() or made is needles  # squares without an edge, within a zone
    assert (np.diff(raster.offsets).max() > 32) == (made is far)  # squares of so many polygons that a tree is asked
    placed = zones.place(pl.DataFrame({"latitude": y, "longitude": x}))
    np.testing.assert_array_equal(placed, brute_force(shapes, x, y))
    few = slice(0, 1000)
    np.testing.assert_array_equal(zones.place(pl.DataFrame({"latitude": y[few], "longitude": x[few]})), placed[few])


def test_an_edge_left_out_would_be_seen(tmp_path):
    """The comparison above fails where a square that a needle touches is taken for clean."""
    rng = np.random.default_rng(0)
    shapes = list(needles(rng, 60))
    zones = zones_of(tmp_path, shapes)
    answers = zones._raster.answers
    answers[answers < 0] = -1
    x, y = (shapely.get_coordinates(shapes)).T
    x, y = np.tile(x, 200), np.tile(y, 200)
    assert len(x) > FEW_POINTS
    placed = zones.place(pl.DataFrame({"latitude": y, "longitude": x}))
    assert (placed != brute_force(shapes, x, y)).any()


def test_every_square_that_a_side_passes_is_touched():
    rng = np.random.default_rng(1)
    edges = np.concatenate([rng.uniform(3, 27, (200, 4)), np.full((1, 4), 5.0), [[4.0, 4.0, 9.0, 4.0]]])
    cell, square = _touched_squares(edges, np.arange(len(edges)), (30, 30), 1e-6)
    assert len(set(zip(cell.tolist(), square.tolist()))) == len(cell)
    boxes = shapely.box(
        *(axis.ravel() for axis in np.meshgrid(np.arange(30), np.arange(30))),
        *(axis.ravel() + 1 for axis in np.meshgrid(np.arange(30), np.arange(30))),
    )
    lines = shapely.linestrings(edges.reshape(-1, 2, 2))
    crossed = {
        (number, box) for number, line in enumerate(lines) for box in np.flatnonzero(shapely.intersects(boxes, line))
    }
    touched = set(zip(cell.tolist(), square.tolist()))
    assert crossed <= touched
    assert len(touched) < 1.3 * len(crossed)


@pytest.mark.parametrize(
    ("resolution", "south", "north", "west", "east"),
    [(9, 37.74, 37.82, -122.47, -122.37), (0, -20, 20, -10, 10), (3, 60, 75, 10, 30), (5, 3, 6, 100, 104)],
)
def test_hexagons_are_those_of_the_library(resolution, south, north, west, east):
    space = H3(resolution=resolution, south=south, north=north, west=west, east=east)
    rng = np.random.default_rng(3)
    y, x = rng.uniform([south - 1, west - 1], [north + 1, east + 1], (60_000, 2)).T
    assert space._raster is not None
    placed = space.place(pl.DataFrame({"latitude": y, "longitude": x}))
    np.testing.assert_array_equal(placed, space._locate(y, x))


def test_there_is_no_raster_of_hexagons_at_a_pole_or_across_the_180th_meridian():
    assert H3(resolution=2, south=75, north=85, west=0, east=40)._raster is None
    ring = tuple(sorted(h3.grid_disk(h3.latlng_to_cell(0.0, 180.0, 3), 1)))
    assert H3(resolution=3, list_=ring)._raster is None
