"""Exposure to an adversary who knows locations, and its most important features: figures 3 and 4(b), table 2."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.mechanisms.core.plugin import parameter
from reproductions.pyrgelis import (
    WEEK,
    Binary,
    CabStudy,
    TargetPiece,
    activity_table,
    comparison_table,
    exposure_of,
    extremes,
    importance_table,
    loadings_table,
    places_table,
    study,
    subset_game,
)
from reproductions.study import Figures, Tables

NAME = "subset"


@dataclass(frozen=True, kw_only=True)
class Exposure(CabStudy):
    """Attack raw counts in the game of section 3.2, and explain the exposure by cells, hours and habits."""

    targets: int = parameter(150, doc="people attacked, a third of each mobility group", at_least=3)
    samples: int = parameter(2000, doc="labelled aggregates of each target", at_least=8)
    group_size: int = parameter(100, doc="people in an aggregate", at_least=1)
    known: float = parameter(0.2, doc="share of the people whose locations are known", above=0, below=1)

    def pieces(self, presence: Binary) -> tuple[TargetPiece, ...]:
        """Return one piece per target."""
        return tuple(TargetPiece(int(target), NAME) for target in self.chosen(presence[:, :WEEK]))

    def measure(self, presence: Binary, piece: TargetPiece) -> Figures:
        """Return the attack's area under the curve and margin for one target, and the loadings of the components."""
        sizes = {"group_size": self.group_size, "known": self.known, "n_samples": self.samples}
        game = subset_game(presence, **sizes, n_components=self.components, seed=self.seed)
        return study({NAME: game}, piece.target)

    def tables(self, presence: Binary, figures: Mapping[TargetPiece, Figures]) -> Tables:
        """Return the exposure, and how the most and least exposed tenths differ by place, hour and feature."""
        week, exposure = presence[:, :WEEK], exposure_of(figures, (NAME,))
        targets = exposure.targets
        most, least = extremes(targets, exposure.areas[NAME], exposure.margins[NAME])
        return {
            "membership_exposed": comparison_table(exposure.areas),
            "membership_loadings": loadings_table(
                exposure.loadings, week, {"all": targets, "most": most, "least": least}
            ),
            "membership_places": places_table(exposure.loadings),
            "membership_activity": activity_table(week, most, least),
            "membership_importance": importance_table(week, most, least, "random_forest"),
        }
