"""Filters for many targets: beliefs, realised risk and bounds on the coming windows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.accountants.core.accountant import AccountRow, Rows
from penstock.accountants.inference.horizon import genie_ahead, horizon_bounds
from penstock.accountants.inference.kernel import GenieSuccess, genie_step, one_wrong
from penstock.accountants.inference.places import PlannedWindows, Reading
from penstock.accountants.inference.targets import KnownTargets, TargetPriors
from penstock.accountants.markov import FloatArray, IntArray, spectral_gap
from penstock.mechanisms.core.state import State, nested, part

#: Targets that are worked on together: their matrices stay in the processor's cache.
BLOCK = 64
#: Figures of the coming windows as `horizon_bounds` calls them, and how their rows are called, with the unit.
COMING = {
    "loose": ("loose_bound", "probability"),
    "tight": ("tight_bound", "probability"),
    "leakage": ("leakage_bound", "probability"),
    "best": ("best_bound", "probability"),
    "ball": ("success_prior", "probability"),
    "information": ("information", "nats"),
}
_LEAK = 1e-150

# Beliefs and realised risk: a forward filter, and fixed-lag smoothing over the horizon.


def start_beliefs(targets: TargetPriors, horizon: int) -> State:
    """Return the initial beliefs and likelihoods as arrays of constant size, newest last."""
    shape = (horizon, targets.n_targets, targets.locations.shape[1])
    return {"belief": np.zeros(shape), "likelihood": np.ones(shape), "n_windows": np.zeros((), dtype=np.int64)}


def observe(targets: TargetPriors, state: State, log_likelihood: FloatArray) -> State:
    """Update the filter with a window's likelihoods, (n_targets, n_places). A reading that is ruled out restarts it."""
    belief, likelihood = np.asarray(state["belief"]), np.asarray(state["likelihood"])
    top = log_likelihood.max(axis=1, keepdims=True)
    weight = np.exp(log_likelihood - np.where(np.isfinite(top), top, 0.0))
    weight[~np.isfinite(top[:, 0])] = 1.0  # seen where the prior never is: the place is known, but has no entry here
    predicted = predict(targets, state)
    joint = (predicted + _LEAK * (targets.locations >= 0)) * weight
    newest = joint / joint.sum(axis=1, keepdims=True)
    return {
        "belief": np.concatenate([belief[1:], newest[None]]),
        "likelihood": np.concatenate([likelihood[1:], weight[None]]),
        "n_windows": np.asarray(state["n_windows"] + 1),
    }


def predict(targets: TargetPriors, state: State) -> FloatArray:
    """Return the predicted belief about the coming window, (n_targets, n_places), from which any bound must start."""
    if int(state["n_windows"]) == 0:
        return targets.initial
    return targets.forward(np.asarray(state["belief"])[-1][:, None, :])[:, 0]


def realised_risk(targets: TargetPriors, state: State, tolerance: int) -> dict[str, FloatArray]:
    """Bound any adversary's success on the last T locations, given the releases.

    Returns ``high`` (n_targets,): bound on the posterior success of any guess, the smallest of Markov's inequality and
    the posterior's genie ball. ``low``: the exact posterior success of guessing each window's most probable location.
    ``marginals`` (n_targets, T, n_places): smoothed beliefs, which later windows revise. O(n_targets T s n_places²).
    """
    n_steps = min(int(state["n_windows"]), len(state["belief"]))
    belief = np.asarray(state["belief"])[-n_steps:]
    likelihood = np.asarray(state["likelihood"])[-n_steps:]
    marginals, high = _smooth(targets, belief, likelihood, tolerance)
    best = marginals.argmax(axis=-1)
    if tolerance < n_steps:
        high = np.minimum(high, marginals.max(axis=-1).sum(axis=-1) / (n_steps - tolerance))
    low = _success_of_guess(targets, belief, likelihood, best, tolerance)
    return {"high": np.maximum(np.minimum(high, 1.0), low), "low": low, "marginals": marginals}


