"""Suppress small counts: release counts below a crowd size as 0."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.core.contract import Postprocess
from penstock.mechanisms.core.guarantee import CROWD_THEOREM, Guarantee
from penstock.mechanisms.core.plugin import parameter


@dataclass(frozen=True, kw_only=True)
class SuppressSmall(Postprocess):
    """Set counts below a threshold to 0 and release all other counts exactly.

    Parameters
    ----------
    threshold
        k: the smallest count that is shown.

    **Privacy.** None: no differential privacy, whatever k, since counts from k on are exact. It is (k, 0)-crowd-
    blending for a user who is in one count only (Gehrke, Hay, Lui, Pass 2012): a counted person shares the count with
    k − 1 others or is not shown. A user in several counts may share the combination with no one. After a private
    release it is post-processing and costs nothing.

    Notes
    -----
    Time O(n_cells) a window, no state.

    Examples
    --------
    >>> from penstock.mechanisms.core.run import run_mechanism
    >>> run_mechanism(SuppressSmall(threshold=5), np.array([[4, 5, 0]]))[0].values
    array([0., 5., 0.])
    """

    threshold: int = parameter(doc="smallest count that is shown", at_least=1)

    @property
    def guarantee(self) -> Guarantee:
        """The crowd-blending guarantee, under which counts below the threshold are suppressed."""
        return Guarantee(crowd=(self.threshold, 0.0), theorem=CROWD_THEOREM)

    def transform(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Set counts below the threshold to 0."""
        return np.where(values < self.threshold, 0.0, values)
