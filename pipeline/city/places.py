"""The places of the made-up city: cells of a grid, and how much they attract."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.city.randomness import Purpose, uniforms

Weights = NDArray[np.floating[Any]]


@dataclass(frozen=True, kw_only=True)
class Places:
    """Cells of ``rows`` × ``columns`` in a box, numbered row by row from the south-west.

    The weights are distributions over the cells, shape (n_places,): people live around the centre, work in it, and
    run errands at a few favourite places that the seed decides.

    Examples
    --------
    >>> places = Places(rows=2, columns=3, south=0.0, north=2.0, west=10.0, east=13.0, seed=1)
    >>> places.names[:2], places.latitude.tolist(), round(float(places.errands.sum()), 12)
    (('place_0', 'place_1'), [0.5, 0.5, 0.5, 1.5, 1.5, 1.5], 1.0)
    """

    rows: int
    columns: int
    south: float
    north: float
    west: float
    east: float
    seed: int

    @property
    def n_places(self) -> int:
        """Number of places."""
        return self.rows * self.columns

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Name of every place."""
        return tuple(f"place_{index}" for index in range(self.n_places))

    @property
    def height(self) -> float:
        """Height of a cell in degrees."""
        return (self.north - self.south) / self.rows

    @property
    def width(self) -> float:
        """Width of a cell in degrees."""
        return (self.east - self.west) / self.columns

    @cached_property
    def latitude(self) -> Weights:
        """Latitude of every place's middle."""
        return self.south + (np.arange(self.n_places) // self.columns + 0.5) * self.height

    @cached_property
    def longitude(self) -> Weights:
        """Longitude of every place's middle."""
        return self.west + (np.arange(self.n_places) % self.columns + 0.5) * self.width

    @cached_property
    def homes(self) -> Weights:
        """How many live at a place: a ring, with some everywhere."""
        return _normalised(0.1 + np.exp(-(((self._from_centre - 0.6) / 0.3) ** 2)))

    @cached_property
    def works(self) -> Weights:
        """How many work at a place: a centre, with some everywhere."""
        return _normalised(0.02 + np.exp(-((self._from_centre / 0.3) ** 2)))

    @cached_property
    def errands(self) -> Weights:
        """How many run errands at a place: weights in inverse proportion to a random rank (Zipf)."""
        rank = np.argsort(np.argsort(uniforms(self.seed, Purpose.LAYOUT, 0, self.n_places)))
        return _normalised(1.0 / (1.0 + rank))

    def distances(self) -> Weights:
        """Distances between places as shares of the box's sides, shape (n_places, n_places)."""
        x, y = self._unit
        distances: Weights = np.hypot(x[:, None] - x, y[:, None] - y)
        return distances

    @property
    def _unit(self) -> tuple[Weights, Weights]:
        index = np.arange(self.n_places)
        return (index % self.columns + 0.5) / self.columns, (index // self.columns + 0.5) / self.rows

    @property
    def _from_centre(self) -> Weights:
        """0 in the middle, 1 at the middle of a side."""
        x, y = self._unit
        return np.asarray(2.0 * np.hypot(x - 0.5, y - 0.5))


def _normalised(weights: Weights) -> Weights:
    return np.asarray(weights / weights.sum())
