"""Polygons and lines from GeoJSON and GeoParquet files, and the points that polygons hold."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.core.plugin import DataError

#: Rings of one polygon, each a closed sequence of (longitude, latitude): first its outline, then its holes.
Rings = list[NDArray[np.float64]]

CONVERT = "ogr2ogr -f GeoJSON -t_srs EPSG:4326 zones.geojson FILE makes such a file of most others"
_WGS84 = ("CRS84", "EPSG:4326", "EPSG::4326")
_MOST_PAIRS = 1 << 21
#: How far a map goes beyond the cells, as a share of their extent.
_MARGIN = 0.05
#: Geometries of well-known binary, by their numbers.
_KINDS = {2: "LineString", 3: "Polygon", 5: "MultiLineString", 6: "MultiPolygon"}


class Zone(NamedTuple):
    """A named feature of a file; its polygons as (longitude, latitude)."""

    name: str
    polygons: list[Rings]


class WrongName(DataError):
    """A file of zones has no property, or column, of that name."""


class _Wrong(Exception):
    """What is wrong with a geometry, without its place in the file."""


def read_zones(path: str, name: str) -> list[Zone]:
    """Read the named polygons of a GeoJSON (RFC 7946) or GeoParquet (1.0, 1.1; well-known binary) file.

    `path`: the file; its positions are longitude and latitude in degrees (WGS 84), heights are left out.
    """
    zones: list[Zone] = []
    numbers: dict[str, int] = {}
    for number, (label, geometry) in enumerate(_features(path, name), 1):
        try:
            zone = Zone(_label(label, name), [_checked(rings) for rings in _polygons(geometry)])
        except _Wrong as error:
            raise DataError(f"{path}: feature {number}: {error}") from error
        if (first := numbers.setdefault(zone.name, number)) != number:
            raise DataError(
                f"{path}: feature {number}: {name} is {zone.name!r} like that of feature {first}; every zone needs a "
                "name of its own: make them one MultiPolygon, or choose another property"
            )
        zones.append(zone)
    if not zones:
        raise DataError(f"{path}: there is no feature in it; one polygon or multipolygon for each zone is needed")
    return zones


def read_lines(path: str, corners: NDArray[np.float64] | None = None) -> list[NDArray[np.float64]]:
    """Read the lines and the rings of the polygons of a file that `read_zones` reads too; names are not needed.

    Parameters
    ----------
    path
        The file; of GeoJSON also a feature or a geometry by itself.
    corners
        Positions of cells, shape (n, 2), where they are known: some line must be on their map.

    Raises
    ------
    DataError
        If the file is neither GeoJSON nor GeoParquet, a feature is a point, or not in longitude and latitude, or
        nothing of it is near the cells.
    """
    lines: list[NDArray[np.float64]] = []
    for number, (_, geometry) in enumerate(_features(path, None), 1):
        if geometry is None:
            continue
        try:
            for line in _lines(geometry):
                _check_degrees(line)
                lines.append(line)
        except _Wrong as error:
            raise DataError(f"{path}: feature {number}: {error}") from error
    if not any(map(len, lines)):
        raise DataError(f"{path}: there is no feature in it; polygons or lines are needed")
    if corners is not None:
        _check_on_map(path, lines, corners)
    return lines


def _check_on_map(path: str, lines: list[NDArray[np.float64]], corners: NDArray[np.float64]) -> None:
    box = around(corners)
    if not any(sides_near(line, *box).any() for line in lines):
        swapped = any(sides_near(line[:, ::-1], *box).any() for line in lines)
        why = "longitude and latitude are swapped" if swapped else f"is it in other coordinates? {CONVERT}"
        lies, cells = (_extent(np.concatenate(several)) for several in (lines, [corners]))
        raise DataError(f"{path}: it lies in {lies}, and the cells in {cells}, so nothing of it is on the map: {why}")


def around(corners: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """South-western and north-eastern corner of the map of cells with such corners: their box, and a margin."""
    least, most = corners.min(axis=0), corners.max(axis=0)
    squeeze = np.array([math.cos(math.radians((least[1] + most[1]) / 2)), 1.0])
    margin = _MARGIN * max(float(((most - least) * squeeze).max()), 1e-6) / squeeze
    return least - margin, most + margin


def sides_near(line: NDArray[np.float64], least: NDArray[np.float64], most: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Whether the box of each side of a line meets a box."""
    low, high = np.minimum(line[:-1], line[1:]), np.maximum(line[:-1], line[1:])
    return np.asarray(((low <= most) & (high >= least)).all(axis=1))


