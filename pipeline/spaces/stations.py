"""Stations: each event belongs to the nearest station within a given distance."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from penstock.mechanisms.core.plugin import DataError, parameter
from penstock.pipeline.spaces.base import Space
from penstock.pipeline.spaces.tables import EARTH_RADIUS, read_table, unit_vectors


@dataclass(frozen=True, kw_only=True)
class Stations(Space):
    """A space with one cell per station, where each event belongs to the nearest station within ``radius``.

    Parameters
    ----------
    file
        CSV file with the columns ``station``, ``latitude``, ``longitude`` and, if stations form groups, ``group``; the
        stops of a GTFS feed (``stops.txt``, or the zip of the feed); or the stations of a GBFS feed
        (``station_information.json``). Those of a feed are called by their names, with the identifier where several
        share one.
    column
        Heading of the names in a CSV file, or what to call those of a feed by, such as ``stop_id``.
    radius
        Distance in metres up to which (inclusive) an event belongs to a station; beyond, it is out of the area.

    Notes
    -----
    O(log n_cells) a row in a k-d tree on the unit sphere, where the nearest point by chord is the nearest by great
    circle. Of two stations at the same point the first one wins.
    """

    file: str = parameter(doc="CSV file of the stations, stops of GTFS, or stations of GBFS", kind="path")
    column: str | None = parameter(None, doc="heading of the stations' names, if it is not station")
    radius: float = parameter(doc="largest distance of an event from its station", above=0, unit="metres")

    @cached_property
    def _table(self) -> pl.DataFrame:
        table = read_table(self.file, "station", "required", self.column)
        if table.is_empty():
            raise DataError(f"{self.file}: no station is listed")
        if len(twice := (~table["station"].is_first_distinct()).arg_true()):
            raise DataError(f"{self.file}:{twice[0] + 2}: station {table['station'][twice[0]]!r} is listed twice")
        return table

    @cached_property
    def cells(self) -> tuple[str, ...]:
        """The names of all stations in file order."""
        return tuple(self._table["station"])

    @cached_property
    def _tree(self) -> tuple[Any, NDArray[np.int64]]:
        """A nearest-neighbour tree over the distinct points, and the index of the first station at each point."""
        points = unit_vectors(self._table["latitude"].to_numpy(), self._table["longitude"].to_numpy())
        _, first = np.unique(points, axis=0, return_index=True)
        first = np.sort(first)
        return cKDTree(points[first]), first.astype(np.int64)

    def place(self, frame: pl.DataFrame) -> NDArray[np.int64]:
        """Return each row's cell index, shape (n_rows,), or −1 if there is no station within ``radius``."""
        tree, station = self._tree
        points = unit_vectors(frame["latitude"].to_numpy(), frame["longitude"].to_numpy())
        chord, nearest = tree.query(points)
        near = 2 * EARTH_RADIUS * np.arcsin(np.minimum(chord / 2, 1)) <= self.radius
        return np.where(near, station[nearest], -1)

    @property
    def reach(self) -> float:
        """The radius around a station, in metres."""
        return self.radius

    def geometry(self) -> list[dict[str, Any]]:
        """Return each station's point and group."""
        points = self._table.select("longitude", "latitude").rows()
        groups = self._table["group"] if "group" in self._table.columns else [None] * len(points)
        return [
            {"cell": cell, "point": list(point)} | ({"group": group} if group else {})
            for cell, point, group in zip(self.cells, points, groups)
        ]
