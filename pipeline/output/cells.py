"""A run's cells as GeoJSON, written when the run begins and read when its maps are drawn."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path
from typing import Any

from penstock.pipeline import atomic
from penstock.pipeline.spaces.base import Space

#: Name of the file of cells, in ``public``; spaces of more cells than `MAX_CELLS` have none.
CELLS = "cells.geojson"
MAX_CELLS = 100_000


def cells_geojson(space: Space) -> dict[str, Any] | None:
    """Return a space's cells as a GeoJSON feature collection (RFC 7946), or None if no cell has a known location.

    **Privacy**: a function of the public list of cells alone.

    >>> from penstock.pipeline.spaces.grid import Grid
    >>> result = cells_geojson(Grid(south=0, north=1, west=0, east=1, rows=1, columns=1))
    >>> result["features"][0]["properties"], result["features"][0]["geometry"]["type"]
    ({'cell': 'r00c00'}, 'Polygon')
    """
    if len(space.cells) > MAX_CELLS:
        return None
    placed = space.geometry()
    if all(_geometry(place) is None for place in placed):
        return None
    features = []
    for place in placed:
        facts = {name: value for name, value in place.items() if name not in ("polygon", "polygons", "point")}
        features.append({"type": "Feature", "properties": facts, "geometry": _geometry(place)})
    return {"type": "FeatureCollection", "features": features}


def _geometry(placed: dict[str, Any]) -> dict[str, Any] | None:
    """Return a cell's GeoJSON geometry."""
    if "point" in placed:
        return {"type": "Point", "coordinates": placed["point"]}
    polygons = placed.get("polygons") or ([[placed["polygon"]]] if "polygon" in placed else [])
    if not polygons:
        return None
    if len(polygons) == 1:
        return {"type": "Polygon", "coordinates": polygons[0]}
    return {"type": "MultiPolygon", "coordinates": polygons}


def read_cells(folder: Path) -> dict[str, dict[str, Any] | None] | None:
    """Read each cell's geometry from a run's published file. Returns None if there is no such file."""
    if (collection := atomic.read_json(folder / "public" / CELLS)) is None:
        return None
    return {feature["properties"]["cell"]: feature["geometry"] for feature in collection["features"]}


def cell_names(folder: Path) -> dict[str, str]:
    """Read the display names of cells that have identifiers, such as stops, from a run's published file."""
    collection = atomic.read_json(folder / "public" / CELLS, {"features": ()})
    facts = (feature["properties"] for feature in collection["features"])
    return {place["cell"]: place["name"] for place in facts if place.get("name")}


def rings_of(geometry: dict[str, Any]) -> list[list[list[float]]]:
    """Return all rings of a polygon or multipolygon, treating a point as a ring.

    >>> rings_of({"type": "Point", "coordinates": [8.5, 47.4]})
    [[[8.5, 47.4]]]
    """
    if geometry["type"] == "Point":
        return [[geometry["coordinates"]]]
    coordinates = geometry["coordinates"]
    return list(chain(*coordinates)) if geometry["type"] == "MultiPolygon" else list(coordinates)


def write_cells(folder: Path, space: Space) -> None:
    """Write ``public/cells.geojson`` to a run's folder if its cells have locations."""
    if (geojson := cells_geojson(space)) is not None:
        atomic.write_text(folder / "public" / CELLS, json.dumps(geojson, ensure_ascii=False) + "\n")
