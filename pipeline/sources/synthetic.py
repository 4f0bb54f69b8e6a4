"""A synthetic city. Generates any number of events from a seed, in order of time."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.core.plugin import DataError, ParameterError, parameter
from penstock.pipeline.sources.base import EventBlock, FileSource, Span
from penstock.pipeline.sources.city import (
    DAY,
    HOUR,
    Commuters,
    Locations,
    MarkovPeople,
    People,
    PlaceGrid,
    Purpose,
    choose,
    uniforms,
)

if TYPE_CHECKING:
    import polars as pl

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
        """Yield spans in order from index ``first``, of a day each if the time range is unbounded."""
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
            """Draw uniform random numbers for this step."""
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
