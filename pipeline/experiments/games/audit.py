"""Audit a configuration by estimating a lower bound on the privacy loss of planted people."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.evaluation.attacks.one_run import Guesses, LowerBound, log_ratio, lower_bound
from penstock.mechanisms.core.concentrated import epsilon_of
from penstock.mechanisms.core.contract import (
    MECHANISMS,
    EventStep,
    Mechanism,
    Postprocess,
    measured,
    shows_single_counts,
)
from penstock.mechanisms.core.guarantee import DELTA
from penstock.mechanisms.core.noise_keys import NoiseKey
from penstock.mechanisms.core.plugin import ParameterError
from penstock.mechanisms.core.unit import PERIOD, RUN
from penstock.pipeline.config.plan import Plan, make_plan, outline
from penstock.pipeline.config.run import RunConfig
from penstock.pipeline.counting.presence import read_memberships
from penstock.pipeline.experiments.trial import counts_of
from penstock.pipeline.releasing.release import ReleaseLoop

Array = NDArray[np.float64]
#: Windows of an audit without data whose configuration has no end.
ENDLESS = 336
#: Most runs that are simulated to say from how many on half of the noise is convicted.
MAX_RUNS = 1 << 14
#: Noise is taken for less than any that is drawn where a publication states none.
NO_NOISE = 1e-6


@dataclass(frozen=True)
class Audit:
    """The result of an audit, together with the claimed privacy loss in ε or ρ."""

    bound: LowerBound  # lower bound on the multiple of the claims that is lost
    concentrated: bool  # whether losses are in ρ
    unit: str  # what a planted person does, in words
    # Dearest unit of the guarantee by the charges of all runs, and the budget that is promised for it; None: neither
    # is stated, or charges of linked windows are larger by design
    charged: float | None
    promised: float | None
    n_runs: int  # releases made, each with people and noise of its own
    on_data: bool  # whether the people were planted among those of the source; otherwise in empty counts
    # Bounds that noise as stated, and half of it, would give in as many runs, and the runs from which on half of the
    # noise is convicted; None: more than `MAX_RUNS`
    expected: float
    expected_of_half: float
    runs_for_half: int | None
    # Whether every published value is its own cell's count with noise; where it is not the guesses are poorer than
    # the expectations are
    single_counts: bool

    @property
    def convicted(self) -> bool:
        """Return whether, at the bound's confidence, the loss exceeds the claim, or the charge the promised budget."""
        is_over = self.charged is not None and self.promised is not None and self.charged > self.promised * (1 + 1e-9)
        return self.bound.factor > 1 or is_over

    def as_dict(self) -> dict[str, Any]:
        """Return all figures by name."""
        bound, measure = self.bound, "rho" if self.concentrated else "epsilon"
        names = ("expected", "expected_of_half", "runs_for_half", "charged", "promised", "convicted", "unit", "n_runs")
        figures = {"measure": measure, "claimed": bound.claim, "found": bound.amount, "on_data": self.on_data}
        figures |= {name: getattr(bound, name) for name in ("confidence", "n_canaries", "n_guesses", "n_right")}
        return figures | {name: getattr(self, name) for name in names}

    def as_text(self) -> str:
        """Describe the audit in sentences."""
        bound, letter = self.bound, "ρ" if self.concentrated else "ε"
        planted = "people of the source" if self.on_data else "nobody else"
        runs = "one run" if self.n_runs == 1 else f"{self.n_runs:,} runs"
        at_delta = f" (ε = {epsilon_of(bound.claim, DELTA):.4g} at δ = {DELTA:g})" if self.concentrated else ""
        from_runs = f"more than {MAX_RUNS:,}" if self.runs_for_half is None else f"about {self.runs_for_half:,}"
        verdict = (
            "It loses more than is claimed: the accounts are wrong, or the noise is."
            if self.convicted
            else "Nothing speaks against the claim. That is no proof: a better attack may find more."
        )
        lines = [
            f"claimed:  {letter} = {bound.claim:.4g}{at_delta} for {self.unit}",
            f"found:    {letter} ≥ {bound.amount:.4g}, with {100 * bound.confidence:g} % confidence",
            f"expected: {letter} ≥ {self.expected:.4g} with the noise that is stated, {letter} ≥ "
            f"{self.expected_of_half:.4g} with half of it, which {from_runs} runs convict",
        ]
        if self.charged is not None and self.promised is not None:
            lines.append(f"charged:  {letter} = {self.charged:.4g} of {self.promised:.4g} for the dearest unit")
        if not self.single_counts:
            lines.append("Released values are made of several counts: guesses are poorer than expected here.")
        lines.append(
            f"{bound.n_canaries:,} people planted among {planted} in {runs}, each present by the toss of a coin; "
            f"{bound.n_guesses:,} guessed, {bound.n_right:,} rightly."
        )
        return "\n".join([*lines, verdict])


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

    People are planted after contribution bounding, each in as many cells as bounding leaves one person: in a single
    window, where the charges of windows add up to that of the guarantee's unit, else in all windows of a unit. In a
    simulation of a finite source they are planted in its counts; a deployment's people are not looked at. The release
    loop of a run releases the counts with the noise of a public key. The adversary scores each person by the likelihood
    ratio of the stated noise over all numbers that the person moves. Audited are mechanism, noise, budget and charges;
    reading, bounding and what is shown beside the values are not.

    `lower_bound` says why the bound holds. It is that of the claims as they are made: that each release, given all that
    was released before it, loses no more than the worst that the ledger checks before it is made; where people are
    planted in whole units, that a unit loses no more than the promised budget. That charges keep to the budget is
    checked by adding them up. How many runs are made follows from what was released, never from the coins, so that
    the bound holds of all of them.

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
    until = time.monotonic() + 60 * minutes
    runs: list[_Run] = []

    def play(n: int) -> _Run:
        """Make n runs, or fewer if the time limit is reached, and return the first run."""
        while not runs or (len(runs) < n and (n_runs is not None or time.monotonic() < until)):
            listener(len(runs), n)
            runs.append(_play(config, counts, seed, len(runs)))
        return runs[0]

    first = play(n_runs or 1)
    bound_of = partial(lower_bound, concentrated=first.concentrated, confidence=confidence)
    random = np.random.default_rng([seed, 1])
    half = [runs[0].simulated(0.5, random)]
    while (bound := bound_of(Guesses.of(half))).factor <= 1 and len(half) < MAX_RUNS and time.monotonic() < until:
        play(n_runs or 2 * len(half))
        half += [runs[number % len(runs)].simulated(0.5, random) for number in range(len(half), 2 * len(half))]
    runs_for_half = len(half) if bound.factor > 1 else None
    if runs_for_half is not None:
        play(n_runs or 4 * runs_for_half)
    stated, half = ([run.simulated(share, random) for run in runs] for share in (1.0, 0.5))
    totals = [run.charged for run in runs if run.charged is not None]
    return Audit(
        bound=bound_of(Guesses.of([run.guesses() for run in runs])),
        concentrated=first.concentrated,
        unit=first.unit,
        charged=max(totals) if totals else None,
        promised=first.promised,
        n_runs=len(runs),
        on_data=on_data,
        expected=bound_of(Guesses.of(stated)).amount,
        expected_of_half=bound_of(Guesses.of(half)).amount,
        runs_for_half=runs_for_half,
        single_counts=first.single_counts,
    )


