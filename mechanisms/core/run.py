"""Run a mechanism without Beam on a count matrix or one shard's traces, and choose noise automatically."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.core.chain import Chain
from penstock.mechanisms.core.contract import ChainStep, Facts, Integers, Mask, Mechanism, Release, Window, in_periods
from penstock.mechanisms.core.events import ConcentratedDP, PureDP
from penstock.mechanisms.core.geometry import Points
from penstock.mechanisms.core.guarantee import EPSILON, GAUSSIAN, RHO
from penstock.mechanisms.core.noise import NoiseSource
from penstock.mechanisms.core.noise_keys import NoiseKey
from penstock.mechanisms.core.plugin import ParameterError
from penstock.mechanisms.core.schedules import BudgetSchedule
from penstock.mechanisms.core.state import State


def run_mechanism(
    mechanism: ChainStep,
    counts: NDArray[Any],
    facts: Facts | None = None,
    seed: int = 0,
    *,
    windows: Sequence[Window] | None = None,
    source: NoiseSource | None = None,
) -> list[Release]:
    """Run a mechanism over all windows of a finite series.

    Parameters
    ----------
    mechanism
        A mechanism that works on counts, or post-processing of the counts as they are.
    counts
        Whole numbers, shape (n_windows, n_cells), or (n_replicas, n_windows, n_cells) for independent copies in one
        vectorised pass.
    facts
        Public facts; None: one bounded cell per user and window, no landmarks. ``n_windows`` and ``n_replicas`` are
        taken from the counts.
    seed
        Seed of the simulation's noise key; replica 0 releases what a run without replicas does.
    windows
        One window a row of counts; None: those of the facts.
    source
        Where the noise comes from; None: from the seed. With the windows and the noise of a pipeline's plan the
        releases are those of the pipeline.

    Returns
    -------
    The releases in order of window, those of `Mechanism.finish` included.

    Examples
    --------
    >>> from penstock.mechanisms import get
    >>> [r.values.tolist() for r in run_mechanism(get("raw")(), np.array([[1, 2], [3, 4]]), seed=7)]
    [[1.0, 2.0], [3.0, 4.0]]
    """
    counts = np.asarray(counts)
    if counts.ndim not in (2, 3) or 0 in counts.shape:
        raise ParameterError("counts", counts.shape, "of shape (n_windows, n_cells) or (replicas, n_windows, n_cells)")
    if counts.dtype.kind not in "iu":
        if counts.dtype.kind not in "bf" or not (counts == np.rint(counts.astype(np.float64))).all():
            raise ParameterError("counts", str(counts.dtype), "whole numbers")
        if not (np.abs(counts.astype(np.float64)) < 2**53).all():
            raise ParameterError("counts", float(counts.max()), "finite, and less than 2⁵³, up to which they are exact")
        counts = counts.astype(np.int64)
    n_replicas = counts.shape[0] if counts.ndim == 3 else None
    facts = replace(facts or Facts(n_cells=counts.shape[-1]), n_windows=counts.shape[-2], n_replicas=n_replicas)
    if facts.n_cells != counts.shape[-1]:
        raise ParameterError("counts", counts.shape, f"{facts.n_cells} cells wide, as the facts say")
    windows = facts.windows() if windows is None else windows
    if len(windows) != counts.shape[-2]:
        raise ParameterError("windows", len(windows), f"{counts.shape[-2]} windows, one for each row of counts")
    source = source or NoiseSource(NoiseKey.from_seed(seed), configuration=b"", stream="")
    mechanism = mechanism if isinstance(mechanism, Mechanism) else Chain.of([mechanism])
    mechanism = choose_auto_noise(mechanism, facts, windows)
    return [release for made, _ in step_through(mechanism, counts, facts, windows, source) for release in made]


#: Noise by the measure of its budget.
LAWS_OF_NOISE = {EPSILON: "Laplace noise", RHO: "Gaussian noise by ρ", GAUSSIAN: "Gaussian noise by its exact ε"}


class NoiseChoice(NamedTuple):
    """An automatically chosen noise family and the reason for choosing it."""

    schedule: BudgetSchedule  # with that noise; without a δ where it is pure
    deviations: dict[BudgetSchedule, float]  # standard deviation in a count, by candidate
    by_ledger: bool  # whether the noise had to be that of a ledger's measure

    @property
    def words(self) -> str:
        """A one-line summary of the choice."""
        chosen, delta = self.schedule.family, self.schedule.delta
        others = [
            f"{deviation:.3g} with {LAWS_OF_NOISE[one.family.measure]}"
            for one, deviation in self.deviations.items()
            if one != self.schedule
        ]
        spent = "the promise is a pure ε, no δ is spent" if delta is None else f"δ = {delta:g} is spent"
        name = LAWS_OF_NOISE[chosen.measure] + (", the measure of the ledger" if self.by_ledger else "")
        size = f"standard deviation {self.deviations[self.schedule]:.3g} in a count"
        return f"{name}: {', '.join([size, *others])}; {spent}."


def choose_noise(
    schedule: BudgetSchedule, facts: Facts, windows: Sequence[Window], measure: str | None = None
) -> NoiseChoice:
    """Choose the noise family with the smaller standard deviation, preferring pure noise in a tie.

    Noise is compared as for a unit's first publication, in each window; ``measure``: a ledger's, to be kept to.
    **Privacy.** The choice is a function of public facts. Each candidate keeps to (ε, δ) by itself.
    """
    deviations = {one: one.deviation(facts, windows) for one in schedule.candidates}
    of_ledger = [one for one in deviations if one.family.measure == measure]
    return NoiseChoice(min(of_ledger or deviations, key=lambda one: deviations[one]), deviations, bool(of_ledger))


def choose_auto_noise(mechanism: Mechanism, facts: Facts, windows: Sequence[Window]) -> Mechanism:
    """Resolve ``noise: auto`` in a mechanism's schedule and return the resulting mechanism."""
    if isinstance(mechanism, Chain):
        return replace(mechanism, reader=choose_auto_noise(mechanism.reader, mechanism.coarse(facts), windows))
    if isinstance(mechanism, BudgetSchedule) and len(mechanism.candidates) > 1:
        return choose_noise(mechanism, facts, windows).schedule
    return mechanism


