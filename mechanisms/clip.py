"""Clip values to bounds and optionally round them to whole numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.core.contract import Postprocess
from penstock.mechanisms.core.plugin import ParameterError, parameter

#: Largest size of a bound: far above any count.
_MOST = 10**12


@dataclass(frozen=True, kw_only=True)
class Clip(Postprocess):
    """Clip values to bounds and optionally round them.

    Parameters
    ----------
    least, most
        Bounds of what is shown; None: no such bound. By default nothing is negative.
    whole
        Round to whole numbers between the bounds, halves to even ones.

    **Privacy.** No guarantee of its own: it reads releases only, so that the step before it keeps its unit, neighbours
    and budget (post-processing).

    Notes
    -----
    Time O(n_cells) a window, no state. Last in a chain: `filter` and `kalman` weigh noise that is not cut off. Cells
    with few people are nearer to the truth, but no longer right on average, and neither are sums over many of them.

    Examples
    --------
    >>> from penstock.mechanisms.core.run import run_mechanism
    >>> run_mechanism(Clip(most=7), np.array([[-3, 4, 9]]))[0].values
    array([0., 4., 7.])
    >>> Clip(whole=True).transform(np.array([-0.6, 1.5, 2.5])).tolist()
    [0.0, 2.0, 2.0]
    """

    least: float | None = parameter(0.0, doc="least value that is shown; null: no such bound")
    most: float | None = parameter(None, doc="largest value that is shown")
    whole: bool = parameter(False, doc="round to whole numbers")
    is_last: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("least", "most"):
            if abs(getattr(self, name) or 0.0) > _MOST:
                raise ParameterError(name, getattr(self, name), f"null, or at most {_MOST:,} in size")
        low, high = self._bounds()
        if low > high:
            raise ParameterError("most", self.most, f"at least {low:g}")

    def transform(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Clip values to the bounds."""
        return np.clip(np.rint(values) if self.whole else values, *self._bounds()) + 0.0  # no -0

    def _bounds(self) -> tuple[float, float]:
        low, high = -np.inf if self.least is None else self.least, np.inf if self.most is None else self.most
        return (float(np.ceil(low)), float(np.floor(high))) if self.whole else (low, high)
