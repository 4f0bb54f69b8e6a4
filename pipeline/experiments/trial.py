"""Trials in a sweep: people who are read once and shared, and the releases of each configuration."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from penstock.accountants.core.accountant import ACCOUNTANTS, AccountRow
from penstock.evaluation.attacks.membership import MembershipAttack
from penstock.evaluation.attacks.parameters import Game
from penstock.evaluation.attacks.recovery import Recovery
from penstock.mechanisms.core.contract import MECHANISMS
from penstock.mechanisms.core.events import Event
from penstock.mechanisms.core.plugin import DataError
from penstock.pipeline import atomic
from penstock.pipeline.config.plan import Plan, make_plan
from penstock.pipeline.config.run import RunConfig
from penstock.pipeline.config.sections import Output
from penstock.pipeline.counting.bounding import Bounding
from penstock.pipeline.counting.contributions import ContributionRows, Contributions
from penstock.pipeline.counting.count import GroupCounts, released_counts
from penstock.pipeline.counting.targets import empty_target_cells
from penstock.pipeline.experiments.attack import attacked_run, recovered
from penstock.pipeline.experiments.pieces import Record
from penstock.pipeline.releasing.release import Batch
from penstock.pipeline.releasing.traces import TraceLoop, gather, points_of
from penstock.pipeline.runners.shared import account_parts, counted, reduced, released_batches
from penstock.pipeline.sources.base import EventBlock
from penstock.pipeline.windows.sensors import Sensors

Array = NDArray[np.float64]
#: Distinct memberships of everybody in the source; of trials on traces their events.
People = ContributionRows | pl.DataFrame


def reading_config(config: RunConfig) -> RunConfig:
    """Return the part of a configuration that determines trajectories. Trials with equal parts share a data pass."""
    return replace(
        config,
        name="people",
        seed=0,
        mechanism=(MECHANISMS.get("raw")(),),
        bounding=Bounding(keep=config.bounding.keep),  # decides which event of a membership is remembered
        landmarks=None,
        budget_period=None,
        sensors=Sensors(),
        accountants=(),
        utility=(),
        on_exhausted="repeat",
        output=Output(path="unused", user_summaries=False),
    )


def write_people(config: RunConfig, path: Path) -> Record:
    """Write a source's people atomically to a private file, and return the number of rows."""
    atomic.make_folder(path.parent, private=True)
    source = config.source
    if config.windows.per_event:
        calendar = config.calendar
        events = (block.frame.select("user", "time", "latitude", "longitude") for block in source.all_blocks())
        frame = pl.concat([one.filter(calendar.index(one["time"].to_numpy()) > 0) for one in events])
    else:
        plan = make_plan(config)
        people = plan.people.memberships(plan.grid.n_windows)
        low, high = people.user.T
        frame = pl.DataFrame({"low": low, "high": high, "window": people.window, "cell": people.cell})
        if people.mark is not None:
            frame = frame.with_columns(mark=people.mark)
    with atomic.replacing(path, private=True) as temporary:
        frame.write_parquet(temporary)
    return {"rows": len(frame)}


def read_people(path: Path) -> People:
    """Read people from a file written by `write_people`."""
    frame = pl.read_parquet(path)
    if "time" in frame.columns:
        return frame
    columns = {column.name: column.to_numpy() for column in frame.drop("low", "high")}
    return ContributionRows(frame.select("low", "high").to_numpy(), **columns)


@dataclass(frozen=True)
class TrialCounts:
    """Counts of distinct users before and after contribution bounding, shape (n_windows, n_cells)."""

    truth: NDArray[np.int64]
    bounded: NDArray[np.int64]


def counts_of(plan: Plan, people: ContributionRows, group_size: int | None = None) -> TrialCounts:
    """Count everyone, or a random group drawn uniformly from all users with the run's seed."""
    if group_size is not None:
        users, number = np.unique(people.user, axis=0, return_inverse=True)
        if len(users) < group_size:
            raise DataError(f"group_size: {group_size} people are not to be had; the source shows {len(users)}")
        inside = np.zeros(len(users), bool)
        inside[np.random.default_rng(plan.config.seed).choice(len(users), group_size, replace=False)] = True
        people = people.take(inside[number.ravel()])
    shape = plan.grid.n_windows, plan.grid.n_cells
    place = (people.window - 1) * plan.grid.n_cells + people.cell
    truth = np.bincount(place, minlength=np.prod(shape)).reshape(shape)
    return TrialCounts(truth, released_counts(people, 1, shape[0], plan.chain, plan.grid, plan.bounds, plan.keys))


