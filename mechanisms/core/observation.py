"""Optional methods of mechanisms that describe their likelihood, with defaults.

Likelihoods and the conformance suite ask; the release loop does not, so that they are no part of the contract.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.core.contract import Facts, Mechanism


class Measured(NamedTuple):
    """The linear functions of counts x, shape (n_windows, n_cells), to which noise is added: ``windows`` @ x @
    ``cells``.

    A release is a function of them, so that ``windows`` @ release @ ``cells`` tells as much of them as the release
    does. None in place of a matrix: the identity. ``scale``: of their noise; None: that of the releases.
    """

    windows: NDArray[np.float64] | None = None
    cells: NDArray[np.float64] | None = None
    scale: float | None = None


def measured(mechanism: Mechanism, facts: Facts) -> Measured:
    """Return the noise-free quantities to which a mechanism adds noise. By default, these are the counts.

    Examples
    --------
    >>> from penstock.mechanisms import get
    >>> measured(get("hierarchy")(sigma=2.0), Facts(n_cells=2, n_windows=1)).cells.tolist()
    [[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]]
    """
    method = getattr(mechanism, "measured", None)
    return Measured() if method is None else Measured(*method(facts))


def without_noise(mechanism: Mechanism, counts: NDArray[Any]) -> NDArray[Any]:
    """Return what a mechanism would release without noise, shape (n_windows, n_cells). By default, it is the counts.

    Examples
    --------
    >>> from penstock.mechanisms import get
    >>> without_noise(get("crowd_blending")(threshold=5), np.array([[4, 5]])).tolist()
    [[0, 5]]
    """
    method = getattr(mechanism, "without_noise", None)
    return counts if method is None else np.asarray(method(counts))


def noise_in(mechanism: Mechanism, published: NDArray[np.float64], counts: NDArray[Any]) -> NDArray[np.float64]:
    """Return the noise in published values, given the true counts. All arrays have shape (n_windows, n_cells)."""
    method = getattr(mechanism, "noise_in", None)
    return np.asarray(published - without_noise(mechanism, counts) if method is None else method(published, counts))


def shows_single_counts(step: Any) -> bool:
    """Return whether a published value is the noisy count of its cell alone, as it is by default."""
    return bool(getattr(step, "releases_single_counts", True))


def adds_noise_only(mechanism: Mechanism) -> bool:
    """Return whether publications are counts plus noise, so that they have the likelihood of the noise."""
    return shows_single_counts(mechanism) and not (
        hasattr(mechanism, "without_noise") or hasattr(mechanism, "noise_in")
    )
