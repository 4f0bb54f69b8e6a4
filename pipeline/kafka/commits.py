"""Offsets that are committed to a consumer group, for those who watch how far a run is behind; never read again."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

from mechanisms.core.state import State
from pipeline import checkpoint
from pipeline.checkpoint import Checkpoints
from pipeline.kafka.consumer import Consumer
from pipeline.kafka.shares import Share
from pipeline.plan import Plan

if TYPE_CHECKING:
    from pipeline.sources.kafka import Kafka

#: Seconds between two commits of a reader.
EVERY = 1.0

#: Positions that the engine of a cluster has taken, by run and share.
_taken: dict[tuple[str, Share], State] = {}


def taken(plan: Plan, position: State) -> None:
    """The engine keeps what comes before a position."""
    _taken[str(plan.folder), Share.of(position)] = position


class Commits:
    """Commits what a checkpoint of a local run holds, or what the engine of a cluster has taken.

    Parameters
    ----------
    source, plan
        What is read; its ``group`` is where offsets go, None: nowhere.
    consumer, share
        The reader.
    """

    def __init__(self, source: Kafka, plan: Plan, consumer: Consumer, share: Share) -> None:
        self.source, self.plan, self.consumer, self.share = source, plan, consumer, share
        self._last: dict[int, int] = {}
        self._since = float("-inf")

    def go_on(self) -> None:
        """Commit once a second where there is something new; a broker that refuses is not worth a run."""
        if self.source.group is None or time.monotonic() - self._since < EVERY:
            return
        position = self._position()
        if position:
            self._since = time.monotonic()
        offsets = dict(zip(position["partition"].tolist(), position["offset"].tolist())) if position else {}
        if offsets != self._last:
            with suppress(self.consumer.refused):
                self.consumer.commit(offsets)
                self._last = offsets

    def _position(self) -> State:
        found = _taken.get((str(self.plan.folder), self.share))
        if found is None:
            found = Checkpoints(checkpoint.folder(self.plan), ()).read("feed") or {}
        return found if "partition" in found else {}
