"""Named places: shops, stops and points of interest."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from penstock.mechanisms.core.plugin import DataError, ParameterError, PenstockError, check_one_of, parameter
from penstock.pipeline.sources.base import Source
from penstock.pipeline.spaces.base import ELSEWHERE, Space, spelling
from penstock.pipeline.spaces.tables import read_table


@dataclass(frozen=True, kw_only=True)
class Places(Space):
    """A space with one cell per known place and, optionally, one cell for all other places.

    Parameters
    ----------
    list_
        Names of the places (``list`` in YAML), in the order of the cells.
    file
        File that lists them: one name a line; a CSV file with a column ``place`` and, for maps, ``latitude`` and
        ``longitude``; or the stops of a GTFS feed (``stops.txt``, or the zip of the feed) or the stations of a GBFS
        feed (``station_information.json``), which events name by ``stop_id`` or ``station_id``.
    column
        Heading of the names in a CSV file or feed, such as ``stop_name``.
    top
        The K places with the most events in the data, ties in order of name. Private data decides which these are,
        so a deployment refuses it.
    elsewhere
        Add a last cell named ``elsewhere`` for every other place; without it they are out of the area.

    Notes
    -----
    One hash join a block. `resolve` with ``top`` reads the source once; memory O(places).

    Examples
    --------
    >>> places = Places(list_=("station", "market"), elsewhere=True)
    >>> places.cells
    ('station', 'market', 'elsewhere')
    >>> places.place(pl.DataFrame({"place": ["market", "home"]}))
    array([1, 2])
    """

    reads = ("place",)  # type: ignore[assignment]

    list_: tuple[str, ...] = parameter((), key="list", doc="names of the places")
    file: str | None = parameter(None, kind="path", doc="file that lists the places")
    column: str | None = parameter(None, doc="heading of the names in the file, if it is not place")
    top: int | None = parameter(None, at_least=1, doc="number of places, those with the most events in the data")
    elsewhere: bool = parameter(False, doc="count all other places in a cell of their own")
    busiest: tuple[str, ...] | None = field(default=None, repr=False)
    busiest_at: tuple[tuple[float, float], ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_one_of({"list": self.list_, "file": self.file, "top": self.top})
        if self.column is not None and self.file is None:
            raise ParameterError("column", self.column, "left out if there is no file")
        if self.file is None:
            _check_names(self.list_, self.elsewhere)

    @property
    def derived_from_data(self) -> bool:
        """True if the places are the busiest ones in the data."""
        return self.top is not None

    @cached_property
    def cells(self) -> tuple[str, ...]:
        """The names of all places, followed by ``elsewhere`` if it is enabled."""
        return (*self._names, ELSEWHERE) if self.elsewhere else self._names

    @cached_property
    def _names(self) -> tuple[str, ...]:
        if self.busiest is not None:
            return self.busiest
        if self.top is not None:
            raise PenstockError("places: the busiest places are known only after resolve(source)")
        if self.file is None:
            return self.list_
        names = tuple(self._table["place"])
        try:
            _check_names(names, self.elsewhere)
        except ParameterError as error:
            raise DataError(f"{self.file}: {error}") from error
        return names

    @cached_property
    def _table(self) -> pl.DataFrame:
        return read_table(str(self.file), "place", "optional", self.column)

    def resolve(self, source: Source) -> Places:
        """Find the busiest places by counting the events at each place within the source's time range.

        Where events have positions, a place is in the middle of their extent.
        """
        if self.top is None:
            return self
        seen = pl.DataFrame(schema={"place": pl.String, "n": pl.UInt64})
        position, one = pl.col("^l(ong|at)itude$"), pl.lit(1, pl.UInt64).alias("n")
        end = 2**62 if source.until is None else source.until - 1
        in_time = pl.col("time").is_between(-(2**62) if source.from_ is None else source.from_, end)
        for block in source.all_blocks():
            events = block.frame.filter(in_time).select(
                "place", one, position.name.prefix("least_"), position.name.prefix("most_")
            )
            together = pl.concat([seen, events], how="diagonal").group_by("place")
            seen = together.agg(pl.col("n").sum(), pl.col("^least_.*$").min(), pl.col("^most_.*$").max())
        if self.elsewhere:
            seen = seen.filter(pl.col("place") != ELSEWHERE)
        busiest = seen.sort(["n", "place"], descending=[True, False]).head(self.top)
        busiest_at: list[tuple[float, float]] = []
        if "most_longitude" in busiest.columns:
            sides = ((pl.col(f"least_{name}") + pl.col(f"most_{name}")) / 2 for name in ("longitude", "latitude"))
            busiest_at = busiest.select(sides).rows()
        return replace(self, busiest=tuple(busiest["place"]), busiest_at=tuple(busiest_at))

    def place(self, frame: pl.DataFrame) -> NDArray[np.int64]:
        """Return each row's cell index, shape (n_rows,), or −1 for unknown places unless ``elsewhere`` is enabled."""
        places, unknown = frame.select("place"), len(self._names) if self.elsewhere else -1
        exact = places.join(self._positions, on="place", how="left", maintain_order="left")["position"]
        if not exact.has_nulls():
            return exact.to_numpy()
        others = places.filter(exact.is_null()).unique().with_columns(spelling=_spelling())
        positions = others.join(self._positions.with_columns(spelling=_spelling()), on="spelling").unique("place")
        placed = places.join(positions, on="place", how="left", maintain_order="left")["position"]
        return exact.fill_null(placed).fill_null(unknown).to_numpy()

    @cached_property
    def _positions(self) -> pl.DataFrame:
        names = pl.Series("place", self._names, pl.String)
        return pl.DataFrame({"place": names, "position": np.arange(len(names))})

    def geometry(self) -> list[dict[str, Any]]:
        """Return each place's point, either read from the file or derived from the observed positions."""
        known: dict[str, dict[str, Any]] = {cell: {"cell": cell} for cell in self.cells}
        table = pl.DataFrame() if self.file is None else self._table
        places = table.select("longitude", "latitude").rows() if "latitude" in table.columns else self.busiest_at
        for cell, point in zip(self._names, places):
            known[cell]["point"] = list(point)
        for cell, name in table.select("place", "stop_name").rows() if "stop_name" in table.columns else ():
            known[cell] |= {"name": name} if name else {}
        return list(known.values())


def _spelling() -> pl.Expr:
    """Return a Polars expression that applies `spelling` to the name column."""
    return pl.col("place").str.normalize("NFKC").str.strip_chars()


def _check_names(names: tuple[str, ...], elsewhere: bool) -> None:
    seen: dict[str, str] = {}
    for name in names:
        if not isinstance(name, str) or not name:
            raise ParameterError("list", name, "a name that is not empty")
        if (plain := spelling(name)) in seen:
            raise ParameterError("list", name, f"listed once only (it is {seen[plain]!r})")
        seen[plain] = name
        if elsewhere and name == ELSEWHERE:
            raise ParameterError("list", name, "no place of this name where elsewhere is true")
