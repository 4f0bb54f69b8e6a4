"""Temporal privacy loss about all landmarks and one other release: the published formula and a sound bound.

Between landmarks i < j the adversary compares trajectories that differ at both. Given the value x_j, the steps from
i towards j are again a Markov chain, the bridge, with rows proportional to P[x, x'] · P^r[x', x_j] when r steps
remain after this one. Its leakage function, one for every x_j and r, replaces L_P in the recursion of the loss.

The loss is Σ_{i in M} ε_i over M = L ∪ {t}, plus what the releases before the first of M tell (backward loss) and
after the last (forward loss), plus a term for each gap. ``paper`` (Katsomallos et al.) adds in a gap the backward run
arriving at its right end and the forward run arriving at its left end, as if the ends were not known together. That
is **not a bound**: for P = [[.99999, .00001], [.97, .03]], M = {1, 3} and ε = 1 the gap adds .100, while an explicit
mechanism reveals .993. ``sound`` takes min(Σ of the gap's ε, A + B): A the forward recursion through the gap with the
rows of the bridge, maximised over x_j; B its mirror image towards x_i.

**Theorem.** The sound sum is at least ln Pr(o | x_M)/Pr(o | x'_M) for every mechanism with these ε, all outputs o and
all possible values x_M, x'_M.

*Proof.* Given x_M the chain falls apart: Pr(o | x_M) = Pr(o_before | x_first) · Pr(o_after | x_last) · Π_{i in M}
Pr(o_i | x_i) · Π_gaps Pr(o_gap | x_i, x_j). The first two factors change by at most the end runs and each own factor
by ε_i. For a gap, Pr(o_gap | x_i, x_j) averages Π Pr(o_s | x_s) over paths, and any two paths differ by at most Σ
ε_s: the first bound. For the second, change one end at a time, over (x'_i, x_j) or over (x_i, x'_j). With x_j fixed,
the path from i is a Markov chain whose steps are the bridge's rows, so by the argument behind L the recursion bounds
the effect of exchanging x_i for x'_i: at most A. Time reversed, exchanging x_j costs at most B. ∎

Changing one end at a time needs (x'_i, x_j) or (x_i, x'_j) to be possible. That holds for all pairs exactly when the
supports of the rows of P^m are nested; otherwise (a permutation, two separate classes), and where P^r has become too
small for a double, the term is Σ ε. Bridges depend on the matrix in one direction only; if both are given, the larger
result is used, so that the bound holds if either is right.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import ArrayLike

from penstock.accountants.correlation.hull import Array
from penstock.accountants.correlation.leakage import LeakageFunction, checked_epsilons, leakage_function, leaked
from penstock.accountants.markov import backward_matrix, transition_matrix
from penstock.mechanisms.core.plugin import ParameterError, check_choice

Method: TypeAlias = Literal["sound", "paper"]
_EQUAL = 1e-13  # relative spread of P^r[:, x_j] under which the bridge has forgotten its end


def landmark_temporal_privacy_loss(
    epsilons: ArrayLike, landmarks: ArrayLike, backward: Any = None, forward: Any = None, method: Method = "sound"
) -> Array:
    """Compute, for every release t, the joint privacy loss about the values at all landmarks and at t.

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
        Transition matrices; None if the adversary knows none. ``paper`` also takes leakage functions.
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

    Source: Katsomallos et al. for the figure; the sound gap term and its proof are above.

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
    """The public adversary model for the landmark loss. Its bridges, most of the work, are built lazily and kept.

    A *segment* is a maximal run of releases without a landmark, with a landmark or the end of the series on either
    side.
    """

    def __init__(self, backward: Any = None, forward: Any = None, method: Method = "sound") -> None:
        check_choice("method", method, get_args(Method))
        self.head = leakage_function(backward)
        self.tail = leakage_function(forward)
        if method == "paper":
            self.adversaries: tuple[tuple[Steps, Steps], ...] = ((PlainSteps(self.tail), PlainSteps(self.head)),)
        else:
            self.adversaries = _bridges(backward, forward)

    def losses(self, charges: Array, landmarks: Any) -> Array:
        """Return the privacy loss at each release, shape (n_releases,)."""
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
        """Return a segment's contribution to the loss about the landmarks, alone and jointly with each release."""
        left = self._gaps(charges, self.adversaries) if has_left else leaked(np.append(charges, 0.0), self.head)
        right = self.gaps_back(charges) if has_right else self.after(charges)
        without = left[-1] if has_right else right[0] if has_left else 0.0
        return float(without), left[:-1] + charges + right[1:]

    def after(self, charges: Array) -> Array:
        """Return the loss that charges[p:] cause about the moment before them, for each p, if none later is known."""
        return leaked(np.append(charges[::-1], 0.0), self.tail)[::-1]

    def gaps_back(self, charges: Array) -> Array:
        """Return the loss that charges[p:] cause about the moments on either side, for each p, shape (n + 1,)."""
        return self._gaps(charges[::-1], [(back, ahead) for ahead, back in self.adversaries])[::-1]

    def _gaps(self, charges: Array, adversaries: Sequence[tuple[Steps, Steps]]) -> Array:
        """Return the loss that charges[:p] cause about the moments on either side, for each p, shape (n + 1,)."""
        n, terms = len(charges), np.zeros(len(charges) + 1)
        for ahead, back in adversaries:
            # the leakage about the moment before the gap with the anchor at each p: n passes over all anchors
            near = np.zeros((n + 1, ahead.n_ends))
            for remaining in range(1, n + 1):
                near[remaining:] = ahead.step(remaining, charges[: n + 1 - remaining, None] + near[remaining:])
            both = near.max(axis=-1) + to_end(charges[::-1], back).max(axis=-1)[::-1]
            terms = np.maximum(terms, [ahead.capped(float(term), charges[:p]) for p, term in enumerate(both)])
        return terms


