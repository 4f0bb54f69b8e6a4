"""San Francisco cabs as the papers on aggregates prepare them: who was in which cell of a grid in which hour."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from mechanisms.core.errors import DataError


class Box(NamedTuple):
    """An area, by its edges in degrees."""

    south: float
    north: float
    west: float
    east: float


CITY = Box(37.74, 37.82, -122.47, -122.37)
ROWS = COLUMNS = 10
#: Monday, 19 May 2008, 00:00 UTC.
BEGIN = 1_211_155_200
HOURS = 504


def cab_presence(folder: Path, box: Box = CITY) -> NDArray[np.bool_]:
    """Presence of every cab seen in the box within the three weeks, shape (n_cabs, 100, 504).

    Parameters
    ----------
    folder
        The unpacked CRAWDAD data set epfl/mobility: one file ``new_*.txt`` a cab, rows of latitude, longitude,
        occupied and seconds.
    box
        The area that the cells divide.

    Raises
    ------
    DataError
        There is no such file.

    Notes
    -----
    Cells are numbered from the south-west corner, row by row; a cab in several cells of an hour is in all of them. The
    box and the dates are this project's reading of Pyrgelis, Troncoso, De Cristofaro, POMACS 2020, section 2.1: they
    give its 534 cabs, 78 ± 6 cells and 340 ± 94 active hours. About 27 MB and a few seconds.
    """
    paths = sorted(folder.glob("new_*.txt"))
    if not paths:
        raise DataError(f"{folder}: no file new_*.txt of the data set epfl/mobility")
    cabs = []
    for rows in pl.collect_all([_cells(path, box) for path in paths]):
        cell, window = rows.to_numpy().T
        presence = np.zeros((ROWS * COLUMNS, HOURS), dtype=bool)
        presence[cell, window] = True
        cabs.append(presence)
    everybody = np.array(cabs)
    return everybody[everybody.any(axis=(1, 2))]


def made_up_presence(n_people: int, seed: int) -> NDArray[np.bool_]:
    """Presence of people who are nobody, in that shape: some busier than others, in cells some busier than others.

    >>> made_up_presence(3, seed=1).shape
    (3, 100, 504)
    """
    rng = np.random.default_rng(seed)
    busy = rng.gamma(1.0, 0.1, (n_people, 1, 1)) * rng.gamma(0.5, 1.0, (1, ROWS * COLUMNS, 1))
    return rng.random((n_people, ROWS * COLUMNS, HOURS)) < np.clip(busy, 0.001, 0.9)


def _cells(path: Path, box: Box) -> pl.LazyFrame:
    """Distinct (cell, hour) of one cab."""
    scan = pl.scan_csv(path, separator=" ", has_header=False, new_columns=["latitude", "longitude", "occupied", "time"])
    row = ((pl.col("latitude") - box.south) / (box.north - box.south) * ROWS).floor().cast(pl.Int64)
    column = ((pl.col("longitude") - box.west) / (box.east - box.west) * COLUMNS).floor().cast(pl.Int64)
    placed = scan.select(row=row, column=column, window=(pl.col("time") - BEGIN) // 3600)
    inside = pl.col("row").is_between(0, ROWS - 1) & pl.col("column").is_between(0, COLUMNS - 1)
    within = pl.col("window").is_between(0, HOURS - 1)
    return placed.filter(inside & within).select(pl.col("row") * COLUMNS + pl.col("column"), "window").unique()