def _smooth(
    targets: TargetPriors, belief: FloatArray, likelihood: FloatArray, tolerance: int
) -> tuple[FloatArray, FloatArray]:
    """Compute smoothed marginals and the posterior's genie ball in one backward pass."""
    # `values` has one row per number of wrong guesses left, then the probability of the later releases.
    n_steps, n_targets, n_places = belief.shape
    values = np.ones((n_targets, tolerance + 2, n_places))
    marginals = np.empty((n_targets, n_steps, n_places))
    for step in range(n_steps - 1, 0, -1):
        marginals[:, step] = belief[step] * values[:, -1]
        values = _rescale(genie_step(targets, values * likelihood[step][:, None, :], has_total=True))
    marginals[:, 0] = belief[0] * values[:, -1]
    after = values * belief[0][:, None, :]
    wrong = one_wrong(after, has_total=True)
    best = wrong.sum(axis=-1) + np.maximum(after - wrong, 0.0).max(axis=-1)
    return marginals / marginals.sum(axis=-1, keepdims=True), best[:, -2] / best[:, -1]


def _success_of_guess(
    targets: TargetPriors, belief: FloatArray, likelihood: FloatArray, guess: NDArray[np.intp], tolerance: int
) -> FloatArray:
    """Return each target's exact posterior probability that a guess gets at most ``tolerance`` locations wrong."""
    n_steps, n_targets, n_places = belief.shape
    rows = np.arange(n_targets)
    values = np.ones((n_targets, tolerance + 2, n_places))
    for step in range(n_steps - 1, -1, -1):
        after = values * (likelihood[step] if step else belief[0])[:, None, :]
        reached = one_wrong(after, has_total=True)
        reached[rows, :, guess[:, step]] = after[rows, :, guess[:, step]]
        values = _rescale(targets.expected(reached)) if step else reached
    total = values.sum(axis=-1)
    return np.asarray(total[:, -2] / total[:, -1])


def _rescale(values: FloatArray) -> FloatArray:
    """Rescale values so that each target's largest total is 1 and no value is exactly zero."""
    values += _LEAK
    return np.asarray(values / values[:, -1].max(axis=1)[:, None, None])


def _rows(subjects: Iterable[int], window: int | None, name: str, unit: str, text: str, values: FloatArray) -> Rows:
    return [
        AccountRow(f"target {subject}", window, name, value, unit=unit, adjacency=text)
        for subject, value in zip(subjects, values.tolist())
    ]


@dataclass(frozen=True, eq=False)
class TargetBlock:
    """Immutable data about a few targets: adversaries' knowledge, priors and the genie's values."""

    span: slice
    known: KnownTargets
    targets: TargetPriors
    ahead: GenieSuccess

    def observe(self, state: State, reading: Reading | None, cells: IntArray, unknown: IntArray) -> State:
        """Return the beliefs after a release. If ``reading`` is None, nothing is learned."""
        locations = self.targets.locations
        if reading is None:
            return observe(self.targets, state, np.zeros(locations.shape))
        likely = self.known.log_likelihood(reading, cells[self.span], unknown)
        padded = np.pad(likely, ((0, 0), (0, 1)), constant_values=-np.inf)  # the last entry stands for padding
        return observe(self.targets, state, np.take_along_axis(padded, locations, axis=1))


