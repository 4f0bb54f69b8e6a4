"""Infer times, area, cells, windows and bounds for a draft from its events."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl

from penstock.mechanisms.core.concentrated import rho_of
from penstock.pipeline.config.kinds import format_duration
from penstock.pipeline.spaces.base import ELSEWHERE, Space
from penstock.pipeline.spaces.grid import Grid
from penstock.pipeline.spaces.places import Places
from penstock.pipeline.windows.calendar import DAY, instants, wall_time

#: Times this far from the others are taken for mistakes, at each end; positions likewise.
STRAY = 0.005
HOUR, WEEK = 3_600_000, 7 * DAY
#: Metres of a degree of latitude, and of the smallest cell that is drafted.
_DEGREE, _CELL = 111_195.0, 500.0
_MAX_CELLS = 10
#: Metres across which events are of one region; of those that are further apart a square of the second length is kept.
_WIDEST, _REGION = 200_000.0, 50_000.0
#: ε and δ of a day in the draft, and how many times its noise a typical count shall be.
EPSILON_PER_DAY, DELTA, _CLEAR = 2.0, 1e-6, 1.5
#: Longest time that hours are drafted for, least number of windows that are longer, and how many of the finest grids
#: are tried before longer windows.
_HOURLY, _WINDOWS, _FINE = 92 * DAY, 10, 3
#: Events that windows and cells are tried on; of more, those of some of the people.
_TRIED = 500_000
#: Begin and end of a draft that nothing could be read for.
_BEGIN, _END = 1_704_067_200_000, 1_704_672_000_000


@dataclass
class DraftFacts:
    """Attributes of the data that a draft infers from the events."""

    begin: int
    end: int
    window: int
    space: Space
    max_cells: int
    memberships: int  # of one person in a budget period, at most
    epsilon: float
    typical: float
    inside: float  # share of the events that are in the space, and not elsewhere
    is_known: bool = True

    @classmethod
    def unknown(cls, epsilon: float, space: Space) -> DraftFacts:
        """Return placeholders for values that could not be read."""
        return cls(_BEGIN, _END, HOUR, space, 1, 1, epsilon, math.inf, 1.0, is_known=False)

    @classmethod
    def of(cls, events: pl.DataFrame, zone: str, epsilon: float, shortest: int, known: Space | None) -> DraftFacts:
        """Find the finest cells and windows for which a typical count exceeds the noise."""
        first, last = (wall_time(zone, int(time)) // DAY * DAY for time in _inner(events["time"]))
        begin, end = instants(zone, np.array([first, last + DAY])).tolist()
        if known is not None:
            spaces = [known]
        elif "latitude" in events.columns:
            spaces = list(_grids(_area(events)))
        else:
            common = Counter(events.filter(pl.col("place") != ELSEWHERE)["place"].to_list()).most_common(_MAX_CELLS**2)
            spaces = [Places(list_=tuple(sorted(name for name, _ in common)), elsewhere=True)]
        shortest = DAY if end - begin > _HOURLY else shortest
        windows = [size for size in (HOUR, DAY, WEEK) if shortest <= size <= (end - begin) / _WINDOWS] or [shortest]
        n_parts = -(-len(events) // _TRIED)
        tried = events.filter(pl.col("user").hash(0) % n_parts == 0) if n_parts > 1 else events
        tried = tried.filter(pl.col("time").is_between(begin, end, closed="left"))
        drafts: list[DraftFacts] = []
        for window in windows:
            n_windows = (end - begin) / window
            for space in spaces if window == windows[-1] else spaces[:_FINE]:
                cell = pl.Series("cell", space.place(tried), dtype=pl.Int64)
                n_listed = len(space.cells) - (isinstance(space, Places) and space.elsewhere)
                cell = cell.set(cell >= n_listed, -1)
                inside = float((cell >= 0).mean() or 0.0)  # type: ignore[arg-type]
                seen = tried.select("user", window=(pl.col("time") - begin) // window, cell=cell).filter(cell >= 0)
                seen = seen.unique().with_columns(period=pl.col("window") * window // max(window, DAY))
                each = seen.group_by("user", "window").len()["len"]
                in_period = seen.group_by("user", "period").len()["len"]
                max_cells = int(each.quantile(0.95, "higher") or 1)
                maximum = int(in_period.quantile(0.95, "higher") or 1)
                kept = min(int(each.clip(0, max_cells).sum()), int(in_period.clip(0, maximum).sum()))
                typical = n_parts * kept / (n_windows * len(space.cells))
                facts = cls(begin, end, window, space, max_cells, maximum, epsilon, typical, inside)
                if facts.signal_to_noise >= _CLEAR:
                    return facts
                drafts.append(facts)
        return max(drafts, key=lambda facts: facts.signal_to_noise)

    @property
    def signal_to_noise(self) -> float:
        """The signal-to-noise ratio of a typical count."""
        return self.typical / self.noise

    @property
    def noise(self) -> float:
        """The mean absolute value of the Laplace or Gaussian noise, whichever is smaller."""
        gaussian = math.sqrt(self.memberships / (math.pi * rho_of(self.epsilon, DELTA)))
        return min(self.memberships / self.epsilon, gaussian)

    @property
    def period(self) -> str:
        """The budget period, which is a day or, if windows are longer, one window."""
        return format_duration(max(self.window, DAY))


def _inner(values: pl.Series) -> tuple[float, float]:
    """Return the range of the values, excluding outliers."""
    low, high = (values.quantile(share, "nearest") for share in (STRAY, 1 - STRAY))
    assert low is not None
    assert high is not None
    # A few beyond are none: a range that holds all, where all are near.
    minimum, maximum = float(values.min()), float(values.max())  # type: ignore[arg-type]
    room = (high - low) / 2
    return (minimum if minimum >= low - room else low), (maximum if maximum <= high + room else high)


def _area(events: pl.DataFrame) -> dict[str, float]:
    """Return the sides of a box around the events, or around their densest region if the events are too spread out."""
    south, north = _inner(events["latitude"])
    west, east = _inner(events["longitude"])
    degree_width = _DEGREE * math.cos(math.radians((south + north) / 2))
    if max((north - south) * _DEGREE, (east - west) * degree_width) > _WIDEST:
        south, north, west, east = _densest(events)
    south, north = _outward(south, north, 90.0)
    west, east = _outward(west, east, 180.0)
    return {"south": south, "north": north, "west": west, "east": east}


def _densest(events: pl.DataFrame) -> tuple[float, float, float, float]:
    """Return the bounds (south, north, west, east) of the events around the most populous tile of size `_REGION`."""
    step = _REGION / 2 / _DEGREE
    north = (pl.col("latitude") / step).floor()
    # Degrees of longitude get shorter by latitude, here from row to row of tiles.
    degree_width = step / (north * step).radians().cos().clip(0.01)
    east = (pl.col("longitude") / degree_width).floor()
    tile = events.select("user", "latitude", "longitude", row=north, column=east)
    by_tile = tile.unique(("user", "row", "column")).group_by("row", "column").len().sort("len", "row", "column")
    row, column = by_tile.row(-1)[:2]
    middle = tile.filter((pl.col("row") == row) & (pl.col("column") == column))
    latitude, longitude = (float(middle[name].median()) for name in ("latitude", "longitude"))  # type: ignore[arg-type]
    high = _REGION / 2 / _DEGREE
    broad = high / max(0.01, math.cos(math.radians(latitude)))
    near = events.filter(
        pl.col("latitude").is_between(latitude - high, latitude + high)
        & pl.col("longitude").is_between(longitude - broad, longitude + broad)
    )
    return (*_inner(near["latitude"]), *_inner(near["longitude"]))


def _grids(area: dict[str, float]) -> Iterator[Grid]:
    """Yield grids over an area, from at most ten by ten cells down to two by two."""
    degree_width = _DEGREE * math.cos(math.radians((area["south"] + area["north"]) / 2))
    rows = max(1, round((area["north"] - area["south"]) * _DEGREE / _CELL))
    columns = max(1, round((area["east"] - area["west"]) * degree_width / _CELL))
    made = [(min(n, rows), min(n, columns)) for n in (_MAX_CELLS, 7, 5, 3, 2)]
    for n_rows, n_columns in dict.fromkeys(made):
        yield Grid(**area, rows=n_rows, columns=n_columns)


def _outward(low: float, high: float, limit: float) -> tuple[float, float]:
    """Round a range outward to hundredths."""
    return max(-limit, math.floor(low * 100) / 100), min(limit, math.floor(high * 100 + 1) / 100)
