"""Open sources: what is due, and how long it is to the next."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.cluster.cursor import Cursor
from pipeline.sources.base import NEVER, LiveSource, Slice

if TYPE_CHECKING:
    from pipeline.config.plan import Plan


#: Seconds to wait where there is nothing to read at the moment.
IDLE = 0.1


class Reader:
    """An open source in this process: to go on where the last turn ended costs nothing."""

    def __init__(self, plan: Plan, start: Cursor) -> None:
        self.plan, self.source, self.cursor = plan, live_source(plan), start
        self._folder = tempfile.TemporaryDirectory(prefix="penstock-")
        spool = Path(self._folder.name) / "spool"
        self._pieces = self.source.slices(plan, spool, start.position, start.number, start.latest)
        self._begun, self._start = time.monotonic(), max(start.latest, plan.calendar.from_ms)
        self.ended = False
        self.piece: Slice | None = None
        self.advance()

    def advance(self) -> None:
        """Leave the slice at hand behind, and look at the next one."""
        if self.piece is not None:
            self.cursor = self.cursor.after(self.piece)
        try:
            self.piece = next(self._pieces)
        except StopIteration:
            self.ended, self.piece = True, None
            self._folder.cleanup()

    @property
    def wait(self) -> float:
        """Seconds until the slice at hand is due."""
        if self.piece is None:
            return IDLE
        if self.source.factor is None or self.piece.after == NEVER:
            return 0.0
        return self._begun + (self.piece.after - self._start) / 1000 / self.source.factor - time.monotonic()

    @property
    def time(self) -> int:
        """Time that is reached while nothing happens: up to the next event where the order of events is known."""
        if not self.source.by_time or self.source.factor is None or self.piece is None:
            return self.cursor.latest
        times = self.piece.block.frame["time"]
        now = self._start + int((time.monotonic() - self._begun) * 1000 * self.source.factor)
        return max(self.cursor.latest, min(now, int(times[0]))) if len(times) else self.cursor.latest


#: Readers between two turns, by the folder of their run and their number.
_readers: dict[tuple[str, int], Reader] = {}


def take_reader(plan: Plan, cursor: Cursor) -> Reader:
    """The reader that its latest turn left in this process if it stands at the cursor, otherwise a new one.

    It is the caller's alone: a turn that the engine has given up may still go on in another thread.
    """
    known = _readers.pop((str(plan.folder), cursor.reader), None)
    return known if known is not None and known.cursor == cursor else Reader(plan, cursor)


def keep_reader(reader: Reader) -> None:
    """Keep a reader for its next turn in this process."""
    _readers[str(reader.plan.folder), reader.cursor.reader] = reader


def live_source(plan: Plan) -> LiveSource:
    """The source of a cluster's plan."""
    source = plan.config.source
    if not isinstance(source, LiveSource):
        raise TypeError(f"{type(source).__name__} is not live; as_cluster_plan makes it so")
    return source
