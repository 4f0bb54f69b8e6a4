"""Select points from the traces in one user shard, release them through a point mechanism and account for them."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.accountants.core.accountant import Accountant, Rows
from penstock.mechanisms.core.contract import Window
from penstock.mechanisms.core.geometry import Points, corners_of, distance, mean_points, stay_points, within
from penstock.mechanisms.core.noise import NoiseSource
from penstock.mechanisms.core.plugin import BudgetExceeded
from penstock.mechanisms.core.run import PointSchedule, ReleasedTraces, Traces, collect
from penstock.mechanisms.core.schedules import Schedule
from penstock.mechanisms.core.state import State
from penstock.mechanisms.core.unit import LANDMARKS, exceeds
from penstock.mechanisms.gaussian_trace import GaussianTrace
from penstock.pipeline.counting.contributions import starts_of
from penstock.pipeline.counting.ingest import RowCounts, rejected_by_reason
from penstock.pipeline.counting.spec import RunKeys
from penstock.pipeline.counting.users import user_codes
from penstock.pipeline.releasing.ledger import Charge
from penstock.pipeline.sources.base import EventBlock
from penstock.pipeline.spaces.base import Space
from penstock.pipeline.windows.grid import WindowGrid, period_calendar
from penstock.pipeline.windows.landmarks import Landmarks

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class TraceSpec:
    """Parameters of a trace release, in which landmarks and budget periods apply to points instead of windows."""

    mechanism: Schedule
    landmarks: Landmarks | None
    budget_period: int | None  # in milliseconds; None: the whole run
    time_zone: str  # of landmarks and budget periods
    gap: int | None  # least time between two points of a user, in milliseconds; None: every point is released


# Which points of traces are landmarks, and which budget period each point is in.


def landmark_mask(
    landmarks: Landmarks | None,
    time_zone: str,
    times: Integers,
    points: Points,
    starts: Integers,
    users: Integers | None = None,
) -> NDArray[np.bool_]:
    """Return a mask of the points that are landmarks.

    ``landmarks``: ``windows`` are numbers of a user's points, the same for every user; ``times`` and ``recurring`` hold
    for every point in them; ``stay_points`` are found on each trace, ``drawn`` ones among its points. None: no
    landmarks. ``time_zone``: zone of times without an offset. ``times``, ``points``, ``starts``, ``users``: the traces,
    as in `Traces`; users decide what is drawn (None: their order does).

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
    if landmarks.drawn is not None:
        identities = np.arange(len(starts))[:, None] if users is None else users
        for first, n_points, user in zip(starts.tolist(), lengths.tolist(), identities):
            seed = int.from_bytes(np.ascontiguousarray(user).tobytes(), "little")
            order = np.argsort(np.random.default_rng(seed).gumbel(size=n_points))
            is_drawn = np.argsort(order) >= n_points - round(landmarks.drawn.share * n_points)
            mask[first : first + n_points] |= is_drawn
    return mask


def budget_periods(terms: TraceSpec, begin: int, times: Integers) -> Integers:
    """Return each point's 0-based budget period in a run that starts at ``begin``."""
    if terms.budget_period is None:
        return np.zeros(len(times), np.int64)
    return period_calendar(terms.budget_period, begin, terms.time_zone).index(times) - 1


# From blocks of events to the traces of a shard of users.


#: Version of what is done to points on their way into traces: a run that another version began is not continued.
VERSION = 2


class Area(NamedTuple):
    """A circle around a space's centre that contains all cells. Released points are confined to it.

    Points outside are moved to its edge. Left out, they would change how many points a trace has and what number each
    of them is, and that is public.
    """

    centre: tuple[float, float]  # latitude and longitude: also the public point that is shown before a first release
    radius: float  # in metres


