"""Space contract: a public, fixed list of cells, and a rule that assigns each event to a cell."""

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


class UnknownColumnError(DataError):
    """Raised if a zones file lacks a property or column with the given name."""


class Space(Checked, ABC):
    """Base class for spaces. Cells are public: the list of cells never depends on counts."""

    #: Columns of a block that `place` reads: ("latitude", "longitude") or ("place",).
    reads = ("latitude", "longitude")

    @property
    @abstractmethod
    def cells(self) -> tuple[str, ...]:
        """The names of all cells. A cell's index is its position in this tuple."""

    @abstractmethod
    def place(self, frame: pl.DataFrame) -> NDArray[np.int64]:
        """Return each row's cell index, shape (n_rows,), or −1 for rows outside the area."""

    def resolve(self, source: Source) -> Space:
        """Return a space whose cells are all known. The source is only read if the cells are derived from its data."""
        return self

    @property
    def derived_from_data(self) -> bool:
        """True if the cells are derived from private data, which deployments reject."""
        return False

    @property
    def reach(self) -> float:
        """The distance in metres by which the area extends beyond the `geometry`."""
        return 0.0

    def geometry(self) -> list[dict[str, Any]]:
        """Return the map as one dict per cell: ``cell`` and, if known, its shape in [longitude, latitude].

        ``polygon``, a closed ring; ``polygons``, for each a list of rings, its holes after the first; or ``point``.
        """
        return [{"cell": cell} for cell in self.cells]


def spelling(name: str) -> str:
    """Return the canonical spelling of a name: accents and spaces are normalised, and spaces at either end are removed.

    >>> spelling("Zu\u0308rich ") == spelling("Z\u00fcrich"), spelling("Old\u00a0Town")
    (True, 'Old Town')
    """
    return normalize("NFKC", name).strip()


def in_chunks(
    place: Callable[[NDArray[np.float64], NDArray[np.float64]], NDArray[np.int64]], frame: pl.DataFrame, n_rows: int
) -> NDArray[np.int64]:
    """Return each row's cell index, calling ``place`` on at most ``n_rows`` rows at a time."""
    latitude, longitude = frame["latitude"].to_numpy(), frame["longitude"].to_numpy()
    placed = np.empty(len(latitude), np.int64)
    for start in range(0, len(placed), n_rows):
        chunk = slice(start, start + n_rows)
        placed[chunk] = place(latitude[chunk], longitude[chunk])
    return placed


SPACES: Registry[Space] = Registry("penstock.pipeline.spaces", "space", Space, ("raster",))