def step_through(
    mechanism: Mechanism,
    counts: NDArray[Any],
    facts: Facts,
    windows: Sequence[Window],
    source: NoiseSource,
    between: Callable[[State], State] = lambda state: state,
) -> Iterator[tuple[list[Release], State]]:
    """Yield the releases of each step and the resulting state, ending with `Mechanism.finish`."""
    # `between` maps the state between two steps: tests encode and decode it there.
    state = mechanism.start(facts)
    for row, window in enumerate(windows):
        state = between(state)
        vector = counts[..., row, :]
        noise = source.at(window.start, window.end, "step", vector, mechanism.noise_state(state), facts.n_replicas)
        made, state = mechanism.step(window, vector, state, noise)
        yield made, state
    state = between(state)
    nothing, last = np.zeros_like(counts[..., 0, :]), windows[-1]
    noise = source.at(last.start, last.end, "finish", nothing, mechanism.noise_state(state), facts.n_replicas)
    yield mechanism.finish(state, noise), state


def release_traces(
    mechanism: Mechanism,
    schedule: PointSchedule,
    source: NoiseSource,
    watch: Callable[[Integers, Window, State], object] = lambda rows, window, state: None,
) -> Iterator[tuple[Integers, Release]]:
    """Step through all traces in parallel until the longest one ends, yielding each step's array rows and release.

    In a step the users come in order of the length of their traces, longest first; ``watch`` is called before it.
    About 5 µs a point. A user's releases depend on that user's trace only.
    """
    if not mechanism.guarantee.on_points:
        raise ParameterError("mechanism", type(mechanism).__name__, "one that releases points of traces")
    traces = schedule.traces
    order = np.argsort(-traces.lengths, kind="stable")
    lengths, starts, users = traces.lengths[order], traces.starts[order], schedule.identities[order]
    state = mechanism.start(Facts(n_cells=2, n_replicas=len(order)))
    for index in range(1, int(lengths.max(initial=0)) + 1):
        n_left = int(np.searchsorted(-lengths, -index, "right"))
        if n_left < len(users):
            users, state = users[:n_left], {name: array[:n_left] for name, array in state.items()}
        rows = starts[:n_left] + (index - 1)
        time, points = schedule.at(rows, index), traces.points[rows]
        watch(rows, time, state)
        drawn = source.at_points(index, users, time.start, points, state)
        (release,), state = mechanism.step(time, points, state, drawn)
        yield rows, release


