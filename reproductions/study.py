"""Studies, which compute a paper's figures in independent pieces."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from penstock.mechanisms.core.plugin import Checked, Registry, parameter

Figures = dict[str, NDArray[np.float64]]
Tables = dict[str, pl.DataFrame]


@dataclass(frozen=True, kw_only=True)
class Study(Checked, ABC):
    """Base class for studies, which compute independent pieces and combine the results into tables.

    A piece is a named tuple of plain values. Pieces are independent of each other, of their order and of how many there
    are, so that they can be made in parallel, and kept when more are asked for.
    """

    #: Parameters that do not affect the figures of a piece.
    not_decisive: ClassVar[tuple[str, ...]] = ()

    seed: int = parameter(1, doc="decides all that is drawn at random", at_least=0)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The files and folders that the study reads."""
        return ()

    def data(self) -> Any:
        """Return the data that all pieces share, or None if the study has no inputs."""
        return None

    @property
    def decides(self) -> dict[str, Any]:
        """The parameters that affect the results of a piece."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name not in self.not_decisive}

    @abstractmethod
    def pieces(self, data: Any) -> tuple[Any, ...]:
        """Return all pieces, starting with the most valuable ones."""

    @abstractmethod
    def measure(self, data: Any, piece: Any) -> Figures:
        """Compute the results of one piece."""

    @abstractmethod
    def tables(self, data: Any, figures: Mapping[Any, Figures]) -> Tables:
        """Return the study's tables by name, computed from all pieces. No table may describe a single person."""


STUDIES: Registry[Study] = Registry("reproductions.studies", "study", Study)
