"""The traces of one shard of users as flat arrays, and the public facts about their points."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.core.contract import Integers, Mask, Window, in_periods
from penstock.mechanisms.core.geometry import Points


@dataclass(frozen=True, kw_only=True)
class Traces:
    """The points of some users, ordered by user and then by time."""

    users: Integers  # identity of each user as integers, shape (n_users, n_words): chooses the noise, is never released
    starts: Integers  # first point of each user, shape (n_users,); every user has at least one point
    times: Integers  # milliseconds since 1970 UTC, shape (n_points,)
    points: Points  # latitude and longitude in degrees, shape (n_points, 2)
    landmarks: Mask  # which points are landmarks, shape (n_points,)
    periods: Integers  # budget period of each point, shape (n_points,); never falls along a trace

    @property
    def lengths(self) -> Integers:
        """The number of points of each user."""
        return np.diff(self.starts, append=len(self.times))

    @cached_property
    def user_of(self) -> Integers:
        """The user of each point, as an index into ``users``."""
        return np.repeat(np.arange(len(self.starts)), self.lengths)


@dataclass(frozen=True)
class PointSchedule:
    """Public facts about every point of some traces.

    Examples
    --------
    >>> schedule = PointSchedule(traces_of([np.zeros((3, 2))], [np.array([True, False, True])]), (0.0, 0.0))
    >>> facts = [schedule.at(np.array([point]), point + 1) for point in range(3)]
    >>> [(int(t.landmarks_to_come[0]), int(t.regulars_to_come[0]), int(t.n_landmarks[0])) for t in facts]
    [(1, 1, 2), (1, 0, 2), (0, 0, 2)]
    """

    traces: Traces  # the traces
    origin: tuple[float, float]  # latitude and longitude of the public point shown before a first release
    # declared maximum of landmarks per period, in place of their number; None: as many as there are
    max_landmarks: int | None = None
    # standard deviation in metres that was worked out for each user's trace, of dependent noise in the direction of
    # least noise, shape (n_users,); None: nothing planned
    deviations: NDArray[np.float64] | None = None
    # Cholesky factor of each user's noise covariance, in metres, over the points that are released; None: independent
    factors: Sequence[NDArray[np.float64]] | None = None

    @cached_property
    def identities(self) -> Integers:
        """The words that key each user's noise. If noise is planned, they also depend on the times that the plan uses.

        So no two plans scale the same draws, whose difference would show the point.
        """
        traces = self.traces
        if self.deviations is None:
            return traces.users
        times = np.split(traces.times, traces.starts[1:])
        words = [np.frombuffer(hashlib.sha256(each.tobytes()).digest(), np.int64) for each in times]
        return np.hstack([traces.users, np.array(words).reshape(len(times), -1)])

    @cached_property
    def _columns(self) -> tuple[Integers, ...]:
        """For each point, the number of landmarks and regular points left in its period, and the period's totals."""
        traces = self.traces
        is_first = np.zeros(len(traces.times), bool)
        is_first[traces.starts] = True
        is_first[1:] |= np.diff(traces.periods) != 0
        return in_periods(traces.landmarks, np.cumsum(is_first) - 1, self.max_landmarks)

    def at(self, rows: Integers, index: int) -> Window:
        """Return the facts about some points, each of which is the ``index``-th of its user."""
        traces = self.traces
        left, regulars_left, landmarks, n_windows = (column[rows] for column in self._columns)
        times = traces.times[rows]
        return Window(
            index=index,
            start=times,
            end=times,
            landmark=traces.landmarks[rows],
            landmarks_to_come=left,
            regulars_to_come=regulars_left,
            n_landmarks=landmarks,
            n_windows=n_windows,
            period=traces.periods[rows],
            origin=np.asarray(self.origin, np.float64),
            deviation=None if self.deviations is None else self.deviations[traces.user_of[rows]],
            factor=None if self.factors is None else self._factor_rows(self.factors, traces.user_of[rows], index),
        )

    @staticmethod
    def _factor_rows(factors: Sequence[NDArray[np.float64]], users: Integers, index: int) -> NDArray[np.float64]:
        rows = np.zeros((len(users), index))
        for row, user in enumerate(users.tolist()):
            if index <= len(factors[user]):
                rows[row] = factors[user][index - 1, :index]
        return rows


def traces_of(
    traces: Sequence[Points], landmarks: Sequence[NDArray[np.bool_]] | None = None, users: Sequence[int] | None = None
) -> Traces:
    """Build traces from one array (n_points, 2) per user. Points are one minute apart, all in one budget period.

    ``landmarks`` holds a mask (n_points,) for each user (unset: none), ``users`` a number for each (unset: 0, 1, …).
    """
    lengths = np.array([len(trace) for trace in traces], np.int64)
    starts = np.cumsum(lengths) - lengths
    n_points = int(lengths.sum())
    return Traces(
        users=np.asarray(range(len(traces)) if users is None else users, np.int64)[:, None],
        starts=starts,
        times=60_000 * (np.arange(n_points) - np.repeat(starts, lengths)),
        points=np.concatenate([np.asarray(trace, np.float64) for trace in traces]),
        landmarks=np.zeros(n_points, bool) if landmarks is None else np.concatenate(list(landmarks)),
        periods=np.zeros(n_points, np.int64),
    )
