"""Privacy audit: estimate a lower bound on the privacy loss of planted people and compare it with the claimed loss."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.evaluation.attacks.one_run import Guesses, LowerBound, log_ratio, lower_bound
from penstock.mechanisms.core.chain import Chain
from penstock.mechanisms.core.concentrated import epsilon_of
from penstock.mechanisms.core.contract import Facts, Interpretation, Window
from penstock.mechanisms.core.guarantee import DELTA
from penstock.mechanisms.core.plugin import ParameterError
from penstock.mechanisms.core.unit import PERIOD, RUN

Array = NDArray[np.float64]
#: Most runs that are simulated to say from how many on half of the noise is convicted.
MAX_RUNS = 1 << 14
#: Noise is taken for less than any that is drawn where a publication states none.
NO_NOISE = 1e-6


@dataclass(frozen=True)
class Audit:
    """The result of an audit, along with the privacy loss that was claimed, as ε or ρ."""

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
        """Return whether the lower bound exceeds the claim, or the charges exceed the promised budget."""
        is_over = self.charged is not None and self.promised is not None and self.charged > self.promised * (1 + 1e-9)
        return self.bound.factor > 1 or is_over

    def as_dict(self) -> dict[str, Any]:
        """Return all results by name."""
        bound, measure = self.bound, "rho" if self.concentrated else "epsilon"
        names = ("expected", "expected_of_half", "runs_for_half", "charged", "promised", "convicted", "unit", "n_runs")
        figures = {"measure": measure, "claimed": bound.claim, "found": bound.amount, "on_data": self.on_data}
        figures |= {name: getattr(bound, name) for name in ("confidence", "n_canaries", "n_guesses", "n_right")}
        return figures | {name: getattr(self, name) for name in names}

    def as_text(self) -> str:
        """Describe the results in prose."""
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
            f"{bound.n_canaries:,} coins tossed for people planted among {planted} in {runs}; "
            f"{bound.n_guesses:,} guessed, {bound.n_right:,} rightly."
        )
        return "\n".join([*lines, verdict])


@dataclass(frozen=True)
class ReleasedCounts:
    """The counts released by one run, with their charges.

    ``values``, NaN where none was published, and ``scale`` of their noise: shape (n_windows, n_cells). ``worst``: the
    most that each window could be charged. ``charges``: first window, last window and amount, shape (n_charges, 3).
    """

    values: Array
    scale: Array
    worst: Array
    charges: Array
    family: str


@dataclass(frozen=True)
class AuditedRun:
    """The run to audit: its public facts and a function that releases counts."""

    chain: Chain
    facts: Facts
    windows: Sequence[Window]
    release: Callable[[NDArray[np.int64]], ReleasedCounts]


@dataclass(frozen=True, kw_only=True)
class PlantedRun(ABC):
    """A release that includes planted people. Guesses can also be simulated with fresh noise and coin flips."""

    family: str
    concentrated: bool
    unit: str
    charged: float | None
    promised: float | None
    single_counts: bool = True

    @abstractmethod
    def guesses(self) -> Guesses:
        """Guess which of the planted people are present, given the release."""

    @abstractmethod
    def simulated(self, share: float, random: np.random.Generator) -> Guesses:
        """Simulate guesses for noise that is a fraction of the declared scale, with new coin flips."""


def audit_releases(
    played: Callable[[int, np.random.Generator], PlantedRun],
    *,
    on_data: bool,
    n_runs: int | None,
    minutes: float,
    confidence: float,
    seed: int,
    listener: Callable[[int, int], None],
) -> Audit:
    """Plant people in a series of runs, and compute a lower bound on their privacy loss (see `lower_bound`).

    The adversary scores each person by the likelihood ratio of the stated noise over all numbers that the person moves.
    How many runs are made follows from what was released, never from the coins, so that the bound holds of all of them.

    ``played`` makes the run of a number, from 0, with noise of its own and with the coins that it is given. The rest is
    as for `penstock.pipeline.experiments.audit.audit`.
    """
    until = time.monotonic() + 60 * minutes
    runs: list[PlantedRun] = []

    def play(n: int) -> PlantedRun:
        """Make n runs, or as many as the time limit allows, and return the first one."""
        while not runs or (len(runs) < n and (n_runs is not None or time.monotonic() < until)):
            listener(len(runs), n)
            runs.append(played(len(runs), np.random.default_rng([seed, 0, len(runs)])))
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
        # Sixteen times: half may have been convicted early by luck.
        play(n_runs or 16 * runs_for_half)
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
    """A group of people who are planted in the same windows of a run.

    ``rows`` are the windows, 0-based, ``cells`` those of each person, shape (n_people, n_own). ``numbers`` are the rows
    of noisy numbers that they move, each by ``moved``, shape (n_numbers,).
    """

    rows: NDArray[np.int64]
    cells: NDArray[np.int64]
    present: NDArray[np.bool_]
    claim: float
    numbers: NDArray[np.int64]
    moved: Array


@dataclass(frozen=True, kw_only=True)
class _CountRun(PlantedRun):
    """A release of counts that includes planted people.

    ``noise`` and ``scale`` are those of all numbers that noise was added to, shape (n_rows, n_numbers), NaN and 0 where
    none was published; ``cells`` is how numbers of a row are made of cells (`Measured`).
    """

    stretches: tuple[_Stretch, ...]
    noise: Array
    scale: Array
    cells: Array | None

    def guesses(self, noise: Array | None = None, coins: Sequence[NDArray[np.bool_]] = ()) -> Guesses:
        """Guess which people are present, given either the release or simulated noise and coin flips."""
        noise = self.noise if noise is None else noise
        # What is equal but for rounding is equal: the last bits of real noise tell coins apart, in no given order.
        present = list(coins) or [stretch.present for stretch in self.stretches]
        scores = [self._scores(stretch, noise, coin).round(9) for stretch, coin in zip(self.stretches, present)]
        sizes = [len(stretch.cells) for stretch in self.stretches]
        claims = np.repeat([stretch.claim for stretch in self.stretches], sizes)
        return Guesses(np.concatenate(scores), np.concatenate(present), claims, np.repeat(np.arange(len(sizes)), sizes))

    def simulated(self, share: float, random: np.random.Generator) -> Guesses:
        """Simulate guesses for noise that is a fraction of the declared scale, with new coin flips."""
        coins = [random.random(len(stretch.cells)) < 0.5 for stretch in self.stretches]
        drawn = _sample_noise(self.family, share * self.scale, random)
        return self.guesses(np.where(np.isnan(self.noise), np.nan, drawn), coins)

    def _scores(self, stretch: _Stretch, noise: Array, present: NDArray[np.bool_]) -> Array:
        """Return the log-likelihood ratio of each person in a stretch, given who else is present."""
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


@dataclass(frozen=True, kw_only=True)
class TraceRun(PlantedRun):
    """A release of traces in which every point is at one of two places.

    ``offsets``: metres to the east and to the north from each point to its release, shape (n_points, 2); ``scale``: of
    its noise, 0 where it was not published; ``separation``: metres from the first place to the second one, in the east.
    """

    offsets: Array
    scale: Array
    present: NDArray[np.bool_]
    claims: Array
    separation: float

    def guesses(self, offsets: Array | None = None, present: NDArray[np.bool_] | None = None) -> Guesses:
        """Guess at which place each point is, given either the release or simulated noise and coin flips."""
        offsets, present = self.offsets if offsets is None else offsets, self.present if present is None else present
        east, north = offsets.T
        far, near = (np.hypot(east + self.separation * (present - second), north) for second in (0, 1))
        is_shown = self.scale > 0
        gains = log_ratio(far, near, np.where(is_shown, self.scale, 1.0), "gaussian" in self.family)
        return Guesses(np.where(is_shown, gains, 0.0).round(9), present, self.claims, np.arange(len(present)))

    def simulated(self, share: float, random: np.random.Generator) -> Guesses:
        """Simulate guesses for noise that is a fraction of the declared scale, with new coin flips."""
        n, is_gaussian = len(self.scale), "gaussian" in self.family
        # The distance that planar Laplace noise moves has a gamma law, that of Gaussian noise on both axes a Rayleigh.
        moves = random.rayleigh(size=n) if is_gaussian else random.gamma(2.0, size=n)
        angle = random.uniform(0, 2 * np.pi, n)
        offsets = (share * self.scale * moves)[:, None] * np.column_stack([np.cos(angle), np.sin(angle)])
        return self.guesses(offsets, random.random(n) < 0.5)


def _sample_noise(family: str, scale: Array, random: np.random.Generator) -> Array:
    """Draw noise from a family. The continuous Gaussian is used as an approximation of the discrete one."""
    if "gaussian" in family:
        return np.asarray(random.standard_normal(scale.shape) * scale)
    if family == "discrete_laplace":
        with np.errstate(divide="ignore"):
            one, other = random.geometric(-np.expm1(-1 / scale), (2, *scale.shape))
        return np.asarray(one - other, np.float64)
    return np.asarray(random.laplace(size=scale.shape) * scale)


def plant(run: AuditedRun, counts: NDArray[np.int64], random: np.random.Generator) -> PlantedRun:
    """Plant people in the given counts and release the result once.

    People are planted in as many cells as bounding leaves one person: in a single window, where the charges of windows
    add up to that of the guarantee's unit, else in all windows of a unit.
    """
    facts, reader, promised = run.facts, run.chain.reader, run.chain.guarantee
    n_windows, n_cells = counts.shape
    n_own = facts.per_window(n_cells)
    facts.of_unit(promised.unit, n_cells, n_windows)  # refuses a bound that would not leave the people there
    mixed = Interpretation.of(reader).measured(replace(facts, n_windows=n_windows))
    # Charges of single windows add up to that of a unit; a block or period is charged at once. Where noise of several
    # windows is linked, so are their losses in ρ, and the sum of charges is only a bound.
    is_linked = promised.linked and promised.concentrated
    is_single = promised.unit.kind in ("window", "stretch", "landmarks") and not is_linked
    planted, n_people, maximum = counts.copy(), n_cells // n_own, facts.max_windows or n_windows
    last, stretches = -1, list[_Stretch]()
    for stretch in _stretches(run, is_single, n_own):
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
    released = run.release(planted)
    if is_single or promised.amount is None:
        stretches = [replace(stretch, claim=float(released.worst[stretch.rows].sum())) for stretch in stretches]
    noise, scale, charges = released.values - planted, released.scale, released.charges
    if mixed.windows is not None or mixed.cells is not None:
        noise = np.nan_to_num(noise)  # cells without a sensor, which are publicly empty
        noise = noise if mixed.windows is None else mixed.windows @ noise
        noise = noise if mixed.cells is None else noise @ mixed.cells
    if mixed.scale is not None:
        scale = np.full(noise.shape, mixed.scale)
    charged = None
    if not is_linked:
        marks = [np.array([getattr(window, name) for window in run.windows]) for name in ("landmark", "period")]
        charged = promised.unit.cost(charges[:, 2], *marks, first=charges[:, 0] - 1, last=charges[:, 1] - 1)
    longest = max(len(stretch.rows) for stretch in stretches)
    windows = "one window" if longest == 1 else f"{longest} windows"
    return _CountRun(
        stretches=tuple(stretches),
        noise=noise,
        scale=scale,
        cells=mixed.cells,
        family=released.family,
        concentrated=promised.concentrated,
        unit=f"one person in {'one cell' if n_own == 1 else f'{n_own} cells'} of {windows}",
        charged=charged,
        promised=promised.amount,
        single_counts=Interpretation.of(reader).releases_single_counts,
    )


def _stretches(run: AuditedRun, is_single: bool, n_own: int) -> Iterator[NDArray[np.int64]]:
    """Yield the 0-based windows of each stretch: either single windows, or all windows that belong to a unit."""
    unit, n_windows = run.chain.reader.unit, len(run.windows)
    if not is_single and unit == PERIOD:
        # As many windows as the bound on a period leaves one person; others are in the windows that are left.
        period = np.array([window.period for window in run.windows])
        for number in np.unique(period):
            inside = np.flatnonzero(period == number)
            n_each = max(1, int(run.facts.of_unit(PERIOD, n_own, len(inside)).l1) // n_own)
            yield from (inside[first : first + n_each] for first in range(0, len(inside) - n_each + 1, n_each))
        return
    length = 1 if is_single else n_windows if unit == RUN else unit.length
    if length > n_windows:
        raise ParameterError("windows", length, f"at most the {n_windows} windows of the run")
    for first in range(0, n_windows - length + 1, length):
        yield np.arange(first, first + length)
