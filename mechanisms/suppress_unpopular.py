"""Suppress a block's less popular cells and windows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.core.blocks import CountsOfBlock
from penstock.mechanisms.core.plugin import parameter


@dataclass(frozen=True, kw_only=True)
class SuppressUnpopular(CountsOfBlock):
    """Set each block's least popular cells and least popular windows to 0.

    Parameters
    ----------
    fraction
        Share of the cells, and of the windows, that are suppressed (rounded down to whole ones).
    block
        Windows in which popularity is measured, and that are released together.
    where
        ``either``: unpopular cells show 0 in all windows, and all cells in unpopular windows. ``both``: only unpopular
        cells in unpopular windows show 0, as the paper's figures have it.

    **Privacy.** None: no guarantee. The other counts are exact, and which cells are suppressed depends on everybody.

    Notes
    -----
    Popularity is the sum of counts over the block; of equal ones, those that come first are suppressed first. Time
    O(n_cells log n_cells) a window, state O(block · n_cells). Pyrgelis, Troncoso, De Cristofaro 2020.

    Examples
    --------
    >>> from penstock.mechanisms.core.run import run_mechanism
    >>> counts = np.array([[1, 8], [1, 9]])
    >>> [r.values.tolist() for r in run_mechanism(SuppressUnpopular(fraction=0.5, block=2), counts)]
    [[0.0, 0.0], [0.0, 9.0]]
    >>> both = SuppressUnpopular(fraction=0.5, block=2, where="both")
    >>> [r.values.tolist() for r in run_mechanism(both, counts)]
    [[0.0, 8.0], [1.0, 9.0]]
    """

    fraction: float = parameter(doc="share of the least popular cells and windows", at_least=0, at_most=1)
    where: str = parameter(
        "either",
        doc="counts set to 0: those of unpopular cells and windows, or of both at once",
        choices=("either", "both"),
    )

    def generalize(self, counts: NDArray[Any]) -> NDArray[Any]:
        """Keep the counts of popular cells in popular windows. If ``both`` is set, either condition is sufficient."""
        windows, cells = self._popular(counts.sum(axis=-1)), self._popular(counts.sum(axis=-2))
        combined = np.logical_or if self.where == "both" else np.logical_and
        return np.where(combined(windows[..., :, None], cells[..., None, :]), counts, 0)

    def _popular(self, totals: NDArray[Any]) -> NDArray[np.bool_]:
        n_suppressed = math.floor(self.fraction * totals.shape[-1] + 1e-9)
        rank = np.argsort(np.argsort(totals, axis=-1, kind="stable"), axis=-1, kind="stable")
        return np.asarray(rank >= n_suppressed)
