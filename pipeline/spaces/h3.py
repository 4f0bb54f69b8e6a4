"""Hexagonal cells from the H3 grid."""

from __future__ import annotations

import importlib
import math
import re
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, repeat
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from penstock.mechanisms.core.plugin import DataError, MissingLibrary, ParameterError, check_one_of, parameter
from penstock.pipeline.spaces.base import MAX_CELLS, Space
from penstock.pipeline.spaces.raster import FEW_POINTS, SQUARES_ALONG, Raster
from penstock.pipeline.spaces.tables import read_table, unit_vectors

#: Degrees of longitude of a box that the library is asked about at a time.
_WIDEST = 90
#: Degrees of latitude beyond which meridians run together too fast for a raster.
_POLAR = 80
#: Chords that stand for a side on the raster, and squares along a cell that is as wide as high.
_CHORDS, _SQUARES_PER_CELL = 16, 24
#: Spelling of a cell, as many digits as the library reads.
_NAME = r"(?i)(0x)?[0-9a-f]{1,16}"
_BOX = ("south", "north", "west", "east")


@dataclass(frozen=True, kw_only=True)
class H3(Space):
    """A space of H3 cells (Uber, 2018), given as a list or as every cell that intersects a box (``penstock[h3]``).

    Parameters
    ----------
    resolution
        H3 resolution, from 0 (about 1,100 km across an edge) to 15 (about half a metre).
    list_, file
        Names of the cells (``list`` in YAML), or a file with one name a line or a column ``cell``.
    south, north, west, east
        Box in degrees, in place of a list: every cell that it touches, in order of name.

    Notes
    -----
    One call into the library, about half a microsecond, for a row of a small block, and in large blocks for a row in a
    square of a raster that a side of a cell touches, one in ten; no call for any other.
    """

    resolution: int = parameter(doc="H3 resolution", at_least=0, at_most=15)
    list_: tuple[str, ...] = parameter((), key="list", doc="names of the cells")
    file: str | None = parameter(None, kind="path", doc="file that lists the cells")
    south: float | None = parameter(None, doc="southern edge of a box", at_least=-90, at_most=90, unit="degrees")
    north: float | None = parameter(None, doc="northern edge of a box", at_least=-90, at_most=90, unit="degrees")
    west: float | None = parameter(None, doc="western edge of a box", at_least=-180, at_most=180, unit="degrees")
    east: float | None = parameter(None, doc="eastern edge of a box", at_least=-180, at_most=180, unit="degrees")

    def __post_init__(self) -> None:
        super().__post_init__()
        missing = [name for name in _BOX if getattr(self, name) is None]
        if 0 < len(missing) < 4:
            raise ParameterError(missing[0], None, "given together with " + ", ".join(_BOX))
        check_one_of({"list": self.list_, "file": self.file, "south": self.south})
        if self.list_:
            self._check_names(self.list_)
        if missing:
            return
        for low, high in (("south", "north"), ("west", "east")):
            if getattr(self, high) <= getattr(self, low):
                cure = "; of a box across the 180th meridian list the cells" if high == "east" else ""
                raise ParameterError(high, getattr(self, high), f"above {low} ({getattr(self, low):g}){cure}")
        south, north, west, east = (math.radians(getattr(self, name)) for name in _BOX)
        share = (math.sin(north) - math.sin(south)) * (east - west) / (4 * math.pi)  # of the sphere
        n_cells = round(share * (2 + 120 * 7.0**self.resolution))
        if n_cells > MAX_CELLS:
            expected = f"coarser: at most {MAX_CELLS:,} cells, not {n_cells:,}"
            raise ParameterError("resolution", self.resolution, expected)

    @cached_property
    def cells(self) -> tuple[str, ...]:
        """The names of all cells in the order in which they are listed, or sorted if a box is given."""
        if self.file is not None:
            try:
                return self._check_names(tuple(read_table(self.file, "cell")["cell"]))
            except ParameterError as error:
                raise DataError(f"{self.file}: {error}") from error
        if self.south is None:
            return self.list_
        library = _library()
        # The library takes a polygon that is wider than 180 degrees for the other side of the world.
        begin, end = float(self.west or 0), float(self.east or 0)
        pieces = np.linspace(begin, end, 1 + math.ceil((end - begin) / _WIDEST)).tolist()
        cells: set[str] = set()
        for west, east in pairwise(pieces):
            corners = [(self.south, west), (self.south, east), (self.north, east), (self.north, west)]
            box = library.LatLngPoly(corners)
            cells.update(library.h3shape_to_cells_experimental(box, self.resolution, contain="overlap"))
        return tuple(sorted(cells))

    def _check_names(self, names: tuple[str, ...]) -> tuple[str, ...]:
        library = _library()
        for name in names:
            is_cell = re.fullmatch(_NAME, name) and library.is_valid_cell(name)
            if not is_cell or library.get_resolution(name) != self.resolution:
                raise ParameterError("list", name, f"an H3 cell of resolution {self.resolution}, in hexadecimal")
        cells: dict[str, str] = {}  # the spelling given, by the library's own
        for name in names:
            if (cell := library.int_to_str(library.str_to_int(name))) in cells:
                raise ParameterError("list", name, f"listed once only (it is {cells[cell]!r})")
            cells[cell] = name
        return tuple(cells)

    @cached_property
    def _positions(self) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        """The cells as sorted integers and each one's position in `cells`."""
        numbers = np.array([_library().str_to_int(cell) for cell in self.cells], np.uint64)
        order = np.argsort(numbers)
        return numbers[order], order

    @cached_property
    def _raster(self) -> Raster | None:
        """A raster covering the cells, or None if they surround a pole or cross the 180th meridian."""
        rings = [np.array(_library().cell_to_boundary(cell)) for cell in self.cells]
        sides = np.concatenate([np.hstack([ring, np.roll(ring, -1, axis=0)]) for ring in rings])
        # A side is a great circle's arc: cut into chords that bend from it by less than the slack, in squares.
        begin, end = (unit_vectors(*sides[:, i : i + 2].T) for i in (0, 2))
        weight = np.linspace(0, 1, _CHORDS + 1)[:, None, None]
        x, y, z = np.moveaxis(begin * (1 - weight) + end * weight, -1, 0)
        longitude, latitude = np.degrees(np.arctan2(y, x)), np.degrees(np.arctan2(z, np.hypot(x, y)))
        if np.ptp(longitude) > _WIDEST or np.abs(latitude).max() > _POLAR:
            return None
        points = np.stack([longitude, latitude], axis=-1)
        chords = np.concatenate([points[:-1], points[1:]], axis=-1).reshape(-1, 4)
        cell = np.tile(np.repeat(np.arange(len(rings)), [len(ring) for ring in rings]), _CHORDS)
        along = min(_SQUARES_PER_CELL * math.sqrt(len(rings)), SQUARES_ALONG)
        return Raster.over(chords, cell, lambda cell, *point: self._locate(*point) == cell, along=along, slack=0.05)

    def place(self, frame: pl.DataFrame) -> NDArray[np.int64]:
        """Return each row's cell index, shape (n_rows,), or −1 for rows outside all cells."""
        latitude, longitude = frame["latitude"].to_numpy(), frame["longitude"].to_numpy()
        if len(latitude) < FEW_POINTS or self._raster is None:
            return self._locate(latitude, longitude)
        placed = self._raster.look_up(latitude, longitude)
        mixed = np.flatnonzero(placed < -1)
        placed[mixed] = self._locate(latitude[mixed], longitude[mixed])
        return placed

    def _locate(self, latitude: NDArray[np.float64], longitude: NDArray[np.float64]) -> NDArray[np.int64]:
        locate = importlib.import_module("h3.api.basic_int").latlng_to_cell
        located = map(locate, latitude.tolist(), longitude.tolist(), repeat(self.resolution))
        numbers = np.fromiter(located, np.uint64, len(latitude))
        known, position = self._positions
        candidate = np.minimum(np.searchsorted(known, numbers), len(known) - 1)
        return np.where(known[candidate] == numbers, position[candidate], -1)

    def geometry(self) -> list[dict[str, Any]]:
        """Return each cell's polygon as a closed ring of [longitude, latitude]."""
        rings = [[[lon, lat] for lat, lon in _library().cell_to_boundary(cell)] for cell in self.cells]
        return [{"cell": cell, "polygon": [*ring, ring[0]]} for cell, ring in zip(self.cells, rings)]


def _library() -> Any:
    """Import the H3 library on first use and return it."""
    try:
        return importlib.import_module("h3")
    except ImportError:
        raise MissingLibrary("space h3 needs the H3 library: pip install 'penstock[h3]'") from None
