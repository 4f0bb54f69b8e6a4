"""What the pipeline and the command line know of a utility metric."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from evaluation.metrics.arrays import Array, Indices, checked_pair


@dataclass(frozen=True)
class Metric:
    """One utility metric as the pipeline and the command line know it.

    Parameters
    ----------
    name
        Its name in a configuration.
    function
        (truth, released) → the mean, a float.
    values
        Checked (truth, released) → one value for each cell or window; use `scores`, which checks.
    scope
        ``cell`` or ``window``: what one value is about.
    unit
        Unit of the values; "" for a pure number.
    higher_is_better
        Whether a larger value means a more useful release.
    covered
        Truth → indices of the cells or windows that count; None if all do.
    """

    name: str
    function: Callable[[ArrayLike, ArrayLike], float]
    values: Callable[[Array, Array], Array]
    scope: Literal["cell", "window"]
    unit: str
    higher_is_better: bool
    covered: Callable[[Array], Indices] | None = None

    @property
    def help(self) -> str:
        """First line of the function's documentation."""
        return (self.function.__doc__ or "").strip().splitlines()[0]

    def scores(self, truth: ArrayLike, released: ArrayLike) -> tuple[Indices, Array]:
        """Values behind the mean: 0-based indices of the cells or windows covered, and the value of each.

        ``function(truth, released)`` is the mean of these values.
        """
        pair = checked_pair(truth, released)
        values = self.values(*pair)
        where = np.arange(len(values)) if self.covered is None else self.covered(pair[0])
        return where, values[where]
