"""Landmark sets of different sizes and shapes: figures 4 and 5 of Katsomallos, Tzompanaki and Kotzinos (2022)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import polars as pl

from penstock.mechanisms.core.plugin import parameter
from reproductions.katsomallos import CORRELATIONS, PERCENTAGES, landmark_table, row_keys
from reproductions.study import Figures, Study, Tables


class TablePart(NamedTuple):
    """A part of the results: either the distances, or the losses under one correlation."""

    name: str


@dataclass(frozen=True, kw_only=True)
class LandmarkSets(Study):
    """Measure distance and temporal loss for landmark sets of five shapes, over 100 windows and two states."""

    sets: int = parameter(100, doc="landmark sets of each share and shape", at_least=1)
    percentages: tuple[int, ...] = parameter(PERCENTAGES, doc="shares of landmarks, in percent")

    def pieces(self, data: None) -> tuple[TablePart, ...]:
        """Return one piece for the distances, which are fast to compute, followed by one piece per correlation."""
        return tuple(map(TablePart, ("distance", *CORRELATIONS)))

    def measure(self, data: None, piece: TablePart) -> Figures:
        """Compute the mean and standard deviation over landmark sets, in the order of the table's rows."""
        table = landmark_table(piece.name, self.sets, self.percentages, self.seed)
        return {name: table[name].to_numpy() for name in ("mean", "standard_deviation")}

    def tables(self, data: None, figures: Mapping[TablePart, Figures]) -> Tables:
        """Return ``landmark_distance`` by shape and percentage, ``landmark_loss`` by correlation and method too."""
        distance, *losses = (
            pl.DataFrame(row_keys(part.name, self.percentages)).with_columns(
                **{name: pl.Series(column) for name, column in made.items()}
            )
            for part, made in figures.items()
        )
        return {"landmark_distance": distance, "landmark_loss": pl.concat(losses)}