@dataclass(frozen=True)
class _Stretch:
    """The people who are planted in the same windows of one run.

    ``rows`` are the windows, 0-based, ``cells`` those of each person, shape (n_people, n_own). ``numbers`` are the rows
    of noisy numbers that they move, each by ``moved``, shape (n_numbers,).
    """

    rows: NDArray[np.int64]
    cells: NDArray[np.int64]
    present: NDArray[np.bool_]
    claim: float
    numbers: NDArray[np.int64]
    moved: Array


@dataclass(frozen=True)
class _Run:
    """A release with planted people.

    ``noise`` and ``scale`` are those of all numbers that noise was added to, shape (n_rows, n_numbers), NaN and 0 where
    none was published; ``cells`` is how numbers of a row are made of cells (`Measured`).
    """

    stretches: tuple[_Stretch, ...]
    noise: Array
    scale: Array
    cells: Array | None
    family: str
    concentrated: bool
    unit: str
    charged: float | None
    promised: float | None
    single_counts: bool

    def guesses(self, noise: Array | None = None, coins: Sequence[NDArray[np.bool_]] = ()) -> Guesses:
        """Return guesses about the planted people, made from the release, or from other noise and coin flips."""
        noise = self.noise if noise is None else noise
        # What is equal but for rounding is equal: the last bits of real noise tell coins apart, in no given order.
        present = list(coins) or [stretch.present for stretch in self.stretches]
        scores = [self._scores(stretch, noise, coin).round(9) for stretch, coin in zip(self.stretches, present)]
        sizes = [len(stretch.cells) for stretch in self.stretches]
        claims = np.repeat([stretch.claim for stretch in self.stretches], sizes)
        return Guesses(np.concatenate(scores), np.concatenate(present), claims, np.repeat(np.arange(len(sizes)), sizes))

    def simulated(self, share: float, random: np.random.Generator) -> Guesses:
        """Simulate guesses under a fraction of the stated noise, with new coin flips."""
        coins = [random.random(len(stretch.cells)) < 0.5 for stretch in self.stretches]
        drawn = _sample_noise(self.family, share * self.scale, random)
        return self.guesses(np.where(np.isnan(self.noise), np.nan, drawn), coins)

    def _scores(self, stretch: _Stretch, noise: Array, present: NDArray[np.bool_]) -> Array:
        """Return the log-likelihood ratio of each person in a stretch, given which of the other people are present."""
        n_people, n_own = stretch.cells.shape
        is_gaussian, scale = "gaussian" in self.family, np.maximum(self.scale[stretch.numbers], NO_NOISE)
        if self.cells is None:
            # Each person moves numbers of cells of their own.
            columns, moved = stretch.cells.ravel(), stretch.moved[:, None]
            near = noise[stretch.numbers][:, columns] + (np.repeat(present, n_own) - 1) * moved
            gains = log_ratio(near + moved, near, scale[:, columns], is_gaussian)
            return np.asarray(np.nan_to_num(gains).sum(0).reshape(n_people, n_own).sum(1))
        moved = self.cells[stretch.cells].sum(1)
        near = noise[stretch.numbers][:, None] + (present[:, None] - 1) * moved
        gains = log_ratio(near + moved, near, scale[:, None], is_gaussian)
        return np.asarray(np.nan_to_num(gains).sum((0, 2)))


