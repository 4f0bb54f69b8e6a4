"""From a declared correlation to an adversary: leakage as hull vertices, matrices where gaps are to be bridged."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from accountants.core.training import Training
from accountants.correlation.bridges import PlainSteps, Unbridged
from accountants.correlation.hull import Array
from accountants.correlation.landmark_losses import LandmarkModel, Method
from accountants.correlation.leakage_function import LeakageFunction, leakage_function
from accountants.correlation.learned import Learned, both_directions, check_size, presence_counts
from accountants.correlation.matrices import (
    chain_matrix,
    count_transitions,
    laplacian_smoothing_matrix,
    read_matrix,
)
from accountants.correlation.sections import KnownCorrelation
from accountants.correlation.time_reversal import backward_matrix
from mechanisms.core.errors import ParameterError

Pair = tuple[Array | None, Array | None]


@dataclass(frozen=True, kw_only=True, eq=False)
class Adversary:
    """What one kind of adversary knows, as small arrays that can be shipped.

    Parameters
    ----------
    subject
        Whose books: "everybody" or a user class.
    assumption
        The correlation in words, for the rows.
    backward, forward
        Hull vertices of both leakage functions, shape (m, 2).
    pairs
        Matrices (backward, forward) that the sound landmark bound bridges gaps with: the adversary knows one of them.
        Empty where there are too many states: gaps then count in full.
    """

    subject: str
    assumption: str
    backward: Array
    forward: Array
    pairs: tuple[Pair, ...]

    @property
    def leakage(self) -> tuple[LeakageFunction, LeakageFunction]:
        """Backward and forward leakage functions."""
        return LeakageFunction.of_vertices(self.backward), LeakageFunction.of_vertices(self.forward)

    def landmark_model(self, method: Method) -> LandmarkModel:
        """The adversary of the landmark loss; bridges are built when first needed."""
        model = LandmarkModel(method=method)
        model.head, model.tail = self.leakage
        if method == "paper":
            model.adversaries = ((PlainSteps(model.tail), PlainSteps(model.head)),)
        elif self.pairs:
            known = [LandmarkModel(*pair).adversaries for pair in self.pairs]
            model.adversaries = tuple(steps for several in known for steps in several)
        else:
            model.adversaries = ((Unbridged(), Unbridged()),)
        return model


def adversary(
    correlation: KnownCorrelation, training: Training | None, bridged_states: int = 20, subject: str = "everybody"
) -> Adversary:
    """Make an adversary: reads its files, or learns from the training part.

    Parameters
    ----------
    correlation
        What is known.
    training
        The training part, where the correlation asks for an estimate.
    bridged_states
        Matrices of more states are not kept for bridging.
    subject
        Whose books.

    Examples
    --------
    >>> from accountants.correlation.sections import SmoothedIdentity
    >>> known = adversary(KnownCorrelation(laplacian=SmoothedIdentity(n=2, s=1.0)), None)
    >>> known.forward.round(3).tolist(), known.assumption
    ([[0.333, 0.667]], 'Laplacian smoothing, n = 2, s = 1')
    """
    pairs, assumption = _pairs(correlation, training)
    directions: Iterable[Sequence[Array | None]] = zip(*pairs)
    backward, forward = (_vertices(matrices) for matrices in directions)
    n_states = max(len(matrix) for pair in pairs for matrix in pair if matrix is not None)
    kept = pairs if n_states * len(pairs) <= bridged_states else ()
    return Adversary(subject=subject, assumption=assumption, backward=backward, forward=forward, pairs=kept)


def _vertices(matrices: Sequence[Array | None]) -> Array:
    """Vertices of the hull over the leakage of all matrices: an adversary who may know any of them."""
    vertices = [leakage_function(matrix).vertices for matrix in matrices]
    return vertices[0] if len(vertices) == 1 else LeakageFunction.of_vertices(np.concatenate(vertices)).vertices


def _pairs(correlation: KnownCorrelation, training: Training | None) -> tuple[tuple[Pair, ...], str]:
    """Matrices of a correlation, and its description."""
    if correlation.estimate is not None:
        return _estimated(correlation, training)
    if correlation.learned is not None:
        learned = Learned.read(correlation.learned)
        return ((learned.backward, learned.forward),), f"learned before, smoothing {learned.facts.get('smoothing')}"
    backward, forward, assumption = _declared(correlation)
    if correlation.stationary and backward is None and forward is not None:
        backward = _reversed(forward, "forward")
    elif correlation.stationary and forward is None and backward is not None:
        forward = _reversed(backward, "backward")
    return ((backward, forward),), assumption


def _declared(correlation: KnownCorrelation) -> tuple[Array | None, Array | None, str]:
    if correlation.laplacian is not None:
        n, s = correlation.laplacian.n, correlation.laplacian.s
        return None, laplacian_smoothing_matrix(n, s), f"Laplacian smoothing, n = {n}, s = {s:g}"
    if correlation.chain is not None:
        n, tau = correlation.chain.n, correlation.chain.tau
        return None, chain_matrix(n, tau), f"walk on a line, n = {n}, tau = {tau:g}"
    backward, forward = (
        None if path is None else read_matrix(path) for path in (correlation.backward, correlation.forward)
    )
    n_states = max(len(matrix) for matrix in (backward, forward) if matrix is not None)
    return backward, forward, f"given transition matrix of {n_states} states"


def _reversed(matrix: Array, name: str) -> Array:
    try:
        return backward_matrix(matrix)
    except ParameterError as error:
        expected = "a chain with one stationary distribution, or both directions given, or stationary: false"
        raise ParameterError(name, error.value, expected) from error


def _estimated(correlation: KnownCorrelation, training: Training | None) -> tuple[tuple[Pair, ...], str]:
    if training is None or correlation.windows is None:
        raise ParameterError("estimate", correlation.estimate, "used where a run's stream is at hand to learn from")
    part = training.first(correlation.windows)
    unseen = correlation.unseen and correlation.of == "users"
    n = part.n_cells + unseen
    check_size(n)
    counts = count_transitions(part.with_unseen() if unseen else part.trajectories, n)
    several = [counts] if correlation.of == "users" else [two for two in presence_counts(counts) if two[1].any()]
    pairs = [both_directions(table, correlation.smoothing)[::-1] for table in several]
    if not pairs:
        raise ParameterError("windows", correlation.windows, "so many that somebody is seen in two neighbouring ones")
    states = "cells" if correlation.of == "users" else "being in one cell or not, the worst cell"
    assumption = f"estimated from {part.n_users} people in {part.n_windows} windows; states: {states}"
    return tuple(pairs), f"{assumption}; smoothing {correlation.smoothing:g}"
