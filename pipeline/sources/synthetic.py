"""A synthetic city, whose people are commuters or Markov walkers. Generates any number of events from a seed."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.core.plugin import DataError, ParameterError, parameter
from penstock.pipeline.sources.base import EventBlock, FileSource, Span

if TYPE_CHECKING:
    import polars as pl

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
        """Each person's workplace, shape (n_users,), or the next place if it coincides with the home."""
        work = choose(np.cumsum(self.places.works), uniforms(self.seed, Purpose.WORK, 0, self.n_users))
        return np.where(work == self.homes, (work + 1) % self.places.n_places, work)

    def regime(self, index: int) -> str:
        """Return the regime of a step, which depends on the weekday and hour (UTC) when the step starts.

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


#: A Monday.
DEFAULT_START = 1_704_067_200_000
DEFAULT_DAYS = 7

_MAX_EVENTS = 1000
#: Coordinates keep this share of a cell away from its edges, so that rounding never moves an event.
_MARGIN = 0.01


@dataclass(frozen=True, kw_only=True)
class Synthetic(FileSource):
    """Generate the events of a city from a seed, with a movement model that is known exactly.

    Parameters
    ----------
    n_users, rows, columns, south, north, west, east
        People, and the grid of places they visit; an event's coordinates lie inside its place's cell.
    mobility
        ``commuter``: homes, works and errands by the time of day (`Commuters`). ``markov``: one homogeneous chain for
        everybody (`MarkovPeople`), whose matrix is ``city.transition``; with ``min_events: 1`` and windows of one
        ``step``, everybody is counted at one place in each window.
    events_per_hour, min_events
        Average events a person makes in an hour; how many at least in every step.
    duplicates
        Share of events that occur twice, to the last digit.
    from, until, days, endless
        Time range; without any, 7 days from Monday 2024-01-01 UTC. An endless city can only be streamed.

    Notes
    -----
    Every step has its own random numbers (`uniforms`), so the same rows come out however they are cut into spans and
    blocks, and any span can be made without the ones before it. Cost: O(events + n_users · steps) time; memory for
    one block and a few numbers a user.

    Examples
    --------
    >>> source = Synthetic(n_users=50, days=1, seed=7)
    >>> blocks = [block for span in source.spans() for block in source.read(span)]
    >>> blocks[0].frame.columns
    ['user', 'time', 'latitude', 'longitude', 'place']
    """

    n_users: int = parameter(2000, at_least=1, doc="people in the city")
    rows: int = parameter(10, at_least=1, at_most=1000, doc="rows of the grid of places")
    columns: int = parameter(10, at_least=1, at_most=1000, doc="columns of the grid of places")
    south: float = parameter(37.74, at_least=-90, at_most=90, unit="degrees", doc="southern edge of the city")
    north: float = parameter(37.82, at_least=-90, at_most=90, unit="degrees", doc="northern edge of the city")
    west: float = parameter(-122.47, at_least=-180, at_most=180, unit="degrees", doc="western edge of the city")
    east: float = parameter(-122.37, at_least=-180, at_most=180, unit="degrees", doc="eastern edge of the city")
    seed: int = parameter(1, at_least=0, below=2**63, doc="seed of everything in the city")
    mobility: str = parameter("commuter", choices=("commuter", "markov"), doc="daily rhythm, or one known Markov chain")
    stay: float = parameter(0.5, at_least=0, below=1, doc="markov: chance to stay unless one goes anywhere")
    step: int = parameter(HOUR, kind="duration", at_least=1000, at_most=HOUR, doc="time between moves")
    events_per_hour: float = parameter(1.0, above=0, doc="average number of events per person and hour")
    min_events: int = parameter(0, at_least=0, doc="minimum number of events per person and step")
    duplicates: float = parameter(0.01, at_least=0, at_most=1, doc="share of events that occur twice")
    disorder: int = dataclasses.field(default=0, init=False)  # events come in the order of time
    days: float | None = parameter(None, above=0, doc="length of the run, instead of until")
    endless: bool = parameter(False, choices=(True, False), doc="never stop; for streams")

    def __post_init__(self) -> None:
        if self.until is not None and self.days is not None:
            raise ParameterError("days", self.days, "left out if until is given")
        if self.endless and (self.until is not None or self.days is not None):
            raise ParameterError("endless", True, "false where until or days is given")
        start = DEFAULT_START if self.from_ is None else self.from_
        object.__setattr__(self, "from_", start)
        if self.until is None and not self.endless:
            object.__setattr__(self, "until", start + round((self.days or DEFAULT_DAYS) * DAY))
            object.__setattr__(self, "days", None)
        super().__post_init__()
        if HOUR % self.step:
            raise ParameterError("step", self.step, "a whole fraction of an hour")
        if self.north <= self.south:
            raise ParameterError("north", self.north, f"above south ({self.south:g})")
        if self.east <= self.west:
            raise ParameterError("east", self.east, f"above west ({self.west:g})")
        if self.mobility == "markov" and self.rows * self.columns > 2000:
            raise ParameterError("rows", self.rows, "such that there are at most 2000 places with mobility markov")
        mean = self._mean_events
        if not self.min_events <= mean <= _MAX_EVENTS:
            expected = f"such that a step has between min_events ({self.min_events}) and {_MAX_EVENTS} events"
            raise ParameterError("events_per_hour", self.events_per_hour, expected)
        self.city  # noqa: B018 (its own conditions are checked here rather than on a worker)

    @property
    def city(self) -> People:
        """The city's people and moves; for ``markov`` it has the true ``transition`` and ``initial``."""
        box = {"south": self.south, "north": self.north, "west": self.west, "east": self.east}
        places = PlaceGrid(rows=self.rows, columns=self.columns, seed=self.seed, **box)
        start = DEFAULT_START if self.from_ is None else self.from_
        facts: dict[str, Any] = {"places": places, "n_users": self.n_users, "seed": self.seed, "start": start}
        if self.mobility == "markov":
            return MarkovPeople(step=self.step, stay=self.stay, **facts)
        return Commuters(step=self.step, **facts)

    def spans(self) -> list[Span]:
        """Divide the time range into spans of at least one day. Raise `DataError` if the time range is unbounded."""
        if self.until is None:
            raise DataError("an endless synthetic city has no end to read to: stream it, or give until or days")
        n_steps = math.ceil((self.until - self.city.start) / self.step)
        rows_per_step = self.n_users * self._mean_events * (1 + self.duplicates)
        size = max(DAY // self.step, round(self.block_rows / rows_per_step))
        return [Span(i, (), start, min(start + size, n_steps)) for i, start in enumerate(range(0, n_steps, size))]

    def spans_from(self, first: int) -> Iterator[Span]:
        """Yield spans in order from index ``first``. Each covers one day if the time range is unbounded."""
        if self.until is not None:
            yield from super().spans_from(first)
            return
        size = DAY // self.step
        for index in count(first):
            yield Span(index, (), index * size, (index + 1) * size)

    def read(self, span: Span) -> Iterator[EventBlock]:
        """Yield a span's events in order of time."""
        assert span.stop is not None
        city = self.city
        waiting: list[pl.DataFrame] = []
        n_waiting = 0
        for index, locations in enumerate(city.locations(span.start, span.stop), span.start):
            waiting.append(self.during(city, index, locations).sort("time", maintain_order=True))
            n_waiting += len(waiting[-1])
            if n_waiting >= self.block_rows:
                yield from self._blocks(waiting)
                waiting, n_waiting = [], 0
        if n_waiting:
            yield from self._blocks(waiting)

    def _blocks(self, parts: list[pl.DataFrame]) -> Iterator[EventBlock]:
        import polars as pl  # not for those who only read configurations

        frame = pl.concat(parts)
        names = pl.Series([f"place_{i}" for i in range(self.rows * self.columns)])
        frame = frame.with_columns(names[frame["place"]].alias("place"))
        return EventBlock(frame, len(frame)).pieces(self.block_rows)

    def during(self, city: People, index: int, locations: Locations) -> pl.DataFrame:
        """Return the events of one step, sorted by user. Locations are given as place numbers."""
        import polars as pl

        def draw(purpose: Purpose, n: int) -> NDArray[np.float64]:
            return uniforms(self.seed, purpose, index, n)

        extra = max(0.0, self._mean_events * city.activity(index) - self.min_events)
        number = self.min_events + choose(_poisson(extra), draw(Purpose.NUMBER, self.n_users))
        user = np.repeat(np.arange(self.n_users), number)
        n, place = len(user), locations[user]
        time = city.start + index * self.step + np.floor(draw(Purpose.TIME, n) * self.step).astype(np.int64)
        north, east = ((draw(one, n) - 0.5) * (1 - 2 * _MARGIN) for one in (Purpose.LATITUDE, Purpose.LONGITUDE))
        latitude = city.places.latitude[place] + city.places.height * north
        longitude = city.places.longitude[place] + city.places.width * east
        columns = {"user": user, "time": time, "latitude": latitude, "longitude": longitude, "place": place}
        rows = np.repeat(np.arange(n), 1 + (draw(Purpose.DUPLICATE, n) < self.duplicates))
        events = pl.DataFrame(columns)[rows]
        return events if self.until is None else events.filter(pl.col("time") < self.until)

    def digests(self) -> dict[str, str]:
        """Return the SHA-256 digest of all parameters that affect the events."""
        values = dataclasses.asdict(self)
        del values["block_rows"]
        return {"synthetic": hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()}

    @property
    def _mean_events(self) -> float:
        return self.events_per_hour * self.step / HOUR


def _poisson(mean: float) -> NDArray[np.float64]:
    """Return the cumulative Poisson distribution, truncated once the tail is negligible in double precision.

    >>> _poisson(0.0)[:2].tolist(), bool(abs(_poisson(700.0)[-1] - 1) < 1e-9)
    ([1.0, 1.0], True)
    """
    n = np.arange(int(mean + 12 * math.sqrt(mean) + 40))
    logarithm = n * math.log(mean) - mean if mean > 0 else np.where(n == 0, 0.0, -np.inf)
    return np.cumsum(np.exp(logarithm - np.cumsum(np.log(np.maximum(n, 1)))))
