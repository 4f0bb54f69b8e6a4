"""Adaptive ranges: bin the counts of each cell into equal-width bins over that cell's range and release bin
midpoints.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.core.blocks import CountsOfBlock
from penstock.mechanisms.core.plugin import parameter


@dataclass(frozen=True, kw_only=True)
class AdaptiveRanges(CountsOfBlock):
    """Divide each cell's range of counts into equal-width bins and release each count as its bin's midpoint.

    Parameters
    ----------
    parts
        Equal parts of each cell's span.
    block
        Windows over which the span is taken and that are released together.
    minimum
        ``middle``: the least count of a cell is shown as the middle of its part, like all others. ``shown``: as it is,
        the reading of the paper under which its correlations come out.

    **Privacy.** None: no guarantee, since the span and the parts are those of true counts.

    Notes
    -----
    Time O(n_cells) a window, state O(block · n_cells). A cell that never changes is shown as it is. Pyrgelis,
    Troncoso, De Cristofaro 2020, data generalization with adaptive ranges.

    Examples
    --------
    >>> from penstock.mechanisms.core.run import run_mechanism
    >>> counts = np.array([[0], [10], [4]])
    >>> [r.values.item() for r in run_mechanism(AdaptiveRanges(parts=2, block=3), counts)]
    [2.5, 7.5, 2.5]
    >>> [r.values.item() for r in run_mechanism(AdaptiveRanges(parts=2, block=3, minimum="shown"), counts)]
    [0.0, 7.5, 2.5]
    """

    parts: int = parameter(doc="equal parts of each cell's span", at_least=1)
    minimum: str = parameter("middle", doc="value shown for a cell's least count", choices=("middle", "shown"))

    def generalize(self, counts: NDArray[Any]) -> NDArray[Any]:
        """Replace each count with its bin's midpoint."""
        low, high = counts.min(axis=-2, keepdims=True), counts.max(axis=-2, keepdims=True)
        width = (high - low) / self.parts
        part = np.clip(np.floor((counts - low) / np.where(width == 0, 1.0, width)), 0, self.parts - 1)
        is_exact = (width == 0) | ((counts == low) & (self.minimum == "shown"))
        return np.asarray(np.where(is_exact, counts, low + (part + 0.5) * width), np.float64)