@lru_cache(maxsize=16)
def area_of(space: Space) -> Area:
    """Return the circle that encloses a space."""
    corners = [outline for cell in space.geometry() if len(outline := corners_of(cell))]
    if not corners:
        return Area((0.0, 0.0), np.inf)
    west, south = np.min([corner.min(axis=0) for corner in corners], axis=0)
    east, north = np.max([corner.max(axis=0) for corner in corners], axis=0)
    centre = float((south + north) / 2), float((west + east) / 2)
    # Along each side of a cell the distance from the centre is largest at one of the side's ends.
    furthest = distance(np.concatenate(corners)[:, ::-1], np.asarray(centre)).max()
    return Area(centre, float(furthest) + space.reach)


def points_of(
    block: EventBlock, grid: WindowGrid, space: Space, keys: RunKeys, n_shards: int
) -> tuple[RowCounts, Iterator[tuple[int, State]]]:
    """Count a block's rows, reject those outside the time range, and split points by pseudonymous shard."""
    on_time = grid.calendar.index(block.frame["time"].to_numpy()) > 0
    frame = block.frame.filter(on_time)
    points: Points = frame.select("latitude", "longitude").to_numpy()
    inside = within(points, (area := area_of(space)).centre, area.radius)
    counts = RowCounts(
        rows=block.n_rows,
        used=len(frame),
        out_of_time=len(on_time) - len(frame),
        clamped=int((inside != points).any(axis=1).sum()),
        rejected=rejected_by_reason(block),
    )
    if frame.is_empty():
        return counts, iter(())
    codes, table = user_codes(frame["user"], keys.pseudonyms)
    users = table.astype("<i8").view(">u8").astype(np.uint64)[codes]
    # The pseudonym's leading bits choose the shard, so that shards in order hold pseudonyms in order.
    shard = ((users[:, 0] >> np.uint64(32)) * np.uint64(n_shards)) >> np.uint64(32)
    columns = {"user": users, "time": frame["time"].to_numpy(), "point": inside}
    masks = [(int(number), shard == number) for number in np.unique(shard).tolist()]
    return counts, ((number, {name: column[mask] for name, column in columns.items()}) for number, mask in masks)


def gather(pieces: Sequence[State], terms: TraceSpec, grid: WindowGrid, space: Space) -> Traces:
    """Merge one shard's chunks of points, in any order, into traces sorted by pseudonym.

    Several rows of a user at the same millisecond are one point, their mean (`mean_points`): to keep one of them by
    where it is, a few metres could decide which.
    """
    users, times, points = (np.concatenate([piece[name] for piece in pieces]) for name in ("user", "time", "point"))
    order = np.lexsort((points[:, 1], points[:, 0], times, users[:, 1], users[:, 0]))
    users, times, points = users[order], times[order], points[order]
    first = np.flatnonzero(starts_of([users[:, 0], users[:, 1], times]))
    n_rows = np.diff(first, append=len(times))
    several = n_rows > 1
    rows, points = points[np.repeat(several, n_rows)], points[first]
    if several.any():
        points[several] = mean_points(rows, np.cumsum(n_rows[several]) - n_rows[several], area_of(space).centre)
    users, times = users[first], times[first]
    if terms.gap is not None:
        kept = _thin(times, np.flatnonzero(starts_of([users[:, 0], users[:, 1]])), terms.gap)
        users, times, points = users[kept], times[kept], points[kept]
    starts = np.flatnonzero(starts_of([users[:, 0], users[:, 1]]))
    people = users[starts].view(np.int64)
    landmarks = landmark_mask(terms.landmarks, terms.time_zone, times, points, starts, people)
    periods = budget_periods(terms, grid.calendar.start(1), times)
    return Traces(users=people, starts=starts, times=times, points=points, landmarks=landmarks, periods=periods)


def _thin(times: Integers, starts: Integers, gap: int) -> Integers:
    """Return the indices of the points kept when each trace is thinned from its start to points at least ``gap`` apart.

    >>> _thin(np.array([0, 4, 5, 9, 11, 3, 7]), np.array([0, 5]), 5).tolist()
    [0, 2, 4, 5]
    """
    kept: list[int] = []
    for first, last in zip(starts.tolist(), np.append(starts[1:], len(times)).tolist()):
        moments, point = times[first:last], 0
        while point < len(moments):
            kept.append(first + point)
            point = int(np.searchsorted(moments, moments[point] + gap))
    return np.asarray(kept, np.int64)


