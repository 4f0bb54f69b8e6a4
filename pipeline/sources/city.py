"""A synthetic city, with its places and people. People are either commuters or Markov walkers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.core.plugin import ParameterError

#: Purposes of random numbers; different ones are independent.
Purpose = IntEnum(
    "Purpose",
    "LAYOUT HOME WORK START RESTART MOVE ERRAND NUMBER TIME LATITUDE LONGITUDE DUPLICATE",
    start=0,
)


def uniforms(seed: int, purpose: Purpose, step: int, n: int) -> NDArray[np.float64]:
    """Draw ``n`` uniform random numbers in [0, 1). The same arguments always give the same numbers.

    Counter-based: any step costs the same, whatever was drawn before.

    J. Salmon, M. Moraes, R. Dror, D. Shaw. Parallel random numbers: as easy as 1, 2, 3. SC 2011 (Philox).

    >>> bool((uniforms(7, Purpose.MOVE, 3, 2) == uniforms(7, Purpose.MOVE, 3, 5)[:2]).all())
    True
    """
    bits = np.random.Philox(key=np.array([seed, purpose], np.uint64), counter=np.array([0, 0, 0, step], np.uint64))
    return np.random.Generator(bits).random(n)


def choose(cumulative: NDArray[np.float64], uniform: NDArray[np.float64]) -> NDArray[np.int64]:
    """Draw one index for each uniform random number by inverting a cumulative distribution of shape (k,)."""
    return np.minimum(np.searchsorted(cumulative, uniform, side="right"), len(cumulative) - 1)


class PlaceGrid:
    """A grid of ``rows`` × ``columns`` cells that covers a box. Cells are numbered row by row from the south-west.

    The weights are distributions over the cells, shape (n_places,): people live around the centre, work in it, and
    run errands at a few favourite places that the seed decides.

    >>> places = PlaceGrid(rows=2, columns=3, south=0.0, north=2.0, west=10.0, east=13.0, seed=1)
    >>> places.latitude.tolist(), round(float(places.errands.sum()), 12)
    ([0.5, 0.5, 0.5, 1.5, 1.5, 1.5], 1.0)
    """

    def __init__(
        self, *, rows: int, columns: int, south: float, north: float, west: float, east: float, seed: int
    ) -> None:
        self.n_places = rows * columns
        row, column = np.divmod(np.arange(self.n_places), columns)
        #: Of a cell, in degrees.
        self.height, self.width = (north - south) / rows, (east - west) / columns
        #: Of the centre of each cell.
        self.latitude, self.longitude = south + (row + 0.5) * self.height, west + (column + 0.5) * self.width
        #: The same as fractions of the box.
        self.x, self.y = (column + 0.5) / columns, (row + 0.5) / rows
        # 0 at the centre of the box, 1 at the midpoint of a side.
        from_centre = 2.0 * np.hypot(self.x - 0.5, self.y - 0.5)
        self.homes = _normalise(0.1 + np.exp(-(((from_centre - 0.6) / 0.3) ** 2)))  # a ring, and a few everywhere
        self.works = _normalise(0.02 + np.exp(-((from_centre / 0.3) ** 2)))  # a centre, and a few everywhere
        self.seed = seed

    @cached_property
    def errands(self) -> NDArray[np.float64]:
        """The weight of each place as a destination for errands. Weights follow Zipf's law."""
        rank = np.argsort(np.argsort(uniforms(self.seed, Purpose.LAYOUT, 0, self.n_places)))
        return _normalise(1.0 / (1.0 + rank))


