"""Exposure to an adversary who knows past participation, and its most important features: figure 5(b), table 3."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.mechanisms.core.plugin import parameter
from reproductions.pyrgelis import (
    PAST_PRIORS,
    WEEK,
    Binary,
    CabStudy,
    TargetPiece,
    comparison_table,
    exposure_of,
    extremes,
    importance_table,
    loadings_table,
    past_game,
    places_table,
    study,
)
from reproductions.study import Figures, Tables


@dataclass(frozen=True, kw_only=True)
class PastExposure(CabStudy):
    """Attack raw counts of a third week in the games of section 3.3, after two weeks of training on known groups."""

    targets: int = parameter(150, doc="people attacked, a third of each mobility group", at_least=3)
    group_size: int = parameter(500, doc="people in an aggregate", at_least=1)
    groups: int = parameter(800, doc="groups whose past is known", at_least=2)

    def pieces(self, presence: Binary) -> tuple[TargetPiece, ...]:
        """Return one piece per target, because both priors share the same training."""
        return tuple(TargetPiece(int(target), "past") for target in self.chosen(presence))

    def measure(self, presence: Binary, piece: TargetPiece) -> Figures:
        """Return the attacks' areas under the curve and margins for one target, and the loadings of the components."""
        sizes = {"group_size": self.group_size, "groups": self.groups, "n_components": self.components}
        games = {prior: past_game(presence, prior, **sizes, seed=self.seed) for prior in PAST_PRIORS}
        return study(games, piece.target)

    def tables(self, presence: Binary, figures: Mapping[TargetPiece, Figures]) -> Tables:
        """Return the areas, the loadings by place and hour, and the feature importance under the prior
        ``different_groups``.
        """
        exposure, prior = exposure_of(figures, PAST_PRIORS), "different_groups"
        most, least = extremes(exposure.targets, exposure.areas[prior], exposure.margins[prior])
        last = presence[:, -WEEK:]
        return {
            "membership_past_comparison": comparison_table(exposure.areas),
            "membership_past_loadings": loadings_table(exposure.loadings, last, {"all": exposure.targets}),
            "membership_past_places": places_table(exposure.loadings),
            "membership_past_importance": importance_table(presence, most, least, "logistic_regression"),
        }
