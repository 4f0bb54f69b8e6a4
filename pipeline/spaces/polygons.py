"""Read polygons and lines from GeoJSON, GeoParquet and GeoPackage files."""

from __future__ import annotations

import json
import math
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import shapely
from numpy.typing import NDArray
from shapely.errors import ShapelyError

from penstock.mechanisms.core.plugin import DataError
from penstock.pipeline.spaces.base import UnknownColumnError, spelling

CONVERT = "ogr2ogr -f GeoJSON -t_srs EPSG:4326 zones.geojson FILE makes such a file of most others"
#: Names of coordinate systems in longitude and latitude, in capitals without what is between letters and digits.
_WGS84 = ("CRS84", "EPSG4326", "WGS84", "WGS1984")
#: What stands between the authority and the code of a coordinate system in older names: a version, or a file.
_VERSION = r"(?<=EPSG)(\.XML#|:[\d.]+:)"
#: First bytes of files.
_PARQUET, _SQLITE = b"PAR1", b"SQLi"
#: A geometry in a line of a table: well-known text, or well-known binary as hexadecimal digits.
_GEOMETRY = re.compile(r"(?i)(SRID=\d+;)?\s*(MULTI)?(POLYGON|LINESTRING)\b|0[01][0-9A-F]{40,}")
#: Bytes of the box before a geometry in a GeoPackage, by its kind.
_BOXES = {0: 0, 1: 32, 2: 48, 3: 48, 4: 64}
#: How far a map goes beyond the cells, as a share of their extent.
_MARGIN = 0.05
#: How much of its area a polygon may gain or lose where it is repaired: rings that touch themselves keep it.
_SAME_AREA = 1e-9


class Zone(NamedTuple):
    """A named feature in a file, with its polygons in (longitude, latitude)."""

    name: str
    polygons: list[shapely.Polygon]


class _Wrong(Exception):
    """Raised for an invalid geometry. The message does not say where it is in the file."""


def read_zones(path: str, name: str) -> list[Zone]:
    """Read named polygons of GeoJSON, GeoParquet (1.0, 1.1), GeoPackage or CSV (well-known text or binary).

    Positions are longitude and latitude in degrees (WGS 84), heights are left out.
    """
    zones: list[Zone] = []
    numbers: dict[str, int] = {}
    for number, (label, geometry) in enumerate(_features(path, name), 1):
        try:
            if not isinstance(label, str | int) or isinstance(label, bool) or not str(label).strip():
                raise _Wrong(f"{name} is {label!r}; it must be a text or a whole number")
            shape = _shape(geometry)
            if shape.geom_type not in ("Polygon", "MultiPolygon"):
                raise _Wrong(f"its geometry is {shape.geom_type}; it must be a Polygon or a MultiPolygon")
            polygons: list[shapely.Polygon] = shapely.get_parts(shape).tolist()
            if not polygons or any(polygon.is_empty for polygon in polygons):
                raise _Wrong("it has no ring; a polygon needs an outline")
            for polygon in polygons:
                _check_polygon(polygon)
        except _Wrong as error:
            raise DataError(f"{path}: feature {number}: {error}") from error
        if (first := numbers.setdefault(spelling(str(label)), number)) != number:
            raise DataError(
                f"{path}: feature {number}: {name} is {str(label)!r} like that of feature {first}; every zone needs a "
                "name of its own: make them one MultiPolygon, or choose another property"
            )
        zones.append(Zone(str(label), polygons))
    if not zones:
        raise DataError(f"{path}: there is no feature in it; one polygon or multipolygon for each zone is needed")
    return zones


def outlines(zones: list[Zone]) -> list[dict[str, Any]]:
    """Return the zones' geometry in the form returned by `Space.geometry`."""
    rings = [[shapely.get_rings(polygon) for polygon in zone.polygons] for zone in zones]
    shapes = [[[shapely.get_coordinates(ring).tolist() for ring in part] for part in parts] for parts in rings]
    return [{"cell": zone.name, "polygons": polygons} for zone, polygons in zip(zones, shapes)]


