"""Timestamps in place of windows, for traces: each of a user's events is a separate release."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from penstock.mechanisms.core.plugin import ParameterError, duration
from penstock.pipeline.windows.base import Windows
from penstock.pipeline.windows.calendar import Calendar


@dataclass(frozen=True, kw_only=True)
class Timestamps(Windows):
    """Windows for mechanisms on points, where each point of a user's trace is released separately.

    The whole run is one window. A user's points are numbered from 1 in order of time, so that ``landmarks: windows``
    are numbers of points; a further event of the user at the same millisecond is a duplicate.

    Parameters
    ----------
    gap
        Least time between two points of a user. Events that come sooner after a point are left out, as duplicates of
        it: a function of times alone, which are public.
    time_zone
        Zone of landmarks that are given as times of the day, and of budget periods of whole days.

    Examples
    --------
    >>> Timestamps().calendar(0, 3_600_000).n_windows
    1
    """

    gap: int | None = duration(None, doc="minimum time between two points of a user; unset: every point", above=0)
    size: int = dataclasses.field(default=1, init=False)
    offset: int = dataclasses.field(default=0, init=False)
    origin: int | None = dataclasses.field(default=None, init=False)
    allowed_lateness: int = dataclasses.field(default=0, init=False)
    per_event = True

    def calendar(self, from_ms: int | None, until_ms: int | None = None) -> Calendar:
        """Return the whole run as a single window, or raise `ParameterError` if its beginning or end is missing."""
        if from_ms is None or until_ms is None:
            raise ParameterError("until", until_ms, "given in the source, like from: traces are released as a whole")
        return Calendar(step=until_ms - from_ms, anchor=from_ms, time_zone="UTC", from_ms=from_ms, until_ms=until_ms)