# The release of one shard of traces: every user's points in order, each once, nothing beyond the budget.


@dataclass(frozen=True)
class TraceBatch:
    """One shard's released traces, the charge that must be stored first, and the accountants' rows.

    The run is charged as a whole before its first shard; the charge of a shard says of which input it was made.
    """

    shard: int
    traces: Traces
    released: ReleasedTraces
    charge: Charge
    accounts: tuple[Rows, ...]

    @property
    def user_summary(self) -> dict[str, list[int]]:
        """Each user's number of points and number of landmarks, without any identities."""
        landmarks = np.add.reduceat(self.traces.landmarks, self.traces.starts, dtype=np.int64)
        return {"points": self.traces.lengths.tolist(), "landmarks": landmarks.tolist()}


class TraceLoop:
    """Loop that releases all traces in a shard through the mechanism and accounts for them.

    A user's releases depend on that user's trace only, whatever shard it is in. Nothing persists between calls.
    """

    def __init__(
        self, terms: TraceSpec, space: Space, keys: RunKeys, accountants: Sequence[Accountant], n_shards: int
    ) -> None:
        self.terms, self.space, self.keys, self.accountants, self.n_shards = terms, space, keys, accountants, n_shards
        self.noise = NoiseSource(keys.noise_key, configuration=keys.configuration)

    def release(self, shard: int, traces: Traces, *watch: Callable[[Integers, Window, State], object]) -> TraceBatch:
        """Release and account for all traces in a shard. Raises `BudgetExceeded` before anything is written."""
        mechanism, landmarks = self.terms.mechanism, self.terms.landmarks
        origin, max_landmarks = area_of(self.space).centre, landmarks.declared if landmarks else None
        schedule = PointSchedule(traces, origin, max_landmarks, **planned_noise(mechanism, traces))
        released = collect(mechanism, schedule, self.noise, *watch)
        check_budget(released)
        accounts = tuple(accountant.account_traces(released) for accountant in self.accountants)
        return TraceBatch(shard, traces, released, self._charge(shard, traces), accounts)

    def _charge(self, shard: int, traces: Traces) -> Charge:
        """Return a zero charge that marks a shard's traces as released, so that retries are recognised."""
        message = b"".join(map(np.ndarray.tobytes, (traces.users, traces.starts, traces.times, traces.points)))
        data = hmac.digest(self.keys.ledger, message, "sha256").hex()[:32]
        return Charge(1, 1, 0.0, 0.0, 1, data, part=f"traces/{shard} of {self.n_shards}")


def planned_noise(mechanism: Schedule, traces: Traces) -> dict[str, Any]:
    """Return deviations and factors for a `PointSchedule` if the mechanism's noise is planned for a goal."""
    if not isinstance(mechanism, GaussianTrace) or mechanism.goal is None:
        return {}
    # loads SciPy's optimisers
    from penstock.accountants.gaussian_process.goal import planned_deviations, planned_factors

    goal, metres = mechanism.goal, mechanism.metres
    if not mechanism.is_designed:
        return {"deviations": planned_deviations(goal, metres, traces)}
    deviations, factors = planned_factors(goal, metres, traces)
    return {"deviations": deviations, "factors": factors}


def check_budget(released: ReleasedTraces) -> None:
    """Raise `BudgetExceeded` if a user's landmarks and one more point of a period cost more than the budget."""
    promised = released.mechanism.guarantee
    budget = promised.amount_of(LANDMARKS)
    if budget is None:
        return
    users, sums = released.landmark_sums(released.rho if promised.concentrated else released.epsilon)
    if exceeds(float(sums.max(initial=0.0)), budget):
        worst = int(sums.argmax())
        raise BudgetExceeded(int(released.lengths[users[worst]]), 0.0, float(sums[worst]), budget)
