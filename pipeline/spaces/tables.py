"""Tables of places and distances on the sphere, shared by spaces."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from penstock.mechanisms.core.plugin import DataError

EARTH_RADIUS = 6_371_008.8  # metres, mean radius of the reference ellipsoid (IUGG)


def unit_vectors(latitude: NDArray[np.float64], longitude: NDArray[np.float64]) -> NDArray[np.float64]:
    """Points on the unit sphere, shape (n, 3), from degrees.

    >>> unit_vectors(np.array([0.0]), np.array([90.0])).round(6).tolist()
    [[0.0, 1.0, 0.0]]
    """
    latitude, longitude = np.radians(latitude), np.radians(longitude)
    flat = np.cos(latitude)
    return np.stack([flat * np.cos(longitude), flat * np.sin(longitude), np.sin(latitude)], axis=1)


def read_table(
    path: str, required: tuple[str, ...], coordinates: Literal["required", "optional", "none"] = "none"
) -> pl.DataFrame:
    """Read a CSV file with a header, or a list of one name a line, as text columns.

    `coordinates`: whether ``latitude`` and ``longitude`` must be there; they become degrees and are checked.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: {error}") from error
    header = [name.strip() for name in text.partition("\n")[0].split(",")]
    if coordinates != "required" and len(required) == 1 and required[0] not in header:
        names = [line.strip() for line in text.splitlines()]
        return pl.DataFrame({required[0]: [name for name in names if name]}, schema={required[0]: pl.String})
    wanted = (*required, "latitude", "longitude") if coordinates == "required" else required
    for name in wanted:
        if name not in header:
            raise DataError(f"{path}:1: the header must name the columns {', '.join(wanted)}; {name} is missing")
    try:
        table = pl.read_csv(text.encode(), infer_schema=False)
    except pl.exceptions.PolarsError as error:
        raise DataError(f"{path}: {error}") from error
    table = table.rename({name: name.strip() for name in table.columns}).with_columns(pl.all().str.strip_chars())
    _no_gaps(path, table, required)
    return _degrees(path, table) if coordinates != "none" and {"latitude", "longitude"} <= set(header) else table


def _no_gaps(path: str, table: pl.DataFrame, columns: tuple[str, ...]) -> None:
    for name in columns:
        missing = (table[name].is_null() | (table[name] == "")).arg_max() if len(table) else None
        if missing is not None and not table[name][missing]:
            raise DataError(f"{path}:{missing + 2}: {name} is empty")


def _degrees(path: str, table: pl.DataFrame) -> pl.DataFrame:
    for name, limit in (("latitude", 90), ("longitude", 180)):
        degrees = table[name].cast(pl.Float64, strict=False)
        wrong = degrees.is_null() | ~degrees.is_between(-limit, limit).fill_null(False)
        if wrong.any():
            line = int(wrong.arg_max() or 0)
            raise DataError(
                f"{path}:{line + 2}: {name} {table[name][line]!r} must be a number from -{limit} to {limit}"
            )
        table = table.with_columns(degrees.alias(name))
    return table
