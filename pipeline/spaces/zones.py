"""Zones: districts, traffic zones or any other areas from a file of polygons."""

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
from penstock.pipeline.spaces.polygons import Zone, read_zones

_CHUNK = 1 << 17  # rows at a time


@dataclass(frozen=True, kw_only=True)
class Zones(Space):
    """One cell for every zone of a GeoJSON or GeoParquet file, a polygon or a multipolygon, holes and all.

    A point on a border belongs to the zone, and a point of several zones to the first of them in the file: every point
    is in one zone or in none, and none falls between two zones that have a border in common. Sides are straight in
    longitude and latitude.

    Parameters
    ----------
    path
        GeoJSON (RFC 7946) or GeoParquet file, in longitude and latitude (WGS 84), one feature a zone.
    name
        Property, or column, that names the zones.

    Raises
    ------
    DataError
        If the file is neither, or a zone is no area, is open, crosses itself, or has no name of its own; names the
        file, the feature and what would be right.

    Notes
    -----
    A row is looked up in the zones whose box it is in: 0.6 microseconds a row for 225 districts of 480 corners each, in
    large blocks; a small block costs 15 microseconds for each zone that it is near. The file is read once, 0.2 s for
    such districts.

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

    path: str = parameter(doc="GeoJSON or GeoParquet file of the zones", kind="path")
    name: str = parameter(doc="property, or column, that names the zones")

    @cached_property
    def _zones(self) -> list[Zone]:
        return read_zones(self.path, self.name)

    @cached_property
    def cells(self) -> tuple[str, ...]:
        """Names of the zones, in the order of the file."""
        return tuple(zone.name for zone in self._zones)

    @cached_property
    def _parts(self) -> tuple[NDArray[Any], NDArray[np.int64], NDArray[np.float64]]:
        """Polygons of all zones in the order of the file, the zone of each, and west, south, east and north of each."""
        polygons = np.array([polygon for zone in self._zones for polygon in zone.polygons], object)
        number = np.repeat(np.arange(len(self._zones)), [len(zone.polygons) for zone in self._zones])
        shapely.prepare(polygons)
        return polygons, number, shapely.bounds(polygons)

    def place(self, frame: pl.DataFrame) -> NDArray[np.int64]:
        """Cell index of every row, shape (n_rows,); −1 outside of all zones."""
        return in_chunks(self._place, frame, _CHUNK)

    def _place(self, latitude: NDArray[np.float64], longitude: NDArray[np.float64]) -> NDArray[np.int64]:
        order = np.argsort(latitude)
        y, x = latitude[order], longitude[order]
        cell = np.full(len(y), -1, np.int64)
        polygons, number, (west, south, east, north) = (*self._parts[:2], self._parts[2].T)
        first, last = np.searchsorted(y, south, "left"), np.searchsorted(y, north, "right")
        for part in np.flatnonzero(first < last).tolist():
            rows = slice(int(first[part]), int(last[part]))
            near = (x[rows] >= west[part]) & (x[rows] <= east[part]) & (cell[rows] < 0)
            candidates = rows.start + np.flatnonzero(near)
            held = shapely.intersects_xy(polygons[part], x[candidates], y[candidates])
            cell[candidates[held]] = number[part]
        placed = np.empty_like(cell)
        placed[order] = cell
        return placed

    def geometry(self) -> list[dict[str, Any]]:
        """The polygons of every zone, each a list of closed rings of [longitude, latitude], holes after the first."""
        return [
            {
                "cell": zone.name,
                "polygons": [
                    [shapely.get_coordinates(ring).tolist() for ring in shapely.get_rings(polygon)]
                    for polygon in zone.polygons
                ],
            }
            for zone in self._zones
        ]
