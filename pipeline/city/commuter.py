"""People with a home, a work place and errands, in the rhythm of the day and the week."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from mechanisms.core.errors import ParameterError
from pipeline.city.people import Locations, People
from pipeline.city.randomness import Purpose, choose, uniforms

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
    """Movement between three roles by known matrices (`REGIMES`), each role at a person's own places.

    A person's home and work place are fixed and differ. An errand is run at a place drawn anew each time from
    ``places.errands``; a draw of one's own home or work place goes to the next other place instead. So the place
    tells the role, and each person's places are a Markov chain too: `transition_of`.

    Raises
    ------
    ParameterError
        Fewer than three places.
    """

    def __post_init__(self) -> None:
        if self.places.n_places < 3:
            raise ParameterError("rows", self.places.rows, "large enough for three places: home, work and errands")

    @cached_property
    def homes(self) -> Locations:
        """Place where each user lives, shape (n_users,)."""
        return choose(np.cumsum(self.places.homes), uniforms(self.seed, Purpose.HOME, 0, self.n_users))

    @cached_property
    def works(self) -> Locations:
        """Place where each user works, shape (n_users,); the next one where that would be home."""
        work = choose(np.cumsum(self.places.works), uniforms(self.seed, Purpose.WORK, 0, self.n_users))
        return np.where(work == self.homes, (work + 1) % self.places.n_places, work)

    def regime(self, index: int) -> str:
        """Regime of a step, by the weekday and hour (UTC) at which it starts.

        >>> from pipeline.city.places import Places
        >>> box = Places(rows=2, columns=2, south=0.0, north=1.0, west=0.0, east=1.0, seed=1)
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

    def transition_of(self, user: int, regime: str) -> NDArray[np.float64]:
        """One person's transition matrix between places in a regime, shape (n_places, n_places)."""
        home, work = int(self.homes[user]), int(self.works[user])
        roles = np.full(self.places.n_places, ERRAND)
        roles[home], roles[work] = HOME, WORK
        targets = np.zeros((3, self.places.n_places))
        targets[HOME, home] = targets[WORK, work] = 1.0
        everywhere = np.arange(self.places.n_places)
        np.add.at(targets[ERRAND], self._other(everywhere, home, work), self.places.errands)
        matrix: NDArray[np.float64] = REGIMES[regime][roles] @ targets
        return matrix

    def first(self) -> Locations:
        """Everybody is at home."""
        return self.homes.copy()

    def move(self, index: int, before: Locations) -> Locations:
        """One step of everybody's own chain."""
        role = np.where(before == self.homes, HOME, np.where(before == self.works, WORK, ERRAND))
        limits = np.cumsum(REGIMES[self.regime(index)], axis=1)[role]
        uniform = uniforms(self.seed, Purpose.MOVE, index, self.n_users)
        errand = choose(np.cumsum(self.places.errands), uniforms(self.seed, Purpose.ERRAND, index, self.n_users))
        errand = self._other(errand, self.homes, self.works)
        return np.where(uniform < limits[:, HOME], self.homes, np.where(uniform < limits[:, WORK], self.works, errand))

    def restarts(self, index: int) -> NDArray[np.bool_]:
        """Everybody, at dawn."""
        return np.full(self.n_users, self.regime(index) == "dawn")

    def activity(self, index: int) -> float:
        """`ACTIVITY` of the regime."""
        return ACTIVITY[self.regime(index)]

    def _other(self, place: Locations, home: Locations | int, work: Locations | int) -> Locations:
        """The place itself, or the next one that is neither home nor work."""
        for _ in range(2):
            place = np.where((place == home) | (place == work), (place + 1) % self.places.n_places, place)
        return place
