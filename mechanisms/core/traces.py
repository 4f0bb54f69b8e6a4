"""Traces of one shard of users as flat arrays, and mechanisms on their points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.core.contract import Facts, Guarantee, Integers, Mask, Mechanism, PointRelease, Timestamp
from penstock.mechanisms.core.geometry import Points
from penstock.mechanisms.core.plugin import parameter
from penstock.mechanisms.core.state import State


@dataclass(frozen=True, kw_only=True)
class Traces:
    """Some users' points, user after user, in order of time."""

    users: Integers  # identity of each user as integers, shape (n_users, n_words): chooses the noise, is never released
    starts: Integers  # first point of each user, shape (n_users,); every user has at least one point
    times: Integers  # milliseconds since 1970 UTC, shape (n_points,)
    points: Points  # latitude and longitude in degrees, shape (n_points, 2)
    landmarks: Mask  # which points are landmarks, shape (n_points,)
    periods: Integers  # budget period of each point, shape (n_points,); never falls along a trace

    @property
    def lengths(self) -> Integers:
        """Points of each user."""
        return np.diff(self.starts, append=len(self.times))

    @cached_property
    def user_of(self) -> Integers:
        """User of each point, as an index into ``users``."""
        return np.repeat(np.arange(len(self.starts)), self.lengths)


@dataclass(frozen=True)
class PointSchedule:
    """Public facts of every point of some traces.

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
    # standard deviation in metres that was worked out for each user's trace, shape (n_users,); None: nothing
    # planned
    deviations: NDArray[np.float64] | None = None

    @cached_property
    def _columns(self) -> tuple[Integers, ...]:
        """Landmarks and regular points to come, and landmarks and points of the period."""
        traces = self.traces
        is_first = np.zeros(len(traces.times), bool)
        is_first[traces.starts] = True
        is_first[1:] |= np.diff(traces.periods) != 0
        period = np.cumsum(is_first) - 1
        (landmarks, left), (regulars, regulars_left) = (
            _counted(mask, period) for mask in (traces.landmarks, ~traces.landmarks)
        )
        n_timestamps = landmarks + regulars
        if self.max_landmarks is not None:
            left = np.maximum(self.max_landmarks - (landmarks - left), 0)
            landmarks = np.full_like(landmarks, self.max_landmarks)
        return left, regulars_left, landmarks, n_timestamps

    def at(self, rows: Integers, index: int) -> Timestamp:
        """Facts of some points, all of them the ``index``-th of their users."""
        traces = self.traces
        left, regulars_left, landmarks, n_timestamps = (column[rows] for column in self._columns)
        return Timestamp(
            index=index,
            time=traces.times[rows],
            landmark=traces.landmarks[rows],
            landmarks_to_come=left,
            regulars_to_come=regulars_left,
            n_landmarks=landmarks,
            n_timestamps=n_timestamps,
            period=traces.periods[rows],
            origin=np.asarray(self.origin, np.float64),
            deviation=None if self.deviations is None else self.deviations[traces.user_of[rows]],
        )


def traces_of(
    traces: Sequence[Points], landmarks: Sequence[NDArray[np.bool_]] | None = None, users: Sequence[int] | None = None
) -> Traces:
    """Traces from one array (n_points, 2) a user, a point a minute, in one budget period.

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


def _counted(mask: Mask, group: Integers) -> tuple[Integers, Integers]:
    """How many of ``mask`` each point's group has, and how many of them come after the point."""
    totals = np.bincount(group, weights=mask).astype(np.int64)
    return totals[group], np.cumsum(totals)[group] - np.cumsum(mask)


#: The noise families that make a budget schedule work on traces: one divides ε, the other ρ.
PLANAR, PLANAR_GAUSSIAN = PLANAR_FAMILIES = ("planar_laplace", "planar_gaussian")


@dataclass(frozen=True, kw_only=True)
class PointMechanism(Mechanism):
    """Base of mechanisms that can work on points.

    Their ε is the cost of telling two points ``radius`` metres apart: points d metres apart cost ε·d/radius, and
    ρ·(d/radius)² of a budget in ρ. The state of a user is one entry on the leading axis of every array, so that any
    users can share a step.
    """

    radius: float | None = parameter(
        None,
        doc="on traces: distance at which two points are told apart at a cost of epsilon or rho; unset: 1",
        above=0,
    )
    #: What is promised on traces, where that differs from the promise on counts.
    point_guarantee: ClassVar[Guarantee]

    @property
    def stated_guarantee(self) -> Guarantee:
        """That of points, where it works on them."""
        return self.point_guarantee if self.on_points else super().stated_guarantee

    @property
    def metres(self) -> float:
        """The radius, or its default."""
        return 1.0 if self.radius is None else self.radius

    def start_points(self, n_users: int) -> State:
        """State of some users before their first point."""
        return self.start(Facts(n_cells=2, n_replicas=n_users))

    def worst_points(self, time: Timestamp, state: State) -> NDArray[np.float64]:
        """Largest ε, or ρ of a budget in ρ, that the next step can cost each user; a function of past releases only."""
        raise NotImplementedError(f"{type(self).__name__} does not work on points")


def shown(time: Timestamp, state: State) -> Points:
    """Last release of each user; before any, the public point."""
    return np.where((state["last_window"] > 0)[:, None], state["last"], time.origin)


def remember(time: Timestamp, values: Points, state: State, publish: Mask) -> State:
    """State in which the users who published have a new last release."""
    return state | {
        "last": np.where(publish[:, None], values, state["last"]),
        "last_window": np.where(publish, time.index, state["last_window"]),
    }


def only_present(release: PointRelease, present: Mask, before: State, after: State) -> tuple[PointRelease, State]:
    """Release and state with users that have no point left out, their state unchanged."""
    if present.all():
        return release, after
    hidden = PointRelease(
        values=np.where(present[:, None], release.values, np.nan),
        action=np.where(present, release.action, "absent"),
        noise=release.noise,
        scale=np.where(present, release.scale, 0.0),
        epsilon=np.where(present, release.epsilon, 0.0),
        rho=np.where(present, release.rho, 0.0),
        repeats=np.where(present, release.repeats, -1),
    )
    kept = {
        name: np.where(present.reshape(present.shape + (1,) * (new.ndim - 1)), new, before[name])
        for name, new in after.items()
    }
    return hidden, kept