def _bridges(backward: Any, forward: Any) -> tuple[tuple[Steps, Steps], ...]:
    """Return each known matrix's steps, as pairs (towards a later end, towards an earlier end)."""
    for name, matrix in (("backward", backward), ("forward", forward)):
        if isinstance(matrix, LeakageFunction):
            raise ParameterError(name, matrix, "a transition matrix (the sound method needs more than its leakage)")
    before = None if backward is None else transition_matrix(backward, "backward")
    after = None if forward is None else transition_matrix(forward, "forward")
    adversaries: list[tuple[Steps, Steps]] = []
    if after is not None:
        adversaries.append((BridgedSteps(after), BridgedSteps(after.T)))
    if before is not None and after is not None:
        if before.shape != after.shape:
            raise ParameterError("backward", f"shape {before.shape}", f"the shape of forward, {after.shape}")
        try:
            if np.allclose(before, backward_matrix(after), rtol=1e-13, atol=0.0):
                return tuple(adversaries)  # each is the stationary reversal of the other: both have the same bridges
        except ParameterError:  # more than one stationary distribution, and no way to tell which
            pass
    if before is not None:
        adversaries.append((BridgedSteps(before.T), BridgedSteps(before)))
    return tuple(adversaries)


class Steps:
    """One-step leakage towards an anchor, for each of its `n_ends` values. The base class counts releases in full."""

    n_ends = 1

    def step(self, remaining: int, loss: Array) -> Array:
        """Propagate losses (..., n_ends) by one step, when `remaining` steps are left to the anchor."""
        return np.zeros_like(loss)

    def capped(self, term: float, charges: Array) -> float:
        """Bound the loss over a gap with these charges, given the sum of the losses from both ends."""
        return float(charges.sum())


class PlainSteps(Steps):
    """Steps that ignore the anchor, as the published landmark formula does."""

    def __init__(self, leakage: LeakageFunction) -> None:
        self.leakage = leakage

    def step(self, remaining: int, loss: Array) -> Array:
        """Return the chain's leakage (see `Steps`)."""
        return self.leakage(loss)

    def capped(self, term: float, charges: Array) -> float:
        """Return the published term (see `Steps`)."""
        return term


class BridgedSteps(Steps):
    """Steps in a chain conditioned on its value at the anchor."""

    # `kernel` holds the weight of each step x to x', shape (n, n): a transition matrix towards the anchor, or the
    # transpose of one in the other direction of time (a bridge does not depend on the distribution at its start).
    # Leakage functions are built when first needed: n hulls of n × n matrices for each number of remaining steps, until
    # the bridge has forgotten its end; from then on the last ones serve.

    def __init__(self, kernel: Array) -> None:
        self.kernel, self.n_ends = kernel, len(kernel)
        self._weight = np.eye(self.n_ends)  # P^r, each column scaled to a maximum of 1
        self._support = np.eye(self.n_ends, dtype=bool)
        self._all_representable = True
        self._exchangeable = [True]
        self._leakage: list[tuple[LeakageFunction, ...]] = [()]

    def step(self, remaining: int, loss: Array) -> Array:
        """Return the leakage for every possible end (see `Steps`)."""
        self._extend(remaining)
        functions = self._leakage[min(remaining, len(self._leakage) - 1)]
        return np.stack([function(loss[..., end]) for end, function in enumerate(functions)], axis=-1)

    def capped(self, term: float, charges: Array) -> float:
        """Return the smaller of the two bounds if the end values may be changed one at a time (see `Steps`)."""
        # That is, of any two possible pairs (x, y) and (x', y'), (x, y') or (x', y) is also possible: the supports of
        # the rows of P^n_steps are nested. Not where a positive probability is too small for a double.
        n_steps, total = len(charges) + 1, float(charges.sum())
        self._extend(n_steps)
        return min(term, total) if self._exchangeable[min(n_steps, len(self._exchangeable) - 1)] else total

    def _extend(self, remaining: int) -> None:
        converged = len(self._leakage) > 1 and self._weight.min() >= 1.0 - _EQUAL
        while len(self._leakage) <= remaining and not converged:
            weight = self.kernel @ self._weight
            self._weight = weight / np.maximum(weight.max(axis=0), np.finfo(float).tiny)
            self._support = (self.kernel > 0).astype(float) @ self._support > 0
            self._all_representable &= not (self._support & (self._weight == 0)).any()
            by_size = self._support[np.argsort(self._support.sum(axis=1))]
            self._exchangeable.append(self._all_representable and not (by_size[:-1] & ~by_size[1:]).any())
            bridges = []
            for column in self._weight.T:
                rows = self.kernel * column
                total = rows.sum(axis=1)
                bridges.append(LeakageFunction.of_rows(rows[total > 0] / total[total > 0, None]))
            self._leakage.append(tuple(bridges))
            converged = self._weight.min() >= 1.0 - _EQUAL


def to_end(charges: Array, steps: Steps) -> Array:
    """Return the leakage that charges[p:] cause about the moment before p, for each p, with the anchor at the end."""
    n = len(charges)
    leaked = np.zeros((n + 1, steps.n_ends))
    for p in range(n - 1, -1, -1):
        leaked[p] = steps.step(n - p, charges[p] + leaked[p + 1])
    return leaked
