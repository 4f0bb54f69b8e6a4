"""Exports: equal values in every format, in local time, with interval and polygon."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path

import polars as pl
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.pipeline import DONE, FAILED, WRONG_USE
from penstock.pipeline.cli.main import main
from penstock.pipeline.output.cells import CELLS, cells_geojson
from penstock.pipeline.output.maps import FORMATS, export
from penstock.pipeline.spaces.places import Places

SECTIONS = {
    "name": "export",
    "seed": 7,
    "source": {
        "type": "synthetic",
        "n_users": 20,
        "from": "2024-01-01T00:00:00+01:00",
        "until": "2024-01-01T03:00:00+01:00",
    },
    "space": {
        "type": "grid",
        "south": 37.74,
        "north": 37.82,
        "west": -122.47,
        "east": -122.37,
        "rows": 1,
        "columns": 2,
    },
    "windows": {"type": "fixed", "size": "1h", "time_zone": "Europe/Zurich"},
    "bounding": {"max_cells": 1},
    "mechanism": {"type": "discrete_laplace", "epsilon": 1.0},
    "output": {"path": "unused", "report": False},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return penstock.run(SECTIONS, tmp_path_factory.mktemp("export") / "run", runner="local").folder


@pytest.fixture(scope="module")
def released(folder) -> pl.DataFrame:
    return pl.read_parquet(folder / "public" / "releases.parquet")


def test_a_run_writes_the_polygons_of_its_cells(folder):
    actual = json.loads((folder / "public" / CELLS).read_text())
    assert [feature["properties"]["cell"] for feature in actual["features"]] == ["r00c00", "r00c01"]
    ring = [[-122.47, 37.74], [-122.42, 37.74], [-122.42, 37.82], [-122.47, 37.82], [-122.47, 37.74]]
    assert actual["features"][0]["geometry"] == {"type": "Polygon", "coordinates": [ring]}


def test_cells_without_a_place_have_no_file_and_some_places_are_unknown(tmp_path):
    assert cells_geojson(Places(list_=("a", "b"))) is None
    (tmp_path / "places.csv").write_text("place,latitude,longitude\na,47.4,8.5\n")
    actual = cells_geojson(Places(file=str(tmp_path / "places.csv"), elsewhere=True))
    assert [feature["geometry"] for feature in actual["features"]] == [
        {"type": "Point", "coordinates": [8.5, 47.4]},
        None,
    ]


def test_geojson_has_a_feature_for_each_count(folder, released):
    path = export(folder, "geojson")
    assert path == folder / "public" / "releases.geojson"
    features = json.loads(path.read_text())["features"]
    assert len(features) == len(released) == 6
    facts = features[3]["properties"]
    assert (facts["window"], facts["cell"], facts["value"]) == released.select("window", "cell", "value").row(3)
    assert facts["window_start"] == "2024-01-01T01:00:00+01:00"
    # Noise of scale 1: 95 % of it is within ln 20.
    assert facts["high"] == pytest.approx(facts["value"] + math.log(20), abs=1e-3)
    # A noisy count may be negative, and no true one is.
    for row in (feature["properties"] for feature in features):
        assert row["low"] == pytest.approx(max(row["value"] - math.log(20), 0.0), abs=1e-3)
    assert any(row["properties"]["low"] == 0 < row["properties"]["high"] for row in features)
    cells = json.loads((folder / "public" / CELLS).read_text())["features"]
    assert features[3]["geometry"] == cells[1]["geometry"]


def test_geoparquet_says_what_its_geometry_is(folder, released):
    file = pq.ParquetFile(export(folder, "geoparquet"))
    geo = json.loads(file.schema_arrow.metadata[b"geo"])
    assert (geo["version"], geo["primary_column"]) == ("1.1.0", "geometry")
    expected = {"encoding": "WKB", "geometry_types": ["Polygon"], "bbox": [-122.47, 37.74, -122.37, 37.82]}
    assert geo["columns"]["geometry"] == expected
    frame = pl.DataFrame(file.read())
    assert frame["value"].equals(released["value"])
    assert frame.schema["window_start"] == pl.Datetime("ms", "Europe/Zurich")
    order, kind, n_rings, n_points, west, south = struct.unpack_from("<BIIIdd", frame["geometry"][0])
    assert (order, kind, n_rings, n_points, west, south) == (1, 3, 1, 5, -122.47, 37.74)
    assert len(frame["geometry"][0]) == 13 + 5 * 16


def test_csv_has_well_known_text(folder, released, tmp_path):
    frame = pl.read_csv(export(folder, "csv", tmp_path / "new" / "counts.csv"))
    assert frame["value"].equals(released["value"])
    ring = "-122.47 37.74, -122.42 37.74, -122.42 37.82, -122.47 37.82, -122.47 37.74"
    assert frame["geometry"][0] == f"POLYGON (({ring}))"


def test_all_formats_hold_the_same(folder):
    frames = [
        pl.read_csv(export(folder, "csv")),
        pl.DataFrame(
            [feature["properties"] for feature in json.loads(export(folder, "geojson").read_text())["features"]]
        ),
        pl.DataFrame(pq.read_table(export(folder, "geoparquet"))),
    ]
    names = ["stream", "window", "cell", "value", "low", "high", "landmark", "action"]
    assert all(frame.select(names).equals(frames[0].select(names)) for frame in frames[1:])


def test_cells_without_a_map_can_be_exported_as_csv_only(tmp_path):
    space = {"type": "places", "list": ["p00", "p01"], "elsewhere": True}
    value = SECTIONS | {"space": space, "mechanism": {"type": "raw"}}
    folder = penstock.run(value, tmp_path / "run", runner="local").folder
    frame = pl.read_csv(export(folder, "csv"))
    assert "geometry" not in frame.columns
    assert frame["low"].null_count() == len(frame) == 9  # the true counts have no noise, and so no interval
    for form in ("geojson", "geoparquet"):
        with pytest.raises(penstock.DataError, match=r"cells\.geojson: no such file.*--format csv"):
            export(folder, form)


def test_points_are_well_known(tmp_path):
    (tmp_path / "places.csv").write_text("place,latitude,longitude\np00,47.4,8.5\n")
    space = {"type": "places", "file": str(tmp_path / "places.csv"), "elsewhere": True}
    folder = penstock.run(SECTIONS | {"space": space}, tmp_path / "run", runner="local").folder
    assert pl.read_csv(export(folder, "csv"))["geometry"].to_list()[:2] == ["POINT (8.5 47.4)", None]
    binary = pl.DataFrame(pq.read_table(export(folder, "geoparquet")))["geometry"]
    assert struct.unpack("<BIdd", binary[0]) == (1, 1, 8.5, 47.4)
    assert binary[1] is None


def test_the_command_writes_and_refuses(folder, tmp_path, capsys):
    for form, ending in FORMATS.items():
        assert main(["export", str(folder), "--format", form]) == DONE
        assert capsys.readouterr().out.strip() == str(folder / "public" / f"releases{ending}")
    assert main(["export", str(tmp_path), "--format", "csv"]) == FAILED
    assert main(["export", str(folder), "--format", "shapefile"]) == WRONG_USE
    assert "no released counts here" in capsys.readouterr().err
