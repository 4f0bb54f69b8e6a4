"""What every model of movement offers: where everybody is, at any step, without starting from the beginning."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

import numpy as np
from numpy.typing import NDArray

from pipeline.city.places import Places

Locations = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class People(ABC):
    """Some people who are at one place each during a step and move between steps.

    Parameters
    ----------
    places
        Where they can be.
    n_users
        How many they are.
    seed
        Decides everything about them.
    start
        Start of step 0 in milliseconds since 1970 UTC.
    step
        Length of a step in milliseconds.
    """

    places: Places
    n_users: int
    seed: int
    start: int
    step: int

    @abstractmethod
    def first(self) -> Locations:
        """Places at step 0, shape (n_users,)."""

    @abstractmethod
    def move(self, index: int, before: Locations) -> Locations:
        """Places at step ``index``, given those at the step before."""

    @abstractmethod
    def restarts(self, index: int) -> NDArray[np.bool_]:
        """Whose place at step ``index`` does not depend on the step before, shape (n_users,)."""

    def activity(self, index: int) -> float:
        """How many events people make during a step, relative to their average."""
        return 1.0

    def locations(self, first: int = 0, stop: int | None = None) -> Iterator[Locations]:
        """Places at steps ``first`` to ``stop`` (without end if None), each of shape (n_users,).

        Every model forgets the past now and then (`restarts`), so the walk starts only as far back as the person who
        remembers longest: O(n_users) time a step and for those few extra steps, O(n_users) memory.
        """
        remembers = np.ones(self.n_users, dtype=bool)
        index = first
        while index > 0:
            remembers &= ~self.restarts(index)
            if not remembers.any():
                break
            index -= 1
        # Where somebody was before the step at which everybody has restarted since does not matter.
        now = self.first() if index == 0 else self.move(index, np.zeros(self.n_users, dtype=np.int64))
        for current in count(index):
            if stop is not None and current >= stop:
                return
            if current > index:
                now = self.move(current, now)
            if current >= first:
                yield now
