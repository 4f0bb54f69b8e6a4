"""Cells of a run as places of a prior: what one window's release tells about each place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from accountants.inference.channel import check_likelihood, log_ratio

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Reading:
    """What one window shows of a target once everybody else is subtracted.

    Parameters
    ----------
    active
        (n_cells,) mask of the cells that publish.
    noise, scale
        None for raw counts and for mechanisms without a known likelihood; else a noise family and its scale, a number
        or (n_cells,).
    residual
        (n_cells,) release minus true counts; read where there is noise.
    """

    active: NDArray[np.bool_]
    noise: str | None = None
    scale: Any = None
    residual: FloatArray | None = None


@dataclass(frozen=True, eq=False)
class Places:
    """Which place of the priors each cell belongs to.

    Parameters
    ----------
    location
        (n_cells + 1,) place of every cell; the last entry is that of not being seen in any cell.
    share
        (n_cells + 1,) how often somebody who is at the cell's place is in that cell; 1 where the place is one cell.

    Notes
    -----
    Only the last place, elsewhere, may hold several cells. Given that somebody is there, which cell it is has the
    probability ``share``, whatever came before and comes after.
    """

    location: IntArray
    share: FloatArray

    @classmethod
    def of_cells(cls, n_cells: int) -> Places:
        """Every cell for itself, and one more place for not being seen."""
        return cls(np.arange(n_cells + 1), np.ones(n_cells + 1))

    @classmethod
    def most_visited(cls, trajectories: NDArray[Any], n_cells: int, n_top: int) -> Places:
        """The most visited cells (ties: the smaller index), and elsewhere for all others and for not being seen.

        >>> Places.most_visited(np.array([[2, 2, 0, -1]]), n_cells=4, n_top=1).location
        array([1, 1, 0, 1, 1])
        """
        if n_top >= n_cells:
            return cls.of_cells(n_cells)
        visits = np.bincount(np.where(trajectories < 0, n_cells, trajectories).ravel(), minlength=n_cells + 1)
        top = np.argsort(-visits[:-1], kind="stable")[:n_top]
        location = np.full(n_cells + 1, n_top)
        location[top] = np.arange(n_top)
        # one more visit to each, so that no cell is impossible
        share = np.where(location == n_top, visits + 1.0, 0.0)
        share /= share.sum()
        share[top] = 1.0
        return cls(location, share)

    @property
    def n_cells(self) -> int:
        """Cells of the run."""
        return len(self.location) - 1

    @property
    def n_locations(self) -> int:
        """Places of the priors."""
        return int(self.location.max()) + 1

    def sensors(self, active: NDArray[np.bool_]) -> set[int]:
        """Places seen by active cells. Elsewhere is seen if any of its cells is: that tells no less."""
        return set(self.location[:-1][active].tolist())

    def log_likelihood(self, reading: Reading, cells: IntArray) -> tuple[FloatArray, FloatArray, NDArray[np.bool_]]:
        """ln Pr(reading given each place), up to a constant for each target.

        Parameters
        ----------
        reading
            The window's.
        cells
            (n_targets,) true cells, ``n_cells`` where not seen.

        Returns
        -------
        (n_locations,) for the places where a target is not, (n_targets,) for the place where it is, and a mask of
        the targets whose raw count shows them, so that they can be nowhere else.
        """
        check_likelihood(reading.noise)
        active = np.append(reading.active, False)
        elsewhere = np.flatnonzero(self.location == self.n_locations - 1)
        single = np.flatnonzero(self.location < self.n_locations - 1)
        result = np.empty(self.n_locations)
        if reading.noise is None:
            result[self.location[single]] = np.where(active[single], -np.inf, 0.0)
            with np.errstate(divide="ignore"):
                result[-1] = np.log(self.share[elsewhere[~active[elsewhere]]].sum())
            seen = active[cells]
            return result, np.where(seen, 0.0, result[self.location[cells]]), seen
        scale = np.append(np.broadcast_to(np.asarray(reading.scale, float), self.n_cells), 1.0)
        known = np.zeros(self.n_cells) if reading.residual is None else reading.residual
        residual = np.append(np.where(reading.active, known, 0.0), 0.0)
        absent = np.where(active, log_ratio(reading.noise, residual, scale), 0.0)
        present = np.where(active, log_ratio(reading.noise, residual + 1, scale), 0.0)
        result[self.location[single]] = absent[single]
        terms = absent[elsewhere] + np.log(self.share[elsewhere])
        result[-1] = logsumexp(terms)
        own = present[cells].copy()
        away = np.flatnonzero(self.location[cells] == self.n_locations - 1)
        moved = np.where(elsewhere == cells[away, None], present[elsewhere] + np.log(self.share[elsewhere]), terms)
        own[away] = logsumexp(moved, axis=1) if away.size else 0.0
        return result, own, np.zeros(cells.shape, bool)
