"""Filters of many targets: beliefs, realised risk and bounds on the coming windows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.accountants.core.accountant import AccountRow, Rows
from penstock.accountants.inference.horizon import GenieAhead, genie_ahead, horizon_bounds
from penstock.accountants.inference.places import PlannedWindows, PriorPlaces, Reading
from penstock.accountants.inference.targets import KnownTargets, TargetPriors
from penstock.accountants.markov import FloatArray, IntArray, spectral_gap
from penstock.mechanisms.core.plugin import ParameterError
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
    """State before the first window.

    Returns ``belief`` and ``likelihood`` (horizon, n_targets, n_places), newest window last, and ``n_windows``. Its
    size never changes.
    """
    if horizon < 1:
        raise ParameterError("horizon", horizon, "at least 1")
    shape = (horizon, targets.n_targets, targets.locations.shape[1])
    return {"belief": np.zeros(shape), "likelihood": np.ones(shape), "n_windows": np.zeros((), dtype=np.int64)}


def observe(targets: TargetPriors, state: State, log_likelihood: FloatArray) -> State:
    """Forward filter: take in one window's release.

    `log_likelihood`: (n_targets, n_places) from `TargetPriors.log_likelihood`; all equal when nothing was observed.

    Returns the next state. O(n_targets n_places²) time. A release that a prior excludes restarts that target's belief
    from the release alone.

    Examples
    --------
    >>> from penstock.accountants.markov import MarkovPrior
    >>> targets = TargetPriors.of([MarkovPrior([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])])
    >>> state = start_beliefs(targets, horizon=2)
    >>> state = observe(targets, state, targets.log_likelihood({1}, np.array([1])))
    >>> state = observe(targets, state, targets.log_likelihood(set(), np.array([1])))
    >>> state["belief"][:, 0]
    array([[0. , 1. ],
           [0.1, 0.9]])
    """
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
    """Belief about the coming window before its release, (n_targets, n_places).

    A bound on what the coming releases can tell must start here, never from the prior alone: earlier releases may
    have told a lot.
    """
    if int(state["n_windows"]) == 0:
        return targets.initial
    return targets.forward(np.asarray(state["belief"])[-1][:, None, :])[:, 0]


def realised_risk(targets: TargetPriors, state: State, tolerance: int) -> dict[str, FloatArray]:
    """Bound any adversary's success on the last T locations, given the releases.

    Returns ``high`` (n_targets,): bound on the posterior success of any guess, the smallest of Markov's inequality and
    the posterior's genie ball. ``low``: the exact posterior success of guessing each window's most probable location.
    ``guess`` (n_targets, T): that guess, as locations. ``expected_hits``: how many of them are right on average.
    ``marginals`` (n_targets, T, n_places): smoothed beliefs. Later windows still revise all but the oldest rows.
    O(n_targets T tolerance n_places²) time.

    Examples
    --------
    >>> from penstock.accountants.markov import MarkovPrior
    >>> targets = TargetPriors.of([MarkovPrior([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])])
    >>> state = start_beliefs(targets, horizon=2)
    >>> for place in (0, 1):                       # not seen by sensor 1, then seen by it
    ...     state = observe(targets, state, targets.log_likelihood({1} if place else set(), np.array([place])))
    >>> risk = realised_risk(targets, state, tolerance=0)
    >>> risk["marginals"][0].round(3).tolist(), risk["low"].round(3).tolist(), risk["high"].round(3).tolist()
    ([[0.1, 0.9], [0.0, 1.0]], [0.9], [0.9])
    """
    n_steps = min(int(state["n_windows"]), len(state["belief"]))
    if n_steps < 1:
        raise ParameterError("state", "no window observed", "a state after at least one window")
    if tolerance < 0:
        raise ParameterError("tolerance", tolerance, "at least 0")
    belief = np.asarray(state["belief"])[-n_steps:]
    likelihood = np.asarray(state["likelihood"])[-n_steps:]
    marginals, high = _smooth(targets, belief, likelihood, tolerance)
    best = marginals.argmax(axis=-1)
    guess = targets.locations[np.arange(targets.n_targets)[:, None], best]
    expected_hits = marginals.max(axis=-1).sum(axis=-1)
    if tolerance < n_steps:
        high = np.minimum(high, expected_hits / (n_steps - tolerance))
    low = _success_of_guess(targets, belief, likelihood, best, tolerance)
    return {
        "high": np.maximum(np.minimum(high, 1.0), low),
        "low": low,
        "guess": guess,
        "expected_hits": expected_hits,
        "marginals": marginals,
    }


def _smooth(
    targets: TargetPriors, belief: FloatArray, likelihood: FloatArray, tolerance: int
) -> tuple[FloatArray, FloatArray]:
    """Smoothed marginals and the posterior's genie ball in one backward pass."""
    # `values` has one row per number of wrong guesses left, then the probability of the later releases.
    n_steps, n_targets, n_places = belief.shape
    values = np.ones((n_targets, tolerance + 2, n_places))
    marginals = np.empty((n_targets, n_steps, n_places))
    for step in range(n_steps - 1, 0, -1):
        marginals[:, step] = belief[step] * values[:, -1]
        after = values * likelihood[step][:, None, :]
        wrong = _one_wrong(after)
        gain = np.maximum(after - wrong, 0.0)[:, :-1]
        useful = gain.any(axis=(0, 2))
        values = targets.expected(wrong)
        values[:, :-1][:, useful] += targets.best_next(np.ascontiguousarray(gain[:, useful]))
        values = _rescaled(values)
    marginals[:, 0] = belief[0] * values[:, -1]
    after = values * belief[0][:, None, :]
    wrong = _one_wrong(after)
    best = wrong.sum(axis=-1) + np.maximum(after - wrong, 0.0).max(axis=-1)
    return marginals / marginals.sum(axis=-1, keepdims=True), best[:, -2] / best[:, -1]