def _extent(positions: NDArray[np.float64]) -> str:
    (west, south), (east, north) = positions.min(axis=0), positions.max(axis=0)
    return f"longitude {west:.6g} to {east:.6g} and latitude {south:.6g} to {north:.6g}"


def _features(path: str, name: str | None) -> Iterator[tuple[Any, Any]]:
    """Name and geometry of every feature of a file."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from error
    yield from _of_geoparquet(path, name) if content[:4] == b"PAR1" else _of_geojson(path, content, name)


def _label(value: Any, name: str) -> str:
    if not isinstance(value, str | int) or isinstance(value, bool) or not str(value).strip():
        raise _Wrong(f"{name} is {value!r}; it must be a text or a whole number")
    return str(value)


# GeoJSON.


def _of_geojson(path: str, content: bytes, name: str | None) -> Iterator[tuple[Any, Any]]:
    """Name and geometry of every feature."""
    try:
        root = json.loads(content.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not GeoJSON ({error}); {CONVERT}") from error
    if isinstance(root, dict) and name is None and root.keys() & {"coordinates", "geometries"}:
        root = {"type": "Feature", "geometry": root, "crs": root.get("crs")}
    if isinstance(root, dict) and root.get("type") == "Feature":
        root = {"type": "FeatureCollection", "features": [root], "crs": root.get("crs")}
    if not isinstance(root, dict) or root.get("type") != "FeatureCollection":
        found = root.get("type") if isinstance(root, dict) else type(root).__name__
        raise DataError(f"{path}: not a GeoJSON FeatureCollection, but {found!r}; {CONVERT}")
    if (stated := root.get("crs")) is not None and not any(known in json.dumps(stated) for known in _WGS84):
        raise DataError(f"{path}: crs is {json.dumps(stated)}; it must be longitude and latitude (WGS 84): {CONVERT}")
    features = root.get("features")
    if not isinstance(features, list) or not all(isinstance(one, dict) for one in features):
        raise DataError(f"{path}: features must be a list of GeoJSON features")
    for number, feature in enumerate(features, 1):
        properties = given if isinstance(given := feature.get("properties"), dict) else {}
        if name is not None and name not in properties:
            known = ", ".join(sorted(map(str, properties))) or "none"
            raise WrongName(f"{path}: feature {number}: there is no property {name!r}; it has: {known}")
        yield properties.get(name), feature.get("geometry")


def _polygons(geometry: Any) -> list[Rings]:
    """Rings of every polygon of a geometry: of GeoJSON, or of well-known binary."""
    if isinstance(geometry, bytes):
        geometry = _of_binary(geometry)
    kind = geometry.get("type") if isinstance(geometry, dict) else None
    if kind not in ("Polygon", "MultiPolygon"):
        raise _Wrong(f"its geometry is {kind or 'missing'}; it must be a Polygon or a MultiPolygon")
    coordinates = [geometry.get("coordinates")] if kind == "Polygon" else geometry.get("coordinates")
    try:
        made = [[_positions(ring) for ring in polygon] for polygon in coordinates]
    except (TypeError, ValueError, IndexError, OverflowError) as error:
        raise _Wrong(f"its coordinates are not those of a {kind}: lists of rings of [longitude, latitude]") from error
    if not made or not all(made):
        raise _Wrong("it has no ring; a polygon needs an outline")
    return made


def _lines(geometry: Any) -> list[NDArray[np.float64]]:
    """Lines, or rings of polygons, of a geometry."""
    if isinstance(geometry, bytes):
        geometry = _of_binary(geometry)
    kind = geometry.get("type") if isinstance(geometry, dict) else None
    if kind == "GeometryCollection":
        several = geometry.get("geometries")
        if not isinstance(several, list):
            raise _Wrong("its geometries are no list")
        return [line for one in several for line in _lines(one)]
    if kind in ("Polygon", "MultiPolygon"):
        return [ring for polygon in _polygons(geometry) for ring in polygon]
    if kind not in ("LineString", "MultiLineString"):
        raise _Wrong(f"its geometry is {kind or 'missing'}; it must be polygons or lines")
    parts = [geometry.get("coordinates")] if kind == "LineString" else geometry.get("coordinates")
    try:
        return [_positions(part) for part in parts]
    except (TypeError, ValueError, IndexError, OverflowError) as error:
        raise _Wrong(f"its coordinates are not those of a {kind}: lists of [longitude, latitude]") from error


def _positions(ring: Sequence[Sequence[float]]) -> NDArray[np.float64]:
    return np.array([(float(position[0]), float(position[1])) for position in ring], np.float64).reshape(-1, 2)


# GeoParquet.


def _of_geoparquet(path: str, name: str | None) -> Iterator[tuple[Any, Any]]:
    """Name and geometry of every row."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            column, described = _geometry_column((file.schema_arrow.metadata or {}).get(b"geo", b"{}"))
            columns = file.schema_arrow.names
            if described.get("encoding") != "WKB" or column not in columns:
                raise DataError(f"{path}: Parquet, but not GeoParquet with geometry as WKB; {CONVERT}")
            if "crs" in described and not _is_wgs84(described["crs"]):
                raise DataError(f"{path}: its crs must be longitude and latitude (WGS 84); {CONVERT}")
            if name is not None and name not in columns:
                known = ", ".join(one for one in columns if one != column) or "none"
                raise WrongName(f"{path}: there is no column {name!r}; it has: {known}")
            table = file.read([name or column, column])
    except (pa.ArrowException, ValueError) as error:
        raise DataError(f"{path}: cannot be read as GeoParquet ({error})") from error
    yield from zip(table[name or column].to_pylist(), table[column].to_pylist())


