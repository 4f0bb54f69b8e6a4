"""The events that people leave behind where they are."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.city.people import Locations, People
from pipeline.city.randomness import Purpose, choose, uniforms

#: Columns of equal length: user, time, place (index), latitude, longitude, arrival.
Events = dict[str, NDArray[Any]]

#: Coordinates keep this share of a cell away from its edges, so that rounding never moves an event.
_MARGIN = 0.01


@dataclass(frozen=True, kw_only=True)
class Emission:
    """How many events people make, where, when, and in which order they arrive.

    Parameters
    ----------
    people
        Where everybody is at every step.
    mean_events, min_events
        Events a person makes in a step: on average (Poisson beyond the minimum), and at least.
    duplicates
        Share of events that occur twice.
    disorder
        Arrival is later than the event by a uniform share of this, milliseconds.
    until
        No event at or after this; None for no end.
    """

    people: People
    mean_events: float
    min_events: int
    duplicates: float
    disorder: int
    until: int | None

    @property
    def n_steps(self) -> int | None:
        """Steps up to ``until``, the last one perhaps unfinished."""
        return None if self.until is None else math.ceil((self.until - self.people.start) / self.people.step)

    def during(self, index: int, locations: Locations) -> Events:
        """Events that happen during a step, in order of user."""
        people, places = self.people, self.people.places
        extra = max(0.0, self.mean_events * people.activity(index) - self.min_events)
        number = self.min_events + choose(_poisson(extra), self._draw(Purpose.NUMBER, index, people.n_users))
        user = np.repeat(np.arange(people.n_users), number)
        n = len(user)
        offset = np.floor(self._draw(Purpose.TIME, index, n) * people.step).astype(np.int64)
        place = locations[user]
        events: Events = {
            "user": user,
            "time": people.start + index * people.step + offset,
            "place": place,
            "latitude": places.latitude[place] + places.height * self._inside(Purpose.LATITUDE, index, n),
            "longitude": places.longitude[place] + places.width * self._inside(Purpose.LONGITUDE, index, n),
        }
        delay = np.floor(self._draw(Purpose.DELAY, index, n) * self.disorder).astype(np.int64)
        events["arrival"] = events["time"] + delay
        rows = np.repeat(np.arange(n), 1 + (self._draw(Purpose.DUPLICATE, index, n) < self.duplicates))
        if self.until is not None:
            rows = rows[events["time"][rows] < self.until]
        return select(events, rows)

    def arrivals(self, first: int, stop: int | None) -> Iterator[Events]:
        """Events by the step in which they arrive, sorted by arrival; those of the last step and later together."""
        people = self.people
        earliest = max(0, first - math.ceil(self.disorder / people.step))
        late: list[Events] = []
        for index, locations in zip(count(earliest), people.locations(earliest, stop)):
            events = join([*late, self.during(index, locations)])
            if self.n_steps is not None and index + 1 >= self.n_steps:
                now = np.full(len(events["time"]), True)
            else:
                now = events["arrival"] < people.start + (index + 1) * people.step
            late = [select(events, ~now)]
            if index >= first:
                here = select(events, now)
                yield select(here, np.argsort(here["arrival"], kind="stable"))

    def _draw(self, purpose: Purpose, index: int, n: int) -> NDArray[np.float64]:
        return uniforms(self.people.seed, purpose, index, n)

    def _inside(self, purpose: Purpose, index: int, n: int) -> NDArray[np.float64]:
        """Offsets from the middle of a cell as shares of its side."""
        return (self._draw(purpose, index, n) - 0.5) * (1 - 2 * _MARGIN)


def select(events: Events, rows: NDArray[Any]) -> Events:
    """Some rows of all columns."""
    return {name: column[rows] for name, column in events.items()}


def join(parts: list[Events]) -> Events:
    """Several tables below one another."""
    return parts[0] if len(parts) == 1 else {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _poisson(mean: float) -> NDArray[np.float64]:
    """Cumulative Poisson distribution, far enough that the rest does not show in a double.

    >>> _poisson(0.0)[:2].tolist(), bool(abs(_poisson(700.0)[-1] - 1) < 1e-9)
    ([1.0, 1.0], True)
    """
    n = np.arange(int(mean + 12 * math.sqrt(mean) + 40))
    logarithm = n * math.log(mean) - mean if mean > 0 else np.where(n == 0, 0.0, -np.inf)
    return np.cumsum(np.exp(logarithm - np.cumsum(np.log(np.maximum(n, 1)))))