def _success_of_guess(
    targets: TargetPriors, belief: FloatArray, likelihood: FloatArray, guess: NDArray[np.intp], tolerance: int
) -> FloatArray:
    """Exact posterior probability that a fixed guess has at most ``tolerance`` wrong locations, (n_targets,)."""
    n_steps, n_targets, n_places = belief.shape
    rows = np.arange(n_targets)
    values = np.ones((n_targets, tolerance + 2, n_places))
    for step in range(n_steps - 1, -1, -1):
        after = values * (likelihood[step] if step else belief[0])[:, None, :]
        reached = _one_wrong(after)
        reached[rows, :, guess[:, step]] = after[rows, :, guess[:, step]]
        values = _rescaled(targets.expected(reached)) if step else reached
    total = values.sum(axis=-1)
    return np.asarray(total[:, -2] / total[:, -1])


def _one_wrong(after: FloatArray) -> FloatArray:
    """Values after a wrong guess: one tolerated error fewer; the total stays."""
    return np.concatenate([np.zeros_like(after[:, :1]), after[:, :-2], after[:, -1:]], axis=1)


def _rescaled(values: FloatArray) -> FloatArray:
    """Rescale to a largest total of 1 per target, without exact zeros."""
    values += _LEAK
    return np.asarray(values / values[:, -1].max(axis=1)[:, None, None])