def release(plan: Plan, bounded: NDArray[np.int64]) -> Iterator[Batch]:
    """Release a whole run in batches. The result is byte-identical to the pipeline's."""
    loop, seen = plan.release_loop(), empty_target_cells()
    if plan.targets.n_targets:
        pieces: dict[tuple[int, int], list[Contributions]] = {}
        for block in plan.config.source.all_blocks():
            for key, piece in reduced(plan, block)[1]:
                pieces.setdefault(key, []).append(piece)
        groups = (counted(plan, group, parts)[0] for (group, _), parts in pieces.items())
        seen = np.concatenate([seen, *(counts.target_cells for counts in groups)])
    whole = GroupCounts(1, bounded, bounded, 0, seen)
    return (batch for batch, _ in released_batches(plan, loop, None, loop.start(), whole))


#: Counts of a trial for each event that is injected into a second run of it, so that events stay rare, and most events.
COUNTS_PER_EVENT, MAX_EVENTS = 500, 100


@dataclass(frozen=True)
class EventFigures:
    """Metrics of how visible injected events are in their windows."""

    recall: float  # share of events of which at least half is shown: nearer to the count with the event than without
    alarms: float  # share of events whose value has an alarm
    error: float  # median error of the value of such a window, as a share of its count


def events_shown(plan: Plan, counts: TrialCounts, size: int) -> EventFigures:
    """Release the counts again with injected events, each of which adds `size` people to one cell in one window.

    Each is in a random cell and a window of its own, drawn by the seed of the run, after the first day (or third of a
    shorter run), so that there is a usual count to differ from.
    """
    n_windows, n_cells = counts.truth.shape
    first = min(plan.grid.calendar.per_day or 1, n_windows // 3)
    n_events = min(max(1, counts.truth.size // COUNTS_PER_EVENT), MAX_EVENTS, n_windows - first)
    rng = np.random.default_rng(plan.config.seed)
    at = rng.choice(np.arange(first, n_windows), n_events, replace=False), rng.integers(0, n_cells, n_events)
    with_events = counts.bounded.copy()
    with_events[at] += size
    releases = [row for batch in release(plan, with_events) for row in batch.releases]
    values = np.stack([np.asarray(row.values, np.float64) for row in releases])[at]
    alarms = [alarm is not None and alarm[cell] for alarm, cell in ((releases[t].alarm, c) for t, c in zip(*at))]
    true = counts.truth[at] + size
    shown = values - counts.truth[at] >= size / 2
    return EventFigures(float(shown.mean()), float(np.mean(alarms)), float(np.median(np.abs(values - true) / true)))


@dataclass(frozen=True)
class Trial:
    """A completed trial, from which metrics are computed."""

    #: The run.
    plan: Plan
    #: True counts before bounding and released values, shape (n_windows, n_cells), both 0 where nothing was released;
    #: of traces true and released points in degrees, shape (n_points, 2).
    truth: Array
    released: Array
    #: Standard deviations of released counts, of their shape; NaN where none is stated.
    deviations: Array
    #: Action of every released window, or of every point.
    actions: NDArray[np.str_]
    #: Whether it is a landmark.
    landmarks: NDArray[np.bool_]
    #: Numbers of the released windows, from 1.
    windows: NDArray[np.int64]
    #: Events charged in each released window.
    charges: tuple[tuple[Event, ...], ...]
    #: Rows of every accountant by its name.
    accounts: Mapping[str, tuple[AccountRow, ...]]
    view: Literal["counts", "points"] = "counts"
    #: Counts of everybody, or of the group, in all windows; None of traces.
    counts: TrialCounts | None = None
    #: Size of the random group; None: everybody is counted.
    group_size: int | None = None
    #: The game that attacks on membership play.
    game: Game = field(default_factory=Game)
    #: Figures of injected events that were asked for, by size.
    events: dict[int, EventFigures] = field(default_factory=dict)

    @property
    def seed(self) -> int:
        """The run's seed, from which attacks derive their own seeds."""
        return self.plan.config.seed or 0

    @cached_property
    def days(self) -> NDArray[np.datetime64]:
        """The local date of each released window, or NaT unless all windows of that date were released."""
        return self.plan.grid.calendar.whole_days(self.windows)

    @cached_property
    def attacked(self) -> MembershipAttack:
        """Membership attacks on the trial's releases, all based on a single pass over the people."""
        observation, _ = self.game.periods(self.plan.grid.n_windows)
        return MembershipAttack(attacked_run(self.plan, observation[1]), self.game)

    def with_events(self, size: int) -> EventFigures:
        """Return the metrics of injected events of ``size`` people, computed from a second release of the counts."""
        assert self.counts is not None
        if size not in self.events:
            self.events[size] = events_shown(self.plan, self.counts, size)
        return self.events[size]

    @cached_property
    def recovered(self) -> Recovery:
        """The trajectories recovered from the trial's releases."""
        return recovered(self.plan, self.released, self.windows.tolist())


def run_trial(
    config: RunConfig,
    people: People,
    accountants: Collection[str] | None = None,
    group_size: int | None = None,
    game: Game | None = None,
) -> Trial:
    """Release a configuration for people read earlier, and account for it with all or only the named accountants.

    Raises `DataError` if a budget stopped the run before its last window: its measures would be those of fewer
    windows.
    """
    plan = make_plan(config)
    if isinstance(people, pl.DataFrame):
        return _of_traces(plan, people)
    counts = counts_of(plan, people, group_size)
    batches = list(release(plan, counts.bounded))
    if batches[-1].stopped:
        raise DataError(f"the run was stopped: {batches[-1].stopped}")
    releases = tuple(release for batch in batches for release in batch.releases)
    if not releases:
        raise DataError("nothing was released")
    accounts: dict[str, list[AccountRow]] = {}
    for number, shard in account_parts(plan):
        if accountants is None or ACCOUNTANTS.name_of(type(plan.config.accountants[number])) in accountants:
            loop = plan.account_loop(number, shard)
            state, rows = loop.start(), accounts.setdefault(loop.name, [])
            for batch in batches:
                made, state = loop.advance(state, batch)
                rows += made
    nothing, everywhere = np.full(plan.grid.n_cells, np.nan), np.ones(plan.grid.n_cells, bool)
    active = np.stack([everywhere if entry.active is None else entry.active for entry in releases])
    windows = np.array([entry.window for entry in releases], np.int64)
    deviations = [nothing if entry.standard_deviation is None else entry.standard_deviation for entry in releases]
    return Trial(
        plan=plan,
        truth=np.where(active, counts.truth[windows - 1], 0.0),
        released=np.where(active, np.stack([np.asarray(entry.values, np.float64) for entry in releases]), 0.0),
        deviations=np.stack(deviations),
        actions=np.array([str(entry.action) for entry in releases]),
        landmarks=np.array([entry.landmark for entry in releases], bool),
        windows=windows,
        charges=tuple(entry.charge for entry in releases),
        accounts={name: tuple(rows) for name, rows in accounts.items()},
        counts=counts,
        group_size=group_size,
        game=game or Game(),
    )


def _of_traces(plan: Plan, events: pl.DataFrame) -> Trial:
    """Release traces and account for them in a single shard."""
    block, terms, grid, space = EventBlock(events, len(events), ()), plan.traces, plan.grid, plan.space
    pieces = [piece for _, piece in points_of(block, grid, space, plan.keys, 1)[1]]
    if not pieces:
        raise DataError("nothing was released")
    loop = TraceLoop(terms, space, plan.keys, plan.config.accountants, 1)
    batch = loop.release(0, gather(pieces, terms, grid, space))
    names = (ACCOUNTANTS.name_of(type(accountant)) for accountant in plan.config.accountants)
    return Trial(
        plan=plan,
        truth=batch.traces.points,
        released=batch.released.values,
        deviations=np.full(batch.traces.points.shape, np.nan),
        actions=batch.released.action,
        landmarks=batch.traces.landmarks,
        windows=np.zeros(len(batch.traces.points), np.int64),
        charges=(),
        accounts={name: tuple(rows) for name, rows in zip(names, batch.accounts)},
        view="points",
    )
