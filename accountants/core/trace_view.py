"""An accountant's view of a trace run: one shard of users, with times, privacy costs and noise but no true position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.core.contract import Mechanism


@dataclass(frozen=True, kw_only=True)
class TraceView:
    """The released traces of some users as flat arrays, ordered by user and then by time."""

    subjects: Sequence[str]  # pseudonym of each user
    starts: NDArray[np.int64]  # first point of each user, shape (n_users,)
    times: NDArray[np.int64]  # milliseconds since 1970 UTC, shape (n_points,)
    landmarks: NDArray[np.bool_]  # `landmarks`, `periods`: whether each point is a landmark, and its budget period
    periods: NDArray[np.int64]
    epsilon: NDArray[np.float64]  # `epsilon`, `rho`, `scale`, `action`: as in `ReleasedTraces`, point by point
    rho: NDArray[np.float64]
    scale: NDArray[np.float64]
    action: NDArray[np.str_]
    noise: str  # noise family of every publication
    mechanism: Mechanism  # what released them
    # Cholesky factor of each user's noise covariance, in metres, over the points that are released. None: `scale` says
    # all there is of the noise, but where ``mechanism.guarantee.independent`` is False: then nothing bounds it.
    factors: Sequence[NDArray[np.float64]] | None = None

    def landmark_sums(self, concentrated: bool) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the user of each budget period, by index, and the period's largest sum of ε (or ρ) over L ∪ {t}."""
        cost = self.rho if concentrated else self.epsilon
        if not len(self.starts):
            return np.zeros(0, np.int64), np.zeros(0)
        is_first = np.zeros(len(self.times), bool)
        is_first[self.starts] = True
        is_first[1:] |= np.diff(self.periods) != 0
        first = np.flatnonzero(is_first)
        landmarks = np.add.reduceat(np.where(self.landmarks, cost, 0.0), first)
        others = np.maximum.reduceat(np.where(self.landmarks, 0.0, cost), first)
        return np.searchsorted(self.starts, first, "right") - 1, landmarks + others
