"""Audit of a configuration in one run: people planted in the counts, and a lower bound on what they lose."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.evaluation.attacks.one_run import OneRunBound, evidence, one_run_bound
from penstock.mechanisms.core.concentrated import epsilon_of
from penstock.mechanisms.core.contract import MECHANISMS, EventStep, Mechanism, Postprocess
from penstock.mechanisms.core.noise_keys import NoiseKey
from penstock.mechanisms.core.plugin import ParameterError
from penstock.mechanisms.core.unit import LANDMARKS, PERIOD
from penstock.pipeline.config.plan import Plan, make_plan, outline
from penstock.pipeline.config.run import RunConfig
from penstock.pipeline.counting.presence import read_memberships
from penstock.pipeline.experiments.trial import counts_of, release
from penstock.pipeline.output.loss import DELTA

#: Windows of an audit without data whose configuration has no end.
ENDLESS = 336


@dataclass(frozen=True)
class Audit:
    """Result of an audit beside the claimed loss."""

    bound: OneRunBound  # lower bound on ε from the guesses
    # ε of one planted person at the bound's δ: the dearest of what they were charged, or the budget that an
    # adaptive schedule keeps to
    claimed: float
    unit: str  # what a planted person does, in words
    n_runs: int  # releases made, each with people and noise of its own
    on_data: bool  # whether the people were planted among those of the source; otherwise in empty counts

    @property
    def convicted(self) -> bool:
        """Return whether the release loses more than is claimed, at the bound's confidence."""
        return self.bound.epsilon > self.claimed

    def as_dict(self) -> dict[str, Any]:
        """All figures by name; an infinite claim is None."""
        return {
            "claimed": self.claimed if math.isfinite(self.claimed) else None,
            "found": self.bound.epsilon,
            "convicted": self.convicted,
            "delta": self.bound.delta,
            "confidence": self.bound.confidence,
            "unit": self.unit,
            "n_canaries": self.bound.n_canaries,
            "n_guesses": self.bound.n_guesses,
            "n_right": self.bound.n_right,
            "n_runs": self.n_runs,
            "on_data": self.on_data,
        }

    def as_text(self) -> str:
        """The audit in sentences."""
        bound = self.bound
        at = f" at δ = {bound.delta:g}" if bound.delta else ""
        planted = "people of the source" if self.on_data else "nobody else"
        runs = "one run" if self.n_runs == 1 else f"{self.n_runs} runs"
        verdict = (
            "It loses more than is claimed: the accounts are wrong, or the noise is."
            if self.convicted
            else "Nothing speaks against the claim. That is no proof: a better attack may find more."
        )
        return (
            f"claimed: ε = {self.claimed:.4g}{at} for {self.unit}\n"
            f"found:   ε ≥ {bound.epsilon:.4g}{at}, with {bound.confidence:.0%} confidence\n".replace("%", " %")
            + f"{bound.n_canaries:,} people planted among {planted} in {runs}, each present by the toss of a coin; "
            f"{bound.n_guesses:,} guessed, {bound.n_right:,} rightly.\n{verdict}"
        )


def audit(
    config: RunConfig,
    *,
    windows: int | None = None,
    n_runs: int = 1,
    delta: float = DELTA,
    confidence: float = 0.95,
    seed: int = 0,
    on_data: bool | None = None,
) -> Audit:
    """Bound from below what one person loses by a configuration, and hold it against what the person is charged.

    People are planted after contribution bounding, each in as many cells as bounding leaves one person in every window
    of a stretch. The release loop of a run releases the counts with the noise of a public key. Audited are mechanism,
    noise, budget and charges; reading, bounding and what is shown beside the values are not.

    Parameters
    ----------
    config
        Release of counts. Steps after the first noisy one are left out: they only make guessing harder.
    windows
        Length of the stretch in windows; None: what the guarantee protects.
    n_runs
        Releases to make: more people than one run has room for.
    delta
        δ of a claim that is not pure.
    confidence
        Probability with which the bound holds.
    seed
        Of the coins, the places and the noise.
    on_data
        Whether people are planted in the counts of the source; None: in a simulation of a finite one. A deployment's
        people are not looked at.

    Raises
    ------
    ParameterError
        Traces, steps that change memberships before they are counted, no guarantee, a number that makes no sense.
    """
    for name, value, least in (("windows", windows, 1), ("runs", n_runs, 1)):
        if value is not None and value < least:
            raise ParameterError(name, value, f"a whole number of at least {least}")
    for name, share in (("delta", delta), ("confidence", confidence)):
        if not 0 < share < 1:
            raise ParameterError(name, share, "above 0 and below 1")
    config, found = _auditable(config), []
    finite = config.mode == "simulation" and config.source.until is not None
    on_data = finite if on_data is None else on_data
    if on_data and not finite:
        raise ParameterError("--data", True, "for a simulation of a finite source only")
    counts = _counts(config, on_data)
    for number in range(n_runs):
        own = replace(config, mode="simulation", noise_key=None, accountants=(), seed=seed + number)
        plan = outline(own, NoiseKey.from_seed(seed + number), Path("unused"))
        found.append(_play(plan, counts, windows, np.random.default_rng([seed, number])))
    scores = np.concatenate([one.scores for one in found])
    present = np.concatenate([one.present for one in found])
    pure = max(one.epsilon for one in found)
    claimed = pure if math.isfinite(pure) else epsilon_of(max(one.rho for one in found), delta)
    bound = one_run_bound(scores, present, 0.0 if math.isfinite(pure) else delta, confidence)
    return Audit(bound, claimed, found[0].unit, n_runs, on_data)


@dataclass(frozen=True)
class _Played:
    """Scores and coins of the people planted in one run, and the most that one of them was charged."""

    scores: NDArray[np.float64]
    present: NDArray[np.bool_]
    epsilon: float
    rho: float
    unit: str


