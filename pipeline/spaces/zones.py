"""Zones: districts, traffic zones or other areas read from a file of polygons."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
import shapely
from numpy.typing import NDArray

from penstock.mechanisms.core.plugin import parameter
from penstock.pipeline.spaces.base import Space, in_chunks
from penstock.pipeline.spaces.polygons import Zone, outlines, read_zones
from penstock.pipeline.spaces.raster import FEW_POINTS, Floats, Raster

_CHUNK = 1 << 18  # rows at a time
_MANY_POLYGONS = 32  # in a square: from here on their bounding boxes are asked first


@dataclass(frozen=True, kw_only=True)
class Zones(Space):
    """A space with one cell per polygon or multipolygon in a GeoJSON, GeoParquet, GeoPackage or CSV file.

    A point on a border belongs to the zone, and a point of several zones to the first of them in the file: every point
    is in one zone or in none, and none falls between two zones that have a border in common. Sides are straight in
    longitude and latitude.

    Parameters
    ----------
    path
        GeoJSON (RFC 7946), GeoParquet, GeoPackage or CSV file (WKT or WKB), in longitude and latitude (WGS 84), one
        feature a zone.
    name
        Property, or column, that names the zones.

    Notes
    -----
    A row in a square of a raster that no side touches is looked up there, any other in the zones that touch its square:
    0.05 microseconds a row with 1,000 zones of 40 corners, 0.12 with 10,000, 0.2 with 500 long, thin ones. The file is
    read once, 0.2 s for 225 districts of 480 corners each; the raster takes 0.2 to 0.8 s.

    Examples
    --------
    >>> import json, tempfile
    >>> from pathlib import Path
    >>> def square(name, west):
    ...     ring = [[west, 0], [west + 1, 0], [west + 1, 1], [west, 1], [west, 0]]
    ...     geometry = {"type": "Polygon", "coordinates": [ring]}
    ...     return {"type": "Feature", "properties": {"district": name}, "geometry": geometry}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "zones.geojson"
    ...     _ = path.write_text(json.dumps({"type": "FeatureCollection", "features": [square("a", 0), square("b", 1)]}))
    ...     zones = Zones(path=str(path), name="district")
    ...     zones.cells
    ('a', 'b')
    >>> zones.place(pl.DataFrame({"latitude": [0.5, 0.5, 0.5, 2.0], "longitude": [0.5, 1.0, 1.5, 0.5]})).tolist()
    [0, 0, 1, -1]
    """

    path: str = parameter(doc="GeoJSON, GeoParquet, GeoPackage or CSV (WKT) file of the zones", kind="path")
    name: str = parameter(doc="property, or column, that names the zones")

    @cached_property
    def _zones(self) -> list[Zone]:
        return read_zones(self.path, self.name)

    @cached_property
    def cells(self) -> tuple[str, ...]:
        """The names of all zones in file order."""
        return tuple(zone.name for zone in self._zones)

    @cached_property
    def _polygons(self) -> NDArray[Any]:
        """All zones' polygons in file order."""
        polygons = np.array([polygon for zone in self._zones for polygon in zone.polygons], object)
        shapely.prepare(polygons)
        return polygons

    @cached_property
    def _tree(self) -> shapely.STRtree:
        """An index of the polygons' bounding boxes."""
        return shapely.STRtree(self._polygons)

    @cached_property
    def _raster(self) -> Raster:
        """A raster covering the polygons."""
        rings, polygon = shapely.get_rings(self._polygons, return_index=True)
        positions, ring = shapely.get_coordinates(rings, return_index=True)
        same = ring[1:] == ring[:-1]
        sides = np.concatenate([positions[:-1][same], positions[1:][same]], axis=1)
        return Raster.over(sides, polygon[ring[1:][same]], self._holds)

    def place(self, frame: pl.DataFrame) -> NDArray[np.int64]:
        """Return each row's cell index, shape (n_rows,), or −1 for rows outside all zones."""
        zone = np.repeat(np.arange(len(self._zones)), [len(zone.polygons) for zone in self._zones])
        return np.append(zone, -1)[in_chunks(self._first, frame, _CHUNK)]

    def _first(self, latitude: Floats, longitude: Floats) -> NDArray[np.int64]:
        """Return the first polygon that contains each point, border included, or −1 if there is none."""
        if len(latitude) < FEW_POINTS:
            return self._first_by_tree(latitude, longitude)
        first = self._raster.look_up(latitude, longitude)
        asked = np.flatnonzero(first < -1)
        mixed = -2 - first[asked]
        place, end = self._raster.offsets[mixed], self._raster.offsets[mixed + 1]
        many = end - place > _MANY_POLYGONS
        first[asked] = -1
        first[asked[many]] = self._first_by_tree(latitude[asked[many]], longitude[asked[many]])
        left = np.flatnonzero(~many)
        while len(left):
            left = left[np.argsort(self._raster.listed[place[left]])]  # one polygon after another, for the cache
            asked, place, end = asked[left], place[left], end[left]
            polygon = self._raster.listed[place]
            held = self._holds(polygon, latitude[asked], longitude[asked])
            first[asked[held]] = polygon[held]
            place += 1
            left = np.flatnonzero(~held & (place < end))
        return first

    def _first_by_tree(self, latitude: Floats, longitude: Floats) -> NDArray[np.int64]:
        point, polygon = self._tree.query(shapely.points(longitude, latitude))
        held = self._holds(polygon, latitude[point], longitude[point])
        first = np.full(len(latitude), len(self._polygons))
        np.minimum.at(first, point[held], polygon[held])
        return np.where(first < len(self._polygons), first, -1)

    def _holds(self, polygon: NDArray[np.int64], latitude: Floats, longitude: Floats) -> NDArray[np.bool_]:
        held: NDArray[np.bool_] = shapely.intersects_xy(self._polygons[polygon], longitude, latitude)
        return held

    def geometry(self) -> list[dict[str, Any]]:
        """Return each zone's polygons as closed rings of [longitude, latitude], the outer one first."""
        return outlines(self._zones)
