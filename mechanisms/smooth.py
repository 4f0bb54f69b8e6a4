"""The median, or the mean, of the releases of windows that are alike."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.core.contract import Facts, Guarantee, Release, Transformation
from penstock.mechanisms.core.plugin import ParameterError, parameter
from penstock.mechanisms.core.state import State

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Smooth(Transformation):
    """Release the median of each cell's last releases, of as many windows as the step before it says are alike.

    Parameters
    ----------
    by
        ``median`` or ``mean``.
    longest
        Most releases that are kept; where more windows are alike, the last ones count.

    **Privacy.** No guarantee of its own: it reads earlier releases only, so that the step before it keeps its unit,
    neighbours and budget (post-processing). Alone, without a release before it, it shows exact counts.

    Notes
    -----
    Time and state O(longest · n_cells) a window. After `pegasus` it is the smoother of PeGaSus (Chen, Machanavajjhala,
    Hay, Miklau 2017, section 4.3), of which the paper found the median best; after anything else it is refused, since
    nothing says which windows are alike.

    Examples
    --------
    >>> state = Smooth().start(Facts(n_cells=1))
    >>> for window, value, alike in ((1, 10.0, 1), (2, 16.0, 2), (3, 11.0, 3)):
    ...     release = Release(window=window, values=np.array([value]), alike=np.array([alike]))
    ...     release, state = Smooth().process(release, state)
    >>> release.values.tolist()
    [11.0]
    """

    by: str = parameter("median", doc="how releases that are alike become one", choices=("median", "mean"))
    longest: int = parameter(24, doc="most releases that are kept", at_least=1, unit="windows")
    reads_noise: ClassVar[bool] = True
    guarantee: ClassVar[Guarantee] = Guarantee(
        unit="that of the step before it", neighbours="those of the step before it", statement="none", theorem="none"
    )

    def start(self, facts: Facts) -> State:
        """Nothing released yet; the newest release will come first."""
        return {"recent": np.full((*facts.shape, self.longest, facts.n_cells), np.nan)}

    def transform(self, values: Array, state: State) -> tuple[Array, State]:
        """The values: of counts nothing says which are alike."""
        return values, state

    def process(self, release: Release, state: State) -> tuple[Release, State]:
        """The smoothed release, and the next state.

        Raises
        ------
        ParameterError
            If the release does not say which windows are alike.
        """
        if release.alike is None:
            raise ParameterError("smooth", "a release without groups", "directly after pegasus")
        values = np.asarray(release.values, np.float64)
        inactive = np.isnan(values)
        newest = np.concatenate([values[..., None, :], state["recent"][..., :-1, :]], -2)
        recent = np.where(inactive[..., None, :], state["recent"], newest)
        shown = np.where(inactive, values, _middle(recent, release.alike, self.by))
        return replace(release, values=shown), {"recent": recent}


def _middle(recent: Array, alike: NDArray[Any], by: str) -> Array:
    """Median or mean of the first ``alike`` rows of each cell."""
    n = np.minimum(alike, recent.shape[-2])[..., None, :]
    inside = np.arange(recent.shape[-2])[:, None] < n
    if by == "mean":
        return np.asarray(np.where(inside, recent, 0.0).sum(-2) / n[..., 0, :])
    ordered = np.sort(np.where(inside, recent, np.inf), axis=-2)
    low, high = (np.take_along_axis(ordered, place, -2)[..., 0, :] for place in ((n - 1) // 2, n // 2))
    return np.asarray((low + high) / 2)