@dataclass(frozen=True)
class RowWriter:
    """Rows of a run; subjects are numbered, since a row must not identify a person."""

    assumption: str
    horizon: int
    tolerance: int
    known: float = 1.0

    def coming(self, subjects: Iterable[int], window: int, bounds: dict[str, FloatArray]) -> Rows:
        """Bounds on attacks on the horizon that begins with a window, final because they precede its release."""
        text = f"success against {self.horizon} windows from this one on, at most {self.tolerance} wrong"
        text = f"{text}; everybody else's cells known, {self.assumption}"
        columns = [(*COMING[name], values.tolist()) for name, values in bounds.items() if name in COMING]
        return [
            AccountRow(f"target {subject}", window, name, values[i], unit=unit, adjacency=text)
            for i, subject in enumerate(subjects)
            for name, unit, values in columns
        ]

    def realised(self, subjects: Iterable[int], window: int, risk: dict[str, NDArray[Any]], status: str) -> Rows:
        """Realised risk of the windows up to one; later releases can still raise it."""
        n_steps = risk["marginals"].shape[1]
        text = self._text(
            f"success against the last {n_steps} windows given the releases so far, at most {self.tolerance} wrong"
        )
        low, high = risk["low"].tolist(), risk["high"].tolist()
        return [
            AccountRow(
                f"target {subject}", window, "realised_risk", high[i], low[i], high[i], "probability", text, status
            )
            for i, subject in enumerate(subjects)
        ]

    def places(self, subjects: Iterable[int], window: int, likeliest: FloatArray) -> Rows:
        """Probability of the likeliest place of a window, smoothed by the windows after it; (n_targets,)."""
        text = self._text(f"place in this window given the releases up to {self.horizon - 1} windows later")
        return [
            AccountRow(f"target {subject}", window, "place_known", value, unit="probability", adjacency=text)
            for subject, value in zip(subjects, likeliest.tolist())
        ]

    def visits(self, subjects: Iterable[int], window: int, frequency: FloatArray) -> Rows:
        """Share of the windows so far in a cell that published, (n_targets,)."""
        text = "windows up to this one in which the target was in a cell whose count was published"
        return [
            AccountRow(f"target {subject}", window, "visit_frequency", value, unit="share", adjacency=text)
            for subject, value in zip(subjects, frequency.tolist())
        ]

    def gaps(self, subjects: Iterable[int], gaps: FloatArray) -> Rows:
        """Spectral gap of each target's prior."""
        text = self._text("of the transition matrix that the adversary knows")
        return [
            AccountRow(f"target {subject}", None, "spectral_gap", gap, unit="1", adjacency=text)
            for subject, gap in zip(subjects, gaps.tolist())
        ]

    def _text(self, figure: str) -> str:
        known = "everybody" if self.known == 1 else f"{self.known:.0%} of everybody"
        return f"{figure}; {known} else's cells known, {self.assumption}"


@dataclass(frozen=True, eq=False)
class TargetBlock:
    """A few targets with everything about them that does not change: priors, places and the genie's values."""

    span: slice
    targets: TargetPriors
    places: PriorPlaces
    horizon: int
    tolerance: int
    ahead: GenieAhead

    def start(self) -> State:
        """Beliefs before the first window."""
        return start_beliefs(self.targets, self.horizon)

    def bounds(self, state: State, coming: PlannedWindows) -> dict[str, FloatArray]:
        """Bounds over the coming windows, from each adversary's current beliefs."""
        return horizon_bounds(
            self.targets,
            predict(self.targets, state),
            coming.sensors,
            self.tolerance,
            coming.noise,
            coming.scale,
            ahead=self.ahead,
        )

    def observe(self, state: State, reading: Reading | None, cells: IntArray, likely: FloatArray | None) -> State:
        """Beliefs after a release, unchanged where ``reading`` is None; ``likely`` as in `WindowInput`."""
        shape = self.targets.locations.shape
        if reading is None:
            return observe(self.targets, state, np.zeros(shape))
        if likely is not None:
            rows = np.arange(len(likely))[:, None]
            padded = np.pad(likely, ((0, 0), (0, 1)), constant_values=-np.inf)
            return observe(self.targets, state, padded[rows, self.targets.locations])
        away, here, seen = self.places.log_likelihood(reading, cells)
        places = np.append(away, -np.inf)[self.targets.locations]  # the last entry stands for padding
        places[seen] = -np.inf
        is_there = self.targets.locations == self.places.location[cells][:, None]
        return observe(self.targets, state, np.where(is_there, here[:, None], places))

    def risk(self, state: State) -> dict[str, NDArray[Any]]:
        """Realised risk of the last windows; see `realised_risk`."""
        return realised_risk(self.targets, state, self.tolerance)


