"""Zones: point location against an independent rule, borders, and errors of invalid files."""

from __future__ import annotations

import itertools
import json
import math
import os
import sqlite3
import struct
from contextlib import closing
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.mechanisms.core.plugin import DataError
from penstock.mechanisms.spatial_generalization import SpatialGeneralization
from penstock.pipeline.cli.main import main
from penstock.pipeline.output.maps import export
from penstock.pipeline.releasing.traces import area_of
from penstock.pipeline.reporting.page import write_report
from penstock.pipeline.spaces.polygons import UnknownColumnError
from penstock.pipeline.spaces.zones import Zones

CITIBIKE = Path(os.environ.get("PENSTOCK_DATA", "data")) / "citibike_jc"


def square(west: float, south: float, size: float = 1.0) -> list[list[float]]:
    east, north = west + size, south + size
    return [[west, south], [east, south], [east, north], [west, north], [west, south]]


def feature(name: Any, *rings: Any, kind: str = "Polygon") -> dict[str, Any]:
    coordinates = list(rings) if kind == "Polygon" else rings[0]
    return {"type": "Feature", "properties": {"zone": name}, "geometry": {"type": kind, "coordinates": coordinates}}


def written(folder: Path, *features: dict[str, Any], **others: Any) -> str:
    path = folder / "zones.geojson"
    path.write_text(json.dumps({"type": "FeatureCollection", "features": features} | others))
    return str(path)


def zones(folder: Path, *features: dict[str, Any], **others: Any) -> Zones:
    return Zones(path=written(folder, *features, **others), name="zone")


def placed(space: Zones, points: Any) -> list[int]:
    longitude, latitude = np.asarray(points, np.float64).reshape(-1, 2).T
    return space.place(pl.DataFrame({"latitude": latitude, "longitude": longitude})).tolist()


def star(rng: np.random.Generator, centre: tuple[float, float], low: float, high: float, n: int) -> list[list[float]]:
    """A ring of any shape around a centre that crosses itself nowhere."""
    angles = 2 * math.pi * (np.arange(n) + rng.uniform(0, 0.9, n)) / n
    radii = rng.uniform(low, high, n)
    ring = [[centre[0] + r * math.cos(a), centre[1] + r * math.sin(a)] for r, a in zip(radii, angles)]
    return [*ring, ring[0]]


# What is in a zone.


@pytest.mark.parametrize("seed", range(5))
def test_random_polygons_with_holes_hold_what_matplotlib_says(tmp_path, seed):
    path = pytest.importorskip("matplotlib.path").Path
    rng = np.random.default_rng(seed)
    shapes = []
    for _ in range(8):
        parts = []
        for _ in range(int(rng.integers(1, 4))):
            centre = tuple(rng.uniform(-3, 3, 2))
            outline = star(rng, centre, 1.0, 2.0, int(rng.integers(8, 60)))
            parts.append([outline, star(rng, centre, 0.2, 0.6, int(rng.integers(8, 20)))][: int(rng.integers(1, 3))])
        shapes.append(parts)
    space = zones(tmp_path, *(feature(f"z{i}", parts, kind="MultiPolygon") for i, parts in enumerate(shapes)))
    points = rng.uniform(-6, 6, (4000, 2))
    expected = np.full(len(points), -1)
    for number, parts in reversed(list(enumerate(shapes))):
        for outline, *holes in parts:
            inside = path(outline).contains_points(points)
            for hole in holes:
                inside &= ~path(hole).contains_points(points)
            expected[inside] = number
    assert placed(space, points) == expected.tolist()
    assert len(set(expected.tolist())) > 4


def test_the_first_zone_of_the_file_has_shared_borders_and_corners(tmp_path):
    a, b, c, d = (feature(name, square(x, y)) for name, x, y in (("a", 0, 0), ("b", 1, 0), ("c", 0, 1), ("d", 1, 1)))
    borders = [[1, 0.5], [0.5, 1], [1, 1], [2, 0.5], [1.5, 1], [2, 2], [0, 0], [1, 1.5]]
    assert placed(zones(tmp_path, a, b, c, d), borders) == [0, 0, 0, 1, 1, 3, 0, 2]
    assert placed(zones(tmp_path, d, c, b, a), borders) == [2, 1, 0, 2, 0, 0, 3, 0]
    assert placed(zones(tmp_path, a), [[2, 0.5], [0.5, 1.0000001], [-0.0000001, 0.5]]) == [-1, -1, -1]


