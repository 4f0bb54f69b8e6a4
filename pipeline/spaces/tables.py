"""Tables of named places, and points on the sphere, shared by several kinds of space."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import zipfile
from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from penstock.mechanisms.core.plugin import DataError

EARTH_RADIUS = 6_371_008.8  # metres, mean radius of the reference ellipsoid (IUGG)

#: Columns of a GTFS feed's stops.txt by their names here.
_GTFS = {"stop_lat": "latitude", "stop_lon": "longitude"}
#: Columns of one in capitals by their names.
_CAPITALS = {heading.upper(): heading for heading in (*_GTFS, "stop_id", "stop_name", "location_type")}
#: Values of location_type of what people wait at: a stop or platform, which may be left empty.
_STOP = ("", "0")
#: Share of the lines of a table that have as many fields as the first.
_TABLE_SHARE = 0.9
#: A key of a document, and the beginning of a date or a time of day.
_KEY, _TIME = re.compile(r"[\w-]+:( |$)"), re.compile(r"\d{1,4}[-:/.]\d{1,2}\b")


def unit_vectors(latitude: NDArray[np.float64], longitude: NDArray[np.float64]) -> NDArray[np.float64]:
    """Convert latitudes and longitudes in degrees to points on the unit sphere, shape (n, 3).

    >>> unit_vectors(np.array([0.0]), np.array([90.0])).round(6).tolist()
    [[0.0, 1.0, 0.0]]
    """
    latitude, longitude = np.radians(latitude), np.radians(longitude)
    flat = np.cos(latitude)
    return np.stack([flat * np.cos(longitude), flat * np.sin(longitude), np.sin(latitude)], axis=1)


def read_table(
    path: str, name: str, coordinates: Literal["required", "optional", "none"] = "none", column: str | None = None
) -> pl.DataFrame:
    """Read a table of named places as string columns, with the names in a column called ``name``.

    Raises `DataError` if the file cannot be read, or is not what it is read as: with what it looks like, and what would
    be right.

    Parameters
    ----------
    path
        A CSV file with a header; a list of one name a line, unless there must be coordinates; the stops of a GTFS feed
        (``stops.txt``, or the zip of the feed); or the stations of a GBFS feed (``station_information.json``).
    name
        What is named: the heading of the names, where ``column`` does not say another. Stops are known by their
        ``stop_id``, and where there must be coordinates by their name, with the identifier where several share it.
    coordinates
        Whether ``latitude`` and ``longitude`` must be there; they become degrees and are checked.
    column
        Heading of the names.
    """
    text, needs_coordinates = _text(path), coordinates == "required"
    if text.lstrip()[:1] in ("{", "["):
        table, is_feed = _of_gbfs(path, text), True
    else:
        header = [_heading(name) for name in next(csv.reader([text.partition("\n")[0]]), [])]
        is_feed = "stop_id" in header and name not in header
        if not is_feed and not needs_coordinates and (column or name) not in header:
            if column is not None:
                first = text[:200].splitlines()[0]
                raise DataError(f"{path}:1: there is no column {column!r} (the first line is: {first})")
            lines = [line.strip() for line in text.splitlines() if line.strip()]
            _check_list(path, name, lines)
            return pl.DataFrame({name: lines}, schema={name: pl.String})
        wanted = () if is_feed else (column or name, *(("latitude", "longitude") if needs_coordinates else ()))
        for heading in wanted:
            if heading not in header:
                raise DataError(
                    f"{path}:1: the header must name the columns {', '.join(wanted)}; {heading} is missing (it has "
                    f"{', '.join(header)[:200]})"
                )
        try:
            table = pl.read_csv(text.encode(), infer_schema=False)
        except pl.exceptions.PolarsError as error:
            raise DataError(f"{path}: {error}") from error
        table = table.rename(_heading).with_columns(pl.all().str.strip_chars())
    if is_feed:
        table = _stops(path, table, name, needs_coordinates, column)
    elif column not in (None, name):
        table = table.drop(name, strict=False).rename({str(column): name})
    if len(gaps := (table[name].is_null() | (table[name] == "")).arg_true()):
        raise DataError(f"{path}:{gaps[0] + 2}: {name} is empty")
    has_degrees = coordinates != "none" and {"latitude", "longitude"} <= set(table.columns)
    return _degrees(path, table) if has_degrees else table


def _heading(name: str) -> str:
    return _CAPITALS.get(name.strip(), name.strip())


def _text(path: str) -> str:
    """Read a text file, or the list of stops in a zipped GTFS feed."""
    try:
        content = Path(path).read_bytes()
        if content[:4] == b"PK\x03\x04":
            with zipfile.ZipFile(io.BytesIO(content)) as feed:
                stops = [member for member in feed.namelist() if Path(member).name.lower() == "stops.txt"]
                if len(stops) != 1:
                    n_feeds = f"{len(stops)} files stops.txt, so several GTFS feeds" if stops else "no stops.txt"
                    raise DataError(f"{path}: is a zip with {n_feeds}; give a file that is in it")
                content = feed.read(stops[0])
        if content[:4] == b"PAR1":
            raise DataError(f"{path}: is Parquet; areas in GeoParquet make a space of type: zones, others a CSV file")
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise DataError(f"{path}: is not UTF-8 text; save it as UTF-8") from None
    except (OSError, zipfile.BadZipFile, RuntimeError, NotImplementedError) as error:
        raise DataError(f"{path}: {error}") from error


def _of_gbfs(path: str, text: str) -> pl.DataFrame:
    """Parse the stations in a GBFS feed into columns with GTFS names."""
    try:
        root = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: looks like JSON, and is not ({error})") from error
    kind = root.get("type") if isinstance(root, dict) else None
    if kind in ("FeatureCollection", "Feature"):
        raise DataError(
            f"{path}: is GeoJSON; areas make a space of type: zones, with path and name, for events with positions; "
            f"named ones need a CSV file of their names and, for maps, latitude and longitude"
        )
    rows = []
    try:
        for station in root["data"]["stations"]:
            name = station.get("name")
            if isinstance(name, list) and name and isinstance(name[0], dict):  # from version 3 on, its translations
                name = name[0].get("text")
            rows.append([str(station["station_id"]), str(name or ""), str(station["lat"]), str(station["lon"])])
    except (LookupError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path}: is JSON, but not station_information.json of a GBFS feed, with station_id, lat and lon of all "
            f"data.stations ({error!r})"
        ) from error
    columns = ("stop_id", "stop_name", "stop_lat", "stop_lon")
    return pl.DataFrame(rows, dict.fromkeys(columns, pl.String), orient="row")


def _stops(path: str, table: pl.DataFrame, name: str, placed: bool, column: str | None) -> pl.DataFrame:
    """Return a feed's stops with a position, the first for each ``column``. ``placed``: only where people board."""
    column = {"station_id": "stop_id", "name": "stop_name"}.get(column or "", column)
    needed = [*(("stop_lat", "stop_lon") if placed else ()), *([column] if column is not None else [])]
    for heading in needed:
        if heading not in table.columns:
            raise DataError(f"{path}:1: the stops have no column {heading!r} (they have {', '.join(table.columns)})")
    if placed:
        kind = pl.col("location_type").fill_null("") if "location_type" in table.columns else pl.lit("")
        table = table.filter(kind.is_in(_STOP))
    if "stop_lat" in table.columns:
        table = table.filter(pl.col("stop_lat").str.len_bytes() > 0)
    table = table.rename(_GTFS, strict=False)
    if column is not None:
        return table.unique(column, keep="first", maintain_order=True).rename({column: name})
    label = pl.col("stop_id")
    if placed and "stop_name" in table.columns:
        spoken = pl.col("stop_name").fill_null("")
        shared = pl.format("{} ({})", spoken, label)
        label = pl.when(spoken == "").then(label).when(pl.len().over(spoken) == 1).then(spoken).otherwise(shared)
    return table.with_columns(label.alias(name))


