"""Fixed ranges: release each count as the midpoint of a fixed-width bin."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.core.contract import Postprocess
from penstock.mechanisms.core.plugin import parameter


@dataclass(frozen=True, kw_only=True)
class FixedRanges(Postprocess):
    """Release each count as its bin's midpoint. The bins are 0 to width − 1, width to 2·width − 1, and so on.

    Parameters
    ----------
    width
        Counts in a range. The middle is a whole number; of an even width the larger one of the two.

    **Privacy.** None: no guarantee, since one person more can move a count into the next range. After a private release
    it is post-processing and costs nothing.

    Notes
    -----
    Time O(n_cells) a window, no state. Pyrgelis, Troncoso, De Cristofaro 2020, data generalization with fixed ranges;
    the rounding of the middle is the one that reproduces their tables (an empty cell is off by ⌊width/2⌋).

    Examples
    --------
    >>> from penstock.mechanisms.core.run import run_mechanism
    >>> run_mechanism(FixedRanges(width=10), np.array([[0, 9, 124]]))[0].values
    array([  5.,   5., 125.])
    """

    width: int = parameter(doc="counts in a range", at_least=1)

    def transform(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return each value's bin midpoint."""
        return np.floor(values / self.width) * self.width + self.width // 2
