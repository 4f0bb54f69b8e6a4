"""People who all follow one and the same Markov chain, for checking against the truth."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pipeline.city.people import Locations, People
from pipeline.city.randomness import Purpose, choose, uniforms

#: Chance of forgetting everything and going where errands are run.
RESTART = 0.1

#: Nearby means within about this share of the city.
_REACH = 0.15


@dataclass(frozen=True, kw_only=True)
class MarkovPeople(People):
    """Movement by a homogeneous Markov chain: place at a step ~ ``transition[place at the step before]``.

    The chain is mixed from three habits: stay (``stay``), go somewhere near (the more it attracts, the likelier), and,
    with chance `RESTART`, go anywhere. People are independent, and the first step is drawn from the stationary
    distribution ``initial``, so that every step has the same distribution.

    Examples
    --------
    >>> from pipeline.city.places import Places
    >>> places = Places(rows=2, columns=2, south=0.0, north=1.0, west=0.0, east=1.0, seed=1)
    >>> people = MarkovPeople(places=places, n_users=5, seed=1, start=0, step=3_600_000)
    >>> people.transition.shape, people.transition.sum(axis=1).round(12).tolist()
    ((4, 4), [1.0, 1.0, 1.0, 1.0])
    >>> bool(np.allclose(people.initial @ people.transition, people.initial))
    True
    """

    stay: float = 0.5

    @cached_property
    def transition(self) -> NDArray[np.float64]:
        """Transition matrix, shape (n_places, n_places); rows sum to 1."""
        return (1 - RESTART) * self._remembering + RESTART * self.places.errands

    @cached_property
    def initial(self) -> NDArray[np.float64]:
        """Distribution of the first step, and of every other, shape (n_places,)."""
        n = self.places.n_places
        # π (I − (1 − r) Q) = r ν has one solution because the left side is diagonally dominant.
        pi = np.linalg.solve(np.eye(n) - (1 - RESTART) * self._remembering.T, RESTART * self.places.errands)
        normalised: NDArray[np.float64] = pi / pi.sum()
        return normalised

    def first(self) -> Locations:
        """Places drawn from ``initial``."""
        return choose(np.cumsum(self.initial), uniforms(self.seed, Purpose.START, 0, self.n_users))

    def move(self, index: int, before: Locations) -> Locations:
        """One step of the chain, everybody with their own random numbers."""
        uniform = uniforms(self.seed, Purpose.MOVE, index, self.n_users)
        anywhere = choose(self._errands, uniform)
        # All rows of the cumulative matrix in one increasing sequence: row i takes up (i, i + 1].
        near = np.searchsorted(self._rows, before + uniform, side="right") - before * self.places.n_places
        return np.where(self.restarts(index), anywhere, np.clip(near, 0, self.places.n_places - 1))

    def restarts(self, index: int) -> NDArray[np.bool_]:
        """Who goes anywhere at this step."""
        return uniforms(self.seed, Purpose.RESTART, index, self.n_users) < RESTART

    @cached_property
    def _remembering(self) -> NDArray[np.float64]:
        near: NDArray[np.float64] = self.places.errands * np.exp(-self.places.distances() / _REACH)
        np.fill_diagonal(near, 0.0)
        total = near.sum(axis=1, keepdims=True)
        near = np.divide(near, total, out=np.eye(len(near)), where=total > 0)
        habits: NDArray[np.float64] = self.stay * np.eye(len(near)) + (1 - self.stay) * near
        return habits

    @cached_property
    def _errands(self) -> NDArray[np.float64]:
        return np.cumsum(self.places.errands, dtype=np.float64)

    @cached_property
    def _rows(self) -> NDArray[np.float64]:
        rows: NDArray[np.float64] = np.minimum(np.cumsum(self._remembering, axis=1), 1.0)
        rows[:, -1] = 1.0
        rows += np.arange(len(rows))[:, None]
        return rows.ravel()
