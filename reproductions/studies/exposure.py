"""Exposure to an adversary, and the features that matter most: figures 3 to 5(b), tables 2 and 3."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from penstock.accountants.online_attack import area_under_curve
from penstock.mechanisms.core.plugin import parameter
from reproductions.exposure import (
    activity_table,
    comparison_table,
    component_loadings,
    extremes,
    importance_table,
    loadings_table,
    margin,
    places_table,
)
from reproductions.pyrgelis import PAST_PRIORS, WEEK, Binary, CabStudy, TargetPiece, past_game, subset_game
from reproductions.study import Figures, Tables


@dataclass(frozen=True, kw_only=True)
class Exposure(CabStudy):
    """Attack raw counts, and explain exposure by cells, hours and habits.

    The adversary knows locations (the game of section 3.2), or past participation (section 3.3): then the two priors
    share their training on two weeks, and the third is attacked.
    """

    knows: str = parameter("locations", doc="what the adversary knows", choices=("locations", "past"))
    targets: int = parameter(150, doc="people attacked, a third of each mobility group", at_least=3)
    group_size: int = parameter(100, doc="people in an aggregate", at_least=1)
    samples: int = parameter(2000, doc="labelled aggregates of each target, where locations are known", at_least=8)
    known: float = parameter(0.2, doc="share of the people whose locations are known", above=0, below=1)
    groups: int = parameter(800, doc="groups whose past is known", at_least=2)

    def pieces(self, presence: Binary) -> tuple[TargetPiece, ...]:
        """Return one piece per target."""
        seen = presence if self.knows == "past" else presence[:, :WEEK]
        return tuple(TargetPiece(int(target), self.knows) for target in self.chosen(seen))

    def measure(self, presence: Binary, piece: TargetPiece) -> Figures:
        """Compute area and margin of one target in each game, and the loadings in the first game."""
        sizes = {"group_size": self.group_size, "n_components": self.components, "seed": self.seed}
        if self.knows == "past":
            games = [past_game(presence, prior, groups=self.groups, **sizes) for prior in PAST_PRIORS]
        else:
            games = [subset_game(presence, known=self.known, n_samples=self.samples, **sizes)]
        played = [game.scores(piece.target) for game in games]
        return {
            "areas": np.array([area_under_curve(labels, scores) for labels, scores in played]),
            "margins": np.array([margin(labels, scores) for labels, scores in played]),
            "loadings": component_loadings(games[0], piece.target),
        }

    def tables(self, presence: Binary, figures: Mapping[TargetPiece, Figures]) -> Tables:
        """Return the areas, and how the most and least exposed tenths differ by place, hour and feature."""
        targets = np.array([piece.target for piece in figures])
        areas, margins = (np.array([one[key] for one in figures.values()]).T for key in ("areas", "margins"))
        loadings = {piece.target: one["loadings"] for piece, one in figures.items()}
        most, least = extremes(targets, areas[-1], margins[-1])
        if self.knows == "past":
            last = presence[:, -WEEK:]
            return {
                "membership_past_comparison": comparison_table(dict(zip(PAST_PRIORS, areas))),
                "membership_past_loadings": loadings_table(loadings, last, {"all": targets}),
                "membership_past_places": places_table(loadings),
                "membership_past_importance": importance_table(presence, most, least, "logistic_regression"),
            }
        week = presence[:, :WEEK]
        return {
            "membership_exposed": comparison_table({"subset": areas[0]}),
            "membership_loadings": loadings_table(loadings, week, {"all": targets, "most": most, "least": least}),
            "membership_places": places_table(loadings),
            "membership_activity": activity_table(week, most, least),
            "membership_importance": importance_table(week, most, least, "random_forest"),
        }
