"""The unit that a stream is counted in: some consecutive events, and what time it was when they arrived."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mechanisms.core.state import State
from pipeline.block import EventBlock
from pipeline.plan import Plan

Integers = NDArray[np.int64]

#: No event yet.
NEVER = -(2**62)


@dataclass(frozen=True)
class Slice:
    """Some consecutive events of a stream.

    Parameters
    ----------
    number
        Counts from 0.
    block
        The events; rejects come with the first slice of their block.
    before, after
        Time that was reached before the first and after the last row; `NEVER` where there was none.
    end
        Position after the last row, in the terms of the source.
    reached
        Shape (n_rows,): time that was reached when each row arrived, where it is not the latest time of the rows
        before it.
    """

    number: int
    block: EventBlock
    before: int
    after: int
    end: State = field(default_factory=dict)
    reached: Integers | None = None


def latest_before(times: Integers, plan: Plan, before: int) -> Integers:
    """Latest time of an event of the run before each row; shape (n_rows + 1,), the last entry is after all rows.

    An event outside the run does not move time.
    """
    inside = times >= plan.calendar.from_ms
    if plan.calendar.until_ms is not None:
        inside &= times < plan.calendar.until_ms
    return np.maximum.accumulate(np.concatenate([[before], np.where(inside, times, NEVER)]))