@dataclass(frozen=True, eq=False)
class WindowInput:
    """Input of one window: horizon, reading of the release, published cells and cells of the targets."""

    # `likely`: (n_targets, n_locations) ln Pr(reading given each place) for adversaries who do not know the whole crowd

    window: int
    coming: PlannedWindows
    reading: Reading | None
    active: NDArray[np.bool_]
    cells: IntArray
    likely: FloatArray | None = None


@dataclass(frozen=True, eq=False)
class TargetFilters:
    """Targets in blocks. All figures of one target are the same, to the last bit, whichever others it is with."""

    known: KnownTargets
    blocks: tuple[TargetBlock, ...]
    gaps: FloatArray

    @property
    def subjects(self) -> range:
        """Number of each target among all of the run, from 1."""
        return range(self.known.first + 1, self.known.first + self.known.n_targets + 1)

    def start(self) -> State:
        """Return the empty state before the first release."""
        state: State = {"window": np.asarray(0), "visits": np.zeros(self.known.n_targets)}
        for number, block in enumerate(self.blocks):
            state |= nested(f"{number}", block.start())
        return state

    def charge(self, writer: RowWriter, step: WindowInput, state: State) -> tuple[Rows, State]:
        """Bound the leakage of the coming windows, then update by this release."""
        window = step.window
        rows: Rows = [] if state["window"] else writer.gaps(self.subjects, self.gaps)
        visits = state["visits"] + np.append(step.active, False)[step.cells]
        new: State = {"window": np.asarray(window), "visits": visits}
        for number, (block, before) in enumerate(self._parts(state)):
            subjects = self.subjects[block.span]
            rows += writer.coming(subjects, window, block.bounds(before, step.coming))
            likely = None if step.likely is None else step.likely[block.span]
            after = block.observe(before, step.reading, step.cells[block.span], likely)
            risk = block.risk(after)
            if window > writer.tolerance:
                rows += writer.realised(subjects, window, risk, "provisional")
            if window >= writer.horizon:
                oldest = window - writer.horizon + 1
                rows += writer.places(subjects, oldest, risk["marginals"][:, 0].max(axis=-1))
            new |= nested(f"{number}", after)
        return rows + writer.visits(self.subjects, window, visits / window), new

    def finish(self, writer: RowWriter, state: State) -> Rows:
        """Give the final figures of the last windows, now that no release follows."""
        last, rows = int(state["window"]), Rows()
        for block, beliefs in self._parts(state) if last else ():
            subjects, risk = self.subjects[block.span], block.risk(beliefs)
            if last > writer.tolerance:
                rows += writer.realised(subjects, last, risk, "final")
            n_steps = risk["marginals"].shape[1]
            # the oldest window of a whole horizon was final before
            for position in range(int(last >= writer.horizon), n_steps):
                likeliest = risk["marginals"][:, position].max(axis=-1)
                rows += writer.places(subjects, last - n_steps + 1 + position, likeliest)
        return rows

    def _parts(self, state: State) -> Iterator[tuple[TargetBlock, State]]:
        """Each block with its part of a state."""
        for number, block in enumerate(self.blocks):
            yield block, part(f"{number}", state)


def target_filters(known: KnownTargets, horizon: int, tolerance: int) -> TargetFilters:
    """Targets in blocks of at most `BLOCK`, with everything about them that does not change."""
    is_shared = len(known.priors) == 1
    blocks = []
    for first in range(0, known.n_targets, BLOCK):
        last = min(first + BLOCK, known.n_targets)
        priors = known.priors * (last - first) if is_shared else known.priors[first:last]
        targets = TargetPriors.of(priors, n_places=known.places.n_locations)
        ahead = genie_ahead(targets, horizon, tolerance)
        blocks.append(TargetBlock(slice(first, last), targets, known.places, horizon, tolerance, ahead))
    gaps = np.array([spectral_gap(prior.transition) for prior in known.priors])
    return TargetFilters(known, tuple(blocks), np.broadcast_to(gaps, known.n_targets))