def _geometry_column(metadata: bytes) -> tuple[str, dict[str, Any]]:
    """Name and description of the geometry by a file's metadata; empty where that says none."""
    geo = json.loads(metadata)
    column = geo.get("primary_column") if isinstance(geo, dict) else None
    found = geo.get("columns") if isinstance(column, str) else None
    described = found.get(column) if isinstance(found, dict) else None
    return str(column), described if isinstance(described, dict) else {}


def _is_wgs84(crs: Any) -> bool:
    identity = (crs.get("id") if isinstance(crs, dict) else None) or {}
    return (str(identity.get("authority")), str(identity.get("code"))) in {("OGC", "CRS84"), ("EPSG", "4326")}


def _of_binary(data: bytes) -> dict[str, Any]:
    """Well-known binary (OGC Simple Features) of a polygon, a line, or several, as GeoJSON.

    >>> triangle = struct.pack("<BIII8d", 1, 3, 1, 4, 0, 0, 1, 0, 0, 1, 0, 0)
    >>> _of_binary(triangle)["coordinates"]
    [[[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]]
    """
    try:
        kind, coordinates, _ = _geometry_at(data, 0)
    except struct.error as error:
        raise _Wrong("its geometry is cut off; well-known binary is needed") from error
    return {"type": kind, "coordinates": coordinates}