@dataclass(frozen=True, eq=False)
class TargetFilters:
    """All targets, divided into blocks. Each target's values are exactly independent of the other targets."""

    # Rows number their subjects, since a row must not identify a person. `share`: of other people whose cells the
    # adversaries know.

    known: KnownTargets
    horizon: int
    tolerance: int
    share: float
    blocks: tuple[TargetBlock, ...]

    @property
    def subjects(self) -> range:
        """The numbers of the targets in the run, starting at 1."""
        return range(self.known.first + 1, self.known.first + self.known.n_targets + 1)

    def start(self) -> State:
        """Return the initial state."""
        state: State = {"window": np.asarray(0), "visits": np.zeros(self.known.n_targets)}
        for number, block in enumerate(self.blocks):
            state |= nested(f"{number}", start_beliefs(block.targets, self.horizon))
        return state

    def charge(
        self,
        window: int,
        coming: PlannedWindows,
        observed: tuple[Reading | None, NDArray[np.bool_]],
        cells: IntArray,
        state: State,
    ) -> tuple[Rows, State]:
        """Bound leakage over the coming windows, then update the beliefs with a release's reading and shown cells."""
        reading, active = observed
        cells, unknown = np.split(cells, [self.known.n_targets])
        rows: Rows = []
        if not state["window"]:
            gaps = np.array([spectral_gap(prior.transition) for prior in self.known.priors])
            text = self._text("of the transition matrix that the adversary knows")
            rows = _rows(self.subjects, None, "spectral_gap", "1", text, np.broadcast_to(gaps, self.known.n_targets))
        visits = state["visits"] + np.append(active, False)[cells]
        new: State = {"window": np.asarray(window), "visits": visits}
        text = f"success against {self.horizon} windows from this one on, at most {self.tolerance} wrong"
        text = f"{text}; everybody else's cells known, {self.known.assumption}"
        for number, (block, before) in enumerate(self._parts(state)):
            subjects, targets = self.subjects[block.span], block.targets
            bounds = horizon_bounds(targets, predict(targets, before), coming, self.tolerance, block.ahead)
            columns = [_rows(subjects, window, name, unit, text, bounds[key]) for key, (name, unit) in COMING.items()]
            rows += [row for of_target in zip(*columns) for row in of_target]
            after = block.observe(before, reading, cells, unknown)
            risk = realised_risk(targets, after, self.tolerance)
            if window > self.tolerance:
                rows += self._realised(subjects, window, risk, "provisional")
            if window >= self.horizon:
                rows += self._place_known(subjects, window - self.horizon + 1, risk["marginals"][:, 0])
            new |= nested(f"{number}", after)
        text = "windows up to this one in which the target was in a cell whose count was published"
        return rows + _rows(self.subjects, window, "visit_frequency", "share", text, visits / window), new

    def finish(self, state: State) -> Rows:
        """Return the final values for the last windows."""
        last, rows = int(state["window"]), Rows()
        for block, beliefs in self._parts(state) if last else ():
            subjects, risk = self.subjects[block.span], realised_risk(block.targets, beliefs, self.tolerance)
            if last > self.tolerance:
                rows += self._realised(subjects, last, risk, "final")
            n_steps = risk["marginals"].shape[1]
            # the oldest window of a whole horizon was final before
            for position in range(int(last >= self.horizon), n_steps):
                rows += self._place_known(subjects, last - n_steps + 1 + position, risk["marginals"][:, position])
        return rows

    def _parts(self, state: State) -> Iterator[tuple[TargetBlock, State]]:
        """Yield each block with its part of the state."""
        for number, block in enumerate(self.blocks):
            yield block, part(f"{number}", state)

    def _realised(self, subjects: Iterable[int], window: int, risk: dict[str, NDArray[Any]], status: str) -> Rows:
        n_steps = risk["marginals"].shape[1]
        text = f"success against the last {n_steps} windows given the releases so far, at most {self.tolerance} wrong"
        rows = _rows(subjects, window, "realised_risk", "probability", self._text(text), risk["high"])
        return [replace(row, low=low, high=row.value, status=status) for row, low in zip(rows, risk["low"].tolist())]

    def _place_known(self, subjects: Iterable[int], window: int, belief: FloatArray) -> Rows:
        text = self._text(f"place in this window given the releases up to {self.horizon - 1} windows later")
        return _rows(subjects, window, "place_known", "probability", text, belief.max(axis=-1))

    def _text(self, figure: str) -> str:
        known = "everybody" if self.share == 1 else f"{self.share:.0%} of everybody"
        return f"{figure}; {known} else's cells known, {self.known.assumption}"


def target_filters(known: KnownTargets, horizon: int, tolerance: int, share: float) -> TargetFilters:
    """Divide targets into blocks of at most `BLOCK`, together with their immutable data."""
    blocks = []
    for first in range(0, known.n_targets, BLOCK):
        few = known.part(first, min(first + BLOCK, known.n_targets))
        priors = few.priors * few.n_targets if len(known.priors) == 1 else few.priors
        targets = TargetPriors.of(priors, n_places=known.places.n_locations)
        span = slice(first, first + few.n_targets)
        blocks.append(TargetBlock(span, few, targets, genie_ahead(targets, horizon, tolerance)))
    return TargetFilters(known, horizon, tolerance, share, tuple(blocks))