def _auditable(config: RunConfig) -> RunConfig:
    """The configuration without its post-processing."""
    steps = config.mechanism
    if config.windows.per_event or any(step.guarantee.on_points for step in steps):
        raise ParameterError("mechanism", "a release of traces", "one of counts: people are planted in counts")
    if any(isinstance(step, EventStep) for step in steps):
        raise ParameterError("mechanism", "steps on events", "without them: people are planted in what is counted")
    if config.bounding.max_per_period is not None and not any(
        isinstance(step, Mechanism) and step.unit == PERIOD for step in steps
    ):
        right = "left out: people are planted in counts, whom this bound would not have left there"
        raise ParameterError("bounding.max_per_period", config.bounding.max_per_period, right)
    kept = tuple(step for number, step in enumerate(steps) if number == 0 or not isinstance(step, Postprocess))
    if not any(step.guarantee.exists for step in kept):
        raise ParameterError("mechanism", MECHANISMS.name_of(type(kept[0])), "one with a guarantee, to be held against")
    return replace(config, mechanism=kept)


def _counts(config: RunConfig, on_data: bool) -> NDArray[np.int64]:
    """Bounded counts of the source, or zeros; shape (n_windows, n_cells)."""
    if on_data:
        plan = make_plan(replace(config, accountants=()))
        return counts_of(plan, read_memberships(plan, plan.grid.n_windows)).bounded
    if config.space.derived_from_data:
        raise ParameterError("space", "cells taken from the data", "public cells: nothing is read for this audit")
    plan = outline(config, NoiseKey.from_seed(0), Path("unused"))
    return np.zeros((plan.grid.calendar.n_windows or ENDLESS, plan.grid.n_cells), np.int64)


def _play(plan: Plan, counts: NDArray[np.int64], length: int | None, random: np.random.Generator) -> _Played:
    """Plant people, release once, and score each by the evidence of the cells and windows where they are."""
    n_windows, n_cells = counts.shape
    n_own = min(plan.bounds.max_cells, n_cells, plan.bounds.max_per_period or n_cells)
    stretches = list(_stretches(plan, n_windows, length, n_own))
    places: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []  # windows and cells of each person
    for stretch in stretches:
        shuffled = random.permutation(n_cells)
        places += [(stretch, shuffled[first : first + n_own]) for first in range(0, n_cells - n_own + 1, n_own)]
    present = random.random(len(places)) < 0.5
    planted = counts.copy()
    for (rows, cells), there in zip(places, present):
        if there:
            planted[np.ix_(rows - 1, cells)] += 1
    gains, epsilon, rho = np.zeros(counts.shape), np.zeros(n_windows), np.zeros(n_windows)
    for batch in release(plan, planted):
        for made in batch.releases:
            base = counts[made.window - 1]
            gains[made.window - 1] = evidence(made, base, base + 1)
        for charge in batch.charges:
            epsilon[charge.window - 1], rho[charge.window - 1] = charge.epsilon, charge.rho
    scores = np.array([gains[np.ix_(rows - 1, cells)].sum() for rows, cells in places])
    charged = [(epsilon[rows - 1].sum(), rho[rows - 1].sum()) for rows in stretches]
    dearest, most = (max(sums) for sums in zip(*charged))
    budget, concentrated = _budget(plan, length)
    if concentrated:
        most = max(most, budget)
    else:
        dearest = max(dearest, budget)
    return _Played(scores, present, float(dearest), float(most), _unit(plan, stretches, n_own))


def _stretches(plan: Plan, n_windows: int, length: int | None, n_own: int) -> Iterator[NDArray[np.int64]]:
    """Windows that one person is in, for each stretch of the run that people are planted in."""
    reader = plan.chain.reader
    windows = plan.grid.windows(1, n_windows)
    if length is None and reader.unit in (LANDMARKS, PERIOD):
        for period in sorted({window.period for window in windows}):
            inside = [window for window in windows if window.period == period]
            if reader.unit == PERIOD:
                # As many windows as the bound on a period leaves one person; others are in the windows that are left.
                most = plan.bounds.max_per_period
                n_each = len(inside) if most is None else max(1, min(len(inside), most // n_own))
                for first in range(0, len(inside) - n_each + 1, n_each):
                    yield np.array([window.index for window in inside[first : first + n_each]])
                continue
            # Neighbours of landmark privacy differ in all landmarks and in one other window.
            regular = [window.index for window in inside if not window.landmark][:1]
            yield np.array(sorted([window.index for window in inside if window.landmark] + regular))
        return
    length = length or reader.unit.length
    if length > n_windows:
        raise ParameterError("windows", length, f"at most the {n_windows} windows of the run")
    most = plan.facts().max_windows or length
    for first in range(1, n_windows - length + 2, length):
        yield np.arange(first, first + min(length, most))


def _budget(plan: Plan, length: int | None) -> tuple[float, bool]:
    """Amount an adaptive schedule may spend on a stretch, whatever it did spend, and whether that is ρ; else 0."""
    promised = plan.chain.guarantee
    if promised.adaptive and promised.amount is not None and length is None:
        return promised.amount, promised.concentrated
    return 0.0, False


def _unit(plan: Plan, stretches: Sequence[NDArray[np.int64]], n_own: int) -> str:
    """Describe what a planted person does."""
    longest = max(len(stretch) for stretch in stretches)
    windows = "one window" if longest == 1 else f"{longest} windows"
    cells = "one cell" if n_own == 1 else f"{n_own} cells"
    landmarks = plan.chain.reader.unit == LANDMARKS and longest > 1
    return f"one person in {cells} of {windows}" + " (the landmarks of a period and one other)" * landmarks