def read_lines(path: str, corners: NDArray[np.float64] | None = None) -> list[NDArray[np.float64]]:
    """Read lines and polygon rings from any file that `read_zones` supports. Features need no names.

    ``path``: of GeoJSON also a feature or a geometry by itself. ``corners``: positions of cells, shape (n, 2), where
    they are known: some line must be on their map.
    """
    lines: list[NDArray[np.float64]] = []
    for number, (_, geometry) in enumerate(_features(path, None), 1):
        if geometry is None:
            continue
        try:
            for line in _lines(_shape(geometry)):
                _check_degrees(line)
                lines.append(line)
        except _Wrong as error:
            raise DataError(f"{path}: feature {number}: {error}") from error
    if not any(map(len, lines)):
        raise DataError(f"{path}: there is no feature in it; polygons or lines are needed")
    if corners is None or any(sides_near(line, *around(corners)).any() for line in lines):
        return lines
    swapped = any(sides_near(line[:, ::-1], *around(corners)).any() for line in lines)
    why = "longitude and latitude are swapped" if swapped else f"is it in other coordinates? {CONVERT}"
    extents = []
    for positions in (np.concatenate(lines), corners):
        (west, south), (east, north) = positions.min(axis=0), positions.max(axis=0)
        extents.append(f"longitude {west:.6g} to {east:.6g} and latitude {south:.6g} to {north:.6g}")
    raise DataError(
        f"{path}: it lies in {extents[0]}, and the cells in {extents[1]}, so nothing of it is on the map: {why}"
    )


