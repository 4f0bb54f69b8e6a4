"""Outlines of the operator's own file as the background of maps: cut to the cells, simplified, and published."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.core.plugin import DataError, ParameterError
from penstock.pipeline.output import files
from penstock.pipeline.output.export import CELLS, read_cells, rings_of
from penstock.pipeline.spaces.polygons import around, read_lines, sides_near

Line = NDArray[np.float64]

#: Name of the published file, and the most positions that it has.
OUTLINES, MOST_POSITIONS = "outlines.geojson", 10_000
#: How far a simplified line may be from the true one, as a share of the map's extent.
_COARSE = 1 / 2000


def write_outlines(folder: Path, path: str) -> None:
    """Write ``public/outlines.geojson`` beside the cells of a run.

    **Privacy**: a function of that file and of the public cells alone. The operator says that the file may be
    published.

    ``path`` is a GeoJSON or GeoParquet file of polygons or lines. Raises `DataError` if the cells of the run have no
    place on a map. Raises `ParameterError` if the file cannot be read, or nothing of it is near the cells.
    """
    places = [place for place in (read_cells(folder) or {}).values() if place is not None]
    if not places:
        raise DataError(f"{folder / 'public' / CELLS}: no such file: outlines need cells that have a place on a map")
    corners = np.array([corner for place in places for ring in rings_of(place) for corner in ring])
    try:
        lines = read_lines(path, corners)
    except DataError as error:
        raise ParameterError("outlines", path, f"a file of lines that the maps can show ({error})") from error
    coordinates = [line.round(6).tolist() for line in simplified(lines, *around(corners))]
    geometry = {"type": "MultiLineString", "coordinates": coordinates}
    feature = {"type": "Feature", "properties": {}, "geometry": geometry}
    collection = {"type": "FeatureCollection", "features": [feature]}
    files.write_text(folder / "public" / OUTLINES, json.dumps(collection, separators=(",", ":")) + "\n")


def read_outlines(folder: Path) -> list[Line]:
    """Lines (n, 2) of longitude and latitude from the published file of a run; none where it has none."""
    path = folder / "public" / OUTLINES
    if not path.is_file():
        return []
    (feature,) = json.loads(path.read_text(encoding="utf-8"))["features"]
    return [np.array(line, np.float64) for line in feature["geometry"]["coordinates"]]


def simplified(lines: list[Line], least: NDArray[np.float64], most: NDArray[np.float64]) -> list[Line]:
    """What of some lines is seen on a map, with as few positions as show it.

    ``lines``: shape (n, 2) each: longitude and latitude. ``least``, ``most``: South-western and north-eastern corner of
    the map. Returns pieces of the lines that come onto the map, without positions that are no more than a 2000th of its
    extent from the line without them (Douglas, Peucker 1973); coarser where more than `MOST_POSITIONS` would be left.

    >>> bend = np.array([[0.0, 0.0], [0.5, 0.0001], [1.0, 0.0], [1.0, 1.0], [9.0, 1.0], [9.0, 2.0]])
    >>> [line.tolist() for line in simplified([bend], np.zeros(2), np.ones(2))]
    [[[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [9.0, 1.0]]]
    """
    squeeze = np.array([math.cos(math.radians((least[1] + most[1]) / 2)), 1.0])
    extent = max(float(((most - least) * squeeze).max()), 1e-6)
    pieces = [piece for line in lines for piece in _near(line, least, most)]
    tolerance = extent * _COARSE
    while True:
        kept = [piece[_needed(piece * squeeze, tolerance)] for piece in pieces]
        kept = [piece for piece in kept if (np.ptp(piece * squeeze, axis=0) > tolerance).any()]
        if sum(map(len, kept)) <= MOST_POSITIONS:
            return kept
        pieces, tolerance = kept, 1.5 * tolerance


def _near(line: Line, least: NDArray[np.float64], most: NDArray[np.float64]) -> list[Line]:
    """Stretches of a line whose sides come near a box."""
    near = sides_near(line, least, most)
    edges = np.flatnonzero(np.diff(near, prepend=False, append=False))
    return [line[first : end + 1] for first, end in edges.reshape(-1, 2)]


def _needed(line: Line, tolerance: float) -> NDArray[np.bool_]:
    """Positions of a line without which it would be further off than the tolerance; its ends are."""
    needed = np.zeros(len(line), np.bool_)
    needed[[0, -1]] = True
    waiting = [(0, len(line) - 1)]
    while waiting:
        first, last = waiting.pop()
        if last - first < 2:
            continue
        between, along = line[first + 1 : last] - line[first], line[last] - line[first]
        length = float(along @ along)
        # Of the side itself, not of the line through it: a ring ends where it begins.
        share = np.clip(between @ along / length, 0.0, 1.0) if length > 0 else np.zeros(len(between))
        distance = np.linalg.norm(between - share[:, None] * along, axis=1)
        farthest = int(distance.argmax())
        if distance[farthest] > tolerance:
            middle = first + 1 + farthest
            needed[middle] = True
            waiting += [(first, middle), (middle, last)]
    return needed
