"""A synthetic city: any number of events in time order, generated from a seed."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from penstock.mechanisms.core.plugin import DataError, ParameterError, parameter
from penstock.pipeline.sources.base import EventBlock, FileSource, Span
from penstock.pipeline.sources.city import DAY, HOUR, Commuters, Emission, Events, MarkovPeople, People, PlaceGrid, join

#: A Monday.
DEFAULT_START = 1_704_067_200_000
DEFAULT_DAYS = 7

_MAX_EVENTS = 1000


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
    seed: int = parameter(1, at_least=0, below=2**63, doc="decides everything about the city")
    mobility: str = parameter("commuter", choices=("commuter", "markov"), doc="daily rhythm, or one known Markov chain")
    stay: float = parameter(0.5, at_least=0, below=1, doc="markov: chance to stay unless one goes anywhere")
    step: int = parameter(HOUR, kind="duration", at_least=1000, at_most=HOUR, doc="time between moves")
    events_per_hour: float = parameter(1.0, above=0, doc="average events a person makes in an hour")
    min_events: int = parameter(0, at_least=0, doc="events a person makes in every step at least")
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
        self._check()

    def _check(self) -> None:
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
        """The people and their movement. Under ``mobility: markov``, its ``transition`` and ``initial`` are the true
        model.
        """
        box = {"south": self.south, "north": self.north, "west": self.west, "east": self.east}
        places = PlaceGrid(rows=self.rows, columns=self.columns, seed=self.seed, **box)
        start = DEFAULT_START if self.from_ is None else self.from_
        if self.mobility == "markov":
            return MarkovPeople(
                places=places, n_users=self.n_users, seed=self.seed, start=start, step=self.step, stay=self.stay
            )
        return Commuters(places=places, n_users=self.n_users, seed=self.seed, start=start, step=self.step)

    def spans(self) -> list[Span]:
        """Split the time range into spans of at least one day, or raise `DataError` for an endless city."""
        n_steps = self._emission.n_steps
        if n_steps is None:
            raise DataError("an endless synthetic city has no end to read to: stream it, or give until or days")
        size = self._span_steps
        starts = range(0, n_steps, size)
        return [Span(i, (), start, min(start + size, n_steps)) for i, start in enumerate(starts)]

    def spans_from(self, first: int) -> Iterator[Span]:
        """Yield spans as `FileSource` does. Each span of an endless city is one day."""
        if self._emission.n_steps is not None:
            yield from super().spans_from(first)
            return
        size = DAY // self.step
        for index in count(first):
            yield Span(index, (), index * size, (index + 1) * size)

    def read(self, span: Span) -> Iterator[EventBlock]:
        """Yield the events of a span in time order."""
        waiting: list[Events] = []
        n_waiting = 0
        for events in self._emission.by_step(span.start, span.stop):
            waiting.append(events)
            n_waiting += len(events["time"])
            if n_waiting >= self.block_rows:
                yield from self._blocks(waiting)
                waiting, n_waiting = [], 0
        if n_waiting:
            yield from self._blocks(waiting)

    def digests(self) -> dict[str, str]:
        """Return the SHA-256 digest of the parameters that determine the events."""
        values = dataclasses.asdict(self)
        del values["block_rows"]
        return {"synthetic": hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()}

    @property
    def _span_steps(self) -> int:
        """Return the number of steps in a span: enough for about ``block_rows`` rows, and for at least one day."""
        rows_per_step = self.n_users * self._mean_events * (1 + self.duplicates)
        return max(DAY // self.step, round(self.block_rows / rows_per_step))

    @property
    def _mean_events(self) -> float:
        return self.events_per_hour * self.step / HOUR

    @property
    def _emission(self) -> Emission:
        return Emission(
            people=self.city,
            mean_events=self._mean_events,
            min_events=self.min_events,
            duplicates=self.duplicates,
            until=self.until,
        )

    def _blocks(self, parts: list[Events]) -> Iterator[EventBlock]:
        import polars as pl  # not for those who only read configurations

        events = join(parts)
        names = pl.Series([f"place_{index}" for index in range(self.rows * self.columns)])
        columns = {name: events[name] for name in ("user", "time", "latitude", "longitude")}
        frame = pl.DataFrame({**columns, "place": names[events["place"]]})
        yield from EventBlock(frame, frame.height).pieces(self.block_rows)