def around(corners: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the south-west and north-east corners of a map that contains all cells and a margin."""
    minimum, maximum = corners.min(axis=0), corners.max(axis=0)
    squeeze = np.array([math.cos(math.radians((minimum[1] + maximum[1]) / 2)), 1.0])
    margin = _MARGIN * max(float(((maximum - minimum) * squeeze).max()), 1e-6) / squeeze
    return minimum - margin, maximum + margin


def sides_near(
    line: NDArray[np.float64], minimum: NDArray[np.float64], maximum: NDArray[np.float64]
) -> NDArray[np.bool_]:
    """Return a mask of the line's segments whose bounding box intersects the given box."""
    low, high = np.minimum(line[:-1], line[1:]), np.maximum(line[:-1], line[1:])
    return np.asarray(((low <= maximum) & (high >= minimum)).all(axis=1))


def _features(path: str, name: str | None) -> Iterator[tuple[Any, Any]]:
    """Yield each feature's name and geometry."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from error
    if content[:4] == _SQLITE:
        yield from _of_geopackage(path, name)
    elif content[:4] == _PARQUET:
        yield from _of_geoparquet(path, name)
    else:
        text = content.decode("utf-8-sig", "replace")
        is_table = text.lstrip()[:1] not in ("{", "[") and _GEOMETRY.search(text)
        yield from _of_csv(path, text, name) if is_table else _of_geojson(path, content, name)


def _of_csv(path: str, text: str, name: str | None) -> Iterator[tuple[Any, Any]]:
    """Yield the name and geometry of every row in CSV."""
    separator = max(",;\t|", key=text.partition("\n")[0].count)
    try:
        table = pl.read_csv(text.encode(), separator=separator, infer_schema=False)
    except pl.exceptions.PolarsError as error:
        cause = str(error).partition("\n")[0]
        raise DataError(f"{path}: cannot be read as CSV ({cause}); {CONVERT}") from error
    columns = [one for one in table.columns if any(_GEOMETRY.match(value or "") for value in table[one].head(1))]
    if not columns:
        raise DataError(f"{path}: no column of the first row holds a polygon as well-known text or binary; {CONVERT}")
    if name is not None and name not in table.columns:
        known = ", ".join(one for one in table.columns if one != columns[0]) or "none"
        raise UnknownColumnError(f"{path}: there is no column {name!r}; it has: {known}")
    yield from zip(table[name or columns[0]], table[columns[0]])


def _of_geojson(path: str, content: bytes, name: str | None) -> Iterator[tuple[Any, Any]]:
    """Yield each feature's name and geometry from a GeoJSON file."""
    try:
        root = json.loads(content.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not GeoJSON ({error}); {CONVERT}") from error
    if isinstance(root, dict) and name is None and root.keys() & {"coordinates", "geometries"}:
        root = {"type": "Feature", "geometry": root, "crs": root.get("crs")}
    if isinstance(root, dict) and root.get("type") == "Feature":
        root = {"type": "FeatureCollection", "features": [root], "crs": root.get("crs")}
    if not isinstance(root, dict) or root.get("type") != "FeatureCollection":
        kind = root.get("type") if isinstance(root, dict) else type(root).__name__
        raise DataError(f"{path}: not a GeoJSON FeatureCollection, but {kind!r}; {CONVERT}")
    if (stated := root.get("crs")) is not None and not _is_wgs84(stated):
        raise DataError(f"{path}: crs is {json.dumps(stated)}; it must be longitude and latitude (WGS 84): {CONVERT}")
    features = root.get("features")
    if not isinstance(features, list) or not all(isinstance(entry, dict) for entry in features):
        raise DataError(f"{path}: features must be a list of GeoJSON features")
    for number, feature in enumerate(features, 1):
        properties = given if isinstance(given := feature.get("properties"), dict) else {}
        if name is not None and name not in properties:
            known = ", ".join(sorted(map(str, properties))) or "none"
            raise UnknownColumnError(f"{path}: feature {number}: there is no property {name!r}; it has: {known}")
        yield properties.get(name), feature.get("geometry")


def _lines(shape: Any) -> list[NDArray[np.float64]]:
    """Return a shape's lines, including the rings of its polygons."""
    if hasattr(shape, "geoms"):
        return [line for part in shape.geoms for line in _lines(part)]
    if shape.geom_type not in ("Polygon", "LineString"):
        raise _Wrong(f"its geometry is {shape.geom_type}; it must be polygons or lines")
    lines = shapely.get_rings(shape) if shape.geom_type == "Polygon" else [shape]
    return [shapely.get_coordinates(line) for line in lines]


def _shape(geometry: Any) -> Any:
    """Parse GeoJSON, well-known text, or ISO or extended well-known binary (raw or hexadecimal), and drop any heights.

    >>> _shape("POINT Z (8.5 47.4 408)")
    <POINT (8.5 47.4)>
    """
    if geometry is None:
        raise _Wrong("its geometry is missing")
    code = 0
    if isinstance(geometry, str) and (prefix := re.match(r"(?i)SRID=(\d+);", geometry)):
        code, geometry = int(prefix[1]), geometry[prefix.end() :]
    try:
        if isinstance(geometry, bytes) or (isinstance(geometry, str) and re.fullmatch("[0-9A-Fa-f]+", geometry)):
            shape = shapely.from_wkb(geometry)
        else:
            shape = (
                shapely.from_wkt(geometry) if isinstance(geometry, str) else shapely.from_geojson(json.dumps(geometry))
            )
    except ShapelyError as error:
        if "closed" in str(error):
            raise _Wrong("a ring is open; repeat its first position") from error
        reason = " ".join(str(error).split())  # GEOS ends its messages with a line end
        raise _Wrong(f"its geometry cannot be read ({reason})") from error
    if (code := code or int(shapely.get_srid(shape))) not in (0, 4326):
        raise _Wrong(f"its coordinates are those of EPSG:{code}, not longitude and latitude (WGS 84): {CONVERT}")
    return shapely.force_2d(shape)


def _of_geoparquet(path: str, name: str | None) -> Iterator[tuple[Any, Any]]:
    """Yield the name and geometry in each row of a GeoParquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            columns = file.schema_arrow.names
            geo = json.loads((file.schema_arrow.metadata or {}).get(b"geo", b"{}"))
            column = geo["primary_column"]
            if geo["columns"][column]["encoding"] not in ("WKB", "WKT") or column not in columns:
                raise KeyError(column)
            if not _is_wgs84(geo["columns"][column].get("crs", "CRS84")):
                raise DataError(f"{path}: its crs must be longitude and latitude (WGS 84); {CONVERT}")
            if name is not None and name not in columns:
                known = ", ".join(one for one in columns if one != column) or "none"
                raise UnknownColumnError(f"{path}: there is no column {name!r}; it has: {known}")
            table = file.read([name or column, column])
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path}: Parquet, but not GeoParquet with geometry as WKB; {CONVERT}") from error
    except (pa.ArrowException, ValueError) as error:
        raise DataError(f"{path}: cannot be read as GeoParquet ({error})") from error
    yield from zip(table[name or column].to_pylist(), table[column].to_pylist())


def _of_geopackage(path: str, name: str | None) -> Iterator[tuple[Any, Any]]:
    """Yield the name and geometry in each row of the only GeoPackage layer with the name column, or the first layer."""
    try:
        with closing(sqlite3.connect(f"{Path(path).absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as file:
            layers = file.execute(
                "SELECT table_name, column_name, organization || ':' || organization_coordsys_id "
                "FROM gpkg_geometry_columns JOIN gpkg_spatial_ref_sys USING (srs_id)"
            ).fetchall()
            queries = {layer: f"PRAGMA table_info({_quote(layer)})" for layer, *_ in layers}
            known = {layer: [row[1] for row in file.execute(query)] for layer, query in queries.items()}
            fitting = [one for one in layers if name is None or name in known[one[0]]]
            if not fitting:
                raise UnknownColumnError(f"{path}: no layer has a column {name!r}; they have: {known}")
            if name is not None and len(fitting) > 1:
                layers_named = ", ".join(repr(layer) for layer, *_ in fitting)
                one = f"ogr2ogr -f GeoJSON -t_srs EPSG:4326 zones.geojson FILE {fitting[0][0]!r} takes one out"
                raise DataError(f"{path}: several layers have a column {name!r}: {layers_named}; {one}")
            layer, column, crs = fitting[0]
            if not _is_wgs84(crs):
                raise DataError(
                    f"{path}: layer {layer!r} is in {crs}; it must be longitude and latitude (WGS 84): {CONVERT}"
                )
            rows = file.execute(f"SELECT {_quote(name or column)}, {_quote(column)} FROM {_quote(layer)}").fetchall()
    except sqlite3.Error as error:
        raise DataError(f"{path}: cannot be read as GeoPackage ({error}); {CONVERT}") from error
    for label, content in rows:
        has_header = isinstance(content, bytes) and len(content) >= 8
        yield label, content[8 + _BOXES.get(content[3] >> 1 & 7, 0) :] if has_header else None


def _quote(name: str) -> str:
    """Quote an identifier for SQL."""
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


def _is_wgs84(crs: Any) -> bool:
    """Return whether a coordinate system's identifier or name denotes WGS 84 longitude and latitude.

    >>> _is_wgs84({"type": "name", "properties": {"name": "urn:ogc:def:crs:EPSG::4326"}}), _is_wgs84("EPSG:25832")
    (True, False)
    >>> _is_wgs84({"type": "GeographicCRS", "name": "WGS 84"}), _is_wgs84({"name": "WGS 84 / UTM zone 32N"})
    (True, False)
    """
    if isinstance(crs, dict):
        identity = crs.get("id")
        if isinstance(identity, dict):
            return _is_wgs84(f"{identity.get('authority')}:{identity.get('code')}")
        properties = crs.get("properties")
        return _is_wgs84(properties.get("name") if isinstance(properties, dict) else crs.get("name"))
    letters = "".join(filter(str.isalnum, re.sub(_VERSION, "", str(crs).upper())))
    return letters.endswith(_WGS84) or letters in ("WGS84CRS84", "OGCCRS84")


def _check_polygon(polygon: shapely.Polygon) -> None:
    """Raise `_Wrong` unless a polygon's rings bound an unambiguous area."""
    rings = [shapely.get_coordinates(ring) for ring in shapely.get_rings(polygon)]
    for ring in rings:
        _check_degrees(ring)
        if not shapely.Polygon(ring).area:
            raise _Wrong(f"the ring that begins at {_describe_point(ring[0])} bounds no area")
    outline = shapely.Polygon(rings[0])
    for hole in rings[1:]:
        if not shapely.intersects_xy(outline, hole).all():
            raise _Wrong(
                f"the hole that begins at {_describe_point(hole[0])} is not inside its outline; a polygon's first "
                "ring is that"
            )
    # Rings may touch themselves and each other: repairing moves no area then. Where sides cross it does.
    if not polygon.is_valid:
        repaired = shapely.make_valid(polygon, method="structure")
        if abs(repaired.area - polygon.area) > _SAME_AREA * polygon.area:
            where = shapely.is_valid_reason(polygon).rpartition("[")[2].rstrip("]").replace(" ", ", ")
            raise _Wrong(f"its sides cross near [{where}]; cut it there into a MultiPolygon, or repair it in a GIS")


def _check_degrees(line: NDArray[np.float64]) -> None:
    valid = (np.isfinite(line) & (np.abs(line) <= (180, 90))).all(axis=1)
    if not valid.all():
        longitude, latitude = line[~valid][0]
        raise _Wrong(
            f"[{longitude:g}, {latitude:g}] is no longitude and latitude in degrees (WGS 84): {CONVERT}; zones "
            "across the 180th meridian are cut there"
        )
    longitude = line[:, 0]
    # A side from −180 to 180 is the border of a map of the world.
    long = (np.abs(np.diff(longitude)) > 180) & ~((np.abs(longitude[1:]) == 180) & (np.abs(longitude[:-1]) == 180))
    if long.any():
        at = int(long.argmax())
        raise _Wrong(
            f"its side from {_describe_point(line[at])} to {_describe_point(line[at + 1])} is more than 180 degrees "
            "long: cut it at the 180th meridian into a MultiPolygon, or put a position halfway along it"
        )


def _describe_point(position: NDArray[np.float64]) -> str:
    return f"[{position[0]:.6g}, {position[1]:.6g}]"
