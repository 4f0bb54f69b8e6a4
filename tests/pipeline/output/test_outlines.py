"""Outlines on maps: reading, clipping, simplification, publication."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.pipeline.cli.main import main
from penstock.pipeline.monitoring.verify import verify
from penstock.pipeline.output.maps import MAX_POSITIONS, OUTLINES, read_outlines, simplified, write_outlines
from penstock.pipeline.spaces.polygons import read_lines

SQUARE = [[0.0, 0.0], [0.0, 1.0], [1.0, 1.0], [1.0, 0.0], [0.0, 0.0]]
BOX = {"type": "grid", "south": 0.0, "north": 1.0, "west": 0.0, "east": 1.0, "rows": 2, "columns": 2}


def feature(kind: str, coordinates: Any) -> dict[str, Any]:
    return {"type": "Feature", "properties": None, "geometry": {"type": kind, "coordinates": coordinates}}


def geojson(path: Path, *features: dict[str, Any]) -> str:
    path.write_text(json.dumps({"type": "FeatureCollection", "features": list(features)}))
    return str(path)


def sections(folder: Path, **output: Any) -> dict[str, Any]:
    (folder / "events.csv").write_text("user,time,latitude,longitude\na,2024-01-01T00:10:00Z,0.2,0.3\n")
    return {
        "name": "outlines",
        "source": {
            "type": "csv",
            "path": str(folder / "events.csv"),
            "from": "2024-01-01T00:00:00Z",
            "until": "2024-01-01T02:00:00Z",
        },
        "space": BOX,
        "windows": {"type": "fixed", "size": "1h"},
        "bounding": {"max_cells": 1},
        "mechanism": {"type": "discrete_laplace", "epsilon": 1.0},
        "output": {"path": str(folder / "run"), **output},
    }


def test_polygons_and_lines_are_read_without_names(tmp_path):
    given = geojson(
        tmp_path / "a.geojson",
        feature("Polygon", [SQUARE]),
        feature("MultiPolygon", [[SQUARE], [SQUARE]]),
        feature("LineString", [[0.0, 0.0], [2.0, 2.0]]),
        feature("MultiLineString", [[[0.0, 0.0], [1.0, 2.0]], [[5.0, 5.0], [6.0, 6.0]]]),
        {"type": "Feature", "properties": {}, "geometry": None},
    )
    assert [len(line) for line in read_lines(given)] == [5, 5, 5, 2, 2, 2]


LINE = {"type": "LineString", "coordinates": [[0.0, 0.0], [2.0, 2.0]]}


@pytest.mark.parametrize(
    "content",
    [
        LINE,
        {"type": "Feature", "properties": {}, "geometry": LINE},
        {"type": "GeometryCollection", "geometries": [LINE]},
        {"type": "Feature", "properties": None, "geometry": {"type": "GeometryCollection", "geometries": [LINE]}},
        {"type": "MultiLineString", "coordinates": [LINE["coordinates"]]},
    ],
    ids=lambda content: content["type"],
)
def test_a_feature_or_a_geometry_by_itself_is_read(tmp_path, content):
    (tmp_path / "a.geojson").write_text(json.dumps(content))
    assert [line.tolist() for line in read_lines(str(tmp_path / "a.geojson"))] == [LINE["coordinates"]]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            [[0.9, 40.1], [0.1, 40.9]],
            "it lies in longitude 0.1 to 0.9 and latitude 40.1 to 40.9, and the cells in longitude 40 to 41 and "
            "latitude 0 to 1, so nothing of it is on the map: longitude and latitude are swapped",
        ),
        ([[-74.0, 40.7], [-73.9, 40.8]], "nothing of it is on the map: is it in other coordinates? ogr2ogr"),
        # It has a corner on either side, and still does not come near.
        ([[39.0, 0.5], [39.0, 9.0], [42.0, 9.0], [42.0, 0.5]], "nothing of it is on the map"),
    ],
)
def test_outlines_that_lie_elsewhere_are_found_before_the_run(tmp_path, capsys, line, message):
    file = geojson(tmp_path / "a.geojson", feature("LineString", line))
    given = sections(tmp_path) | {"space": BOX | {"west": 40.0, "east": 41.0}, "allow_empty": True}
    result = penstock.run(given, runner="local")
    given["output"]["outlines"] = file
    with pytest.raises(penstock.ConfigError) as raised:
        penstock.load(given)
    assert message in str(raised.value)
    for wrong, expected in ((file, message), ("nofile", "nofile: No such file or directory")):
        assert main(["report", str(result.folder), "--outlines", wrong]) == 2
        assert expected in capsys.readouterr().err
        assert not (result.folder / "public" / OUTLINES).exists()


def test_lines_that_only_pass_through_the_map_are_drawn(tmp_path):
    file = geojson(tmp_path / "a.geojson", feature("LineString", [[-9.0, 0.5], [9.0, 0.5]]))
    assert penstock.load(sections(tmp_path, outlines=file)).output.outlines == file


@pytest.mark.parametrize("order", ["<", ">"])
def test_geoparquet_has_the_same_lines(tmp_path, order):
    flag = b"\x01" if order == "<" else b"\x00"
    line = flag + struct.pack(f"{order}II4d", 2, 2, 0.0, 0.0, 2.0, 2.0)
    ring = flag + struct.pack(f"{order}III10d", 3, 1, 5, *np.ravel(SQUARE))
    several = flag + struct.pack(f"{order}II", 5, 2) + line + line
    geo = {"primary_column": "geometry", "columns": {"geometry": {"encoding": "WKB"}}}
    table = pa.table({"geometry": pa.array([line, ring, several], pa.binary())})
    pq.write_table(table.replace_schema_metadata({"geo": json.dumps(geo)}), tmp_path / "a.parquet")
    actual = read_lines(str(tmp_path / "a.parquet"))
    assert [one.tolist() for one in actual] == [[[0.0, 0.0], [2.0, 2.0]], SQUARE] + 2 * [[[0.0, 0.0], [2.0, 2.0]]]


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ([], "there is no feature in it; polygons or lines are needed"),
        ([feature("Point", [1.0, 2.0])], "feature 1: its geometry is Point; it must be polygons or lines"),
        (
            [feature("LineString", [[0.0, 0.0], [500_000.0, 4_000_000.0]])],
            r"feature 1: \[500000, 4e\+06\] is no longitude",
        ),
        ([feature("LineString", [])], "there is no feature in it"),
        ([{"type": "Feature", "geometry": {"type": "GeometryCollection"}}], "feature 1: its geometry cannot be read"),
        ([feature("LineString", [["a", 0.0]])], "feature 1: its geometry cannot be read"),
    ],
)
def test_what_cannot_be_drawn_is_named(tmp_path, features, message):
    with pytest.raises(penstock.DataError, match=message):
        read_lines(geojson(tmp_path / "a.geojson", *features))


def test_simplified_lines_keep_within_their_tolerance_and_number():
    rng = np.random.default_rng(0)
    angle = np.linspace(0, 2 * np.pi, 400)
    ring = np.stack([0.5 + 0.4 * np.cos(angle), 0.5 + 0.4 * np.sin(angle)], axis=1)
    (kept,) = simplified([ring], np.zeros(2), np.ones(2))
    assert 20 < len(kept) < 100
    ends = np.stack([kept[:-1], kept[1:]], axis=1)
    along = ends[:, 1] - ends[:, 0]
    share = np.clip(((ring[:, None] - ends[:, 0]) * along).sum(2) / (along**2).sum(1), 0, 1)
    apart = np.linalg.norm(ring[:, None] - ends[:, 0] - share[..., None] * along, axis=2).min(axis=1)
    assert apart.max() <= 1 / 2000
    many = simplified([rng.random((60_000, 2))], np.zeros(2), np.ones(2))
    assert 0 < sum(map(len, many)) <= MAX_POSITIONS
    assert simplified([ring + 7], np.zeros(2), np.ones(2)) == []


def test_a_run_publishes_them_and_releases_the_same(tmp_path):
    file = geojson(
        tmp_path / "a.geojson", feature("Polygon", [SQUARE]), feature("LineString", [[0.2, 0.2], [0.8, 0.2]])
    )
    result = penstock.run(sections(tmp_path, outlines=file), runner="local")
    assert [line.tolist() for line in read_outlines(result.folder)] == [SQUARE, [[0.2, 0.2], [0.8, 0.2]]]
    assert file not in (result.folder / "public" / "manifest.json").read_text()
    drawn = result.map().figure.axes[0].get_lines()
    assert [line.get_xydata().tolist() for line in drawn] == [SQUARE, [[0.2, 0.2], [0.8, 0.2]]]
    assert all(check.passed for check in verify(result.folder))
    plain = penstock.run(sections(tmp_path), tmp_path / "plain", runner="local")
    assert plain.releases.equals(result.releases)
    assert read_outlines(plain.folder) == []
    assert main(["report", str(plain.folder), "--outlines", file]) == 0
    published = plain.folder / "public" / OUTLINES
    assert published.read_bytes() == (result.folder / "public" / OUTLINES).read_bytes()


def test_lines_that_are_not_on_the_map_are_counted(tmp_path, capsys):
    folder = penstock.run(sections(tmp_path), runner="local").folder
    far = [[x + 7.0, y] for x, y in SQUARE]
    both = geojson(tmp_path / "both.geojson", feature("Polygon", [SQUARE]), feature("Polygon", [far]))
    assert write_outlines(folder, both) == f"{both}: 1 of 2 outlines is not on the map"
    assert [line.tolist() for line in read_outlines(folder)] == [SQUARE]
    assert write_outlines(folder, geojson(tmp_path / "a.geojson", feature("Polygon", [SQUARE]))) is None


def test_a_configuration_without_a_map_of_cells_has_no_outlines(tmp_path, capsys):
    file = geojson(tmp_path / "a.geojson", feature("Polygon", [SQUARE]))
    places = {"type": "places", "list": ["a", "b"], "elsewhere": True}
    value = sections(tmp_path, outlines=file) | {"space": places}
    with pytest.raises(penstock.ConfigError, match=r"outlines: .* left out if cells have no place on a map"):
        penstock.load(value)
    (tmp_path / "b.geojson").write_text("{}")
    with pytest.raises(penstock.ConfigError, match=r"outlines: .* a file of lines that the maps can show"):
        penstock.load(sections(tmp_path, outlines=str(tmp_path / "b.geojson")))
    with pytest.raises(penstock.DataError, match="outlines need cells that have a place"):
        write_outlines(tmp_path, file)
