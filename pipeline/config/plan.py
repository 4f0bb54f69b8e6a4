"""A run's plan: the resolved configuration and noise key, computed once and sent to every worker."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from penstock.accountants.core.accountant import AccountingFacts
from penstock.mechanisms.core.chain import Chain
from penstock.mechanisms.core.contract import Facts
from penstock.mechanisms.core.noise_keys import NoiseKey
from penstock.mechanisms.core.schedules import BudgetSchedule, Schedule
from penstock.mechanisms.spatial_generalization import SpatialGeneralization
from penstock.pipeline.config.canonical import digest
from penstock.pipeline.config.run import RunConfig
from penstock.pipeline.counting.bounding import CountingBounds
from penstock.pipeline.counting.spec import Batching, RunKeys
from penstock.pipeline.counting.targets import Targets, targets_of
from penstock.pipeline.releasing.account import AccountLoop
from penstock.pipeline.releasing.release import Guard, ReleaseLoop, guard_of
from penstock.pipeline.sources.base import FileSource, LiveSource
from penstock.pipeline.spaces.base import Space
from penstock.pipeline.windows.grid import WindowGrid

if TYPE_CHECKING:
    from penstock.mechanisms.core.run import NoiseChoice
    from penstock.pipeline.counting.presence import People
    from penstock.pipeline.releasing.traces import TraceSpec


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A run's immutable, picklable plan, which is sent to the workers. Each step only takes the parts it uses."""

    config: RunConfig  # as loaded, with the noise that was chosen for ``auto``
    folder: Path  # where the run writes
    grid: WindowGrid
    space: Space
    bounds: CountingBounds
    batching: Batching
    keys: RunKeys
    chain: Chain  # the configuration's steps, as arranged
    points: TraceSpec | None = None  # None: counts are released
    prepared: tuple[Mapping[str, Any] | None, ...] = ()  # by `Accountant.prepare` of each
    streaming: bool = False  # events come as a stream, so that every window is counted for itself
    resumed: bool = False  # an earlier, unfinished run in the same folder is continued
    noise_choice: NoiseChoice | None = None  # None: it was not left to be chosen

    def with_noise_key(self) -> Self:
        """Return the plan with its noise key, which each worker reads itself. Raise `PenstockError` if there is none.

        Another key, or an epoch that the run did not begin with, would be a second release of the same windows.
        """
        key: Any = self.keys.noise_key
        if isinstance(key, NoiseKey):
            return self
        fingerprints, nonce = key
        key = noise_key(self.config).limited_to(fingerprints).for_run(nonce)
        return replace(self, keys=RunKeys(key, self.keys.configuration))

    @property
    def on_points(self) -> bool:
        """Return whether the run releases traces instead of counts."""
        return self.points is not None

    @property
    def traces(self) -> TraceSpec:
        """The parameters of a trace release."""
        if self.points is None:
            raise ValueError("counts are released, not traces")
        return self.points

    @property
    def summarises_users(self) -> bool:
        """Return whether to keep per-user statistics, which would grow without bound on a stream."""
        return self.config.output.user_summaries and not self.streaming

    @property
    def people(self) -> People:
        """The reader of individuals' presence data."""
        from penstock.pipeline.counting.presence import People

        return People(
            source=self.config.source,
            space=self.space,
            grid=self.grid,
            bounds=self.bounds,
            batching=self.batching,
            keys=self.keys,
            chain=self.chain,
        )

    @cached_property
    def shards(self) -> tuple[tuple[Mapping[str, Any] | None, ...], ...]:
        """The prepared data for each shard of each accountant."""
        accountants = self.config.accountants
        prepared = self.prepared or (None,) * len(accountants)
        return tuple(accountant.shards(data) for accountant, data in zip(accountants, prepared))

    @cached_property
    def targets(self) -> Targets:
        """The people whose cells the accountants track."""
        return targets_of(self.config.accountants, self.shards, self.keys.users)

    def facts(self) -> Facts:
        """Return the public facts available to the mechanism."""
        return Facts(
            n_cells=self.grid.n_cells,
            **self.bounds.limits(),
            n_windows=self.grid.calendar.n_windows,
            windows_per_day=self.grid.calendar.per_day,
            cells=self.space.cells,
        )

    def accounting_facts(self, training: Mapping[str, Any] | None = None) -> AccountingFacts:
        """Return the facts for an accountant, including the prepared data of one shard."""
        marks = self.grid.landmarks if self.points is None else self.points.landmarks
        return AccountingFacts(
            n_cells=self.grid.n_cells,
            **self.bounds.limits(),
            n_windows=self.grid.calendar.n_windows,
            mechanism=self.chain.reader,
            steps=self.config.mechanism,
            windows=None if self.on_points else self.grid.windows,
            landmarks=marks is not None,
            training=training,
        )

    def guard(self) -> Guard | None:
        """Return the landmark-budget guard, or None if there is no landmark budget."""
        return guard_of(self.config.accountants, self.accounting_facts())

    def release_loop(self) -> ReleaseLoop:
        """Return the loop that releases counts."""
        repeats = self.config.on_exhausted == "repeat"
        return ReleaseLoop(self.chain, self.facts(), self.grid, self.bounds, self.keys, self.guard(), repeats)

    def account_loop(self, number: int, shard: int = 0) -> AccountLoop:
        """Return the loop for one shard of an accountant, identified by the accountant's index in the configuration."""
        spans, facts = self.targets.spans[number], self.accounting_facts(self.shards[number][shard])
        return AccountLoop(self.config.accountants[number], facts, self.grid, spans[shard] if spans else None)


