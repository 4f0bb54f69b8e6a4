"""Adversaries for temporal leakage, with correlations that are declared in the configuration or learned."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.accountants.core.training import Training
from penstock.accountants.correlation.hull import Array
from penstock.accountants.correlation.landmark_losses import LandmarkModel, Steps
from penstock.accountants.correlation.leakage import LeakageFunction
from penstock.accountants.markov import (
    backward_matrix,
    chain_matrix,
    count_transitions,
    estimated_matrix,
    laplacian_smoothing_matrix,
    read_matrix,
    transition_matrix,
)
from penstock.mechanisms.core.plugin import Checked, DataError, ParameterError, check_one_of, parameter

#: A dense matrix of this many states is 32 MB, and its hull takes about a minute.
MAX_STATES = 2000
#: Up to so many states the landmark loss follows what gaps reveal.
BRIDGED_STATES = 20
_ARRAYS = ("transitions", "visits", "forward", "backward", "initial", "states")
Pair = tuple[Array, Array]


@dataclass(frozen=True, kw_only=True)
class SmoothedIdentity(Checked):
    """A chain that mostly stays in place (the identity with Laplacian smoothing); see `laplacian_smoothing_matrix`."""

    n: int = parameter(2, doc="number of states", at_least=1)
    s: float = parameter(doc="strength of the smoothing: the smaller, the stronger the correlation", at_least=0)


@dataclass(frozen=True, kw_only=True)
class Walk(Checked):
    """A random walk on a line of places; see `chain_matrix`."""

    n: int = parameter(100, doc="number of places", at_least=1)
    tau: float = parameter(0.1, doc="reach of a step as a share of the line", above=0)


@dataclass(frozen=True, kw_only=True)
class KnownCorrelation(Checked):
    """The adversary's knowledge about the correlation of a person's successive states, declared in exactly one way.

    Where one direction alone is given, the other follows from it and its stationary distribution by Bayes' rule.

    Parameters
    ----------
    backward, forward
        Files of transition matrices (``.npy`` or ``.csv``): previous given now, next given now.
    laplacian, chain
        A model with a public matrix.
    learned
        File that ``penstock learn`` wrote.
    estimate, windows, of, smoothing, unseen
        An estimate from the first ``windows`` windows of the run's own stream. With ``of: users`` a person's states
        are the cells; with ``of: cells`` they are being in one cell or not, and the loss is the largest for any cell.

    Examples
    --------
    >>> KnownCorrelation(estimate="first", windows=168).is_public
    False
    >>> KnownCorrelation(estimate="first")
    Traceback (most recent call last):
    penstock.mechanisms.core.plugin.ParameterError: windows: None is not allowed; it must be ...
    """

    backward: str | None = parameter(None, kind="path", doc="file of Pr(previous | now), .npy or .csv")
    forward: str | None = parameter(None, kind="path", doc="file of Pr(next | now), .npy or .csv")
    laplacian: SmoothedIdentity | None = parameter(None, doc="states that mostly stay")
    chain: Walk | None = parameter(None, doc="a walk on a line of places")
    learned: str | None = parameter(None, kind="path", doc="file that `penstock learn` wrote")
    estimate: str | None = parameter(None, choices=("first",), doc="learn from the first windows of the run's stream")
    windows: int | None = parameter(None, at_least=2, doc="windows to learn from")
    of: str = parameter("users", choices=("users", "cells"), doc="states: a person's cell, or in one cell or not")
    smoothing: float = parameter(0.1, at_least=0, doc="steps added to each count: 0 makes the unseen impossible")
    unseen: bool = parameter(False, doc="count not being seen as a place (of: users)")

    def __post_init__(self) -> None:
        super().__post_init__()
        files = "backward" if self.forward is None else "forward"  # both together are one way
        names = ("estimate", files, "laplacian", "chain", "learned")
        check_one_of({name: getattr(self, name) for name in names})
        if self.estimate is not None and self.windows is None:
            raise ParameterError("windows", None, "given with estimate: how many windows to learn from")
        if self.estimate is None and self.windows is not None:
            raise ParameterError("windows", self.windows, "left out without estimate")

    @property
    def is_public(self) -> bool:
        """Return whether the correlation is independent of the stream."""
        return self.estimate is None and self.learned is None


@dataclass(frozen=True, kw_only=True)
class UserClass(Checked):
    """A class of people with a common correlation, which the accountant treats as one subject."""

    name: str = parameter(doc="name of the class in the rows")
    correlation: KnownCorrelation = parameter(doc="correlation of people of this class")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.correlation.estimate is not None:
            expected = "a file or a model for a class (an estimate from the stream is one for everybody)"
            raise ParameterError("correlation.estimate", self.correlation.estimate, expected)


@dataclass(frozen=True, kw_only=True, eq=False)
class CorrelationAdversary:
    """One adversary's knowledge about a subject, in a form small enough to be sent to workers."""

    # `pairs` are the matrices (backward, forward) with which the sound landmark bound bridges gaps: the adversary knows
    # one of them. It is empty where there are too many states: gaps then count in full.

    subject: str
    assumption: str
    leakage: tuple[LeakageFunction, LeakageFunction]  # backward and forward
    pairs: tuple[Pair, ...]

    def landmark_model(self) -> LandmarkModel:
        """Return the adversary model for the landmark loss. Bridges are built on first use."""
        model = LandmarkModel()
        model.head, model.tail = self.leakage
        known = tuple(steps for pair in self.pairs for steps in LandmarkModel(*pair).adversaries)
        model.adversaries = known or ((Steps(), Steps()),)
        return model


