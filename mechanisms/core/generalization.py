"""Generalization: people are counted again in coarser cells or windows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mechanisms.core.mechanism import Mechanism
from mechanisms.core.parameters import parameter
from mechanisms.core.window import Window

SPREADS = ("copy", "even")


@dataclass(frozen=True, kw_only=True)
class Generalization(Mechanism):
    """Base of the two steps that coarsen memberships before they are counted; none is dropped."""

    spread: str = parameter(
        "copy", doc="what each fine cell or window shows: the coarse count, or an even share of it", choices=SPREADS
    )
    stages: ClassVar[tuple[str, ...]] = ("events",)
    ideal: ClassVar[str] = "exact coarse counts"

    def keep(
        self, users: NDArray[Any], cells: NDArray[np.int64], window: Window, hashes: NDArray[np.uint64]
    ) -> NDArray[np.bool_]:
        """Every membership stays; equal coarse ones become one."""
        return np.ones(len(cells), bool)
