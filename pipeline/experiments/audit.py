"""Audit a configuration: the runs in which people are planted, each released by the loop of a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from operator import attrgetter
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from penstock.evaluation.attacks.audit import Audit, AuditedRun, ReleasedCounts, audit_releases
from penstock.mechanisms.core.contract import MECHANISMS, EventStep, Mechanism, Postprocess
from penstock.mechanisms.core.noise_keys import NoiseKey
from penstock.mechanisms.core.plugin import ParameterError
from penstock.mechanisms.core.unit import PERIOD
from penstock.pipeline.config.plan import Plan, make_plan, outline
from penstock.pipeline.config.run import RunConfig
from penstock.pipeline.counting.presence import read_memberships
from penstock.pipeline.experiments.trial import counts_of
from penstock.pipeline.releasing.release import ReleaseLoop

#: Windows of an audit without data whose configuration has no end.
ENDLESS = 336


def audit(
    config: RunConfig,
    *,
    n_runs: int | None = None,
    minutes: float = 10.0,
    confidence: float = 0.999,
    seed: int = 0,
    listener: Callable[[int, int], None] = lambda done, total: None,
) -> Audit:
    """Estimate a lower bound on a person's privacy loss, and compare it with the charge.

    People are planted after contribution bounding (`audit_releases`). In a simulation of a finite source they are
    planted in its counts; a deployment's people are not looked at. The release loop of a run releases the counts with
    the noise of a public key. Audited are mechanism, noise, budget and charges; reading, bounding and what is shown
    beside the values are not.

    `lower_bound` says why the bound holds. It is that of the claims as they are made: that each release, given all that
    was released before it, loses no more than the worst that the ledger checks before it is made; where people are
    planted in whole units, that a unit loses no more than the promised budget. That charges keep to the budget is
    checked by adding them up.

    ``config``: release of counts. Steps after the first noisy one are left out: they only make guessing harder.
    ``n_runs``: releases to make; None: four times as many as convict half of the noise. ``minutes``: time after which
    no further run is made. ``confidence``: probability with which the bound holds. ``seed``: of the coins, the places
    and the noise. ``listener`` is called with the runs made and those to make. Raises `ParameterError` for traces,
    steps that change memberships before they are counted, no guarantee, and numbers that make no sense.
    """
    if n_runs is not None and n_runs < 1:
        raise ParameterError("runs", n_runs, "a whole number of at least 1")
    if not 0 < confidence < 1:
        raise ParameterError("confidence", confidence, "above 0 and below 1")
    if not minutes > 0:
        raise ParameterError("minutes", minutes, "above 0")
    config = _auditable(config)
    on_data = config.mode == "simulation" and config.source.until is not None
    if on_data:
        data = make_plan(replace(config, accountants=()))
        counts = counts_of(data, read_memberships(data, data.grid.n_windows)).bounded
    elif config.space.derived_from_data:
        raise ParameterError("space", "cells taken from the data", "public cells: nothing is read for this audit")
    else:
        grid = outline(config, NoiseKey.from_seed(0), Path("unused")).grid
        counts = np.zeros((grid.calendar.n_windows or ENDLESS, grid.n_cells), np.int64)

    def opened(number: int) -> AuditedRun:
        """Return one run, whose key follows from its number."""
        alone = replace(config, mode="simulation", noise_key=None, accountants=(), seed=seed + number)
        plan = outline(alone, NoiseKey.from_seed(seed + number), Path("unused"))
        windows = plan.grid.windows(1, len(counts))
        return AuditedRun(plan.chain, plan.facts(), windows, lambda planted: _release(plan, planted))

    return audit_releases(
        opened,
        counts,
        on_data=on_data,
        n_runs=n_runs,
        minutes=minutes,
        confidence=confidence,
        seed=seed,
        listener=listener,
    )


def _auditable(config: RunConfig) -> RunConfig:
    """Return the configuration without its post-processing."""
    steps = config.mechanism
    if config.windows.per_event or any(step.guarantee.on_points for step in steps):
        raise ParameterError("mechanism", "a release of traces", "one of counts: people are planted in counts")
    if any(isinstance(step, EventStep) for step in steps):
        raise ParameterError("mechanism", "steps on events", "without them: people are planted in what is counted")
    if config.bounding.max_per_period is not None and not any(
        isinstance(step, Mechanism) and step.unit == PERIOD for step in steps
    ):
        expected = "left out: people are planted in counts, whom this bound would not have left there"
        raise ParameterError("bounding.max_per_period", config.bounding.max_per_period, expected)
    kept = tuple(step for number, step in enumerate(steps) if number == 0 or not isinstance(step, Postprocess))
    if not any(step.guarantee.exists for step in kept):
        raise ParameterError("mechanism", MECHANISMS.name_of(type(kept[0])), "one with a guarantee, to be held against")
    return replace(config, mechanism=kept)


def _release(plan: Plan, planted: NDArray[np.int64]) -> ReleasedCounts:
    """Release every window until a budget stops the run."""
    loop = ReleaseLoop(plan)
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
