"""Temporal privacy loss about all landmarks and one more release at once: the published figure and a sound bound."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from accountants.correlation.bridges import BridgedSteps, PlainSteps, Steps, to_end, to_every_end
from accountants.correlation.hull import Array
from accountants.correlation.leakage_function import LeakageFunction, leakage_function
from accountants.correlation.losses import checked_epsilons, leaked
from accountants.correlation.matrices import transition_matrix
from accountants.correlation.time_reversal import backward_matrix
from mechanisms.core.errors import ParameterError

Method: TypeAlias = Literal["sound", "paper"]


def landmark_temporal_privacy_loss(
    epsilons: ArrayLike,
    landmarks: ArrayLike,
    backward: Any = None,
    forward: Any = None,
    method: Method = "sound",
) -> Array:
    """Loss about the values at all landmarks and at t together, for every release t.

    With L the landmarks, the loss at t is the sum of epsilon over L ∪ {t}, plus what the releases before the first and
    after the last of them tell (as backward and forward loss), plus a term for each gap between two neighbours in
    L ∪ {t}. The overall loss is the maximum over t.

    Parameters
    ----------
    epsilons
        Pure epsilon of each release for replacing one person's value, shape (n_releases,), in nats.
    landmarks
        Which releases are landmarks, booleans of the same shape.
    backward, forward
        Transition matrices; None where the adversary knows none. ``paper`` also takes leakage functions.
    method
        ``sound``: a gap's term bounds everything its releases tell about both ends (never less than the truth).
        ``paper``: the published figure, which adds a backward and a forward run through the gap as if the two ends
        were not known together; it can be too small.

    Returns
    -------
    Array
        Shape (n_releases,), in nats.

    Raises
    ------
    ParameterError
        Shapes differ, a negative epsilon, an unknown method, a matrix that is not stochastic.

    Notes
    -----
    For a gap of m releases and n states: ``paper`` O(m²), vectorised; ``sound`` O(m² n) and up to 2·m·n hulls of
    n × n matrices, fewer when the chain mixes fast. With both matrices given, ``sound`` takes the larger of what each
    implies, which agree for a stationary chain and its reversal.

    Source: Katsomallos et al. for the figure; the sound gap term and its proof are in ``docs/temporal.md``.

    Examples
    --------
    >>> matrix = [[0.99999, 0.00001], [0.97, 0.03]]
    >>> landmarks = [True, False, True]
    >>> for method in ("paper", "sound"):
    ...     loss = landmark_temporal_privacy_loss([1, 1, 1], landmarks, matrix, matrix, method)
    ...     print((loss - 2).round(3))  # beyond the epsilons of the two landmarks
    [0.1 1.  0.1]
    [1. 1. 1.]
    """
    charges = checked_epsilons(epsilons)
    mask = np.asarray(landmarks)
    if charges.ndim != 1:
        raise ParameterError("epsilons", f"shape {charges.shape}", "one series, shape (n_releases,)")
    if mask.dtype != bool or mask.shape != charges.shape:
        raise ParameterError("landmarks", landmarks, f"a mask of booleans, shape {charges.shape}")
    return LandmarkModel(backward, forward, method).losses(charges, mask)


class LandmarkModel:
    """The adversary of the landmark loss: public and unchanging, apart from bridges that are built when needed.

    Keep one for several series under the same matrices, since building the bridges is most of the work. Parameters are
    those of `landmark_temporal_privacy_loss`. A *segment* is a maximal run of releases without a landmark, with a
    landmark or the end of the series on either side.
    """

    def __init__(self, backward: Any = None, forward: Any = None, method: Method = "sound") -> None:
        if method not in ("sound", "paper"):
            raise ParameterError("method", method, "one of sound, paper")
        self.method = method
        self.head = leakage_function(backward)
        self.tail = leakage_function(forward)
        if method == "paper":
            self.adversaries: tuple[tuple[Steps, Steps], ...] = ((PlainSteps(self.tail), PlainSteps(self.head)),)
        else:
            self.adversaries = _bridges(backward, forward)

    def losses(self, charges: Array, landmarks: Any) -> Array:
        """Loss at each release, shape (n_releases,)."""
        at = np.flatnonzero(landmarks)
        runs = [slice(*ends) for ends in zip([0, *(at + 1)], [*at, len(charges)])]
        last = len(runs) - 1
        segments = [self.segment(charges[run], run_at > 0, run_at < last) for run_at, run in enumerate(runs)]
        alone = np.array([without for without, _ in segments])
        spent = charges[landmarks].sum()
        before = np.concatenate(([0.0], alone.cumsum()))  # sums on both sides: subtracting could give inf - inf
        after = np.concatenate((alone[::-1].cumsum()[::-1], [0.0]))
        losses = np.full(len(charges), spent + before[-1])
        for run_at, (run, (_, within)) in enumerate(zip(runs, segments)):
            losses[run] = spent + before[run_at] + after[run_at + 1] + within
        return losses

    def segment(self, charges: Array, has_left: bool, has_right: bool) -> tuple[float, Array]:
        """A segment's part of the loss about the landmarks alone, and about them and each of its releases."""
        left = self.gaps(charges) if has_left else self.before(charges)
        right = self.gaps_back(charges) if has_right else self.after(charges)
        without = left[-1] if has_right else right[0] if has_left else 0.0
        return float(without), left[:-1] + charges + right[1:]

    def before(self, charges: Array) -> Array:
        """What charges[:p] tell about the moment after them, nothing being known earlier, for every p."""
        return leaked(np.append(charges, 0.0), self.head)

    def after(self, charges: Array) -> Array:
        """What charges[p:] tell about the moment before them, nothing being known later, for every p."""
        return leaked(np.append(charges[::-1], 0.0), self.tail)[::-1]

    def gaps(self, charges: Array) -> Array:
        """What charges[:p] tell about the moments on both sides of them, for every p; shape (n + 1,)."""
        return self._gaps(charges, self.adversaries)

    def gaps_back(self, charges: Array) -> Array:
        """What charges[p:] tell about the moments on both sides of them, for every p; shape (n + 1,)."""
        return self._gaps(charges[::-1], [(back, ahead) for ahead, back in self.adversaries])[::-1]

    def _gaps(self, charges: Array, adversaries: Sequence[tuple[Steps, Steps]]) -> Array:
        terms = np.zeros(len(charges) + 1)
        for ahead, back in adversaries:
            near = to_every_end(charges, ahead).max(axis=-1)
            far = to_end(charges[::-1], back).max(axis=-1)[::-1]
            both = near + far
            capped = [self.capped_gap(float(term), charges[:p], ahead) for p, term in enumerate(both)]
            terms = np.maximum(terms, capped)
        return terms

    def capped_gap(self, term: float, charges: Array, ahead: Steps) -> float:
        """A gap's term, never above the sum of its charges, and equal to it where nothing smaller is sound."""
        if self.method == "paper":
            return term
        whole = float(charges.sum())
        return min(term, whole) if ahead.exchangeable(len(charges) + 1) else whole


