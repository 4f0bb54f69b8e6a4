"""Which points of traces are landmarks, and which budget period each point is in."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from evaluation.stay_points import stay_points
from mechanisms.core.sphere import Points
from pipeline.agenda import period_calendar
from pipeline.landmarks import Landmarks
from pipeline.plan import Plan

Integers = NDArray[np.int64]


def landmark_mask(
    landmarks: Landmarks | None, time_zone: str, times: Integers, points: Points, starts: Integers
) -> NDArray[np.bool_]:
    """Which points are landmarks.

    Parameters
    ----------
    landmarks
        ``windows`` are numbers of a user's points, the same for every user; ``times`` and ``recurring`` hold for every
        point in them; ``stay_points`` are found on each trace. None: no landmarks.
    time_zone
        Zone of times without an offset.
    times, points, starts
        The traces, as in `Traces`.

    Examples
    --------
    >>> landmarks = Landmarks(windows=(2,), times=("1970-01-01T00:00:05Z/1970-01-01T00:00:09Z",))
    >>> times = np.array([0, 1000, 2000, 4000, 6000])
    >>> landmark_mask(landmarks, "UTC", times, np.zeros((5, 2)), np.array([0, 3])).tolist()
    [False, True, False, False, True]
    """
    mask = np.zeros(len(times), bool)
    if landmarks is None or not len(times):
        return mask
    lengths = np.diff(starts, append=len(times))
    for number in landmarks.windows:
        mask[starts[lengths >= number] + number - 1] = True
    mask |= landmarks.contains(times, time_zone)
    if landmarks.stay_points is not None:
        wanted = landmarks.stay_points
        mask |= stay_points(times, points, starts, wanted.distance, wanted.time)
    return mask


def budget_periods(plan: Plan, times: Integers) -> Integers:
    """Budget period of every point, 0-based; days are those of the windows' time zone."""
    length = plan.config.budget_period
    if length is None:
        return np.zeros(len(times), np.int64)
    return period_calendar(length, plan.calendar.start(1), plan.config.windows.time_zone).index(times) - 1