def _geometry_at(data: bytes, at: int) -> tuple[str, list[Any], int]:
    """Type and coordinates of the geometry at a place, and where it ends."""
    order = "<" if data[at : at + 1] == b"\x01" else ">"
    code, (n,) = _code_at(data, at), struct.unpack_from(f"{order}I", data, at + 5)
    kind = _KINDS.get(code % 1000)
    if kind is None or code >= 4000:
        raise _Wrong("its geometry must be a Polygon or a MultiPolygon")
    width, at, coordinates = (2, 3, 3, 4)[code // 1000], at + 9, []

    def positions(n_points: int, at: int) -> tuple[list[Any], int]:
        """Read points, and where they end."""
        flat = struct.unpack_from(f"{order}{width * n_points}d", data, at)
        return [list(flat[i : i + 2]) for i in range(0, len(flat), width)], at + 8 * len(flat)

    if kind == "LineString":
        return kind, *positions(n, at)
    for _ in range(n):
        if kind == "Polygon":
            part, at = positions(struct.unpack_from(f"{order}I", data, at)[0], at + 4)
        else:
            if f"Multi{_KINDS.get(_code_at(data, at) % 1000)}" != kind:
                raise _Wrong(f"a part of its geometry is no {kind.removeprefix('Multi')}")
            _, part, at = _geometry_at(data, at)
        coordinates.append(part)
    return kind, coordinates, at


def _code_at(data: bytes, at: int) -> int:
    """Type of the geometry at a place, as well-known binary numbers it."""
    code: int = struct.unpack_from("<I" if data[at : at + 1] == b"\x01" else ">I", data, at + 1)[0]
    return code


# Checks.


def _checked(rings: Rings) -> Rings:
    """The rings of one polygon; raises `_Wrong` unless they bound an area without doubt."""
    for ring in rings:
        if len(ring) < 4:
            raise _Wrong(f"a ring has {len(ring)} positions; at least 4 are needed, the last one equal to the first")
        _check_degrees(ring)
        if (ring[0] != ring[-1]).any():
            raise _Wrong(
                f"a ring is open: it begins at {_at(ring[0])} and ends at {_at(ring[-1])}; repeat its first position"
            )
        x, y = (ring - ring[0]).T
        if x[:-1] @ y[1:] == x[1:] @ y[:-1]:
            raise _Wrong(f"the ring that begins at {_at(ring[0])} bounds no area")
    if (crossing := _crossing(sides_of(rings))) is not None:
        raise _Wrong(f"its sides cross near {_at(crossing)}; cut it there into a MultiPolygon, or repair it in a GIS")
    outline = sides_of(rings[:1])
    for hole in rings[1:]:
        if not holds(outline, hole[:, 1], hole[:, 0]).all():
            raise _Wrong(
                f"the hole that begins at {_at(hole[0])} is not inside its outline; a polygon's first ring is that"
            )
    return rings


def _check_degrees(line: NDArray[np.float64]) -> None:
    right = (np.isfinite(line) & (np.abs(line) <= (180, 90))).all(axis=1)
    if not right.all():
        longitude, latitude = line[~right][0]
        raise _Wrong(
            f"[{longitude:g}, {latitude:g}] is no longitude and latitude in degrees (WGS 84): {CONVERT}; zones "
            "across the 180th meridian are cut there"
        )


def _at(position: NDArray[np.float64]) -> str:
    return f"[{position[0]:.6g}, {position[1]:.6g}]"


def _crossing(sides: NDArray[np.float64]) -> NDArray[np.float64] | None:
    """An end of a side that goes through another one, if any; sides may touch."""
    sides = sides[np.argsort(sides[:, 0])]
    last = np.searchsorted(sides[:, 0], sides[:, 2], "right")
    first = np.arange(1, len(sides) + 1)
    counts = np.maximum(last - first, 0)
    begin = 0
    for end in _chunks(counts):
        one, other = _pairs(first[begin:end], counts[begin:end])
        a, b = sides[begin + one], sides[other]
        wide = (np.minimum(a[:, 1], a[:, 3]) <= np.maximum(b[:, 1], b[:, 3])) & (
            np.minimum(b[:, 1], b[:, 3]) <= np.maximum(a[:, 1], a[:, 3])
        )
        a, b = a[wide], b[wide]
        through = (_turn(a, b[:, 0], b[:, 1]) * _turn(a, b[:, 2], b[:, 3]) < 0) & (
            _turn(b, a[:, 0], a[:, 1]) * _turn(b, a[:, 2], a[:, 3]) < 0
        )
        if through.any():
            return a[through][0, [1, 0]]
        begin = end
    return None


# Points in polygons.


def sides_of(rings: Rings) -> NDArray[np.float64]:
    """Sides of some rings, shape (n, 4): latitude and longitude of the southern end, then of the northern one.

    Two zones that share a border so have the very same side, whichever way round their rings go.
    """
    ends = [np.concatenate([ring[:-1, ::-1], ring[1:, ::-1]], axis=1) for ring in rings]
    sides = np.concatenate(ends)
    turned = (sides[:, 0] > sides[:, 2]) | ((sides[:, 0] == sides[:, 2]) & (sides[:, 1] > sides[:, 3]))
    sides[turned] = sides[turned][:, [2, 3, 0, 1]]
    return sides


def holds(
    sides: NDArray[np.float64], latitude: NDArray[np.float64], longitude: NDArray[np.float64]
) -> NDArray[np.bool_]:
    """Whether rings hold each point: it is on a side, or a ray to the east crosses an odd number of sides.

    `latitude`, `longitude`: of the points, shape (n_points,).

    For each point only the sides at its latitude are looked at. Memory: some two million pairs of both at a time.

    >>> square = sides_of([np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0], [0.0, 0.0]])])
    >>> holds(square, np.array([0.5, 0.5, 0.5, 1.0]), np.array([0.5, 1.0, 1.1, 1.0])).tolist()
    [True, True, False, True]
    """
    order = np.argsort(latitude)
    y, x = latitude[order], longitude[order]
    first = np.searchsorted(y, sides[:, 0], "left")
    counts = np.searchsorted(y, sides[:, 2], "right") - first
    odd, on = np.zeros(len(y), np.bool_), np.zeros(len(y), np.bool_)
    begin = 0
    for end in _chunks(counts):
        which, point = _pairs(first[begin:end], counts[begin:end])
        side = sides[begin + which]
        turn = _turn(side, y[point], x[point])
        crosses = point[(turn > 0) & (y[point] < side[:, 2])]
        odd ^= np.bincount(crosses, minlength=len(y)) % 2 == 1
        touches = turn == 0
        west, east = np.minimum(side[:, 1], side[:, 3]), np.maximum(side[:, 1], side[:, 3])
        on[point[touches & (x[point] >= west) & (x[point] <= east)]] = True
        begin = end
    held = np.empty(len(y), np.bool_)
    held[order] = odd | on
    return held


def _turn(sides: NDArray[np.float64], y: NDArray[np.float64], x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Above 0 where a point is to the west of its side, 0 on the line through it."""
    return (sides[:, 3] - sides[:, 1]) * (y - sides[:, 0]) - (x - sides[:, 1]) * (sides[:, 2] - sides[:, 0])


def _pairs(first: NDArray[np.int64], counts: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Every row with each of its ``counts`` positions from ``first`` on.

    >>> [found.tolist() for found in _pairs(np.array([5, 9]), np.array([2, 1]))]
    [[0, 0, 1], [5, 6, 9]]
    """
    row = np.repeat(np.arange(len(first)), counts)
    begins = np.cumsum(counts) - counts
    return row, np.arange(len(row)) - np.repeat(begins, counts) + np.repeat(first, counts)


def _chunks(counts: NDArray[np.int64]) -> Iterator[int]:
    """Ends of stretches of rows that together have a bounded number of pairs, at least one row each."""
    total = np.cumsum(counts)
    begin = 0
    while begin < len(counts):
        before = int(total[begin - 1]) if begin else 0
        begin = max(begin + 1, int(np.searchsorted(total, before + _MOST_PAIRS, "right")))
        yield begin
