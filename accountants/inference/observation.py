"""What one window shows of the target: which cells publish, and with which noise."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accountants.inference.prior import MarkovPrior
from mechanisms.core.errors import ParameterError

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.intp]

ADDITIVE = ("gaussian", "laplace", "discrete_gaussian", "discrete_laplace")
GUARANTEE = ("pure_dp", "zcdp")


def active_sensors(sensors: Sequence[int | Iterable[int]], n_locations: int) -> tuple[IntArray, ...]:
    """The publishing locations of every window, sorted and without repetition.

    Parameters
    ----------
    sensors
        One entry per window: a set of locations, a single location, or an empty set where nothing is observed.
    n_locations
        Locations are 0 … n_locations − 1.

    Examples
    --------
    >>> active_sensors([{2, 0}, 1, set()], 3)
    (array([0, 2]), array([1]), array([], dtype=int64))
    """
    windows = []
    for window in sensors:
        entry = (window,) if isinstance(window, int | np.integer) else tuple(window)
        active = np.unique(np.asarray(entry, dtype=np.intp))
        if active.size and not (active[0] >= 0 and active[-1] < n_locations):
            raise ParameterError("sensors", sorted(map(int, entry)), f"locations from 0 to {n_locations - 1}")
        windows.append(active)
    if not windows:
        raise ParameterError("sensors", sensors, "one set of active locations per window, at least one window")
    return tuple(windows)


def noise_scales(noise: str | None, scale: Any, n_steps: int, n_locations: int) -> FloatArray:
    """Noise scale of every window and location, (n_steps, n_locations); zeros without noise.

    Parameters
    ----------
    noise
        None (raw counts), gaussian, laplace, discrete_gaussian, discrete_laplace, or a guarantee whose mechanism is
        not specified: pure_dp, zcdp.
    scale
        Standard deviation σ, Laplace scale b, or the add/remove ε or ρ of the window's whole release (a guarantee
        has no scale per location). A scalar, one per window, or one per window and location.
    """
    if noise is None:
        if scale is not None:
            raise ParameterError("scale", scale, "left out when there is no noise")
        return np.zeros((n_steps, n_locations))
    if noise not in ADDITIVE + GUARANTEE:
        raise ParameterError("noise", noise, "None or one of " + ", ".join(ADDITIVE + GUARANTEE))
    values = np.asarray(np.nan if scale is None else scale, dtype=float)
    shapes = [(), (n_steps,)] + ([(n_steps, n_locations)] if noise in ADDITIVE else [])
    if values.shape not in shapes:
        raise ParameterError("scale", f"shape {values.shape}", f"of shape {' or '.join(map(str, shapes))}")
    lowest_allowed = values > 0 if noise in ADDITIVE else values >= 0
    if not lowest_allowed.all():
        raise ParameterError("scale", scale, "above 0" if noise in ADDITIVE else "at least 0")
    return np.broadcast_to(values[:, None] if values.ndim == 1 else values, (n_steps, n_locations))


@dataclass(frozen=True, eq=False)
class Schedule:
    """A prior on its reachable locations with the sensors that can ever see the target.

    ``active`` and ``hidden`` split the locations of each window; ``scales`` is (n_steps, n_locations).
    """

    prior: MarkovPrior
    active: tuple[IntArray, ...]
    hidden: tuple[IntArray, ...]
    noise: str | None
    scales: FloatArray
    marginals: FloatArray

    @property
    def n_steps(self) -> int:
        """Number of windows."""
        return len(self.active)

    @cached_property
    def raw(self) -> Schedule:
        """The raw counts of the same sensors; the only hidden location of a window counts as seen, for it is."""
        lone = [hidden.size == 1 for hidden in self.hidden]
        everywhere = np.arange(self.prior.n_locations)
        active = tuple(everywhere if known else window for known, window in zip(lone, self.active))
        hidden = tuple(window[:0] if known else window for known, window in zip(lone, self.hidden))
        return Schedule(self.prior, active, hidden, None, np.zeros_like(self.scales), self.marginals)

    def n_outcomes(self) -> IntArray:
        """Possible readings of a raw count per window: sensors the target can be at, and elsewhere."""
        possible = self.marginals > 0
        seen = [np.count_nonzero(row[active]) for row, active in zip(possible, self.active)]
        unseen = [np.any(row[hidden]) for row, hidden in zip(possible, self.hidden)]
        return np.add(seen, unseen)


def schedule(
    prior: MarkovPrior, sensors: Sequence[int | Iterable[int]], noise: str | None = None, scale: Any = None
) -> Schedule:
    """Check a release schedule against a prior and drop every location the target cannot reach."""
    active = active_sensors(sensors, prior.n_locations)
    scales = noise_scales(noise, scale, len(active), prior.n_locations)
    small, locations = prior.reduced
    index = np.full(prior.n_locations, -1, dtype=np.intp)
    index[locations] = np.arange(locations.size)
    kept = tuple(index[window][index[window] >= 0] for window in active)
    everywhere = np.arange(small.n_locations)
    hidden = tuple(np.setdiff1d(everywhere, window, assume_unique=True) for window in kept)
    return Schedule(small, kept, hidden, noise, scales[:, locations], small.marginals(len(active)))
