"""A rectangular grid of equal cells in latitude and longitude."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.core.plugin import ParameterError, parameter
from penstock.pipeline.spaces.base import Space, in_chunks

if TYPE_CHECKING:
    import polars as pl

_CHUNK = 1 << 16  # rows at a time: all intermediate arrays stay in the processor's cache


@dataclass(frozen=True, kw_only=True)
class Grid(Space):
    """A box divided into ``rows`` × ``columns`` cells, named row by row from the south-west corner (r00c00).

    The row of a point is floor((latitude − south)/(north − south)·rows) in double precision, its column likewise:
    the formula that anyone would check it with. Every point of the box is in exactly one cell; one on an inner edge
    is in the cell that the edge begins, unless rounding puts it just before. The box's own northern and eastern edges
    belong to the last row and column.

    A box across the 180th meridian has an ``east`` above 180.

    Examples
    --------
    >>> grid = Grid(south=37.74, north=37.82, west=-122.47, east=-122.37, rows=10, columns=10)
    >>> len(grid.cells), grid.cells[23]
    (100, 'r02c03')
    >>> import polars as pl
    >>> frame = pl.DataFrame({"latitude": [37.749, 37.82, 37.83], "longitude": [-122.47, -122.37, -122.4]})
    >>> [grid.cells[i] if i >= 0 else None for i in grid.place(frame)]
    ['r01c00', 'r09c09', None]
    """

    south: float = parameter(doc="southern edge", at_least=-90, at_most=90, unit="degrees")
    north: float = parameter(doc="northern edge", at_least=-90, at_most=90, unit="degrees")
    west: float = parameter(doc="western edge", at_least=-180, at_most=180, unit="degrees")
    east: float = parameter(doc="eastern edge", at_least=-180, at_most=540, unit="degrees")
    rows: int = parameter(doc="cells from south to north", at_least=1)
    columns: int = parameter(doc="cells from west to east", at_least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        for low, high in (("south", "north"), ("west", "east")):
            if getattr(self, high) <= getattr(self, low):
                cure = "; across the 180th meridian by 360 more" if high == "east" else ""
                raise ParameterError(high, getattr(self, high), f"above {low} ({getattr(self, low):g}){cure}")
        if self.east - self.west > 360:
            raise ParameterError("east", self.east, f"at most 360 degrees from west ({self.west:g})")
        for name, size in (("rows", self.north - self.south), ("columns", self.east - self.west)):
            if size / getattr(self, name) < 1e-9:
                raise ParameterError(name, getattr(self, name), "small enough for cells of 1e-9 degrees")

    @cached_property
    def cells(self) -> tuple[str, ...]:
        """The names of all cells, ordered by row from south to north and from west to east within each row."""
        tall, wide = (max(2, len(str(n - 1))) for n in (self.rows, self.columns))
        return tuple(f"r{row:0{tall}}c{column:0{wide}}" for row in range(self.rows) for column in range(self.columns))

    def place(self, frame: pl.DataFrame) -> NDArray[np.int64]:
        """Return each row's cell index, shape (n_rows,), or −1 for rows outside the box."""
        return in_chunks(self._place, frame, _CHUNK)

    def _place(self, latitude: NDArray[np.float64], longitude: NDArray[np.float64]) -> NDArray[np.int64]:
        if self.east > 180:
            longitude = np.where(longitude < self.west, longitude + 360, longitude)
        inside = (latitude >= self.south) & (latitude <= self.north)
        inside &= (longitude >= self.west) & (longitude <= self.east)
        # Whole numbers in doubles are exact, and converted once.
        cell = _position(latitude, self.south, self.north, self.rows)
        cell *= self.columns
        cell += _position(longitude, self.west, self.east, self.columns)
        if not inside.all():
            cell[~inside] = -1
        return cell.astype(np.int64)

    def geometry(self) -> list[dict[str, Any]]:
        """Return each cell's polygon as a closed ring of [longitude, latitude]."""
        polygons = [
            [[west, south], [east, south], [east, north], [west, north], [west, south]]
            for south, north in pairwise(_edges(self.south, self.north, self.rows))
            for west, east in pairwise(_edges(self.west, self.east, self.columns))
        ]
        return [{"cell": cell, "polygon": polygon} for cell, polygon in zip(self.cells, polygons)]


def _edges(low: float, high: float, n: int) -> list[float]:
    return [low, *np.round(np.linspace(low, high, n + 1), 12).tolist()[1:-1], high]


def _position(values: NDArray[np.float64], low: float, high: float, n: int) -> NDArray[np.float64]:
    """Return each value's row or column as a float between 0.0 and n − 1.0, clamping values to the box."""
    scaled = np.asarray(values, np.float64) - low
    scaled /= high - low
    scaled *= n
    np.clip(scaled, 0, n - 1, out=scaled)
    return np.trunc(scaled, out=scaled)  # the floor for what lies inside, and faster
