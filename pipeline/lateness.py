"""Which windows were final when an event arrived: decided by the order of the events alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pipeline.plan import Plan
from pipeline.slices import Slice, latest_before
from pipeline.source import LiveSource


def closed_before(piece: Slice, plan: Plan) -> NDArray[np.int64]:
    """Last window that was final when each row of a slice arrived; shape (n_rows,).

    A window is final once the watermark, the latest time of the rows before (less the disorder that is allowed for),
    has reached its end plus allowed lateness. Row for row, so that slices do not matter.

    Notes
    -----
    O(n) where events are in order; a binary search for each row that is older than the watermark.
    """
    source = plan.config.source
    disorder = source.disorder if isinstance(source, LiveSource) else 0
    times = piece.block.frame["time"].to_numpy()
    latest = latest_before(times, plan, piece.before)[:-1] if piece.reached is None else piece.reached
    reached = latest - disorder - plan.config.windows.allowed_lateness
    closed = np.zeros(len(times), np.int64)
    window = plan.calendar.index(times)
    old = np.flatnonzero((window > 0) & (times < reached))
    if len(old):
        first, last = max(1, int(window[old].min()) - plan.calendar.n_hops + 1), int(window[old].max())
        ends = plan.calendar.ends(first, last)
        closed[old] = first - 1 + np.searchsorted(ends, reached[old], side="right")
    return closed