def _sample_noise(family: str, scale: Array, random: np.random.Generator) -> Array:
    """Sample noise from a family, using the continuous Gaussian in place of the discrete one."""
    if "gaussian" in family:
        return np.asarray(random.standard_normal(scale.shape) * scale)
    if family == "discrete_laplace":
        with np.errstate(divide="ignore"):
            one, other = random.geometric(-np.expm1(-1 / scale), (2, *scale.shape))
        return np.asarray(one - other, np.float64)
    return np.asarray(random.laplace(size=scale.shape) * scale)


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


def _play(config: RunConfig, counts: NDArray[np.int64], seed: int, number: int) -> _Run:
    """Plant people and make one release."""
    key = NoiseKey.from_seed(seed + number)
    alone = replace(config, mode="simulation", noise_key=None, accountants=(), seed=seed + number)
    plan = outline(alone, key, Path("unused"))
    random = np.random.default_rng([seed, 0, number])
    (n_windows, n_cells), reader, promised = counts.shape, plan.chain.reader, plan.chain.guarantee
    n_own = min(plan.bounds.max_cells, n_cells, plan.bounds.max_per_period or n_cells)
    mixed = measured(reader, replace(plan.facts(), n_windows=n_windows))
    # Charges of single windows add up to that of a unit; a block or period is charged at once. Where noise of several
    # windows is linked, so are their losses in ρ, and the sum of charges is only a bound.
    is_linked = promised.linked and promised.concentrated
    is_single = promised.unit.kind in ("window", "stretch", "landmarks") and not is_linked
    planted, n_people, maximum = counts.copy(), n_cells // n_own, plan.facts().max_windows or n_windows
    last, stretches = -1, list[_Stretch]()
    for stretch in _stretches(plan, n_windows, is_single, n_own):
        rows = numbers = stretch[:maximum]
        moved = np.ones(len(rows))
        if mixed.windows is not None:
            # Windows that change the noisy numbers strongly: the first ones, or those aligned with one.
            columns = mixed.windows[:, stretch]
            agreeing = np.sign(columns).T @ columns
            chosen = np.argsort(np.argsort(-agreeing, axis=1, kind="stable"), axis=1) < maximum
            chosen = np.vstack([np.arange(len(stretch)) < maximum, chosen & (agreeing > 0)])
            norms = np.linalg.norm(columns @ chosen.T, ord=2 if promised.concentrated else 1, axis=0)
            rows = stretch[chosen[np.argmax(norms)]]
            moved = mixed.windows[:, rows].sum(1)
            numbers = np.flatnonzero(moved)
            moved = moved[numbers]
        if numbers[0] <= last:
            continue  # it would move the same numbers as one before
        last = int(numbers[-1])
        cells = random.permutation(n_cells)[: n_people * n_own].reshape(n_people, n_own)
        present = random.random(n_people) < 0.5
        planted[np.ix_(rows, cells[present].ravel())] += 1
        stretches.append(_Stretch(rows, cells, present, promised.amount or 0.0, numbers, moved))
    values, scale, worst, charges, family = _release(plan, planted, promised.concentrated)
    if is_single or promised.amount is None:
        stretches = [replace(stretch, claim=float(worst[stretch.rows].sum())) for stretch in stretches]
    noise = values - planted
    if mixed.windows is not None or mixed.cells is not None:
        noise = np.nan_to_num(noise)  # cells without a sensor, which are publicly empty
        noise = noise if mixed.windows is None else mixed.windows @ noise
        noise = noise if mixed.cells is None else noise @ mixed.cells
    if mixed.scale is not None:
        scale = np.full(noise.shape, mixed.scale)
    charged = None
    if not is_linked:
        grid = plan.grid.windows(1, n_windows)
        facts = [np.array([getattr(window, name) for window in grid]) for name in ("landmark", "period")]
        charged = promised.unit.cost(charges[:, 2], *facts, first=charges[:, 0] - 1, last=charges[:, 1] - 1)
    longest = max(len(stretch.rows) for stretch in stretches)
    windows = "one window" if longest == 1 else f"{longest} windows"
    return _Run(
        stretches=tuple(stretches),
        noise=noise,
        scale=scale,
        cells=mixed.cells,
        family=family,
        concentrated=promised.concentrated,
        unit=f"one person in {'one cell' if n_own == 1 else f'{n_own} cells'} of {windows}",
        charged=charged,
        promised=promised.amount,
        single_counts=shows_single_counts(reader),
    )