def test_a_zone_may_be_the_whole_world(tmp_path):
    world = [[-180, -90], [180, -90], [180, 90], [-180, 90], [-180, -90]]
    across = [[[[170, 0], [180, 0], [180, 9], [170, 9], [170, 0]]], [[[-180, 0], [-170, 0], [-170, 9], [-180, 0]]]]
    space = zones(tmp_path, feature("fiji", across, kind="MultiPolygon"), feature("elsewhere", world))
    assert placed(space, [[179, 1], [-179, 0.1], [0, 1], [180, 5], [-180, 90]]) == [0, 0, 1, 0, 1]


def test_no_point_falls_between_zones_that_share_their_border(tmp_path):
    """Slanted borders that no double lies on, points along them, and rings of either direction."""
    rng = np.random.default_rng(3)
    n = 7
    grid = np.stack(np.meshgrid(np.arange(n + 1.0), np.arange(n + 1.0)), axis=-1)
    grid[1:-1, 1:-1] += rng.uniform(-0.3, 0.3, (n - 1, n - 1, 2))
    rings = []
    for i, j in itertools.product(range(n), range(n)):
        ring = [grid[i, j], grid[i, j + 1], grid[i + 1, j + 1], grid[i + 1, j], grid[i, j]]
        rings.append([point.tolist() for point in (ring if (i + j) % 2 else ring[::-1])])
    space = zones(tmp_path, *(feature(f"{i}", ring) for i, ring in enumerate(rings)))
    ends = np.array([side for ring in rings for side in itertools.pairwise(ring)])
    share = rng.uniform(0, 1, (len(ends), 40, 1))
    along = (ends[:, None, 0] + share * (ends[:, None, 1] - ends[:, None, 0])).reshape(-1, 2)
    assert min(placed(space, np.clip(along, 0, n))) >= 0
    assert min(placed(space, rng.uniform(0, n, (5000, 2)))) >= 0


def test_a_hole_is_outside_its_border_inside_and_may_hold_another_zone(tmp_path):
    ring, inner = square(0, 0, 3), square(1, 1)
    around = feature("around", ring, inner)
    assert placed(zones(tmp_path, around), [[1.5, 1.5], [1, 1.5], [0.5, 0.5]]) == [-1, 0, 0]
    both = zones(tmp_path, around, feature("within", inner))
    assert placed(both, [[1.5, 1.5], [1, 1.5], [0.5, 0.5]]) == [1, 0, 0]


def test_parts_that_overlap_are_both_inside(tmp_path):
    space = zones(tmp_path, feature("twice", [[square(0, 0, 2)], [square(1, 1, 2)]], kind="MultiPolygon"))
    assert placed(space, [[1.5, 1.5], [0.5, 0.5], [2.5, 2.5], [0.5, 2.5]]) == [0, 0, 0, -1]


def test_blocks_do_not_matter(tmp_path):
    rng = np.random.default_rng(1)
    space = zones(tmp_path, *(feature(f"{i}", star(rng, (i, 0), 0.5, 1.0, 90)) for i in range(4)))
    points = rng.uniform(-2, 5, (3000, 2))
    expected = placed(space, points)
    assert placed(space, np.tile(points, (50, 1))) == expected * 50  # more than are placed at a time
    assert placed(space, []) == []


def is_held(point: tuple[Fraction, Fraction], rings: list[list[list[float]]]) -> bool:
    """By the definition in rational numbers: on a side, or to the west of an odd number of them."""
    x, y = point
    odd = False
    for ring in rings:
        for ends in itertools.pairwise(ring):
            (x0, y0), (x1, y1) = ((Fraction(a), Fraction(b)) for a, b in ends)
            turn = (x1 - x0) * (y - y0) - (y1 - y0) * (x - x0)
            if turn == 0 and min(x0, x1) <= x <= max(x0, x1) and min(y0, y1) <= y <= max(y0, y1):
                return True
            if (y0 > y) != (y1 > y):
                odd ^= x < x0 + (x1 - x0) * (y - y0) / (y1 - y0)
    return odd


