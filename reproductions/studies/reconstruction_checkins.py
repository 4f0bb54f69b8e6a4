"""Reconstruction bounds and attacks on check-ins: figures 3, 4, 6 and 8 of Koga, Meehan and Chaudhuri."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import polars as pl
import polars.selectors as cs

from penstock.mechanisms.core.plugin import parameter
from reproductions.koga import (
    BINS,
    N_GUESSED,
    SIGMAS,
    IntArray,
    Swept,
    binned_bounds,
    gaps_to_best_attack,
    learned,
    people_figures,
    read_checkins,
    sweep_table,
    synthetic_checkins,
    trajectories,
)
from reproductions.study import Figures, Study, Tables

RANGE = ("from", "to", "n", "q25", "median", "q75", "rank_correlation")


class SmoothingPiece(NamedTuple):
    """A point in a sweep, or all people grouped into ranges, for one kind of smoothing."""

    smoothing: float
    towards: str
    #: Of people by range, what is swept is what they are held against.
    place: Swept


@dataclass(frozen=True, kw_only=True)
class ReconstructionCheckins(Study):
    """Learn each person's movement from all but the last five 20-day windows, and retrace people in those five."""

    not_decisive: ClassVar[tuple[str, ...]] = ("path", "uniform", "own", "sigmas")

    path: str | None = parameter(None, kind="path", doc="folder of the data set; unset: made-up people")
    data_set: str = parameter("gowalla", doc="whose check-ins they are", choices=("gowalla", "foursquare"))
    people: int = parameter(30, doc="how many made-up people there are, where path is unset", at_least=3)
    min_windows: int = parameter(10, doc="windows in which a person must be seen", at_least=1)
    uniform: tuple[float, ...] = parameter(
        (0.0, 0.01, 0.1, 1.0), doc="weights of moves to all places alike in each row of a prior; the paper states none"
    )
    own: tuple[float, ...] = parameter((0.1,), doc="weights of moves to where the person has been")
    sigmas: tuple[float, ...] = parameter(SIGMAS, doc="swept standard deviations of Gaussian noise, beside raw counts")
    draws: int = parameter(3, doc="schedules of one sensor a window, averaged over", at_least=1)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The folder that contains the data set."""
        return (self.path,) if self.path else ()

    def data(self) -> IntArray:
        """Return each person's place in every window, shape (n_people, n_windows)."""
        visits = read_checkins(self.data_set, self.path) if self.path else synthetic_checkins(self.people, self.seed)
        return trajectories(visits, self.min_windows)

    def pieces(self, data: IntArray) -> tuple[SmoothingPiece, ...]:
        """Return, for each kind of smoothing, the ranges of figures 3 and 4 and the sweeps of figures 6 and 8."""
        sweeps = [
            *(Swept(against, 0.0, 0, N_GUESSED, 1, 0.0) for against in BINS),
            *(Swept("right windows", N_GUESSED - wrong, 0, N_GUESSED, wrong, 0.0) for wrong in range(N_GUESSED)),
            *(Swept("sigma", sigma, 0, N_GUESSED, 1, sigma) for sigma in (0.0, *self.sigmas)),
        ]
        smoothings = [*((weight, "uniform") for weight in self.uniform), *((weight, "own") for weight in self.own)]
        return tuple(SmoothingPiece(*smoothing, place) for smoothing in smoothings for place in sweeps)

    def measure(self, data: IntArray, piece: SmoothingPiece) -> Figures:
        """Compute bounds for each range of people, or the mean bounds and attacks at one point of a sweep."""
        priors = learned(data, piece.smoothing, piece.towards)
        if piece.place.sweep in BINS:
            return binned_bounds(data, priors, piece.place.sweep, self.draws, self.seed)
        return people_figures(data, priors, piece.place, self.draws, self.seed)

    def tables(self, data: IntArray, measured: Mapping[SmoothingPiece, Figures]) -> Tables:
        """Return the sweeps, the margin of each bound over the best attack, and the ranges, all with figure numbers."""
        keyed = [
            ({"people": len(data), "smoothing": piece.smoothing, "towards": piece.towards}, piece.place, figures)
            for piece, figures in measured.items()
        ]
        table = sweep_table(one for one in keyed if one[1].sweep not in BINS)
        ranges = [
            {**key, "against": place.sweep, "bound": bound, **dict(zip(RANGE, row.tolist()))}
            for key, place, figures in keyed
            if place.sweep in BINS
            for bound, rows in figures.items()
            for row in rows
        ]
        bins = pl.DataFrame(ranges).with_columns(cs.float().fill_nan(None)).cast({"n": pl.Int64})
        name, number = f"reconstruction_{self.data_set}", {"right windows": 6, "sigma": 8}
        figure = pl.col("sweep").replace_strict(number, return_dtype=pl.Int64).alias("figure")
        of_ranges = pl.col("against").replace_strict(dict(zip(BINS, (3, 4))), return_dtype=pl.Int64).alias("figure")
        return {
            name: table.select(figure, pl.all()).sort("figure", maintain_order=True),
            f"{name}_ratio": gaps_to_best_attack(table).select(figure, pl.all()).sort("figure", maintain_order=True),
            f"{name}_bins": bins.select(of_ranges, pl.all()).sort("figure", maintain_order=True),
        }
