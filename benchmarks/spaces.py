"""Benchmarks of spaces against exact tests of every point by the libraries that they use."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial

import h3
import numpy as np
import polars as pl
import shapely
from numpy.typing import NDArray

from benchmarks.measure import Benchmark, Peer, Scale
from penstock.pipeline.spaces.h3 import H3
from penstock.pipeline.spaces.zones import Zones

RESOLUTION = 9


def spaces(scale: Scale) -> Iterator[Benchmark]:
    """Yield cases on the placing of points in zones, which touch or cross, and in hexagons."""
    n_points = 100_000 if scale.quick else 1_000_000
    rng = np.random.default_rng(1)
    frame = pl.DataFrame(rng.random((n_points, 2)), ["longitude", "latitude"])
    some = frame.head(n_points // 10)
    areas = {"10,000 zones that touch, of 40 corners": touching(rng, 10_000), "500 strips": strips(rng, 500)}
    for what, shapes in areas.items():
        path = scale.folder / "zones.geojson"
        features = [
            {"type": "Feature", "properties": {"name": number}, "geometry": shapely.geometry.mapping(shape)}
            for number, shape in enumerate(shapes)
        ]
        path.write_text(json.dumps({"type": "FeatureCollection", "features": features}), encoding="utf-8")
        zones = Zones(path=str(path), name="name")
        zones.place(frame)  # the raster is made once
        tree = Peer("Shapely's tree", partial(of_tree, shapely.STRtree(shapes), some), 10, agree)
        at_most = 0.15 if len(shapes) == 10_000 else None
        yield Benchmark(
            f"a million points in {what}", partial(zones.place, frame), [tree], "µs a point", n_points, 3, at_most
        )
    hexagons = H3(resolution=RESOLUTION, south=0.0, north=0.2, west=0.0, east=0.2)
    frame, some = frame * 0.2, some * 0.2
    hexagons.place(frame)
    library = Peer("the H3 library", partial(of_library, hexagons.cells, some), 10, agree)
    what = f"a million points in {len(hexagons.cells):,} hexagons"
    yield Benchmark(what, partial(hexagons.place, frame), [library], "µs a point", n_points, 3, 0.15)


def touching(rng: np.random.Generator, n_zones: int) -> list[shapely.Geometry]:
    """Return zones that share their borders and cover a square, with about 40 corners each."""
    square = shapely.box(0, 0, 1, 1)
    zones = shapely.voronoi_polygons(shapely.multipoints(rng.random((n_zones, 2))), extend_to=square)
    inside = [shapely.intersection(zone, square) for zone in zones.geoms]
    return [shapely.segmentize(zone, zone.length / 33) for zone in inside]


def strips(rng: np.random.Generator, n_strips: int) -> list[shapely.Geometry]:
    """Return long, thin zones that cross at all angles."""
    return [shapely.LineString(ends).buffer(0.003, cap_style="flat") for ends in rng.random((n_strips, 2, 2))]


def of_tree(tree: shapely.STRtree, frame: pl.DataFrame) -> NDArray[np.int64]:
    """Return the first zone of each point by the library's index."""
    point, zone = tree.query(shapely.points(frame.to_numpy()), predicate="intersects")
    first = np.full(len(frame), len(tree))
    np.minimum.at(first, point, zone)
    return np.where(first < len(tree), first, -1)


def of_library(cells: tuple[str, ...], frame: pl.DataFrame) -> NDArray[np.int64]:
    """Return the cell of each point, one call a point."""
    known = {cell: number for number, cell in enumerate(cells)}
    points = zip(frame["latitude"].to_list(), frame["longitude"].to_list())
    return np.array([known.get(h3.latlng_to_cell(*point, RESOLUTION), -1) for point in points])


def agree(ours: NDArray[np.int64], theirs: NDArray[np.int64]) -> bool:
    """Return whether the first points are where the library has them."""
    return np.array_equal(ours[: len(theirs)], theirs)