SLIVER = [[0, 0], [5, 1e-9], [10, 0], [5, 2e-9], [0, 0]]
#: Its outline meets itself at (2, 2), its holes meet the outline and each other in a corner.
TOUCHING = [
    [[0, 0], [6, 0], [6, 6], [2, 2], [0, 6], [0, 4], [2, 2], [0, 1], [0, 0]],
    [[3, 0], [4, 1], [3, 2], [2, 1], [3, 0]],
    [[4, 1], [5, 1], [5, 2], [4, 1]],
]


@pytest.mark.parametrize(
    "rings",
    [
        [SLIVER],
        TOUCHING,
        [[[0, 0], [0.1, 0.3], [0.7, 0.9], [1.1, 0.2], [0, 0]]],
        [square(0, 0, 6), square(1, 1, 2), square(3, 3, 2)],
        [square(0, 0, 6), [[0, 2], [3, 2], [3, 4], [0, 4], [0, 2]]],  # a hole along a side
    ],
    ids=["sliver", "touching itself", "slanted", "holes", "notch"],
)
def test_thin_holed_and_touching_zones_hold_what_rational_numbers_say(tmp_path, rings):
    rng = np.random.default_rng(7)
    corners = np.concatenate([np.asarray(ring, float) for ring in rings])
    ends = np.array([side for ring in rings for side in itertools.pairwise(ring)], float)
    along = ends[:, 0] + rng.choice([0.25, 0.5, 0.3, 0.7], (20, len(ends), 1)) * (ends[:, 1] - ends[:, 0])
    inside = rng.uniform(corners.min(axis=0), corners.max(axis=0), (400, 2))
    points = np.concatenate([corners, along.reshape(-1, 2), inside, np.round(inside)])
    expected = [is_held((Fraction(x), Fraction(y)), rings) - 1 for x, y in points.tolist()]
    assert placed(zones(tmp_path, feature("a", *rings)), points) == expected
    assert set(expected) == {0, -1}


# What the file says.


def test_names_numbers_heights_and_a_crs_that_says_what_is_so(tmp_path):
    high = [[*position, 12.5] for position in square(0, 0)]
    crs = {"type": "name", "properties": {"name": "urn:ogc:def:crs:OGC:1.3:CRS84"}}
    space = zones(tmp_path, feature("é", high), feature(7, square(1, 0)), crs=crs)
    assert space.cells == ("é", "7")
    assert placed(space, [[0.5, 0.5], [1.5, 0.5]]) == [0, 1]
    assert not space.derived_from_data