def adversary(
    correlation: KnownCorrelation, training: Training | None, subject: str = "everybody"
) -> CorrelationAdversary:
    """Build the adversary for a declared correlation, from files or from a learned estimate."""
    pairs, assumption = _pairs(correlation, training)
    backward, forward = (
        LeakageFunction.of_vertices(np.concatenate([LeakageFunction(matrix).vertices for matrix in matrices]))
        for matrices in zip(*pairs)
    )
    kept = pairs if len(pairs[0][0]) * len(pairs) <= BRIDGED_STATES else ()
    return CorrelationAdversary(subject=subject, assumption=assumption, leakage=(backward, forward), pairs=kept)


def _pairs(correlation: KnownCorrelation, training: Training | None) -> tuple[tuple[Pair, ...], str]:
    """Return a correlation's (backward, forward) matrices and its description."""
    if correlation.estimate is not None:
        return _estimate(correlation, training)
    if correlation.learned is not None:
        learned = Learned.read(correlation.learned)
        return ((learned.backward, learned.forward),), f"learned before, smoothing {learned.facts.get('smoothing')}"
    backward: Array | None = None
    if correlation.laplacian is not None:
        n, s = correlation.laplacian.n, correlation.laplacian.s
        forward, assumption = laplacian_smoothing_matrix(n, s), f"Laplacian smoothing, n = {n}, s = {s:g}"
    elif correlation.chain is not None:
        n, tau = correlation.chain.n, correlation.chain.tau
        forward, assumption = chain_matrix(n, tau), f"walk on a line, n = {n}, tau = {tau:g}"
    else:
        backward, given = (
            None if path is None else read_matrix(path) for path in (correlation.backward, correlation.forward)
        )
        forward = _reverse(backward, "backward") if given is None else given
        assumption = f"given transition matrix of {len(forward)} states"
    return ((_reverse(forward, "forward") if backward is None else backward, forward),), assumption


def _reverse(matrix: Any, name: str) -> Array:
    try:
        return backward_matrix(matrix)
    except ParameterError as error:
        expected = "a chain with one stationary distribution, or both directions given"
        raise ParameterError(name, error.value, expected) from error


def _estimate(correlation: KnownCorrelation, training: Training | None) -> tuple[tuple[Pair, ...], str]:
    if training is None or correlation.windows is None:
        raise ParameterError("estimate", correlation.estimate, "used where a run's stream is at hand to learn from")
    part = training.first(correlation.windows)
    unseen = correlation.unseen and correlation.of == "users"
    n = part.n_cells + unseen
    check_size(n)
    counts = count_transitions(part.with_unseen() if unseen else part.trajectories, n)
    tables = [counts] if correlation.of == "users" else [two for two in presence_counts(counts) if two[1].any()]
    pairs = [both_directions(table, correlation.smoothing)[::-1] for table in tables]
    if not pairs:
        raise ParameterError("windows", correlation.windows, "enough for a person to be seen in two neighbouring ones")
    states = "cells" if correlation.of == "users" else "being in one cell or not, the worst cell"
    assumption = f"estimated from {part.n_users} people in {part.n_windows} windows; states: {states}"
    return tuple(pairs), f"{assumption}; smoothing {correlation.smoothing:g}"


