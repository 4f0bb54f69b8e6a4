"""Outlines and releases in map formats: GeoJSON, GeoParquet and CSV with well-known text."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import polars.selectors as cs
import pyarrow as pa
import pyarrow.parquet as pq
import shapely
from numpy.typing import NDArray

from penstock.mechanisms.core.plugin import DataError, ParameterError, check_choice
from penstock.pipeline import atomic
from penstock.pipeline.output.cells import CELLS, read_cells, rings_of
from penstock.pipeline.output.utility_summary import ends, half_width
from penstock.pipeline.spaces.polygons import around, read_lines, sides_near

Line = NDArray[np.float64]

#: Formats, and how their files end.
FORMATS = {"geojson": ".geojson", "geoparquet": ".geo.parquet", "csv": ".csv"}
_BATCH_ROWS = 100_000
#: Decimals of numbers of people.
_DECIMALS = 3

# Outlines of the operator's own file as the background of maps: cut to the cells, simplified, and published.

#: Name of the published file, and the most positions that it has.
OUTLINES, MAX_POSITIONS = "outlines.geojson", 10_000
#: How far a simplified line may be from the true one, as a share of the map's extent.
_COARSE = 1 / 2000


def write_outlines(folder: Path, path: str) -> str | None:
    """Write ``public/outlines.geojson`` next to a run's cells. Returns a warning if any lines lie outside the map.

    **Privacy**: a function of that file, which the operator says may be published, and of the public cells alone.
    Raises `DataError` if the cells have no place on a map, and `ParameterError` for a file without lines near them.
    """
    places = [place for place in (read_cells(folder) or {}).values() if place is not None]
    if not places:
        raise DataError(f"{folder / 'public' / CELLS}: no such file: outlines need cells that have a place on a map")
    corners = np.array([corner for place in places for ring in rings_of(place) for corner in ring])
    try:
        lines = read_lines(path, corners)
    except DataError as error:
        raise ParameterError("outlines", path, f"a file of lines that the maps can show ({error})") from error
    box = around(corners)
    coordinates = [line.round(6).tolist() for line in simplified(lines, *box)]
    geometry = {"type": "MultiLineString", "coordinates": coordinates}
    feature = {"type": "Feature", "properties": {}, "geometry": geometry}
    collection = {"type": "FeatureCollection", "features": [feature]}
    atomic.write_text(folder / "public" / OUTLINES, json.dumps(collection, separators=(",", ":")) + "\n")
    n_outside = sum(not sides_near(line, *box).any() for line in lines)
    if not n_outside:
        return None
    return f"{path}: {n_outside:,} of {len(lines):,} outlines {'is' if n_outside == 1 else 'are'} not on the map"


def read_outlines(folder: Path) -> list[Line]:
    """Read a run's published outlines, if there are any, as lines of longitude and latitude, shape (n, 2)."""
    collection = atomic.read_json(folder / "public" / OUTLINES, {"features": []})
    lines = (line for feature in collection["features"] for line in feature["geometry"]["coordinates"])
    return [np.array(line, np.float64) for line in lines]


def simplified(lines: list[Line], minimum: NDArray[np.float64], maximum: NDArray[np.float64]) -> list[Line]:
    """Clip lines to the map and simplify them to its resolution (Douglas, Peucker 1973).

    Positions within a 2000th of its extent from the line without them are left out, and more if more than
    `MAX_POSITIONS` would be left.

    >>> bend = np.array([[0.0, 0.0], [0.5, 0.0001], [1.0, 0.0], [1.0, 1.0], [9.0, 1.0], [9.0, 2.0]])
    >>> [line.tolist() for line in simplified([bend], np.zeros(2), np.ones(2))]
    [[[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [9.0, 1.0]]]
    """
    squeeze = np.array([math.cos(math.radians((minimum[1] + maximum[1]) / 2)), 1.0])
    extent = max(float(((maximum - minimum) * squeeze).max()), 1e-6)
    pieces = []
    for line in lines:  # the parts whose sides are close to the map
        edges = np.flatnonzero(np.diff(sides_near(line, minimum, maximum), prepend=False, append=False))
        pieces += [line[first : end + 1] for first, end in edges.reshape(-1, 2)]
    tolerance = extent * _COARSE
    while True:
        shapes = [shapely.LineString(piece * squeeze) for piece in pieces]
        shapes = shapely.simplify(shapes, tolerance, preserve_topology=False)
        kept = [np.asarray(shapely.get_coordinates(shape) / squeeze) for shape in shapes]
        kept = [piece for piece in kept if (np.ptp(piece * squeeze, axis=0) > tolerance).any()]
        if sum(map(len, kept)) <= MAX_POSITIONS:
            return kept
        pieces, tolerance = kept, 1.5 * tolerance


# Releases, written on demand from the public files alone.