SHARP = [[0, 0], [1, 1], [1, 0], [0, 1], [0, 0]]


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ((), "there is no feature in it"),
        ((feature("a", square(0, 0)), feature("a", square(2, 0))), "feature 2: zone is 'a' like that of feature 1"),
        ((feature("a", square(0, 0)), feature("a ", square(2, 0))), "feature 2: zone is 'a ' like that of feature 1"),
        ((feature("é", square(0, 0)), feature("e\u0301", square(2, 0))), "feature 2: zone is 'e\u0301' like that of"),
        ((feature("a", square(0, 0)), feature("", square(2, 0))), "feature 2: zone is ''; it must be a text"),
        ((feature(None, square(0, 0)),), "feature 1: zone is None"),
        ((feature(True, square(0, 0)),), "feature 1: zone is True"),
        (({"type": "Feature", "properties": {"b": 1, "a": 2}},), "feature 1: .* no property 'zone'; it has: a, b"),
        ((feature("a", [0, 0], kind="Point"),), "feature 1: its geometry is Point; it must be a Polygon"),
        (({"type": "Feature", "properties": {"zone": "a"}, "geometry": None},), "its geometry is missing"),
        ((feature("a", square(0, 0)[:-1]),), "a ring is open; repeat its first position"),
        ((feature("a", [[0, 0], [1, 1], [0, 0]]),), "bounds no area"),
        ((feature("a", [[0, 0], [1, 1], [2, 2], [0, 0]]),), r"the ring that begins at \[0, 0\] bounds no area"),
        ((feature("a", [[0, 0], [4, 4], [4, 0], [0, 3], [0, 0]]),), r"its sides cross near \["),
        ((feature("a", SHARP),), r"bounds no area|sides cross"),
        ((feature("a", square(0, 0), square(5, 5)),), r"the hole that begins at \[5, 5\] is not inside"),
        ((feature("a", square(0, 0, 3), square(2, 2, 2)),), "its sides cross|is not inside its outline"),
        ((feature("a", square(583960, 4507523, 900)),), r"\[583960, 4.50752e\+06\] is no longitude and latitude"),
        ((feature("a", [[179, 0], [-179, 0], [-179, 1], [179, 1], [179, 0]]),), "more than 180 degrees long: cut it"),
        ((feature("a"),), "it has no ring"),
        ((feature("a", [[0, "x"], [1, 1], [2, 2], [0, 0]]),), "its geometry cannot be read"),
        ((feature("a", [[0, 10**400], [1, 1], [2, 2], [0, 0]]),), "its geometry cannot be read"),
        (({"type": "Feature", "properties": "a zone"},), "feature 1: .* no property 'zone'; it has: none"),
        (({"type": "Feature", "properties": 5},), "feature 1: .* no property 'zone'; it has: none"),
    ],
)
def test_a_wrong_feature_is_refused_with_its_number(tmp_path, features, message):
    with pytest.raises(DataError, match=r"zones\.geojson: .*" + message):
        _ = zones(tmp_path, *features).cells


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no JSON", "not GeoJSON .*ogr2ogr"),
        ("[]", "not a GeoJSON FeatureCollection, but 'list'"),
        ('{"type": "Polygon"}', "not a GeoJSON FeatureCollection, but 'Polygon'"),
        ('{"type": "FeatureCollection", "features": 3}', "features must be a list"),
        (
            '{"type": "FeatureCollection", "features": [], "crs": {"properties": {"name": "EPSG:2263"}}}',
            "crs is .*EPSG:2263.*it must be longitude and latitude",
        ),
    ],
)
def test_a_wrong_file_is_refused(tmp_path, text, message):
    path = tmp_path / "zones.geojson"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        _ = Zones(path=str(path), name="zone").cells
    with pytest.raises(DataError, match="No such file"):
        _ = Zones(path=str(tmp_path / "gone.geojson"), name="zone").cells


# GeoParquet.


def geoparquet(path: Path, names: list[str], shapes: list[bytes], **described: Any) -> Zones:
    geo = {"version": "1.1.0", "primary_column": "geom", "columns": {"geom": {"encoding": "WKB"} | described}}
    table = pa.table({"zone": names, "geom": pa.array(shapes, pa.binary())})
    pq.write_table(table.replace_schema_metadata({"geo": json.dumps(geo)}), path)
    return Zones(path=str(path), name="zone")


def binary(rings: list[list[list[float]]], order: str = "<", code: int = 3) -> bytes:
    packed = struct.pack(f"{order}BII", order == "<", code, len(rings))
    for ring in rings:
        packed += struct.pack(f"{order}I", len(ring)) + b"".join(struct.pack(f"{order}{len(p)}d", *p) for p in ring)
    return packed


def test_geoparquet_gives_the_same_zones(tmp_path):
    ring, hole = square(0, 0, 3), square(1, 1)
    many = struct.pack("<BII", 1, 6, 2) + binary([square(5, 0)]) + binary([square(7, 0)], ">")
    high = binary([[[*position, 1.0] for position in square(9, 0)]], code=1003)
    crs = {"id": {"authority": "EPSG", "code": 4326}}
    read = geoparquet(tmp_path / "z.parquet", ["a", "b", "c"], [binary([ring, hole]), many, high], crs=crs)
    parts = feature("b", [[square(5, 0)], [square(7, 0)]], kind="MultiPolygon")
    expected = zones(tmp_path, feature("a", ring, hole), parts, feature("c", square(9, 0)))
    assert read.geometry() == expected.geometry()
    extended = struct.pack("<BII", 1, 0x20000003, 4326) + binary([ring, hole])[5:]
    for name in ("WGS 84", "WGS 84 (CRS84)", "WGS_1984"):
        again = geoparquet(tmp_path / "e.parquet", ["a", "b", "c"], [extended, many, high], crs={"name": name})
        assert again.geometry() == expected.geometry()