@dataclass(frozen=True, kw_only=True, eq=False)
class Learned:
    """Transitions learned from a stream's training part."""

    transitions: Array  # steps from state i to state j between neighbouring windows, shape (n, n), counts
    visits: Array  # windows spent in each state, shape (n,), counts
    # `forward`, `backward`: Pr(next = j | now = i) with the stated smoothing, and Pr(previous = j | now = i),
    # shape (n, n)
    forward: Array
    backward: Array
    initial: Array  # distribution of the state in any one window: the share of visits, smoothed like a row, shape (n,)
    states: NDArray[np.str_]  # names of the states: the cells, and "unseen" last where that is a state
    # ``windows``, ``users``, ``share`` of the people seen that these are, ``smoothing``, ``unseen``; in a file of
    # `penstock learn` also ``source``, ``from`` and ``until``, which older files lack
    facts: dict[str, Any]

    def write(self, path: str | Path) -> None:
        """Write all arrays and metadata to a ``.npz`` file."""
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        np.savez_compressed(path, **arrays, facts=np.array(json.dumps(self.facts)))

    @classmethod
    def read(cls, path: str | Path) -> Learned:
        """Read a file written by `write`. Raise `DataError` if it is anything else."""
        source = Path(path)
        try:
            with np.load(source, allow_pickle=False) as arrays:
                values = dict(arrays)
            numbers = {name: np.asarray(values[name], float) for name in _ARRAYS if name != "states"}
            states, facts = np.asarray(values["states"], str), json.loads(str(values["facts"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{source}: not a file of learned transitions: {error}") from error
        for name in ("forward", "backward"):
            numbers[name] = transition_matrix(numbers[name], f"{source}: {name}")
        return cls(**numbers, states=states, facts=facts)


def learn(training: Training, cells: tuple[str, ...], smoothing: float, unseen: bool = False) -> Learned:
    """Learn transitions between consecutive training windows. Unseen counts as a state only if ``unseen`` is set."""
    trajectories = training.with_unseen() if unseen else training.trajectories
    n = training.n_cells + unseen
    check_size(n)
    transitions = count_transitions(trajectories, n)
    visits = np.bincount(trajectories[trajectories >= 0], minlength=n).astype(float)
    forward, backward = both_directions(transitions, smoothing)
    facts = {"windows": training.n_windows, "users": training.n_users, "share": training.share}
    return Learned(
        transitions=transitions,
        visits=visits,
        forward=forward,
        backward=backward,
        initial=(visits + smoothing) / (visits + smoothing).sum(),
        states=np.array([*cells, *(("unseen",) if unseen else ())], str),
        facts=facts | {"smoothing": smoothing, "unseen": unseen},
    )


def both_directions(transitions: Array, smoothing: float) -> tuple[Array, Array]:
    """Estimate the forward matrix from counts and return it with the reversed chain's matrix."""
    # By the stationary distribution; by the counts read backwards where there is none (smoothing 0, and places that
    # no one returns to).
    forward = estimated_matrix(transitions, smoothing)
    try:
        return forward, backward_matrix(forward)
    except ParameterError:
        return forward, estimated_matrix(transitions.T, smoothing)


def presence_counts(transitions: Array) -> Array:
    """Count the transitions of each state's presence chain between outside (0) and inside (1), shape (n, 2, 2)."""
    stays = np.diag(transitions)
    leaves, enters = transitions.sum(axis=1) - stays, transitions.sum(axis=0) - stays
    outside = transitions.sum() - stays - leaves - enters
    return np.stack([outside, enters, leaves, stays], axis=-1).reshape(-1, 2, 2)


def check_size(n_states: int) -> None:
    """Raise an error if there are too many states for dense matrices."""
    if n_states > MAX_STATES:
        expected = f"at most {MAX_STATES} states to learn transitions of; use larger cells"
        raise ParameterError("cells", n_states, expected)