#: Windows over which noise is compared, at most.
COMPARED = 1_000


def noise_key(config: RunConfig) -> NoiseKey:
    """Return a configuration's noise key, from its seed or a deployment's secret (``env:NAME`` or a file)."""
    if config.mode == "simulation":
        return NoiseKey.from_seed(config.seed or 0)
    named = config.noise_key or ""
    if named.startswith("env:"):
        return NoiseKey.from_environment(named.removeprefix("env:"))
    return NoiseKey.from_file(named)


def make_plan(config: RunConfig, folder: Path | None = None, nonce: bytes = b"", **changes: Any) -> Plan:
    """Resolve a configuration into a plan, reading the source only if cells or priors depend on the data.

    ``nonce``: random bytes of a deployment's run (`NoiseKey.for_run`). ``changes``: as in `outline`.
    """
    plan = outline(config, noise_key(config).for_run(nonce), folder, **changes)
    if not config.accountants:
        return plan
    from penstock.pipeline.counting.presence import prepared

    return replace(plan, prepared=prepared(config.accountants, plan.people))


def outline(
    config: RunConfig, key: NoiseKey, folder: Path | None = None, n_shards: int = 1, resumed: bool = False
) -> Plan:
    """Build a plan without preparing the accountants.

    ``n_shards``: parts that users of finite input are split into while counting; never changes a result.
    """
    windows, source, output = config.windows, config.source, config.output
    space = config.space.resolve(source)
    streaming, n_cells = isinstance(source, LiveSource), len(space.cells)
    grid = WindowGrid(
        config.calendar,
        # Landmarks and budget periods of traces go by points, not by windows.
        landmarks=None if windows.per_event else config.landmarks,
        budget_period_ms=None if windows.per_event else config.budget_period,
        lateness_ms=windows.allowed_lateness,
        sensors=config.sensors.prepare(space.cells, config.seed or 0),
        holidays=windows.holidays or (),
    )
    spatial = next((step for step in config.mechanism if isinstance(step, SpatialGeneralization)), None)
    chain = Chain.of(config.mechanism, spatial.groups(space.geometry()) if spatial else None)
    # One process counts a stream; users are split for several.
    shards = 1 if streaming else n_shards
    plan = Plan(
        config=config,
        folder=folder or Path(output.path),
        grid=grid,
        space=space,
        bounds=CountingBounds.of(config.bounding, n_cells, chain.reader.unit.n_bounded),
        batching=Batching.of(
            grid.calendar.n_windows,
            n_cells,
            chain.bounding_windows,
            streaming,
            shards,
            ordered=isinstance(config.source, FileSource) and config.source.disorder is not None,
        ),
        keys=RunKeys(key, digest(config)),
        chain=chain,
        points=_traces(config),
        streaming=streaming,
        resumed=resumed,
    )
    reader = chain.reader
    if not isinstance(reader, BudgetSchedule) or len(reader.candidates) == 1:
        return plan
    from penstock.mechanisms.core.run import choose_noise

    compared = grid.windows(1, min(COMPARED, grid.calendar.n_windows or COMPARED))
    choice = choose_noise(reader, chain.coarse(plan.facts()), compared, _ledger_measure(plan))
    # The run is that of a configuration which names the noise: equal digests, and equal bytes.
    steps = tuple(choice.schedule if step is reader else step for step in config.mechanism)
    named = outline(replace(config, mechanism=steps), key, folder, n_shards, resumed)
    return replace(named, noise_choice=choice)


def _ledger_measure(plan: Plan) -> str | None:
    """Return the measure fixed by a deployment's ledger or declared budget, or None if neither fixes one."""
    if plan.config.mode == "simulation":
        return None
    if plan.config.output.ledger_budget is not None:
        return "rho"
    from penstock.pipeline.releasing.ledger import Ledger

    first = next(Ledger(ledger_path(plan)).entries(), None)
    return None if first is None else str(first.values["terms"]["measure"])


def state_folder() -> Path:
    """Return the default folder for ledgers under ``XDG_STATE_HOME`` or ``~/.local/state``."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "penstock"


def ledger_path(plan: Plan) -> Path:
    """Return a run's ledger path. For a deployment, it is outside the folder, so that copies of the folder share it."""
    output = plan.config.output
    if plan.config.mode == "simulation":
        return plan.folder / "operator" / "ledger"
    return Path(output.ledger or state_folder() / "ledgers" / (output.ledger_source or ""))


def _traces(config: RunConfig) -> TraceSpec | None:
    """Return the parameters of a trace release, or None if the run releases counts."""
    for step in config.mechanism:
        if isinstance(step, Schedule) and step.guarantee.on_points:
            from penstock.pipeline.releasing.traces import TraceSpec

            gap = getattr(config.windows, "gap", None)
            return TraceSpec(step, config.landmarks, config.budget_period, config.windows.time_zone, gap)
    return None