@pytest.mark.parametrize(
    "text",
    [
        "POLYGON ((0 0, 3 0, 3 3, 0 3, 0 0))",
        "SRID=4326;polygon z ((0 0 1, 3 0 1, 3 3 1, 0 3 1, 0 0 1))",
        binary([square(0, 0, 3)]).hex(),
    ],
    ids=["WKT", "EWKT", "WKB in digits"],
)
def test_geometry_as_text_is_read_too(tmp_path, text):
    geo = {"version": "1.1.0", "primary_column": "geom", "columns": {"geom": {"encoding": "WKT"}}}
    table = pa.table({"zone": ["a"], "geom": [text]}).replace_schema_metadata({"geo": json.dumps(geo)})
    pq.write_table(table, tmp_path / "z.parquet")
    read = Zones(path=str(tmp_path / "z.parquet"), name="zone")
    assert read.geometry() == zones(tmp_path, feature("a", square(0, 0, 3))).geometry()


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_zones_in_a_table_of_text_are_those_of_geojson(tmp_path, separator):
    hole = "(1 1, 2 1, 2 2, 1 2, 1 1)"
    rows = [
        ("a", f"POLYGON ((0 0, 3 0, 3 3, 0 3, 0 0), {hole})"),
        ("b, north", "SRID=4326;MultiPolygon Z(((5 0 1, 6 0 1, 6 1 1, 5 1 1, 5 0 1)))"),
        ("c", binary([square(7, 0)]).hex().upper()),
    ]
    path = tmp_path / "zones.csv"
    lines = [f'"{name}"{separator}7{separator}"{text}"\n' for name, text in rows]
    path.write_text(f"\ufeffzone{separator}n{separator}the_geom\n" + "".join(lines))
    features = [
        feature("a", square(0, 0, 3), square(1, 1)),
        feature("b, north", square(5, 0)),
        feature("c", square(7, 0)),
    ]
    read = Zones(path=str(path), name="zone")
    assert placed(read, [(0.5, 0.5), (1.5, 1.5), (5.5, 0.5)]) == [0, -1, 1]
    assert read.geometry() == zones(tmp_path, *features).geometry()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("zone,geom\na,POLYGON ((0 0, 1 1)", "cannot be read"),
        ('zone,geom\na,"POLYGON ((0 0, 1 0, 1 1))"\n', "feature 1: a ring is open"),
        ('zone,geom\na,"SRID=25832;POLYGON ((0 0, 1 0, 1 1, 0 0))"\n', "feature 1: .*EPSG:25832"),
        ('zone,geom\na,"LINESTRING (0 0, 1 0)"\n', "feature 1: its geometry is LineString"),
        ('district,geom\na,"POLYGON ((0 0, 1 0, 1 1, 0 0))"\n', "there is no column 'zone'; it has: district"),
        ('zone,geom\na,\nb,"POLYGON ((0 0, 1 0, 1 1, 0 0))"\n', "no column of the first row holds a polygon"),
        ("zone,lat\na,47.3\n", "not GeoJSON"),
    ],
)
def test_a_wrong_table_of_zones_is_refused(tmp_path, text, message):
    path = tmp_path / "zones.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        _ = Zones(path=str(path), name="zone").cells


def geopackage(path: Path, *geometries: bytes | None, srs: int = 4326) -> Zones:
    """A layer of zones a, b, … after one of other things."""
    with closing(sqlite3.connect(path)) as file, file:
        file.executescript(
            "CREATE TABLE gpkg_spatial_ref_sys (srs_id INTEGER, organization TEXT, organization_coordsys_id INTEGER);"
            "CREATE TABLE gpkg_geometry_columns (table_name TEXT, column_name TEXT, srs_id INTEGER);"
            'CREATE TABLE trees (geom BLOB); CREATE TABLE "my ""zones" (zone TEXT, geom BLOB);'
            f"INSERT INTO gpkg_spatial_ref_sys VALUES ({srs}, 'EPSG', {srs});"
            f"INSERT INTO gpkg_geometry_columns VALUES ('trees', 'geom', {srs}), ('my \"zones', 'geom', {srs});"
        )
        file.executemany('INSERT INTO "my ""zones" VALUES (?, ?)', zip("abc", geometries))
    return Zones(path=str(path), name="zone")


