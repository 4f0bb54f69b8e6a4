"""The plan of a run: its resolved configuration and noise key, computed once and sent to every worker."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from penstock.mechanisms.core.chain import Chain
from penstock.mechanisms.core.noise_keys import NoiseKey
from penstock.mechanisms.core.run import NoiseChoice, choose_noise
from penstock.mechanisms.core.schedules import BudgetSchedule, Scheduled
from penstock.mechanisms.spatial_generalization import SpatialGeneralization
from penstock.pipeline.config.canonical import digest
from penstock.pipeline.config.run import RunConfig
from penstock.pipeline.counting.bounding import CountingBounds
from penstock.pipeline.counting.spec import Batching, CoreSpec, RunKeys, TraceSpec
from penstock.pipeline.sources.base import FileSource, LiveSource
from penstock.pipeline.windows.grid import WindowGrid


@dataclass(frozen=True, kw_only=True)
class Plan(CoreSpec):
    """The immutable, picklable plan of a run, as sent to the workers."""

    config: RunConfig  # as loaded, with the noise that was chosen for ``auto``
    folder: Path  # where the run writes
    streaming: bool = False  # events come as a stream, so that every window is counted for itself
    resumed: bool = False  # an earlier, unfinished run in the same folder is continued
    noise_choice: NoiseChoice | None = None  # None: it was not left to be chosen

    def opened(self) -> Self:
        """Return the plan with its noise key, read again by each worker. Raise `PenstockError` if there is no key.

        Another key, or an epoch that the run did not begin with, would be a second release of the same windows.
        """
        key: Any = self.keys.noise_key
        if isinstance(key, NoiseKey):
            return self
        fingerprints, nonce = key
        key = noise_key(self.config).limited_to(fingerprints).for_run(nonce)
        return replace(self, keys=RunKeys(key, self.keys.configuration))


#: Windows over which noise is compared, at most.
COMPARED = 1_000


def noise_key(config: RunConfig) -> NoiseKey:
    """Return the noise key of a configuration, from its seed or from a deployment's secret (``env:NAME`` or a file)."""
    if config.mode == "simulation":
        return NoiseKey.from_seed(config.seed or 0)
    named = config.noise_key or ""
    if named.startswith("env:"):
        return NoiseKey.from_environment(named.removeprefix("env:"))
    return NoiseKey.from_file(named)


def make_plan(config: RunConfig, folder: Path | None = None, nonce: bytes = b"", **changes: Any) -> Plan:
    """Resolve a configuration into a plan, reading the source only if cells or an accountant's prior come from the
    data.

    ``nonce``: random bytes of a deployment's run (`NoiseKey.for_run`). ``changes``: as in `outline`.
    """
    from penstock.pipeline.counting.presence import prepared

    plan = outline(config, noise_key(config).for_run(nonce), folder, **changes)
    return replace(plan, prepared=prepared(plan))


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
        windows.calendar(source.from_, source.until),
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
        source=source,
        grid=grid,
        space=space,
        bounds=CountingBounds.of(config.bounding, n_cells, chain.reader.unit.n_bounded),
        batching=Batching.of(
            grid.calendar.n_windows,
            n_cells,
            chain.unit_windows,
            streaming,
            shards,
            ordered=isinstance(config.source, FileSource) and config.source.disorder is not None,
        ),
        keys=RunKeys(key, digest(config)),
        steps=config.mechanism,
        chain=chain,
        accountants=config.accountants,
        points=_traces(config),
        on_exhausted=config.on_exhausted,
        summarises_users=output.user_summaries and not streaming,
        has_user_names=source.recorded.has_user_names,
        config=config,
        folder=folder or Path(output.path),
        streaming=streaming,
        resumed=resumed,
    )
    reader = chain.reader
    if not isinstance(reader, BudgetSchedule) or len(reader.candidates) == 1:
        return plan
    compared = grid.windows(1, min(COMPARED, grid.calendar.n_windows or COMPARED))
    choice = choose_noise(reader, chain.coarse(plan.facts()), compared, _measure_of_ledger(plan))
    # The run is that of a configuration which names the noise: equal digests, and equal bytes.
    steps = tuple(choice.schedule if step is reader else step for step in config.mechanism)
    named = outline(replace(config, mechanism=steps), key, folder, n_shards, resumed)
    return replace(named, noise_choice=choice)


def _measure_of_ledger(plan: Plan) -> str | None:
    """Return the measure that a deployment's ledger or its stated budget fixes, or None."""
    if plan.config.mode == "simulation":
        return None
    if plan.config.output.ledger_budget is not None:
        return "rho"
    from penstock.pipeline.releasing.ledger import Ledger

    first = next(Ledger(ledger_path(plan)).entries(), None)
    return None if first is None else str(first.values["terms"]["measure"])


def state_folder() -> Path:
    """Return the folder of ledgers without a configured path, in ``XDG_STATE_HOME`` or ``~/.local/state``."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "penstock"


def ledger_path(plan: Plan) -> Path:
    """Return the path of a run's ledger; a deployment's is outside its folder, so that copies of that share it."""
    output = plan.config.output
    if plan.config.mode == "simulation":
        return plan.folder / "operator" / "ledger"
    return Path(output.ledger or state_folder() / "ledgers" / (output.ledger_source or ""))


def _traces(config: RunConfig) -> TraceSpec | None:
    """Return the terms of a release of traces, or None for counts."""
    for step in config.mechanism:
        if isinstance(step, Scheduled) and step.on_points:
            gap = getattr(config.windows, "gap", None)
            return TraceSpec(step, config.landmarks, config.budget_period, config.windows.time_zone, gap)
    return None