def collect(
    mechanism: Mechanism,
    schedule: PointSchedule,
    source: NoiseSource,
    *watch: Callable[[Integers, Window, State], object],
) -> ReleasedTraces:
    """Release all points (see `release_traces`) and collect the releases in trace order."""
    traces = schedule.traces
    n_points = len(traces.times)
    columns: dict[str, NDArray[Any]] = {
        "values": np.full((n_points, 2), np.nan),
        "action": np.full(n_points, "absent", "U9"),
        "scale": np.zeros(n_points),
        "epsilon": np.zeros(n_points),
        "rho": np.zeros(n_points),
        "repeats": np.full(n_points, -1, np.int64),
    }
    noise = "none"
    for rows, release in release_traces(mechanism, schedule, source, *watch):
        noise, (spent,) = release.noise, release.charge
        shown = {name: getattr(release, name) for name in ("values", "action", "repeats")}
        shown["scale"] = np.where(release.action == "published", np.ravel(release.scale), 0.0)
        if isinstance(spent, ConcentratedDP):
            shown |= {"epsilon": np.where(np.asarray(spent.rho) > 0, np.inf, 0.0), "rho": spent.rho}
        elif isinstance(spent, PureDP):
            shown |= {"epsilon": spent.epsilon, "rho": np.square(spent.epsilon) / 2}
        for name, column in columns.items():
            column[rows] = shown[name]
    public = {field.name: getattr(traces, field.name) for field in fields(TraceFacts)}
    return ReleasedTraces(**public, **columns, noise=noise, mechanism=mechanism, factors=schedule.factors)


def run_traces(
    mechanism: Mechanism,
    traces: Sequence[Points],
    landmarks: Sequence[NDArray[np.bool_]] | None = None,
    seed: int = 0,
    users: Sequence[int] | None = None,
    origin: tuple[float, float] = (0.0, 0.0),
    deviations: NDArray[np.float64] | None = None,
    factors: Sequence[NDArray[np.float64]] | None = None,
) -> list[ReleasedTraces]:
    """Release traces of shape (n_points, 2) in degrees; ``deviations``, ``factors``: planned noise (`PointSchedule`).

    >>> from penstock.mechanisms import get
    >>> skip = get("landmark_skip")(epsilon=1.0, noise="planar_laplace")
    >>> track = np.tile([39.9, 116.4], (3, 1))
    >>> (released,) = run_traces(skip, [track], [np.array([True, False, True])], origin=(40.0, 116.0))
    >>> released.action.tolist(), released.values[0].tolist()
    (['repeated', 'published', 'repeated'], [40.0, 116.0])
    """
    schedule = PointSchedule(traces_of(traces, landmarks, users), origin, deviations=deviations, factors=factors)
    released = collect(mechanism, schedule, NoiseSource(NoiseKey.from_seed(seed), configuration=b""))
    return [released.of_user(user) for user in range(len(traces))]


@dataclass(frozen=True, kw_only=True)
class TraceFacts:
    """Attributes of users' points other than their positions, ordered by user and then by time."""

    users: Integers  # identity of each user as integers, shape (n_users, n_words): chooses the noise, and the pseudonym
    starts: Integers  # first point of each user, shape (n_users,); every user has at least one point
    times: Integers  # milliseconds since 1970 UTC, shape (n_points,)
    landmarks: Mask  # which points are landmarks, shape (n_points,)
    periods: Integers  # budget period of each point, shape (n_points,); never falls along a trace

    @property
    def lengths(self) -> Integers:
        """Each user's number of points."""
        return np.diff(self.starts, append=len(self.times))

    @cached_property
    def user_of(self) -> Integers:
        """Each point's user, as an index into ``users``."""
        return np.repeat(np.arange(len(self.starts)), self.lengths)

    @cached_property
    def pseudonyms(self) -> list[str]:
        """Each user's pseudonym: the identity in hexadecimal digits."""
        return [user.astype(">i8").tobytes().hex() for user in np.ascontiguousarray(self.users)]

    @cached_property
    def begins_period(self) -> Mask:
        """Mask of the points that are their user's first one in a budget period."""
        is_first = np.zeros(len(self.times), bool)
        is_first[self.starts] = True
        is_first[1:] |= np.diff(self.periods) != 0
        return is_first

    def landmark_sums(self, cost: NDArray[np.float64]) -> tuple[Integers, NDArray[np.float64]]:
        """Return each budget period's user index and largest total cost over L ∪ {t}, given the cost of each point.

        >>> facts = traces_of([np.zeros((3, 2))], [np.array([True, False, True])])
        >>> facts.landmark_sums(np.array([1.0, 5.0, 2.0]))
        (array([0]), array([8.]))
        """
        if not len(self.starts):
            return np.zeros(0, np.int64), np.zeros(0)
        first = np.flatnonzero(self.begins_period)
        landmarks = np.add.reduceat(np.where(self.landmarks, cost, 0.0), first)
        others = np.maximum.reduceat(np.where(self.landmarks, 0.0, cost), first)
        return np.searchsorted(self.starts, first, "right") - 1, landmarks + others


