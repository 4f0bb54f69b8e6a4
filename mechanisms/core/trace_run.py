"""From traces to released traces, without Beam: all users of a shard take each step together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mechanisms.core.errors import ParameterError
from mechanisms.core.mechanism import Mechanism
from mechanisms.core.noise import NoiseKey
from mechanisms.core.point_mechanism import PointMechanism
from mechanisms.core.sphere import Points
from mechanisms.core.timestamp import Integers, PointRelease, Timestamp
from mechanisms.core.trace_noise import TraceNoise
from mechanisms.core.traces import TraceAgenda, traces_of


@dataclass(frozen=True)
class Step:
    """One timestamp of the users who have got that far.

    Parameters
    ----------
    rows
        The point of each of them, an index into the traces' arrays.
    time
        Its public facts.
    release
        What was released.
    """

    rows: Integers
    time: Timestamp
    release: PointRelease


def release_traces(mechanism: Mechanism, agenda: TraceAgenda, noise: TraceNoise) -> Iterator[Step]:
    """Release every point of some traces.

    Parameters
    ----------
    mechanism
        One that works on points.
    agenda
        The traces and what is public of them.
    noise
        Where the noise comes from.

    Yields
    ------
    One step for every index up to the longest trace; the users come in order of the length of their traces, longest
    first, so that those who are left are always the first ones.

    Notes
    -----
    O(n_points) in all, a few dozen µs for each step and 5 µs for each point. A user's releases depend on that
    user's trace only.
    """
    if not (isinstance(mechanism, PointMechanism) and mechanism.on_points):
        raise ParameterError("mechanism", type(mechanism).__name__, "one that releases points of traces")
    traces = agenda.traces
    order = np.argsort(-traces.lengths, kind="stable")
    lengths, starts, users = traces.lengths[order], traces.starts[order], traces.users[order]
    state = mechanism.start_points(len(order))
    for index in range(1, int(lengths.max(initial=0)) + 1):
        n_left = int(np.searchsorted(-lengths, -index, "right"))
        if n_left < len(users):
            users, state = users[:n_left], {name: array[:n_left] for name, array in state.items()}
        rows = starts[:n_left] + (index - 1)
        time, points = agenda.at(rows, index), traces.points[rows]
        drawn = noise.at(index, users, time.time, points, state)
        release, state = mechanism.step_points(time, points, np.ones(n_left, bool), state, drawn)
        yield Step(rows, time, release)


@dataclass(frozen=True)
class ReleasedTraces:
    """What was released of every point, in the order of the traces: the arrays of `PointRelease`, point by point."""

    values: Points
    action: NDArray[np.str_]
    scale: NDArray[np.float64]
    epsilon: NDArray[np.float64]
    repeats: Integers
    noise: str = "none"


def collect(steps: Iterator[Step], n_points: int) -> ReleasedTraces:
    """Bring the releases of all steps into the order of the traces."""
    columns: dict[str, NDArray[Any]] = {
        "values": np.full((n_points, 2), np.nan),
        "action": np.full(n_points, "absent", "U9"),
        "scale": np.zeros(n_points),
        "epsilon": np.zeros(n_points),
        "repeats": np.full(n_points, -1, np.int64),
    }
    noise = "none"
    for step in steps:
        noise = step.release.noise
        for name, column in columns.items():
            column[step.rows] = getattr(step.release, name)
    return ReleasedTraces(**columns, noise=noise)


def run_traces(
    mechanism: Mechanism,
    traces: Sequence[Points],
    landmarks: Sequence[NDArray[np.bool_]] | None = None,
    seed: int = 0,
    users: Sequence[int] | None = None,
    origin: tuple[float, float] = (0.0, 0.0),
) -> list[ReleasedTraces]:
    """Release some traces, each an array of shape (n_points, 2) in degrees.

    Parameters
    ----------
    mechanism
        One that works on points.
    traces, landmarks, users
        As in `traces_of`; a user's number chooses the noise.
    seed
        Seed of the simulation's noise key.
    origin
        Public point shown before a first release.

    Returns
    -------
    The release of each trace.

    Examples
    --------
    >>> from mechanisms import get
    >>> skip = get("landmark_skip")(epsilon=1.0, noise="planar_laplace")
    >>> track = np.tile([39.9, 116.4], (3, 1))
    >>> (released,) = run_traces(skip, [track], [np.array([True, False, True])], origin=(40.0, 116.0))
    >>> released.action.tolist(), released.values[0].tolist()
    (['repeated', 'published', 'repeated'], [40.0, 116.0])
    """
    flat = traces_of(traces, landmarks, users)
    steps = release_traces(mechanism, TraceAgenda(flat, origin), TraceNoise(NoiseKey.from_seed(seed), b""))
    released = collect(steps, len(flat.times))
    cuts = flat.starts[1:]
    columns = {name: np.split(column, cuts) for name, column in vars(released).items() if name != "noise"}
    return [
        ReleasedTraces(**{name: parts[user] for name, parts in columns.items()}, noise=released.noise)
        for user in range(len(traces))
    ]
