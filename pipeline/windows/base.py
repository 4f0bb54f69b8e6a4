"""Window contract: how event time is divided, and the allowed lateness."""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass
from datetime import date

import numpy as np

from penstock.mechanisms.core.plugin import Checked, ParameterError, Registry, duration, parameter
from penstock.pipeline.windows.calendar import DAY, Calendar, check_time_zone, instants, wall_time


@dataclass(frozen=True, kw_only=True)
class Windows(Checked, ABC):
    """Base class for all kinds of windows.

    Windows follow the wall clock of their time zone: one starts at local midnight (plus ``offset``) of the day on
    which the run begins, and from there one every ``size``. Window 1 is the one that contains the begin of the run, so
    it starts there whenever the run begins on a boundary.
    """

    size: int = duration(doc="length of a window", above=0)
    offset: int = duration(0, doc="shift of the boundaries from local midnight")
    origin: int | None = parameter(
        None, doc="start of some window, in place of local midnight; begin of a run without from", kind="time"
    )
    time_zone: str = parameter("UTC", doc="IANA time zone whose wall clock the windows follow")
    holidays: tuple[str, ...] | None = parameter(None, doc="local dates treated as Sundays, such as 2024-12-25")
    allowed_lateness: int = duration(0, doc="time that a window waits for late rows after its end")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_time_zone("time_zone", self.time_zone)
        for entry in self.holidays or ():
            try:
                date.fromisoformat(entry)
            except ValueError:
                raise ParameterError("holidays", entry, "a date such as 2024-12-25") from None

    #: Whether every event is a window of its own (traces).
    per_event = False

    def calendar(self, from_ms: int | None, until_ms: int | None = None) -> Calendar:
        """Return the calendar that numbers a run's windows from ``from_ms`` or, if it is None, from ``origin``.

        ``until_ms``: end of the run (exclusive); every window that starts before it is covered. None: endless. Raises
        `ParameterError` if no begin is known, or the run ends before it.
        """
        known = from_ms if self.origin is None else self.origin
        if known is None:
            raise ParameterError("from", None, "given in the source, or as origin of the windows")
        anchor = wall_time(self.time_zone, known)
        if self.origin is None:
            anchor -= anchor % DAY
        anchor += self.offset
        if from_ms is None:
            from_ms = int(instants(self.time_zone, np.array([anchor]))[0])
        return Calendar(step=self.size, anchor=anchor, time_zone=self.time_zone, from_ms=from_ms, until_ms=until_ms)


WINDOWS: Registry[Windows] = Registry(
    "penstock.pipeline.windows", "window", Windows, ("calendar", "landmarks", "sensors")
)
