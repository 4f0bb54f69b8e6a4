"""Plan of a run: the resolved configuration and its noise key, computed once and shipped to every worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from penstock.accountants.core.accountant import Accountant, AccountingFacts
from penstock.mechanisms.core.chain import Chain
from penstock.mechanisms.core.contract import Facts, Mechanism, Window
from penstock.mechanisms.core.events import Event
from penstock.mechanisms.core.noise import NoiseSource
from penstock.mechanisms.core.noise_keys import NoiseKey
from penstock.mechanisms.core.period import PeriodBound
from penstock.mechanisms.core.traces import PointMechanism
from penstock.mechanisms.spatial_generalization import SpatialGeneralization
from penstock.pipeline.config.canonical import digest
from penstock.pipeline.config.run import RunConfig
from penstock.pipeline.counting.bounding import BlockBounds, Bounding
from penstock.pipeline.counting.contributions import KeyLayout
from penstock.pipeline.counting.ingest import ingested
from penstock.pipeline.counting.presence import prepared
from penstock.pipeline.counting.targets import Targets, targets_of
from penstock.pipeline.releasing.release import STREAM
from penstock.pipeline.sources.base import EventBlock, LiveSource, Source
from penstock.pipeline.spaces.base import Space
from penstock.pipeline.windows.calendar import CLOCK_CHANGE, DAY, Calendar, wall_time
from penstock.pipeline.windows.landmarks import Landmarks
from penstock.pipeline.windows.schedule import WindowSchedule
from penstock.pipeline.windows.sensors import SensorSchedule
from penstock.pipeline.windows.timestamps import Timestamps

__all__ = ["STREAM", "Plan", "make_plan", "outline"]


@dataclass(frozen=True)
class KeyedRun:
    """A configuration and its noise key; immutable and picklable.

    A deployment's travels with the fingerprints of its key and the nonce of the run only, without the secret or
    anything derived from it: every worker reads the key for itself (`opened`).
    """

    config: RunConfig  # the configuration as loaded
    key: NoiseKey  # noise key of the run

    def __getstate__(self) -> dict[str, Any]:
        if self.key.simulation:
            return dict(self.__dict__)
        # What has been derived from the key stays behind as well.
        own = {field.name: getattr(self, field.name) for field in fields(self)}
        return own | {"key": (self.key.fingerprints, self.key.nonce)}

    def opened(self) -> Self:
        """The run with its noise key, read again where it has travelled without; raises `PenstockError` without a key.

        Another key, or an epoch that the run did not begin with, would be a second release of the same windows.
        """
        key: Any = self.key
        if isinstance(key, NoiseKey):
            return self
        fingerprints, nonce = key
        return replace(self, key=noise_key(self.config).limited_to(fingerprints).for_run(nonce))

    @cached_property
    def run_id(self) -> str:
        """Which run this is in a ledger that several share; empty in a simulation, which repeats itself."""
        return self.key.subkey("run").hex()[:16] if self.key.nonce else ""

    @cached_property
    def configuration(self) -> bytes:
        """Digest of the configuration, which noise, samples and charges are bound to."""
        return digest(self.config)

    @cached_property
    def digest_key(self) -> bytes | None:
        """Key under which user ids are replaced at ingestion; None in a simulation."""
        return None if self.key.simulation else self.key.subkey("pseudonym")

    @cached_property
    def pseudonym_key(self) -> bytes:
        """Key under which users of traces become pseudonyms, in a simulation too."""
        return self.key.subkey("pseudonym")

    @property
    def keeps_rejected_rows(self) -> bool:
        """Whether a rejected row itself is kept, beside where it was and what was wrong."""
        return (self.config.output.rejects or self.config.mode) in ("raw", "simulation")

    @cached_property
    def hash_key(self) -> bytes:
        """Key of the hashes that bounding decides by."""
        return self.key.subkey("hash")


def noise_key(config: RunConfig) -> NoiseKey:
    """Noise key of a configuration: of its seed, or in a deployment the secret in ``env:NAME`` or a file."""
    if config.mode == "simulation":
        return NoiseKey.from_seed(config.seed or 0)
    named = config.noise_key or ""
    if named.startswith("env:"):
        return NoiseKey.from_environment(named.removeprefix("env:"))
    return NoiseKey.from_file(named)


#: Counts of this many cells travel as one matrix: small enough for any worker, large enough to amortise a call.
GROUP_CELLS = 1_000_000
#: Groups of windows in a finite run at least, so that some can be counted side by side.
GROUPS = 4


@dataclass(frozen=True)
class Plan(KeyedRun):
    """Everything that workers need; immutable and picklable.

    Parameters
    ----------
    config, key
        The configuration as loaded, and the noise key of the run.
    space, calendar, schedule, sensors
        Cells, windows, landmarks and active sensors, with nothing left to look up.
    folder
        Where the run writes.
    n_shards
        Parts that users are split into while counting; never changes a result.
    prepared
        What each accountant worked out beforehand (`Accountant.prepare`), in their order.
    streaming
        Whether events come as a stream, so that every window is counted for itself.
    resumed
        Whether an earlier, unfinished run in the same folder is continued.
    """

    space: Space
    calendar: Calendar
    schedule: WindowSchedule
    sensors: SensorSchedule
    folder: Path
    n_shards: int = 1
    prepared: tuple[Mapping[str, Any] | None, ...] = ()
    streaming: bool = False
    resumed: bool = False

    def noise(self) -> NoiseSource:
        """The keyed noise of this configuration."""
        return NoiseSource(self.key, configuration=self.configuration, stream=STREAM)

    @cached_property
    def source(self) -> Source:
        """Where events come from, with no column that the space does not look at."""
        return self.config.source.reading(self.space.reads)

    @property
    def lateness(self) -> int:
        """How long after its end a window accepts events, in milliseconds."""
        return self.config.windows.allowed_lateness

    @property
    def spool(self) -> Path:
        """Where a live source keeps files for the run."""
        return self.folder / "operator" / "parts" / "spool"

    @property
    def full_source(self) -> Source:
        """Where events come from, with all columns."""
        return self.config.source

    @property
    def names_users(self) -> bool:
        """Whether input files are named after users."""
        return self.config.source.recorded.names_users

    @property
    def mode(self) -> str:
        """``simulation`` or ``deployment``."""
        return self.config.mode

    @property
    def bounding(self) -> Bounding:
        """Contribution bounds."""
        return self.config.bounding

    @property
    def on_exhausted(self) -> str | None:
        """What happens when a budget would be exceeded."""
        return self.config.on_exhausted

    @property
    def landmarks(self) -> Landmarks | None:
        """Landmarks of the run."""
        return self.config.landmarks

    @property
    def budget_period(self) -> int | None:
        """Length of a budget period in milliseconds; None: the whole run."""
        return self.config.budget_period

    @property
    def time_zone(self) -> str:
        """Zone of the windows, and of landmarks and budget periods of traces."""
        return self.config.windows.time_zone

    @property
    def gap(self) -> int | None:
        """Least time between two points of a user, in milliseconds; None: every point is released."""
        windows = self.config.windows
        return windows.gap if isinstance(windows, Timestamps) else None

    def ingest(self, block: EventBlock) -> EventBlock:
        """The block as it may be kept or sent on."""
        return ingested(block, self)

    @cached_property
    def chain(self) -> Chain:
        """The steps of the configuration, arranged."""
        steps = self.config.mechanism
        spatial = next((step for step in steps if isinstance(step, SpatialGeneralization)), None)
        return Chain.of(steps, spatial.groups(self.space.geometry()) if spatial else None)

    @property
    def mechanism(self) -> Mechanism:
        """What releases: the chain, or its one step if there is only one."""
        return self.chain.reader if self.chain.simple else self.chain

    @property
    def on_points(self) -> bool:
        """Whether traces are released; otherwise counts."""
        return any(step.on_points for step in self.config.mechanism)

    @property
    def point_mechanism(self) -> PointMechanism:
        """What releases traces."""
        return next(step for step in self.config.mechanism if isinstance(step, PointMechanism) and step.on_points)

    @property
    def accountants(self) -> tuple[Accountant, ...]:
        """The accountants of the run, in the order of the configuration."""
        return self.config.accountants

    @cached_property
    def cells(self) -> tuple[str, ...]:
        """Names of the cells."""
        return self.space.cells

    @cached_property
    def n_cells(self) -> int:
        """Number of cells."""
        return len(self.cells)

    @cached_property
    def max_cells(self) -> int:
        """The bound that counting enforces, hence the sensitivity."""
        return min(self.config.bounding.max_cells or self.n_cells, self.n_cells)

    def sensitivity(self) -> dict[str, Any]:
        """How much one person changes the counts, as the manifest says it."""
        found: dict[str, Any] = {"max_cells": self.max_cells, "l1": self.max_cells, "l2": self.max_cells**0.5}
        if memberships := self.memberships_of():
            found["memberships"] = memberships
        return found

    def worst_charge(self) -> tuple[Event, ...]:
        """The worst that the first window can charge; every sensor is active."""
        window = replace(self.windows(1, 1)[0], active=None)
        return self.mechanism.worst_charge(window, self.mechanism.start(self.facts()))

    @cached_property
    def block_bounds(self) -> BlockBounds | None:
        """Bounds on what a user is in over a whole block, where the mechanism has blocks and they are set."""
        bounding, length = self.config.bounding, self.chain.reader.unit_windows
        if length == 1 or (bounding.max_windows is None and bounding.max_block_cells is None):
            return None
        return BlockBounds(length, bounding.max_windows, bounding.max_block_cells)

    @cached_property
    def period_bound(self) -> PeriodBound | None:
        """Bound on what a user is in over a whole budget period, where one is set."""
        most = self.config.bounding.max_per_period
        if most is None:
            return None
        shortest, longest, alone = self.schedule.period_lengths()
        return PeriodBound(most=most, max_cells=self.max_cells, shortest=shortest, longest=longest, alone=alone)

    @property
    def windows_fit_days(self) -> bool:
        """Whether every calendar day begins with a window, also after the clocks have changed."""
        step = self.calendar.step
        stays = self.time_zone == "UTC" or DAY // 24 % step == 0  # clocks change by an hour
        return stays and DAY % step == 0 and wall_time(self.time_zone, self.calendar.start(1)) % step == 0

    def memberships_of(self) -> dict[str, int]:
        """Memberships that a person's ``window``, ``day`` and ``run`` change, where budget periods are bounded."""
        bound = self.period_bound
        if bound is None:
            return {}
        step, fits = self.calendar.step, self.windows_fit_days
        longest = DAY if self.time_zone == "UTC" else DAY + CLOCK_CHANGE
        # Periods of one day are the days of the same zone; any others meet a day anywhere.
        if fits and self.budget_period == DAY:
            day = bound.whole
        else:
            day = bound.stretch(-(-longest // step) + (not fits))
            if (
                not fits
            ):  # in the windows that go beyond the day other events stay, and bounding may keep another of them
                day += 2 * bound.of_window
        n_windows = self.calendar.n_windows
        run = {} if n_windows is None else {"run": bound.whole * (self.schedule.window(n_windows).period + 1)}
        return {"window": bound.of_window, "day": day, **run}

    @cached_property
    def group(self) -> int:
        """Windows whose counts travel together: whole blocks, and a single one on a stream."""
        unit = self.chain.unit_windows
        most = min(GROUP_CELLS // self.n_cells, -(-self.n_windows // GROUPS)) if not self.streaming else 1
        return max(1, most // unit) * unit

    def group_windows(self, group: int) -> int:
        """Windows in one group: the last one may be shorter."""
        n_windows = self.calendar.n_windows
        return self.group if n_windows is None else min(self.group, n_windows - group * self.group)

    @property
    def n_groups(self) -> int:
        """Groups of windows in a finite run."""
        return -(-self.n_windows // self.group)

    @cached_property
    def summarises_users(self) -> bool:
        """Whether per-user figures are kept; on a stream they would grow without end."""
        return self.config.output.user_summaries and not self.streaming

    @property
    def keeps_truth(self) -> bool:
        """Whether true counts or traces are kept for the operator; a deployment keeps none."""
        return self.config.mode == "simulation" and self.config.output.truth

    @cached_property
    def layout(self) -> KeyLayout:
        """How memberships of one group are packed into integers."""
        return KeyLayout(self.group, self.n_cells)

    @property
    def n_windows(self) -> int:
        """Windows of a finite run."""
        if self.calendar.n_windows is None:
            raise ValueError("an endless run has no number of windows")
        return self.calendar.n_windows

    def facts(self) -> Facts:
        """What the mechanism may know."""
        return Facts(
            n_cells=self.n_cells,
            max_cells=self.max_cells,
            max_windows=self.block_bounds.max_windows if self.block_bounds else None,
            max_block_cells=self.block_bounds.max_cells if self.block_bounds else None,
            max_per_period=self.config.bounding.max_per_period,
            n_windows=self.calendar.n_windows,
            windows_per_day=self.calendar.per_day,
            period_bound=self.period_bound,
        )

    @cached_property
    def shards(self) -> tuple[tuple[Mapping[str, Any] | None, ...], ...]:
        """What each parallel part of each accountant works with."""
        prepared = self.prepared or (None,) * len(self.accountants)
        return tuple(accountant.shards(own) for accountant, own in zip(self.accountants, prepared))

    @cached_property
    def targets(self) -> Targets:
        """People whose cells an accountant follows."""
        return targets_of(self, self.shards)

    def accounting_facts(self, accountant: Accountant | None = None, shard: int = 0) -> AccountingFacts:
        """What the accountants may know; with what one of them prepared for one of its parts."""
        own = self.shards[self.accountants.index(accountant)][shard] if accountant else None
        return AccountingFacts(
            n_cells=self.n_cells,
            max_cells=self.max_cells,
            max_windows=self.block_bounds.max_windows if self.block_bounds else None,
            n_windows=self.calendar.n_windows,
            mechanism=self.chain.reader,
            steps=self.config.mechanism,
            max_block_cells=self.block_bounds.max_cells if self.block_bounds else None,
            windows=None if self.on_points else self.windows,
            landmarks=self.config.landmarks is not None,
            max_per_period=self.config.bounding.max_per_period,
            training=own,
        )

    def windows(self, first: int, last: int) -> list[Window]:
        """Public facts of the windows from ``first`` to ``last``, active sensors included."""
        windows = self.schedule.windows(first, last)
        if self.sensors.all_active:
            return windows
        masks = self.sensors.masks(first, last)
        return [replace(window, active=mask) for window, mask in zip(windows, masks)]


def make_plan(config: RunConfig, folder: Path | None = None, nonce: bytes = b"", **changes: Any) -> Plan:
    """Resolve a configuration: reads the source only where cells or an accountant's prior come from the data.

    ``nonce``: random bytes of a deployment's run (`NoiseKey.for_run`).
    """
    plan = outline(config, noise_key(config).for_run(nonce), folder, **changes)
    return replace(plan, prepared=prepared(plan))


def outline(config: RunConfig, key: NoiseKey, folder: Path | None = None, **changes: Any) -> Plan:
    """Plan without what accountants work out beforehand."""
    space = config.space.resolve(config.source)
    calendar = config.windows.calendar(config.source.from_, config.source.until)
    if isinstance(config.source, LiveSource):
        changes |= {"streaming": True, "n_shards": 1}  # one process counts; users are split for several
    return Plan(
        config=config,
        space=space,
        calendar=calendar,
        schedule=_schedule(config, calendar),
        sensors=config.sensors.prepare(space.cells, config.seed or 0),
        key=key,
        folder=folder or Path(config.output.path),
        **changes,
    )


def _schedule(config: RunConfig, calendar: Calendar) -> WindowSchedule:
    if config.windows.per_event:
        return WindowSchedule(calendar)  # landmarks and budget periods of traces go by points, not by windows
    return WindowSchedule(calendar, config.landmarks, config.budget_period, lateness_ms=config.windows.allowed_lateness)