def _normalise(weights: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    return np.asarray(weights / weights.sum())


Locations = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class People(ABC):
    """A population whose members stay at one place during each time step and may move between steps."""

    places: PlaceGrid  # where they can be
    n_users: int  # how many they are
    seed: int  # decides everything about them
    start: int  # start of step 0 in milliseconds since 1970 UTC
    step: int  # length of a step in milliseconds

    @abstractmethod
    def first(self) -> Locations:
        """Return each person's place at step 0, shape (n_users,)."""

    @abstractmethod
    def move(self, index: int, before: Locations) -> Locations:
        """Return each person's place at step ``index``, given their place at the previous step."""

    @abstractmethod
    def restarts(self, index: int) -> NDArray[np.bool_]:
        """Return a mask, shape (n_users,), of the people whose place at step ``index`` is drawn anew."""

    def activity(self, index: int) -> float:
        """Return the number of events per person during a step, relative to the average step."""
        return 1.0

    def locations(self, first: int, stop: int) -> Iterator[Locations]:
        """Yield each person's place, shape (n_users,), for the steps from ``first`` up to but not including ``stop``.

        Every model forgets the past now and then (`restarts`), so the walk starts only as far back as the person who
        remembers longest: O(n_users) time a step and for those few extra steps, O(n_users) memory.
        """
        keeps_chain = np.ones(self.n_users, dtype=bool)
        index = first
        while index > 0:
            keeps_chain &= ~self.restarts(index)
            if not keeps_chain.any():
                break
            index -= 1
        # Where a person was before the step at which everyone has restarted since does not matter.
        now = self.first() if index == 0 else self.move(index, np.zeros(self.n_users, dtype=np.int64))
        for current in range(index, stop):
            if current > index:
                now = self.move(current, now)
            if current >= first:
                yield now


HOUR = 3_600_000
DAY = 24 * HOUR
HOME, WORK, ERRAND = 0, 1, 2

#: Chances of the next role (columns: home, work, errand) given the present one (rows), for a step that starts in the
#: regime. At dawn everybody is at home.
REGIMES: dict[str, NDArray[np.float64]] = {
    "dawn": np.array([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]),
    "night": np.array([[0.97, 0.01, 0.02], [0.70, 0.25, 0.05], [0.70, 0.00, 0.30]]),
    "morning": np.array([[0.45, 0.50, 0.05], [0.02, 0.95, 0.03], [0.15, 0.60, 0.25]]),
    "day": np.array([[0.80, 0.10, 0.10], [0.03, 0.87, 0.10], [0.25, 0.45, 0.30]]),
    "evening": np.array([[0.82, 0.03, 0.15], [0.45, 0.40, 0.15], [0.55, 0.05, 0.40]]),
    "weekend": np.array([[0.75, 0.02, 0.23], [0.50, 0.30, 0.20], [0.45, 0.02, 0.53]]),
}

#: Events people make, relative to their average.
ACTIVITY = {"dawn": 0.1, "night": 0.3, "morning": 1.5, "day": 1.2, "evening": 1.6, "weekend": 1.2}


@dataclass(frozen=True, kw_only=True)
class Commuters(People):
    """Commuters who move between home, work and errands according to known transition matrices (`REGIMES`).

    A person's home and work place are fixed and differ. An errand is run at a place drawn each time from
    ``places.errands``; a draw of one's own home or work place goes to the next other place instead. So the place
    tells the role, and each person's places are a Markov chain too.
    """

    def __post_init__(self) -> None:
        if self.places.n_places < 3:
            expected = "such that there are three places: home, work and errands"
            raise ParameterError("rows", self.places.n_places, expected)

    @cached_property
    def homes(self) -> Locations:
        """Each person's home, shape (n_users,)."""
        return choose(np.cumsum(self.places.homes), uniforms(self.seed, Purpose.HOME, 0, self.n_users))

    @cached_property
    def works(self) -> Locations:
        """Each person's workplace, shape (n_users,), one place further where it would be the home."""
        work = choose(np.cumsum(self.places.works), uniforms(self.seed, Purpose.WORK, 0, self.n_users))
        return np.where(work == self.homes, (work + 1) % self.places.n_places, work)

    def regime(self, index: int) -> str:
        """Return the regime of a step, which depends on the weekday and hour (UTC) when the step starts.

        >>> from penstock.pipeline.sources.city import PlaceGrid
        >>> box = PlaceGrid(rows=2, columns=2, south=0.0, north=1.0, west=0.0, east=1.0, seed=1)
        >>> monday = Commuters(places=box, n_users=1, seed=1, start=1_704_067_200_000, step=HOUR)
        >>> [monday.regime(hour) for hour in (0, 4, 7, 12, 18, 23, 5 * 24 + 12)]
        ['night', 'dawn', 'morning', 'day', 'evening', 'night', 'weekend']
        """
        at = self.start + index * self.step
        hour = at % DAY / HOUR
        if 4 <= hour < 4 + self.step / HOUR:
            return "dawn"
        if hour < 6 or hour >= 22:
            return "night"
        # 1970-01-01 was a Thursday.
        if (at // DAY + 3) % 7 >= 5:
            return "weekend"
        return "morning" if hour < 10 else "day" if hour < 16 else "evening"

    def first(self) -> Locations:
        """Return each person's home, where everyone starts."""
        return self.homes.copy()

    def move(self, index: int, before: Locations) -> Locations:
        """Advance every person's Markov chain by one step."""
        role = np.where(before == self.homes, HOME, np.where(before == self.works, WORK, ERRAND))
        limits = np.cumsum(REGIMES[self.regime(index)], axis=1)[role]
        uniform = uniforms(self.seed, Purpose.MOVE, index, self.n_users)
        errand = choose(np.cumsum(self.places.errands), uniforms(self.seed, Purpose.ERRAND, index, self.n_users))
        for _ in range(2):  # the next place that is neither home nor work
            is_taken = (errand == self.homes) | (errand == self.works)
            errand = np.where(is_taken, (errand + 1) % self.places.n_places, errand)
        return np.where(uniform < limits[:, HOME], self.homes, np.where(uniform < limits[:, WORK], self.works, errand))

    def restarts(self, index: int) -> NDArray[np.bool_]:
        """Return a mask of the people whose chain restarts: everyone at dawn, and nobody at other times."""
        return np.full(self.n_users, self.regime(index) == "dawn")

    def activity(self, index: int) -> float:
        """Return the level of activity for the step's regime, from `ACTIVITY`."""
        return ACTIVITY[self.regime(index)]


#: Chance of forgetting everything and going where errands are run.
RESTART = 0.1

#: Nearby means within about this share of the city.
_REACH = 0.15


@dataclass(frozen=True, kw_only=True)
class MarkovPeople(People):
    """People who move according to a homogeneous Markov chain: the next place is drawn from ``transition[place]``.

    The chain is mixed from three habits: stay (``stay``), go somewhere near (the more it attracts, the likelier), and,
    with chance `RESTART`, go anywhere. People are independent, and the first step is drawn from the stationary
    distribution ``initial``, so that every step has the same distribution.
    """

    stay: float = 0.5

    @cached_property
    def transition(self) -> NDArray[np.float64]:
        """The transition matrix, shape (n_places, n_places). Each row sums to 1."""
        return (1 - RESTART) * self._remembering + RESTART * self.places.errands

    @cached_property
    def initial(self) -> NDArray[np.float64]:
        """The stationary distribution over places, shape (n_places,), from which the first step is drawn."""
        n = self.places.n_places
        # π (I − (1 − r) Q) = r ν has one solution because the left side is diagonally dominant.
        pi = np.linalg.solve(np.eye(n) - (1 - RESTART) * self._remembering.T, RESTART * self.places.errands)
        normalised: NDArray[np.float64] = pi / pi.sum()
        return normalised

    def first(self) -> Locations:
        """Draw each person's first place from ``initial``."""
        return choose(np.cumsum(self.initial), uniforms(self.seed, Purpose.START, 0, self.n_users))

    def move(self, index: int, before: Locations) -> Locations:
        """Advance the chain by one step, drawing independent random numbers for each person."""
        uniform = uniforms(self.seed, Purpose.MOVE, index, self.n_users)
        jumps = choose(np.cumsum(self.places.errands), uniform)
        # All rows of the cumulative matrix in one increasing sequence: row i takes up (i, i + 1].
        near = np.searchsorted(self._rows, before + uniform, side="right") - before * self.places.n_places
        return np.where(self.restarts(index), jumps, np.clip(near, 0, self.places.n_places - 1))

    def restarts(self, index: int) -> NDArray[np.bool_]:
        """Return a mask of the people who jump to a random place in this step."""
        return uniforms(self.seed, Purpose.RESTART, index, self.n_users) < RESTART

    @cached_property
    def _remembering(self) -> NDArray[np.float64]:
        x, y = self.places.x, self.places.y
        distances = np.hypot(x[:, None] - x, y[:, None] - y)  # as fractions of the box's sides
        near: NDArray[np.float64] = self.places.errands * np.exp(-distances / _REACH)
        np.fill_diagonal(near, 0.0)
        total = near.sum(axis=1, keepdims=True)
        near = np.divide(near, total, out=np.eye(len(near)), where=total > 0)
        habits: NDArray[np.float64] = self.stay * np.eye(len(near)) + (1 - self.stay) * near
        return habits

    @cached_property
    def _rows(self) -> NDArray[np.float64]:
        rows: NDArray[np.float64] = np.minimum(np.cumsum(self._remembering, axis=1), 1.0)
        rows[:, -1] = 1.0
        rows += np.arange(len(rows))[:, None]
        return rows.ravel()
