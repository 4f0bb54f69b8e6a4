"""Audit a configuration by planting people in many runs and releasing each run with the regular release loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from operator import attrgetter
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from penstock.evaluation.attacks.audit import (
    Audit,
    AuditedRun,
    PlantedRun,
    ReleasedCounts,
    TraceRun,
    audit_releases,
    plant,
)
from penstock.mechanisms.core.contract import MECHANISMS, EventStep, Postprocess, Window
from penstock.mechanisms.core.geometry import moved, offsets_between
from penstock.mechanisms.core.noise_keys import NoiseKey
from penstock.mechanisms.core.plugin import ParameterError
from penstock.mechanisms.core.run import Traces
from penstock.mechanisms.core.state import State
from penstock.pipeline.config.plan import Plan, make_plan, outline
from penstock.pipeline.config.run import RunConfig
from penstock.pipeline.experiments.trial import counts_of
from penstock.pipeline.releasing.traces import TraceLoop, area_of, budget_periods, landmark_mask
from penstock.pipeline.windows.calendar import DAY

#: Windows of an audit without data whose configuration has no end.
ENDLESS = 336
#: Traces of a run, and their points at least, within a day where no end is given. Places are so far apart that to tell
#: them apart costs this much at least, in ε and in ρ: less would take ever more runs.
N_TRACES, N_POINTS, APART = 100, 20, {False: 2.0, True: 0.5}
#: Metres at most from one point of a trace to the next one.
FAR = 1e6


def audit(
    config: RunConfig,
    *,
    n_runs: int | None = None,
    minutes: float = 10.0,
    confidence: float = 0.999,
    seed: int = 0,
    listener: Callable[[int, int], None] = lambda done, total: None,
) -> Audit:
    """Estimate a lower bound on a person's privacy loss and compare it with the amount charged.

    People are planted after contribution bounding (`plant`). In a simulation of a finite source they are
    planted in its counts; a deployment's people are not looked at. The release loop of a run releases the counts with
    the noise of a public key. Audited are mechanism, noise, budget and charges; reading, bounding and what is shown
    beside the values are not. Of traces every point is in one of two places, and is charged by itself.

    `lower_bound` says why the bound holds. It is that of the claims as they are made: that each release, given all that
    was released before it, loses no more than the worst that the ledger checks before it is made; where people are
    planted in whole units, that a unit loses no more than the promised budget. That charges keep to the budget is
    checked by adding them up.

    Steps of ``config`` after the first noisy one are left out: they only make guessing harder.
    ``n_runs``: releases to make; None: four times as many as convict half of the noise. ``minutes``: time after which
    no further run is made. ``confidence``: probability with which the bound holds. ``seed``: of the coins, the places
    and the noise. ``listener`` is called with the runs made and those to make. Raises `ParameterError` for steps
    that change memberships before they are counted, no guarantee in ε or ρ, and numbers that make no sense.
    """
    if n_runs is not None and n_runs < 1:
        raise ParameterError("runs", n_runs, "a whole number of at least 1")
    if not 0 < confidence < 1:
        raise ParameterError("confidence", confidence, "above 0 and below 1")
    if not minutes > 0:
        raise ParameterError("minutes", minutes, "above 0")
    config = _auditable(config)
    per_event = config.windows.per_event
    on_data = config.mode == "simulation" and config.source.until is not None and not per_event
    if on_data:
        data = make_plan(replace(config, accountants=()))
        counts = counts_of(data, data.people.memberships(data.grid.n_windows)).bounded
    elif config.space.derived_from_data:
        raise ParameterError("space", "cells taken from the data", "public cells: nothing is read for this audit")
    else:
        grid = outline(config, NoiseKey.from_seed(0), Path("unused")).grid
        counts = np.zeros((grid.calendar.n_windows or ENDLESS, grid.n_cells), np.int64)

    def played(number: int, random: np.random.Generator) -> PlantedRun:
        """Execute a single run with a key derived from its number."""
        alone = replace(config, mode="simulation", noise_key=None, accountants=(), seed=seed + number)
        plan = outline(alone, NoiseKey.from_seed(seed + number), Path("unused"))
        if per_event:
            return _plant_points(plan, random)
        windows = plan.grid.windows(1, len(counts))
        return plant(
            AuditedRun(plan.chain, plan.facts(), windows, lambda planted: _release(plan, planted)), counts, random
        )

    return audit_releases(
        played,
        on_data=on_data,
        n_runs=n_runs,
        minutes=minutes,
        confidence=confidence,
        seed=seed,
        listener=listener,
    )


def _auditable(config: RunConfig) -> RunConfig:
    """Return the configuration with all post-processing removed."""
    steps = config.mechanism
    if any(step.guarantee.on_points and step.guarantee.amount is None for step in steps):
        raise ParameterError("mechanism", "noise that is planned from a goal", "noise with a guarantee in ε or ρ")
    if any(isinstance(step, EventStep) for step in steps):
        raise ParameterError("mechanism", "steps on events", "without them: people are planted in what is counted")
    kept = tuple(step for number, step in enumerate(steps) if number == 0 or not isinstance(step, Postprocess))
    if not any(step.guarantee.exists for step in kept):
        raise ParameterError("mechanism", MECHANISMS.name_of(type(kept[0])), "one with a guarantee, to be held against")
    return replace(config, mechanism=kept)


def _release(plan: Plan, planted: NDArray[np.int64]) -> ReleasedCounts:
    """Release all windows, stopping early if a budget is exhausted."""
    loop = plan.release_loop()
    state, amount = loop.start(), attrgetter("rho" if plan.chain.guarantee.concentrated else "epsilon")
    values, scale = np.full(planted.shape, np.nan), np.zeros(planted.shape)
    worst, charges, family = np.zeros(len(planted)), [], "none"
    for row in range(len(planted)):
        worst[row] = amount(loop.worst(state))
        batch, state = loop.advance(state, row + 1, planted[row : row + 1])
        for made in batch.releases:
            if made.action == "published":
                values[made.window - 1], scale[made.window - 1], family = made.values, made.scale, made.noise
        charges += [(charge.window, charge.last, amount(charge)) for charge in batch.charges]
        if batch.stopped:
            break
    return ReleasedCounts(values, scale, worst, np.array(charges, np.float64).reshape(-1, 3), family)


def _plant_points(plan: Plan, random: np.random.Generator) -> TraceRun:
    """Release traces whose points are at one of two places, and return them with each point's worst charge."""
    spec, promised, calendar = plan.traces, plan.chain.guarantee, plan.grid.calendar
    concentrated, amount = promised.concentrated, promised.amount or 0.0
    factor = max(1.0, APART[concentrated] / amount)  # amounts go with the distance, ρ with its square
    separation = spec.mechanism.metres * (np.sqrt(factor) if concentrated else factor)
    n_points = max(N_POINTS, *(spec.landmarks.windows if spec.landmarks else ()), 0)
    until = plan.config.source.until or calendar.from_ms + DAY
    step = max((min(until, calendar.from_ms + (spec.budget_period or DAY)) - calendar.from_ms) // n_points, 1)
    times = calendar.from_ms + max(step, spec.gap or 0) * np.arange(n_points)
    users, starts, times = np.arange(N_TRACES)[:, None], n_points * np.arange(N_TRACES), np.tile(times, N_TRACES)
    # Far from the point before, and the first one from the public point, so that what follows changes is released.
    there = np.column_stack(
        [np.zeros(len(times)), min(1000 * separation, FAR) * np.tile(1 - np.arange(n_points) % 2, N_TRACES)]
    )
    first = moved(np.asarray(area_of(plan.space).centre), there)
    marked = landmark_mask(spec.landmarks, spec.time_zone, times, first, starts, users)
    present = random.random(len(times)) < 0.5
    traces = Traces(
        users=users,
        starts=starts,
        times=times,
        points=np.where(present[:, None], moved(first, np.array([separation, 0.0])), first),
        landmarks=marked,
        periods=budget_periods(spec, calendar.start(1), times),
    )
    claims = np.zeros(len(times))

    def watch(rows: NDArray[np.int64], window: Window, state: State) -> None:
        """Record each point's worst-case charge, which depends on earlier releases."""
        (worst,) = spec.mechanism.worst_charge(window, state)
        claims[rows] = getattr(worst, "rho" if concentrated else "epsilon")

    released = TraceLoop(spec, plan.space, plan.keys, plan.config.accountants, 1).release(1, traces, watch).released
    charges = released.rho if concentrated else released.epsilon
    facts = zip(*(np.split(column, starts[1:]) for column in (charges, marked, traces.periods)))
    # Where a publication would cost less than the question whether to make it, its noise tells little of the claim.
    kept = claims >= 2 * spec.mechanism.query_budget
    return TraceRun(
        offsets=np.nan_to_num(offsets_between(traces.points, released.values))[kept],
        scale=np.where(released.action == "published", released.scale, 0.0)[kept],
        present=present[kept],
        claims=claims[kept] * factor,
        separation=float(separation),
        family=released.noise,
        concentrated=concentrated,
        unit=f"one point of one person, in one of two places {separation:,.4g} m apart",
        charged=max(promised.unit.cost(*one) for one in facts),
        promised=promised.amount,
    )
