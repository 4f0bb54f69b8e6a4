"""A study: figures made of many attacks, one target after the other, each kept as soon as it is there."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from evaluation.attacks.targets import draw_targets
from evaluation.cabs import cab_presence, made_up_presence
from mechanisms.core.errors import ParameterError
from mechanisms.core.parameters import Checked, parameter
from mechanisms.core.registry import Registry

Binary = NDArray[np.bool_]
Targets = NDArray[np.intp]
Figures = dict[str, NDArray[np.float64]]
Tables = dict[str, pl.DataFrame]


class Piece(NamedTuple):
    """What a study does at a time: the attacks on one target that have a name in common."""

    target: int
    name: str


@dataclass(frozen=True, kw_only=True)
class Study(Checked, ABC):
    """Attacks on cabs, and the tables that they make.

    Pieces are independent of each other, of their order and of how many targets there are, so that they can be made in
    parallel, and kept when more are asked for: of those who are drawn then, too (`draw_targets`).
    """

    #: Parameters without a part in the figures of a piece.
    aside: ClassVar[tuple[str, ...]] = ("path", "targets")

    path: str | None = parameter(
        None, kind="path", doc="folder of the San Francisco cabs (CRAWDAD epfl/mobility); unset: made-up people"
    )
    people: int = parameter(120, doc="how many made-up people there are, where path is unset", at_least=3)
    targets: int = parameter(30, doc="people attacked, a third of each mobility group", at_least=3)
    components: int = parameter(600, doc="principal components at most", at_least=1)
    seed: int = parameter(1, doc="decides targets, groups and noise", at_least=0)

    def presence(self) -> Binary:
        """Who was where: (n_people, 100, 504), three weeks of hours on a grid of 10 × 10."""
        return made_up_presence(self.people, self.seed) if self.path is None else cab_presence(Path(self.path))

    def chosen(self, presence: Binary) -> Targets:
        """Whom to attack: as many as asked for, shared out as `draw_targets` says, the barely mobile ones first."""
        n_seen = np.count_nonzero(presence.any(axis=(1, 2)))
        if n_seen < self.targets:
            raise ParameterError("study.targets", self.targets, f"at most {n_seen}, as so many people are seen")
        return draw_targets(presence, self.targets, self.seed)

    @property
    def decides(self) -> dict[str, Any]:
        """Every parameter that the figures of a piece depend on."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name not in self.aside}

    @abstractmethod
    def pieces(self, presence: Binary) -> tuple[Piece, ...]:
        """What there is to do, in an order whose beginning is worth most."""

    @abstractmethod
    def measure(self, presence: Binary, piece: Piece) -> Figures:
        """Make the attacks of one piece."""

    @abstractmethod
    def tables(self, presence: Binary, found: Mapping[Piece, Figures]) -> Tables:
        """Tables by name of all pieces, about no single person."""


STUDIES: Registry[Study] = Registry("evaluation.studies", "study")
