"""What the releases between two known moments of a chain can tell about one of the two: bridged leakage.

Between landmarks i < j the adversary compares trajectories that differ at both. Given the value x_j, the steps from i
towards j are again a Markov chain, the bridge, with rows proportional to P[x, x'] · P^r[x', x_j] when r steps remain
after this one. Its leakage function, one for every x_j and r, replaces L_P in the recursion of the loss.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from accountants.correlation.hull import Array
from accountants.correlation.leakage_function import LeakageFunction

_EQUAL = 1e-13  # relative spread of P^r[:, x_j] under which the bridge has forgotten its end


class Steps(Protocol):
    """One-step leakage towards an anchor, for each of `n_ends` values the anchor can have."""

    n_ends: int

    def step(self, remaining: int, loss: Array) -> Array:
        """Leakage of losses (..., n_ends) one step further away, `remaining` steps lying between it and the anchor."""

    def exchangeable(self, n_steps: int) -> bool:
        """Whether two moments, `n_steps` apart, can be compared by exchanging their values one at a time."""


class PlainSteps:
    """Steps that ignore the anchor, as the published landmark figure does."""

    n_ends = 1

    def __init__(self, leakage: LeakageFunction) -> None:
        self.leakage = leakage

    def step(self, remaining: int, loss: Array) -> Array:
        """Leakage of the chain itself; see `Steps`."""
        return self.leakage(loss)

    def exchangeable(self, n_steps: int) -> bool:
        """Taken for granted; see `Steps`."""
        return True


class Unbridged:
    """Steps that bound nothing, so that the releases between two anchors count in full: sound for any chain."""

    n_ends = 1

    def step(self, remaining: int, loss: Array) -> Array:
        """No figure of its own; see `Steps`."""
        return np.zeros_like(loss)

    def exchangeable(self, n_steps: int) -> bool:
        """Never assumed; see `Steps`."""
        return False


class BridgedSteps:
    """Steps of a chain conditioned on the value it will have at the anchor.

    Parameters
    ----------
    kernel
        Weight of each step x to x', shape (n, n), non-negative: a transition matrix towards the anchor, or the
        transpose of one in the other direction of time (a bridge does not depend on the distribution at its start).

    Notes
    -----
    Leakage functions are built when first needed: n hulls of n × n matrices for each number of remaining steps, until
    the bridge has forgotten its end; from then on the last ones serve.
    """

    def __init__(self, kernel: Array) -> None:
        self.kernel, self.n_ends = kernel, len(kernel)
        self._weight = np.eye(self.n_ends)  # P^r, each column scaled to a maximum of 1
        self._support = np.eye(self.n_ends, dtype=bool)
        self._all_representable = True
        self._exchangeable = [True]
        self._leakage: list[tuple[LeakageFunction, ...]] = [()]

    def step(self, remaining: int, loss: Array) -> Array:
        """Leakage for every end; see `Steps`."""
        self._extend(remaining)
        functions = self._leakage[min(remaining, len(self._leakage) - 1)]
        return np.stack([function(loss[..., end]) for end, function in enumerate(functions)], axis=-1)

    def exchangeable(self, n_steps: int) -> bool:
        """Whether, of any two possible pairs of values (x, y) and (x', y'), (x, y') or (x', y) is possible too.

        That is, the supports of the rows of P^n_steps are nested. Also False where a positive probability is too
        small for a double, relative to the others.
        """
        self._extend(n_steps)
        return self._exchangeable[min(n_steps, len(self._exchangeable) - 1)]

    def _extend(self, remaining: int) -> None:
        settled = len(self._leakage) > 1 and self._weight.min() >= 1.0 - _EQUAL
        while len(self._leakage) <= remaining and not settled:
            weight = self.kernel @ self._weight
            self._weight = weight / np.maximum(weight.max(axis=0), np.finfo(float).tiny)
            self._support = (self.kernel > 0).astype(float) @ self._support > 0
            self._all_representable &= not (self._support & (self._weight == 0)).any()
            self._exchangeable.append(self._all_representable and _nested(self._support))
            self._leakage.append(tuple(self._bridge(self._weight[:, end]) for end in range(self.n_ends)))
            settled = self._weight.min() >= 1.0 - _EQUAL

    def _bridge(self, weight: Array) -> LeakageFunction:
        rows = self.kernel * weight
        total = rows.sum(axis=1)
        return LeakageFunction.of_rows(rows[total > 0] / total[total > 0, None])


def _nested(support: NDArray[np.bool_]) -> bool:
    """Whether the rows of a boolean matrix form a chain of sets."""
    by_size = support[np.argsort(support.sum(axis=1))]
    return not (by_size[:-1] & ~by_size[1:]).any()


def to_end(charges: Array, steps: Steps) -> Array:
    """Leakage of charges[p:] about the moment just before position p, for every p, the anchor following the last.

    Shape (n + 1, n_ends) for n charges; one backward pass.
    """
    n = len(charges)
    leaked = np.zeros((n + 1, steps.n_ends))
    for p in range(n - 1, -1, -1):
        leaked[p] = steps.step(n - p, charges[p] + leaked[p + 1])
    return leaked


def to_every_end(charges: Array, steps: Steps) -> Array:
    """Leakage of charges[:p] about the moment just before the first, the anchor at position p, for every p.

    Shape (n + 1, n_ends) for n charges; n passes, each vectorised over the anchors, O(n² n_ends) elements.
    """
    n = len(charges)
    leaked = np.zeros((n + 1, steps.n_ends))
    for remaining in range(1, n + 1):
        leaked[remaining:] = steps.step(remaining, charges[: n + 1 - remaining, None] + leaked[remaining:])
    return leaked