def export(folder: str | Path, form: str, out: str | Path | None = None) -> Path:
    """Write a run's releases with cell geometry, using one feature or row per window per cell.

    Columns: ``stream``, ``window``, ``window_start`` and ``window_end`` in the time zone of the windows, ``cell``,
    ``value``, ``low`` and ``high`` (the interval that holds the true count with 95 %, empty if none can be stated),
    ``landmark``, ``action``, and the geometry as longitude and latitude (WGS 84), which CSV does without if need be.

    **Privacy**: made from ``public/`` alone, and as fit for publication as what is there.

    ``form``: ``geojson`` (RFC 7946, times as text), ``geoparquet`` (1.1, well-known binary) or ``csv`` (well-known
    text). Without ``out`` the file is ``public/releases`` with the ending of the format. Raises `DataError` without
    released counts or a needed geometry, and `ParameterError` for any other format.
    """
    check_choice("format", form, FORMATS)
    folder = Path(folder)
    source = folder / "public" / "releases.parquet"
    if not source.is_file():
        text = "this run releases traces" if source.with_name("traces.parquet").is_file() else "no released counts here"
        raise DataError(f"{folder}: {text}; export reads public/releases.parquet, which a run of counts writes")
    cells = read_cells(folder)
    if cells is None and form != "csv":
        text = "the cells of this run have no place on a map, or a version without this file made it"
        raise DataError(f"{folder / 'public' / CELLS}: no such file: {text}; --format csv does without")
    manifest = json.loads((folder / "public" / "manifest.json").read_text(encoding="utf-8"))
    time_zone = str(manifest["configuration"].get("windows", {}).get("time_zone", "UTC"))
    path = Path(out) if out is not None else source.with_name(f"releases{FORMATS[form]}")
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = _rows(source, time_zone, as_text=form != "geoparquet")
    write = {"geojson": _write_geojson, "csv": _write_csv, "geoparquet": _write_geoparquet}[form]
    with atomic.replacing(path) as temporary:
        write(temporary, rows, cells or {})
    return path


Geometries = dict[str, dict[str, Any] | None]


def _rows(source: Path, time_zone: str, as_text: bool) -> Iterator[pl.DataFrame]:
    """Yield the exported columns in batches of rows."""
    with pq.ParquetFile(source) as file:
        for batch in file.iter_batches(_BATCH_ROWS):
            frame = pl.DataFrame(pa.Table.from_batches([batch])).with_columns(cs.categorical().cast(pl.String))
            margin = frame.select(half_width()).to_series().to_numpy()
            margin = np.where(np.isfinite(margin), margin, np.nan)
            low, high = (pl.Series(end, nan_to_null=True) for end in ends(frame["value"].to_numpy(), margin))
            local = cs.by_name("window_start", "window_end").dt.convert_time_zone(time_zone)
            yield frame.select(
                "stream",
                "window",
                local.dt.strftime("%Y-%m-%dT%H:%M:%S%:z") if as_text else local,
                "cell",
                pl.col("value").round(_DECIMALS),
                low.round(_DECIMALS).alias("low"),
                high.round(_DECIMALS).alias("high"),
                "landmark",
                "action",
            )


def _write_geojson(path: Path, rows: Iterator[pl.DataFrame], cells: Geometries) -> None:
    texts = {cell: json.dumps(geometry) for cell, geometry in cells.items()}
    between = ""
    with path.open("w", encoding="utf-8") as file:
        file.write('{"type": "FeatureCollection", "features": [\n')
        for frame in rows:
            for row in frame.iter_rows(named=True):
                facts = json.dumps(row, ensure_ascii=False)
                geometry = texts.get(row["cell"], "null")
                file.write(f'{between}{{"type": "Feature", "properties": {facts}, "geometry": {geometry}}}')
                between = ",\n"
        file.write("\n]}\n")


def _write_csv(path: Path, rows: Iterator[pl.DataFrame], cells: Geometries) -> None:
    texts = dict(zip(cells, shapely.to_wkt(_shapes(cells), rounding_precision=-1).tolist()))
    header = True
    with path.open("wb") as file:
        for frame in rows:
            placed = frame.with_columns(_lookup_expression(texts, pl.String)) if texts else frame
            placed.write_csv(file, include_header=header)
            header = False


def _write_geoparquet(path: Path, rows: Iterator[pl.DataFrame], cells: Geometries) -> None:
    shapes = _shapes(cells)
    binary = dict(zip(cells, shapely.to_wkb(shapes, byte_order=1).tolist()))
    column = {
        "encoding": "WKB",
        "geometry_types": sorted({geometry["type"] for geometry in cells.values() if geometry is not None}),
        "bbox": shapely.total_bounds(shapes).tolist(),
    }
    geo = {"version": "1.1.0", "primary_column": "geometry", "columns": {"geometry": column}}
    with ExitStack() as opened:
        writer: pq.ParquetWriter | None = None
        for frame in rows:
            table = frame.with_columns(_lookup_expression(binary, pl.Binary)).to_arrow(
                compat_level=pl.CompatLevel.oldest()
            )
            table = table.replace_schema_metadata({"geo": json.dumps(geo)})
            writer = writer or opened.enter_context(pq.ParquetWriter(path, table.schema, compression="zstd"))
            writer.write_table(table)


def _lookup_expression(values: dict[str, Any], kind: type[pl.DataType]) -> pl.Expr:
    """Look up the geometry of each row's cell."""
    return pl.col("cell").replace_strict(values, default=None, return_dtype=kind).alias("geometry")


def _shapes(cells: Geometries) -> NDArray[Any]:
    """Return each cell's geometry, shape (n_cells,), or None for cells without coordinates."""
    texts = [None if geometry is None else json.dumps(geometry) for geometry in cells.values()]
    return np.asarray(shapely.from_geojson(texts), object)