def test_a_geopackage_gives_the_same_zones(tmp_path):
    plain = b"GP\0\1" + struct.pack("<i", 4326) + binary([square(0, 0, 3)])
    boxed = b"GP\0\3" + struct.pack("<i4d", 4326, 5, 6, 0, 1) + binary([square(5, 0)])
    read = geopackage(tmp_path / "z.gpkg", plain, boxed)
    assert read.geometry() == zones(tmp_path, feature("a", square(0, 0, 3)), feature("b", square(5, 0))).geometry()
    with pytest.raises(UnknownColumnError, match=r"no layer has a column 'name'; they have: .*zone"):
        _ = Zones(path=read.path, name="name").cells


def test_a_wrong_geopackage_is_refused(tmp_path):
    plain = b"GP\0\1" + struct.pack("<i", 2263) + binary([square(0, 0, 3)])
    with pytest.raises(DataError, match="is in EPSG:2263; it must be longitude and latitude"):
        _ = geopackage(tmp_path / "a.gpkg", plain, srs=2263).cells
    with pytest.raises(DataError, match="feature 1: its geometry is missing"):
        _ = geopackage(tmp_path / "b.gpkg", None).cells
    geopackage(tmp_path / "d.gpkg", plain)
    with closing(sqlite3.connect(tmp_path / "d.gpkg")) as file, file:
        file.executescript("ALTER TABLE trees ADD COLUMN zone TEXT;")
    with pytest.raises(DataError, match="several layers have a column 'zone': 'trees', 'my \"zones'; ogr2ogr"):
        _ = Zones(path=str(tmp_path / "d.gpkg"), name="zone").cells
    (tmp_path / "c.gpkg").write_bytes(b"SQLite format 3\0" + b"x" * 2000)
    with pytest.raises(DataError, match="cannot be read as GeoPackage"):
        _ = Zones(path=str(tmp_path / "c.gpkg"), name="zone").cells


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"encoding": "point"}, "not GeoParquet with geometry as WKB"),
        ({"crs": {"id": {"authority": "EPSG", "code": 2263}}}, "its crs must be longitude and latitude"),
        ({"crs": None}, "its crs must be longitude and latitude"),
        ({"crs": {"name": "WGS 84 / UTM zone 32N"}}, "its crs must be longitude and latitude"),
    ],
)
def test_other_parquet_is_refused(tmp_path, changes, message):
    with pytest.raises(DataError, match=message):
        _ = geoparquet(tmp_path / "z.parquet", ["a"], [binary([square(0, 0)])], **changes).cells


@pytest.mark.parametrize(
    "geo", ["[1]", '{"primary_column": ["geom"]}', '{"primary_column": "geom", "columns": {"geom": 5}}']
)
def test_metadata_that_describes_no_geometry_are_refused(tmp_path, geo):
    path = tmp_path / "z.parquet"
    pq.write_table(pa.table({"zone": ["a"]}).replace_schema_metadata({"geo": geo}), path)
    with pytest.raises(DataError, match="not GeoParquet with geometry as WKB"):
        _ = Zones(path=str(path), name="zone").cells


def test_wrong_geometries_and_columns_of_geoparquet_are_named(tmp_path):
    path = tmp_path / "z.parquet"
    shape = binary([square(0, 0)])
    for shapes, message in (
        ([shape, shape[:-4]], "feature 2: its geometry cannot be read .*smaller"),
        ([shape, struct.pack("<BI2d", 1, 1, 0, 0)], "feature 2: its geometry is Point; it must be a Polygon"),
        ([shape, binary([square(0, 0)[:-1]])], "feature 2: a ring is open"),
        ([shape, struct.pack("<BII", 1, 0x20000003, 25832) + binary([square(0, 0)])[5:]], "feature 2: .*EPSG:25832"),
        ([shape, None], "feature 2: its geometry is missing"),
        ([shape, struct.pack("<BII", 1, 6, 1) * 5000], "feature 2: its geometry cannot be read"),
    ):
        with pytest.raises(DataError, match=message):
            _ = geoparquet(path, ["a", "b"], shapes).cells
    with pytest.raises(DataError, match="there is no column 'district'; it has: zone"):
        _ = Zones(path=geoparquet(path, ["a"], [shape]).path, name="district").cells
    path.write_bytes(b"PAR1 and nothing else")
    with pytest.raises(DataError, match="cannot be read as GeoParquet"):
        _ = Zones(path=str(path), name="zone").cells


