"""Fixed (tumbling) windows."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.mechanisms.core.plugin import ParameterError
from penstock.pipeline.windows.base import Windows


@dataclass(frozen=True, kw_only=True)
class Fixed(Windows):
    """Consecutive windows whose length is ``size`` on the wall clock of ``time_zone``.

    A window of whole days starts at local midnight (plus ``offset``), whether the day has 23, 24 or 25 hours. Shorter
    ones follow the wall clock too: when clocks go forward the skipped windows do not exist, when they go back the
    repeated windows exist twice; a window longer than the change gets shorter or longer by it.

    Examples
    --------
    >>> import numpy as np
    >>> hour, midnight = 3_600_000, 1_583_557_200_000  # 2020-03-07 00:00 in New York; the clocks change on the 8th
    >>> calendar = Fixed(size=24 * hour, time_zone="America/New_York").calendar(midnight, midnight + 71 * hour)
    >>> ((calendar.ends(1, 3) - calendar.starts(1, 3)) // hour).tolist()
    [24, 23, 24]
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.offset >= self.size:
            raise ParameterError("offset", self.offset, f"below size ({self.size} ms)")
