"""How far the partitions of a topic have been read, and what time it is by them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mechanisms.core.state import State
from pipeline.slices import NEVER

Integers = NDArray[np.int64]


@dataclass
class Progress:
    """Position and time of every partition.

    Parameters
    ----------
    offsets
        Next offset to read, by partition.
    times
        Latest time of an event so far, by partition; `NEVER` where there was none.
    idle
        Partitions that do not hold time back.
    reached
        Time that the topic has reached: the earliest of the times of the partitions that are not idle; never goes back.
    first, limit
        Events before ``first`` move no time, and none moves it beyond ``limit``.

    Examples
    --------
    >>> progress = Progress(offsets={0: 0, 1: 0}, times={0: NEVER, 1: NEVER})
    >>> progress.read({0: (2, np.array([10, 30]))}, frozenset()), progress.reached == NEVER
    ([array([-4611686018427387904,                   10])], True)
    >>> _ = progress.read({1: (1, np.array([20]))}, frozenset())
    >>> progress.reached
    20
    >>> progress.read({}, frozenset({1})), progress.reached
    ([], 30)
    """

    offsets: dict[int, int] = field(default_factory=dict)
    times: dict[int, int] = field(default_factory=dict)
    idle: frozenset[int] = frozenset()
    reached: int = NEVER
    first: int = NEVER
    limit: int | None = None

    def add(self, partition: int, offset: int) -> None:
        """Make a partition known."""
        self.offsets[partition] = offset
        self.times[partition] = NEVER

    def read(
        self,
        rows: Mapping[int, tuple[int, Integers]],
        idle: frozenset[int],
        clock: int | None = None,
        elsewhere: int | None = None,
    ) -> list[Integers]:
        """Move on.

        Parameters
        ----------
        rows
            By partition, in order: the next offset, and the times of the rows before it.
        idle
            Partitions that are idle from now on.
        clock
            Time that is reached by the clock, if all are idle.
        elsewhere
            Time that partitions of other readers have reached, if all of these are idle; None where those are too.

        Returns
        -------
        The time that was reached as each row arrived, an array for each partition that was read. A row is only held
        against its own partition and what was certain before all of these rows, so that it does not matter which
        partitions happened to be read together.
        """
        found = []
        for partition, (offset, times) in rows.items():
            moves = np.where(times >= self.first, times if self.limit is None else np.minimum(times, self.limit), NEVER)
            latest = np.maximum.accumulate(np.concatenate([[self.times[partition]], moves]))
            found.append(np.maximum(latest[:-1], self.reached))
            self.offsets[partition], self.times[partition] = offset, int(latest[-1])
        self.idle = idle
        active = [time for partition, time in self.times.items() if partition not in idle]
        if not active:
            active = [max(self.latest, clock or NEVER) if elsewhere is None else elsewhere]
        self.reached = max(self.reached, min(active))
        return found

    @property
    def latest(self) -> int:
        """Latest time of an event of any partition."""
        return max(self.times.values(), default=NEVER)

    def as_state(self) -> State:
        """The same as arrays."""
        partitions = sorted(self.offsets)
        return {
            "partition": np.asarray(partitions, np.int64),
            "offset": np.asarray([self.offsets[p] for p in partitions], np.int64),
            "time": np.asarray([self.times[p] for p in partitions], np.int64),
            "idle": np.asarray([p in self.idle for p in partitions], np.bool_),
        }

    def restore(self, state: State) -> None:
        """Go on from what `as_state` gave; nothing for a state without partitions."""
        if "partition" not in state:
            return
        partitions = state["partition"].tolist()
        self.offsets = dict(zip(partitions, state["offset"].tolist()))
        self.times = dict(zip(partitions, state["time"].tolist()))
        self.idle = frozenset(p for p, is_idle in zip(partitions, state["idle"].tolist()) if is_idle)