# On maps, in steps, in runs.


def test_coarse_cells_and_the_area_of_traces_know_the_corners(tmp_path):
    space = zones(
        tmp_path, *(feature(f"{x}{y}", [[square(x, y, 0.5)]], kind="MultiPolygon") for x in (0, 5) for y in (0, 5))
    )
    assert SpatialGeneralization(rows=1, columns=2).groups(space.geometry()).tolist() == [0, 0, 1, 1]
    assert area_of(space).centre == (2.75, 2.75)


@pytest.mark.skipif(not CITIBIKE.is_dir(), reason="needs the Citi Bike data in PENSTOCK_DATA")
def test_a_run_over_real_trips_releases_and_draws_its_zones(tmp_path, capsys):
    river, hole = square(-74.04, 40.70, 0.03), square(-74.03, 40.715, 0.01)
    heights = [[-74.08, 40.725], [-74.04, 40.725], [-74.04, 40.76], [-74.08, 40.74], [-74.08, 40.725]]
    north = [square(-74.04, 40.731, 0.02)]
    path = written(
        tmp_path, feature("heights & north", [[heights], north], kind="MultiPolygon"), feature("river", river, hole)
    )
    trips = next(CITIBIKE.glob("JC-202003*.csv"))
    day = {"from": "2020-03-02T00:00:00-05:00", "until": "2020-03-03T00:00:00-05:00"}
    sections = {
        "name": "zones",
        "seed": 1,
        "source": {"type": "citibike", "path": str(trips), **day},
        "space": {"type": "zones", "path": "zones.geojson", "name": "zone"},
        "windows": {"type": "fixed", "size": "1h", "time_zone": "America/New_York"},
        "bounding": {"max_cells": 1},
        "mechanism": {"type": "raw"},
        "output": {"path": "unused"},
    }
    (tmp_path / "config.yaml").write_text(json.dumps(sections))
    assert main(["validate", str(tmp_path / "config.yaml")]) == 0
    assert main(["validate", str(tmp_path / "config.yaml"), "--set", "space.name=district"]) == 2
    assert "space.name: 'district' is not allowed" in (text_of_error := capsys.readouterr().err)
    assert "feature 1: there is no property 'district'; it has: zone" in text_of_error
    result = penstock.run(penstock.load(tmp_path / "config.yaml"), tmp_path / "run", runner="local")
    rows = json.loads((result.folder / "operator" / "manifest.json").read_text())["rows"]
    assert rows["used"] > 100
    assert rows["out_of_area"] > 10
    assert rows["rows"] == rows["used"] + rows["out_of_area"] + rows["out_of_time"]
    truth = pl.read_parquet(result.folder / "operator" / "truth.parquet")
    assert set(truth.filter(pl.col("count") > 0)["cell"].cast(pl.String)) == {"heights & north", "river"}
    published = json.loads((result.folder / "public" / "cells.geojson").read_text())["features"]
    assert [one["geometry"]["type"] for one in published] == ["MultiPolygon", "Polygon"]
    assert published[1]["geometry"]["coordinates"] == [river, hole]
    frame = pl.read_csv(export(result.folder, "csv"))
    assert frame["geometry"][0].startswith("MULTIPOLYGON (((-74.08 40.725, ")
    assert frame["geometry"][1].startswith("POLYGON ((-74.04 40.7, ")
    assert frame["geometry"][1].count("(") == 3
    shapes = pl.DataFrame(pq.read_table(export(result.folder, "geoparquet")))
    names, binaries = shapes["cell"].to_list()[:2], shapes["geometry"].to_list()[:2]
    again = geoparquet(tmp_path / "again.parquet", names, binaries)
    assert again.geometry() == Zones(path=path, name="zone").geometry()
    assert b'"rings":[[[-74.08,40.725]' in write_report(result.folder)[0].read_bytes()
    assert "<path" in result.map().svg
