"""The privacy gain of every defense, and what it costs: figures 6(b) and 7 to 10."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from penstock.evaluation.attacks.game import MembershipGame
from penstock.evaluation.attacks.targets import MOBILITY_GROUPS
from penstock.evaluation.papers.pyrgelis import (
    COLUMNS,
    RAW,
    ROWS,
    WEEK,
    Binary,
    CabStudy,
    Piece,
    gain_table,
    paper_defenses,
    trade_off_table,
)
from penstock.evaluation.papers.study import Figures, Tables
from penstock.mechanisms.core.plugin import parameter


@dataclass(frozen=True, kw_only=True)
class PrivacyGain(CabStudy):
    """Attack every target raw and behind every defense of the paper, in its game of section 4.1.

    An attack on defended counts takes 2 s (rounded or suppressed ones) to 10 s (blocks) and 1.1 GiB, a quarter of a
    second where only memberships change.
    """

    aside: ClassVar[tuple[str, ...]] = (*CabStudy.aside, "defenses", "utility")

    samples: int = parameter(2400, doc="labelled aggregates of each target", at_least=8)
    group_size: int = parameter(250, doc="people in an aggregate", at_least=1)
    known: float = parameter(0.5, doc="share of the people whom the adversary knows", above=0, below=1)
    defenses: Literal["figure", "tables"] = parameter(
        "figure", doc="figure: the settings of figure 6(b); tables: every setting of the paper's tables"
    )
    utility: str | None = parameter(
        None, kind="path", doc="folder with the tables sfc_*.csv of the experiments, for figures 7 to 10; unset: none"
    )

    def pieces(self, presence: Binary) -> tuple[Piece, ...]:
        """Targets in turns from the mobility groups, each behind every defense before the next."""
        groups = np.array_split(self.chosen(presence[:, :, :WEEK]), len(MOBILITY_GROUPS))
        in_turns = [target for turn in zip_longest(*groups) for target in turn if target is not None]
        shown = [one.name for one in paper_defenses() if one.in_figure or self.defenses == "tables"]
        return tuple(Piece(int(target), name) for target in in_turns for name in (RAW, *shown))

    def measure(self, presence: Binary, piece: Piece) -> Figures:
        """Area under the curve of one target behind one defense, with its interval."""
        week, defense = presence[:, :, :WEEK], None
        if piece.name != RAW:
            one = next(one for one in paper_defenses() if one.name == piece.name)
            week, defense = one.of(week, ROWS, COLUMNS)
        game = MembershipGame(
            week,
            group_size=self.group_size,
            known=self.known,
            challenges="others",
            observation=WEEK,
            inference=WEEK,
            n_samples=self.samples,
            n_components=self.components,
            seed=self.seed,
            axes="cells_windows",
        )
        result = game.attack(piece.target, defense=defense)
        return {"area": np.array([result.auc, result.low, result.high])}

    def tables(self, presence: Binary, found: Mapping[Piece, Figures]) -> Tables:
        """The gain of each defense, and its loss of utility if tables of that are given."""
        areas: dict[str, dict[int, float]] = {}
        for piece, figures in found.items():
            areas.setdefault(piece.name, {})[piece.target] = float(figures["area"][0])
        gains = gain_table(areas)
        tables = {"membership_gain": gains}
        if self.utility is not None:
            tables["membership_trade_off"] = trade_off_table(gains, Path(self.utility))
        return tables
