"""Spatial generalisation: count distinct people in coarser cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.core.contract import Generalization
from penstock.mechanisms.core.geometry import corners_of
from penstock.mechanisms.core.plugin import ParameterError, parameter


@dataclass(frozen=True, kw_only=True)
class SpatialGeneralization(Generalization):
    """Count distinct people in groups of cells and copy the count to each cell in the group.

    With none of ``rows``, ``columns`` and ``group_size`` the groups are those that the space names itself (the column
    ``group`` of a file of stations). Otherwise a cell that does not say where it is, such as one for all other places,
    is a group of its own.

    Parameters
    ----------
    rows, columns
        A grid of that many rows and columns over the whole space; a cell belongs to where its centre is.
    group_size
        Groups of at most that many neighbouring cells, for stations: the space is halved at a median, across its
        longer side, until the groups are small enough.

    **Privacy.** None by itself: no guarantee, coarse counts are exact. People are bounded and counted again at the
    coarse level, so noise that follows is calibrated to coarse cells, of which a user is in at most ``max_cells``.

    Notes
    -----
    O(1) a membership. A user in two cells of a group counts once, so a group's count is no sum of its cells'. Pyrgelis,
    Troncoso, De Cristofaro 2020, spatial generalization.

    Examples
    --------
    >>> line = [{"cell": name, "point": [east, 0.0]} for name, east in (("a", 0), ("b", 1), ("c", 8), ("d", 9))]
    >>> SpatialGeneralization(rows=1, columns=2).groups(line).tolist()
    [0, 0, 1, 1]
    >>> SpatialGeneralization(group_size=3).groups(line).tolist()
    [0, 0, 1, 1]
    """

    rows: int | None = parameter(None, doc="rows of the coarse grid", at_least=1)
    columns: int | None = parameter(None, doc="columns of the coarse grid", at_least=1)
    group_size: int | None = parameter(None, doc="cells in a group of neighbours", at_least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.rows is None) != (self.columns is None):
            raise ParameterError("columns", self.columns, "given together with rows")
        if self.rows is not None and self.group_size is not None:
            raise ParameterError("group_size", self.group_size, "left out if rows and columns are given")

    def groups(self, geometry: Sequence[Mapping[str, Any]]) -> NDArray[np.int64]:
        """Return every cell's group, numbered from 0 without gaps. Raise `ParameterError` if cells cannot be grouped.

        ``geometry``, which is public, holds for each cell a mapping with ``polygon`` (a ring), ``polygons`` (of each
        its rings) or ``point`` as [longitude, latitude] in degrees, or with ``group``; with neither it is no neighbour
        of any other.
        """
        if self.rows is None and self.group_size is None:
            names = [cell.get("group") for cell in geometry]
            if any(not name for name in names):
                raise ParameterError("rows", None, "given with columns, or group_size: the space names no groups")
            return _renumber(np.asarray(names))
        corners = [corners_of(cell) for cell in geometry]
        placed = np.array([len(corner) > 0 for corner in corners])
        if not placed.any():
            raise ParameterError("rows", self.rows, "used with a space that says where its cells are")
        group = -1 - np.arange(len(geometry))
        known = [corner for corner in corners if len(corner)]
        centres = np.array([(corner.min(axis=0) + corner.max(axis=0)) / 2 for corner in known])
        if self.group_size is not None:
            group[placed] = _halve(centres, self.group_size)
            return _renumber(group)
        low, size = np.concatenate(known).min(axis=0), np.ptp(np.concatenate(known), axis=0)
        n = np.array([self.columns, self.rows], np.int64)
        place = np.clip(((centres - low) / np.where(size == 0, 1, size) * n).astype(int), 0, n - 1)
        group[placed] = place[:, 1] * n[0] + place[:, 0]
        return _renumber(group)


def _halve(points: NDArray[np.float64], size: int) -> NDArray[np.int64]:
    """Split points into groups of at most ``size`` neighbours."""
    group = np.zeros(len(points), np.int64)
    shrink = np.array([np.cos(np.radians(points[:, 1].mean())), 1.0])  # degrees of longitude are shorter
    waiting, n_groups = [np.arange(len(points))], 0
    while waiting:
        cells = waiting.pop()
        if len(cells) <= size:
            group[cells], n_groups = n_groups, n_groups + 1
            continue
        axis = int(np.argmax(np.ptp(points[cells], axis=0) * shrink))
        order = cells[np.lexsort((cells, points[cells, axis]))]
        waiting += [order[len(order) // 2 :], order[: len(order) // 2]]
    return group


def _renumber(names: NDArray[Any]) -> NDArray[np.int64]:
    """Renumber codes from 0 in order of first appearance."""
    _, first, codes = np.unique(names, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first, kind="stable")] = np.arange(len(first))
    return rank[codes]
