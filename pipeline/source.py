"""What every source of events must offer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from mechanisms.core.errors import ParameterError
from mechanisms.core.parameters import Checked, parameter
from mechanisms.core.registry import Registry
from mechanisms.core.state import State
from pipeline.block import EventBlock

if TYPE_CHECKING:
    from pipeline.plan import Plan
    from pipeline.slices import Slice


@dataclass(frozen=True, order=True)
class Span:
    """A piece of the input that one worker reads: some whole files, or rows ``start`` to ``stop`` of one file."""

    index: int
    files: tuple[str, ...]
    start: int = 0
    stop: int | None = None


@dataclass(frozen=True, kw_only=True)
class Source(Checked, ABC):
    """Base of every source: where events come from and which time range of them is released.

    A source is immutable and picklable; `spans` runs once on the driver, `read` on the workers.
    """

    from_: int | None = parameter(None, key="from", kind="time", doc="start of the first window (inclusive)")
    until: int | None = parameter(None, kind="time", doc="end of the run (exclusive); rows outside are out of time")
    block_rows: int = parameter(1_000_000, at_least=1, doc="rows that travel together as one block")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.from_ is not None and self.until is not None and self.until <= self.from_:
            raise ParameterError("until", self.until, f"later than from ({self.from_})")

    #: Whether files are named after users, so that a deployment must not write down their names.
    names_users = False
    #: False where a row is not a person (trips without a rider id): distinct people cannot be claimed.
    has_people = True

    @property
    def recorded(self) -> Source:
        """The source that the events are from, where this one only says how they arrive."""
        return self

    def reading(self, columns: Collection[str]) -> Source:
        """The same source without the parts of an event that nobody looks at, where leaving them out saves work.

        User and time are always there; ``columns`` are those of latitude, longitude and place that are needed.
        """
        return self

    @abstractmethod
    def spans(self) -> list[Span]:
        """Cut the input into spans of about ``block_rows`` rows each, in a stable order; raises `DataError`."""

    def spans_from(self, first: int) -> Iterator[Span]:
        """The spans from number ``first`` on, one after the other; without end where the source is endless."""
        yield from self.spans()[first:]

    @abstractmethod
    def read(self, span: Span) -> Iterator[EventBlock]:
        """Read one span as blocks; every input row is in exactly one block, parsed or rejected."""

    def work(self, span: Span) -> Iterator[Callable[[], Iterable[EventBlock]]]:
        """The blocks of `read` as calls that make them, in order; the calls may run side by side in threads."""
        for block in self.read(span):
            yield partial(iter, (block,))

    @abstractmethod
    def digests(self) -> dict[str, str]:
        """SHA-256 of every input file by name (or of the generating parameters)."""


@dataclass(frozen=True, kw_only=True)
class LiveSource(Source):
    """Base of sources whose events are counted and released while more of them arrive."""

    disorder: int = parameter(0, kind="duration", at_least=0, unit="ms", doc="how far the watermark stays behind")
    checkpoint: int = parameter(
        10_000, kind="duration", at_least=0, unit="ms", doc="how often the state is written down for --resume"
    )

    @property
    def factor(self) -> float | None:
        """Seconds of the events that pass in one second; None: as fast as they come."""
        return None

    @property
    def by_time(self) -> bool:
        """Whether the events are known to come in the order of time."""
        return False

    @property
    def endless(self) -> bool:
        """Whether there is no end."""
        return self.until is None

    def starts(self, plan: Plan) -> list[State]:
        """Where the readers begin that share the source on a cluster, the same whenever a run goes on; here one."""
        return [{}]

    def taken(self, plan: Plan, position: State) -> None:
        """The engine of a cluster keeps everything that comes before a position."""

    @abstractmethod
    def slices(self, plan: Plan, folder: Path, start: State, number: int, latest: int) -> Iterator[Slice | None]:
        """Events from a position on, one slice after the other; None where there is nothing to read at the moment.

        Parameters
        ----------
        plan
            The run.
        folder
            Where the source may keep files while it reads.
        start
            Position (`Slice.end`) to go on from; empty: the beginning.
        number, latest
            Number of the next slice, and the time reached before it.
        """


SOURCES: Registry[Source] = Registry("pipeline.sources", "source")
