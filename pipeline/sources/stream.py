"""Any recorded source, replayed as a stream that is counted and released while it goes on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from mechanisms.core.errors import ParameterError
from mechanisms.core.parameters import parameter
from mechanisms.core.state import State
from pipeline.block import EventBlock
from pipeline.source import LiveSource, Source, Span

if TYPE_CHECKING:
    from pipeline.plan import Plan
    from pipeline.slices import Slice

_SPEED = re.compile(r"([0-9]*\.?[0-9]+)x")


@dataclass(frozen=True, kw_only=True)
class Stream(LiveSource):
    """Events of another source, as they would arrive one after the other.

    Windows are released while the stream goes on: each once, when the watermark reaches its end plus allowed lateness.
    The watermark is the latest time that an event of the run has shown so far, less ``disorder``.

    Parameters
    ----------
    of
        What is replayed; ``from``, ``until`` and ``block_rows`` may be given here or there.
    speed
        ``max``, or how many seconds of the events pass in one second, such as ``60x``.
    order
        ``time``: as the events happened, whatever order the files are in, so that none is late. ``arrival``: as the
        source gives them, so that one whose windows are all closed is late. An endless source has only the latter.
    disorder
        How far the watermark stays behind the latest event.
    checkpoint
        How often the state is written down, for ``--resume``.

    Examples
    --------
    >>> from pipeline.sources.synthetic import Synthetic
    >>> stream = Stream(of=Synthetic(n_users=50, days=1, seed=7), speed="60x")
    >>> stream.factor, stream.by_time, stream.until == stream.of.until
    (60.0, True, True)
    """

    of: Source = parameter(doc="the source that is replayed")
    speed: str = parameter("max", doc="max, or the factor to real time, such as 60x")
    order: str | None = parameter(
        None, choices=("time", "arrival"), doc="order of the events; unset: time, and arrival where there is no end"
    )

    def __post_init__(self) -> None:
        if isinstance(self.of, Stream):
            raise ParameterError("of", "stream", "a source that is not a stream itself")
        of = replace(
            self.of,
            from_=self.of.from_ if self.from_ is None else self.from_,
            until=self.of.until if self.until is None else self.until,
            block_rows=min(self.of.block_rows, self.block_rows),
        )
        object.__setattr__(self, "of", of)
        object.__setattr__(self, "from_", of.from_)
        object.__setattr__(self, "until", of.until)
        super().__post_init__()
        if self.speed != "max" and not (_SPEED.fullmatch(self.speed) and float(self.speed[:-1]) > 0):
            raise ParameterError("speed", self.speed, "max, or a positive factor such as 60x")
        if self.order == "time" and self.until is None:
            raise ParameterError("order", self.order, "arrival where the source has no end (it cannot be sorted)")

    @property
    def factor(self) -> float | None:
        """Seconds of the events that pass in one second; None: as fast as it goes."""
        return None if self.speed == "max" else float(self.speed[:-1])

    @property
    def by_time(self) -> bool:
        """Whether the events are sorted by time."""
        return self.until is not None and self.order != "arrival"

    @property
    def endless(self) -> bool:
        """Whether there is no end."""
        return bool(getattr(self.of, "endless", False))

    @property
    def has_people(self) -> bool:  # type: ignore[override]
        """As the source that is replayed."""
        return self.of.has_people

    @property
    def recorded(self) -> Source:
        """The source that is replayed."""
        return self.of

    def slices(self, plan: Plan, folder: Path, start: State, number: int, latest: int) -> Iterator[Slice | None]:
        """The events of the source, cut by time; ``folder`` is for sorting."""
        from pipeline.replay import Position, replay  # it needs plans, and these need sources

        return replay(plan, folder, Position.of(start), number, latest)

    def spans(self) -> list[Span]:
        """Those of the source."""
        return self.of.spans()

    def spans_from(self, first: int) -> Iterator[Span]:
        """Those of the source, which may have no end."""
        return self.of.spans_from(first)

    def read(self, span: Span) -> Iterator[EventBlock]:
        """One span, as the source reads it."""
        return self.of.read(span)

    def digests(self) -> dict[str, str]:
        """Those of the source."""
        return self.of.digests()