def _check_list(path: str, name: str, lines: list[str]) -> None:
    """Raise `DataError` if the lines look like a document or a delimited table instead of a list of names."""
    n_keys = sum(_KEY.match(line) is not None for line in lines)
    if lines and (lines[0][0] == "<" or n_keys > len(lines) / 2):
        raise DataError(f"{path}:1: looks like a document ({lines[0][:100]}), not one {name} a line")
    for separator in ";\t|," if lines else "":
        fields = [line.split(separator) for line in lines]
        n_fields = len(fields[0])
        equal_rows = [row for row in fields if len(row) == n_fields]
        if n_fields == 1 or len(equal_rows) < max(2, _TABLE_SHARE * len(lines)):
            continue
        n_figures = max(
            sum(is_number(text) or bool(_TIME.match(text)) for text in column) for column in zip(*equal_rows)
        )
        if separator != "," or n_figures >= max(1, _TABLE_SHARE * (len(equal_rows) - 1)):
            raise DataError(
                f"{path}:1: looks like a table of {n_fields} columns ({lines[0][:100]}), not one {name} a line: put "
                f"commas between columns, and head the one with the names {name}"
            )


def is_number(text: str) -> bool:
    """Return whether a string represents a finite number."""
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _degrees(path: str, table: pl.DataFrame) -> pl.DataFrame:
    for name, limit in (("latitude", 90), ("longitude", 180)):
        degrees = table[name].cast(pl.Float64, strict=False)
        if len(wrong := (~degrees.is_between(-limit, limit).fill_null(False)).arg_true()):
            value = table[name][wrong[0]]
            raise DataError(f"{path}:{wrong[0] + 2}: {name} {value!r} must be a number from -{limit} to {limit}")
        table = table.with_columns(degrees.alias(name))
    return table