@dataclass(frozen=True, kw_only=True)
class Traces(TraceFacts):
    """The traces of several users."""

    points: Points  # latitude and longitude in degrees, shape (n_points, 2)


@dataclass(frozen=True, kw_only=True)
class ReleasedTraces(TraceFacts):
    """Releases of all points in trace order, with each point's privacy cost but without true positions.

    Arrays are as in `Release`. ``epsilon`` is infinite where there is none; ``rho`` is ε²/2 for noise that has an ε.
    """

    values: Points
    action: NDArray[np.str_]
    scale: NDArray[np.float64]
    epsilon: NDArray[np.float64]
    rho: NDArray[np.float64]
    repeats: Integers
    noise: str  # noise family of every publication
    mechanism: Mechanism  # what released them
    # Cholesky factor of each user's noise covariance, in metres, over the points that are released. None: `scale` says
    # all there is of the noise, but where ``mechanism.guarantee.independent`` is False: then nothing bounds it.
    factors: Sequence[NDArray[np.float64]] | None = None

    def of_user(self, user: int) -> ReleasedTraces:
        """Return one user's releases, given the user's index."""
        points = slice(int(self.starts[user]), int(self.starts[user] + self.lengths[user]))
        columns = ("times", "landmarks", "periods", "values", "action", "scale", "epsilon", "rho", "repeats")
        return replace(
            self,
            users=self.users[user : user + 1],
            starts=np.zeros(1, np.int64),
            factors=None if self.factors is None else self.factors[user : user + 1],
            **{name: getattr(self, name)[points] for name in columns},
        )


@dataclass(frozen=True)
class PointSchedule:
    """Public attributes of every point in a set of traces."""

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
        """The keys of each user's noise. They include planned times, so that no two plans scale the same draws."""
        traces = self.traces
        if self.deviations is None:
            return traces.users
        times = np.split(traces.times, traces.starts[1:])
        words = [np.frombuffer(hashlib.sha256(each.tobytes()).digest(), np.int64) for each in times]
        return np.hstack([traces.users, np.array(words).reshape(len(times), -1)])

    @cached_property
    def _columns(self) -> dict[str, Integers]:
        """Return the budget-period attributes of each point."""
        return in_periods(self.traces.landmarks, np.cumsum(self.traces.begins_period) - 1, self.max_landmarks)

    def at(self, rows: Integers, index: int) -> Window:
        """Return the public attributes of the given points, each of which is its user's ``index``-th point."""
        traces = self.traces
        times, users = traces.times[rows], traces.user_of[rows]
        of_period: dict[str, Any] = {name: column[rows] for name, column in self._columns.items()}
        factor = None
        if self.factors is not None:
            factor = np.zeros((len(users), index))
            for row, user in enumerate(users.tolist()):
                if index <= len(self.factors[user]):
                    factor[row] = self.factors[user][index - 1, :index]
        return Window(
            index=index,
            start=times,
            end=times,
            landmark=traces.landmarks[rows],
            period=traces.periods[rows],
            origin=np.asarray(self.origin, np.float64),
            deviation=None if self.deviations is None else self.deviations[users],
            factor=factor,
            **of_period,
        )


def traces_of(
    traces: Sequence[Points], landmarks: Sequence[NDArray[np.bool_]] | None = None, users: Sequence[int] | None = None
) -> Traces:
    """Build traces with one point per minute in one budget period, from each user's points (n_points, 2) and mask."""
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
