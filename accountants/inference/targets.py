"""Many targets at once: their priors side by side, each on the locations it can reach."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import entr

from accountants.inference.channel import check_likelihood, log_ratio
from accountants.inference.kernel import Kernel
from accountants.inference.prior import MarkovPrior
from mechanisms.core.errors import ParameterError

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.intp]
_BLOCK = 1 << 15


@dataclass(frozen=True, eq=False)
class Targets:
    """Priors of many targets, padded to the most places any of them can reach.

    Parameters
    ----------
    locations
        (n_targets, n_places) location behind each place of each target, −1 for padding.
    initial
        (n_targets, n_places), 0 for padding.
    transition
        (n_targets, n_places, n_places), or (1, n_places, n_places) when all move alike; padding stays where it is.
    n_locations
        Locations of the run.
    """

    locations: IntArray
    initial: FloatArray
    transition: FloatArray
    n_locations: int

    @classmethod
    def of(cls, priors: Sequence[MarkovPrior], n_places: int | None = None) -> Targets:
        """Put priors side by side; one prior given many times is stored once.

        ``n_places`` pads further than needed, so that figures of a part of the targets are those of all, bit by bit.

        >>> stay = MarkovPrior([0, 1, 0], np.eye(3))
        >>> Targets.of([stay, MarkovPrior([0.5, 0, 0.5], np.eye(3))]).locations
        array([[ 1, -1],
               [ 0,  2]])
        """
        if not priors or len({prior.n_locations for prior in priors}) > 1:
            raise ParameterError("priors", f"{len(priors)} priors", "at least one, all over the same locations")
        small = [prior.reduced for prior in priors]
        n_places = max([n_places or 0, *(reached.size for _, reached in small)])
        is_shared = all(prior is priors[0] for prior in priors)
        locations = np.full((len(priors), n_places), -1, dtype=np.intp)
        initial = np.zeros((len(priors), n_places))
        transition = np.tile(np.eye(n_places), (1 if is_shared else len(priors), 1, 1))
        for target, (prior, reached) in enumerate(small):
            locations[target, : reached.size] = reached
            initial[target, : reached.size] = prior.initial
            if target == 0 or not is_shared:
                dense = prior.transition if isinstance(prior.transition, np.ndarray) else prior.transition.toarray()
                transition[target, : reached.size, : reached.size] = dense
        return cls(locations, initial, transition, priors[0].n_locations)

    @cached_property
    def move_entropy(self) -> FloatArray:
        """Entropy of the next move from each place, in nats, (n_targets or 1, n_places)."""
        return np.stack([entr(matrix).sum(axis=1) for matrix in self.transition])

    @cached_property
    def _transposed(self) -> FloatArray:
        """Transposed once, so that a maximum over x' runs along whole rows of memory."""
        return np.ascontiguousarray(self.transition.transpose(0, 2, 1))

    @property
    def n_targets(self) -> int:
        """Number of targets."""
        return len(self.locations)

    def forward(self, rows: FloatArray) -> FloatArray:
        """One window on: rows (n_targets, k, n_places) times each target's transition matrix."""
        return np.asarray(rows @ self.transition)

    def expected(self, rows: FloatArray) -> FloatArray:
        """One window back: Σ over x' of P[x, x'] rows[x']."""
        return np.asarray(rows @ self._transposed)

    def best_next(self, rows: FloatArray) -> FloatArray:
        """Largest P[x, x'] rows[x'] over x', for nonnegative rows; in blocks that stay in the processor's cache."""
        n_places = rows.shape[-1]
        if len(self.transition) == 1:
            return Kernel(self.transition[0]).best_next(rows.reshape(-1, n_places)).reshape(rows.shape)
        result = np.empty(rows.shape)
        size = max(1, _BLOCK // n_places**2)
        for first in range(0, self.n_targets, size):
            part = slice(first, first + size)
            product = np.empty((len(rows[part]), n_places, n_places))
            for level in range(rows.shape[1]):
                np.multiply(self._transposed[part], rows[part, level, :, None], out=product)
                np.max(product, axis=1, out=result[part, level])
        return result

    def log_likelihood(
        self,
        sensors: set[int],
        places: IntArray,
        noise: str | None = None,
        scale: float | FloatArray = 1.0,
        residual: FloatArray | None = None,
    ) -> FloatArray:
        """ln Pr(this window's release given each place), up to a constant, for the adversary of every target.

        Parameters
        ----------
        sensors
            Active locations; empty when nothing new is observed.
        places
            (n_targets,) true locations, −1 for a location outside the run's.
        noise, scale
            None or a noise family, with a scalar or (n_locations,) scale. None also for a mechanism without a known
            likelihood: the beliefs are then those of an adversary who saw the raw counts.
        residual
            (n_locations,) release minus true counts; only active entries are read.

        Returns
        -------
        (n_targets, n_places). The adversary of a target subtracts everybody else, so it is left with the residual
        plus 1 where the target is.
        """
        check_likelihood(noise)
        active = np.zeros(self.n_locations + 1, dtype=bool)  # the last entry stands for padding and for outside
        active[list(sensors)] = True
        here = self.locations == np.asarray(places)[:, None]
        if noise is None:
            seen = active[places][:, None]
            return np.where(seen, np.where(here, 0.0, -np.inf), np.where(active[self.locations], -np.inf, 0.0))
        if residual is None or residual.shape != (self.n_locations,):
            raise ParameterError(
                "residual", None if residual is None else residual.shape, f"of shape ({self.n_locations},)"
            )
        scales = np.append(np.broadcast_to(np.asarray(scale, dtype=float), self.n_locations), 1.0)
        values = np.append(np.where(active[:-1], residual, 0.0), 0.0)
        absent, present = log_ratio(noise, values, scales), log_ratio(noise, values + 1, scales)
        return np.where(active[self.locations], np.where(here, present[self.locations], absent[self.locations]), 0.0)
