"""Contract of spaces: a public, fixed list of cells, and the cell of every event."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from unicodedata import normalize

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.core.plugin import Checked, DataError, Registry
from penstock.pipeline.sources.base import Source

if TYPE_CHECKING:
    import polars as pl

#: Cell of what is in no other one.
ELSEWHERE = "elsewhere"
#: Most cells of a space.
MAX_CELLS = 10_000_000


class WrongName(DataError):
    """A file of zones has no property, or column, of the given name."""


class Space(Checked, ABC):
    """Base of every space. Cells are public: their list never depends on counts."""

    #: Columns of a block that `place` reads: ("latitude", "longitude") or ("place",).
    reads = ("latitude", "longitude")

    @property
    @abstractmethod
    def cells(self) -> tuple[str, ...]:
        """Names of all cells; the index of a cell is its position here."""

    @abstractmethod
    def place(self, frame: pl.DataFrame) -> NDArray[np.int64]:
        """Cell index of every row, shape (n_rows,); −1 out of the area."""

    def resolve(self, source: Source) -> Space:
        """Return the space fully resolved; the source is read only if cells are to come from the data."""
        return self

    @property
    def derived_from_data(self) -> bool:
        """Return whether the cell list is taken from private data (refused in deployment)."""
        return False

    @property
    def reach(self) -> float:
        """Metres around the `geometry` that belong to the area."""
        return 0.0

    def geometry(self) -> list[dict[str, Any]]:
        """Geometry for maps: a dict a cell, with ``cell`` and, if known, its shape in [longitude, latitude].

        ``polygon``, a closed ring; ``polygons``, for each a list of rings, its holes after the first; or ``point``.
        """
        return [{"cell": cell} for cell in self.cells]


def spelling(name: str) -> str:
    """Return one spelling of names that look the same: accents and blanks have several, and blanks may be around it.

    >>> spelling("Zu\u0308rich ") == spelling("Z\u00fcrich"), spelling("Old\u00a0Town")
    (True, 'Old Town')
    """
    return normalize("NFKC", name).strip()


def in_chunks(
    place: Callable[[NDArray[np.float64], NDArray[np.float64]], NDArray[np.int64]], frame: pl.DataFrame, n_rows: int
) -> NDArray[np.int64]:
    """Cell index of every row, shape (n_rows,), from the latitudes and longitudes of n_rows rows."""
    latitude, longitude = frame["latitude"].to_numpy(), frame["longitude"].to_numpy()
    placed = np.empty(len(latitude), np.int64)
    for start in range(0, len(placed), n_rows):
        chunk = slice(start, start + n_rows)
        placed[chunk] = place(latitude[chunk], longitude[chunk])
    return placed


SPACES: Registry[Space] = Registry("penstock.pipeline.spaces", "space", Space, ("raster",))
