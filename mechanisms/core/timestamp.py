"""One timestamp of many traces at once: its public facts, and what is released at it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Timestamp:
    """What is publicly known about the n-th point of every user of a shard, as arrays of shape (n_users,).

    The counterpart of `Window` on traces: every event of a user is a timestamp of its own, so that the same index means
    another time for every user. When a trace has a point is public; where is not.

    Parameters
    ----------
    index
        Position in each user's trace, 1-based.
    time
        Milliseconds since 1970 UTC.
    landmark
        Whether the timestamp is a landmark of this user.
    landmarks_to_come, regulars_to_come
        Landmarks and regular timestamps of the user that follow in the same budget period.
    n_landmarks
        Landmarks of the user in the whole period: those that exist, or the declared maximum.
    n_timestamps
        Timestamps of the user in the whole period.
    period
        Budget period of the timestamp, 0-based.
    origin
        Latitude and longitude of a public point, shown until a first release: shape (2,).
    """

    index: int
    time: Integers
    landmark: Mask
    landmarks_to_come: Integers
    regulars_to_come: Integers
    n_landmarks: Integers
    n_timestamps: Integers
    period: Integers
    origin: NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class PointRelease:
    """What is published of one timestamp of many traces.

    Parameters
    ----------
    values
        Shape (n_users, 2): latitude and longitude in degrees; NaN for users without a point.
    action
        Shape (n_users,): ``published``, ``repeated``, ``refused``, or ``absent`` for users without a point.
    noise
        Name of the noise family.
    scale
        Shape (n_users,), metres: 1/ε of planar Laplace noise, σ of Gaussian noise; 0 where nothing is drawn.
    epsilon
        Shape (n_users,): what it costs to tell two points ``radius`` metres apart, in nats, the decision whether to
        publish included; infinite where no such figure exists.
    repeats
        Shape (n_users,): timestamp shown again, 0 for the public point; −1: not a repetition.
    """

    values: NDArray[np.float64]
    action: NDArray[np.str_]
    noise: str
    scale: NDArray[np.float64]
    epsilon: NDArray[np.float64]
    repeats: Integers

    @classmethod
    def same_for_all(cls, values: NDArray[np.float64], noise: str, scale: float, epsilon: float) -> PointRelease:
        """Every user's point published, with the same noise at the same cost."""
        n_users = len(values)
        return cls(
            values=values,
            action=np.full(n_users, "published"),
            noise=noise,
            scale=np.full(n_users, scale),
            epsilon=np.full(n_users, epsilon),
            repeats=np.full(n_users, -1),
        )
