"""Sliding (overlapping) windows."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.mechanisms.core.plugin import ParameterError, parameter
from penstock.pipeline.windows.base import Windows


@dataclass(frozen=True, kw_only=True)
class Sliding(Windows):
    """A window of length ``size`` starts every ``period``; an event is in size/period of them.

    Because an event touches several releases, losses add over them: landmark, temporal and reconstruction accountants
    refuse overlapping windows. Window 1 starts at the begin of the run, so that the first size/period − 1 periods are
    in fewer windows, and the last windows reach beyond its end.

    Parameters
    ----------
    size, offset, origin, time_zone, allowed_lateness
        As in `Windows`; ``offset`` is below ``period``.
    period
        Distance between two starts, in milliseconds; ``size`` is a multiple of it.

    Examples
    --------
    >>> import numpy as np
    >>> calendar = Sliding(size=60_000, period=20_000).calendar(0, 100_000)
    >>> calendar.n_windows, calendar.start(2), calendar.end(2)
    (5, 20000, 80000)
    >>> calendar.indices(np.array([65_000]))
    array([[2, 3, 4]])
    """

    period: int = parameter(doc="distance between the starts of two windows", kind="duration", above=0, unit="ms")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size % self.period:
            raise ParameterError("size", self.size, f"a multiple of period ({self.period} ms)")
        if self.offset >= self.period:
            raise ParameterError("offset", self.offset, f"below period ({self.period} ms)")

    @property
    def step(self) -> int:
        """Distance between the starts of two windows: the period."""
        return self.period