def _stretches(plan: Plan, n_windows: int, is_single: bool, n_own: int) -> Iterator[NDArray[np.int64]]:
    """Yield the 0-based windows of each stretch with planted people: single windows, or those of the unit."""
    unit = plan.chain.reader.unit
    if not is_single and unit == PERIOD:
        # As many windows as the bound on a period leaves one person; others are in the windows that are left.
        period = np.array([window.period for window in plan.grid.windows(1, n_windows)])
        maximum = plan.bounds.max_per_period
        for number in np.unique(period):
            inside = np.flatnonzero(period == number)
            n_each = len(inside) if maximum is None else max(1, min(len(inside), maximum // n_own))
            yield from (inside[first : first + n_each] for first in range(0, len(inside) - n_each + 1, n_each))
        return
    length = 1 if is_single else n_windows if unit == RUN else unit.length
    if length > n_windows:
        raise ParameterError("windows", length, f"at most the {n_windows} windows of the run")
    for first in range(0, n_windows - length + 1, length):
        yield np.arange(first, first + length)


def _release(plan: Plan, planted: NDArray[np.int64], concentrated: bool) -> tuple[Array, Array, Array, Array, str]:
    """Release every window, and return values, NaN where none was published, and the scales of their noise, shape
    (n_windows, n_cells); the most that each window could be charged; first window, last window and amount of each
    charge, shape (n_charges, 3); and the family.
    """
    loop = ReleaseLoop(plan)
    state, amount = loop.start(), attrgetter("rho" if concentrated else "epsilon")
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
    return values, scale, worst, np.array(charges, np.float64).reshape(-1, 3), family