def _bridges(backward: Any, forward: Any) -> tuple[tuple[Steps, Steps], ...]:
    """Steps (towards a later end, towards an earlier end) for each of the matrices known."""
    for name, matrix in (("backward", backward), ("forward", forward)):
        if isinstance(matrix, LeakageFunction):
            raise ParameterError(name, matrix, "a transition matrix (the sound method needs more than its leakage)")
    before = None if backward is None else transition_matrix(backward, "backward")
    after = None if forward is None else transition_matrix(forward, "forward")
    adversaries: list[tuple[Steps, Steps]] = []
    if after is not None:
        adversaries.append((BridgedSteps(after), BridgedSteps(after.T)))
    if before is not None and not (after is not None and _reversed(before, after)):
        adversaries.append((BridgedSteps(before.T), BridgedSteps(before)))
    return tuple(adversaries)


def _reversed(backward: Array, forward: Array) -> bool:
    """Whether one matrix is the stationary reversal of the other, so that both have the same bridges."""
    if backward.shape != forward.shape:
        raise ParameterError("backward", f"shape {backward.shape}", f"the shape of forward, {forward.shape}")
    try:
        return bool(np.allclose(backward, backward_matrix(forward), rtol=1e-13, atol=0.0))
    except ParameterError:  # more than one stationary distribution, and no way to tell which
        return False
