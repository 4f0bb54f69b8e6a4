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
from penstock.pipeline.spaces.raster import FEW_POINTS, Bins, Raster

_CHUNK = 1 << 18  # rows at a time


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
    A row in a square of a raster that no side touches is looked up there, any other in the zones whose box it is in:
    0.08 microseconds a row with 1,000 zones of 40 corners, 0.14 with 10,000. The file is read once, 0.2 s for 225
    districts of 480 corners each.

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
    def _parts(self) -> tuple[NDArray[Any], NDArray[np.int64], Bins]:
        """All zones' polygons in file order, each one's zone, and bins for their bounding boxes."""
        polygons = np.array([polygon for zone in self._zones for polygon in zone.polygons], object)
        number = np.repeat(np.arange(len(self._zones)), [len(zone.polygons) for zone in self._zones])
        shapely.prepare(polygons)
        return polygons, number, Bins.of(shapely.bounds(polygons))

    def place(self, frame: pl.DataFrame) -> NDArray[np.int64]:
        """Return each row's cell index, shape (n_rows,), or −1 for rows outside all zones."""
        return in_chunks(self._place, frame, _CHUNK)

    @cached_property
    def _raster(self) -> Raster:
        """A raster covering the zones."""
        polygons = self._parts[0]
        rings = shapely.get_parts(shapely.get_rings(polygons))
        positions, ring = shapely.get_coordinates(rings, return_index=True)
        same = ring[1:] == ring[:-1]
        sides = np.concatenate([positions[:-1][same], positions[1:][same]], axis=1)
        return Raster.over(sides, len(polygons), self._locate)

    def _place(self, latitude: NDArray[np.float64], longitude: NDArray[np.float64]) -> NDArray[np.int64]:
        if len(latitude) < FEW_POINTS:
            return self._locate(latitude, longitude)
        return self._raster.place(latitude, longitude, self._locate)

    def _locate(self, latitude: NDArray[np.float64], longitude: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return each point's cell: the first polygon in the file that contains it, border included."""
        polygons, number, bins = self._parts
        point, part = bins.pairs(longitude, latitude)
        held = shapely.intersects_xy(polygons[part], longitude[point], latitude[point])
        first = np.full(len(latitude), len(polygons), np.int64)
        np.minimum.at(first, point[held], part[held])
        return np.append(number, -1)[first]

    def geometry(self) -> list[dict[str, Any]]:
        """Return each zone's polygons as closed rings of [longitude, latitude], the outer one first."""
        return outlines(self._zones)
