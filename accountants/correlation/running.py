"""Temporal privacy loss kept up to date release by release, in bounded state.

The backward loss is one number. The forward loss of a release grows with every later one, so each open release keeps
two figures: `low`, what later releases tell so far, and `high`, what they can ever tell as long as none costs more
than a declared `largest_epsilon`. Both are swept back from the newest release; a row is final as soon as they meet, or
when it is `lag` releases old, with `high` as its loss. Where `high` is infinite, a row leaves without becoming final.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accountants.correlation.hull import Array
from accountants.correlation.leakage_function import Correlation, LeakageFunction, leakage_function
from mechanisms.core.errors import ParameterError

State = dict[str, NDArray[Any]]


@dataclass(frozen=True, kw_only=True)
class LossRows:
    """Losses of a run of consecutive releases after one more release; arrays of equal length, in nats.

    Parameters
    ----------
    first
        1-based index of the first of these releases.
    backward
        Backward loss; never revised.
    forward, total
        Forward and total loss: given the releases so far where provisional, the value that stands where final.
    forward_bound, total_bound
        What the forward and total loss can still become; infinite where nothing bounds it.
    final
        Whether the row will never change again.
    n_closed
        How many rows, the oldest, are reported for the last time: the final ones, and those that grew too old to
        follow without a finite bound.
    """

    first: int
    backward: Array
    forward: Array
    total: Array
    forward_bound: Array
    total_bound: Array
    final: NDArray[np.bool_]
    n_closed: int


class RunningTemporalLoss:
    """Backward, forward and total loss of an endless series, one release at a time.

    The object holds only public, unchanging facts; the state is a flat dict of arrays that `step` never modifies.

    Parameters
    ----------
    backward, forward
        Matrices or leakage functions; None where the adversary knows none.
    lag
        Releases that stay open at most; bounds state and the time of a step.
    largest_epsilon
        Declared bound on the epsilon of every release, now and later; a release above it is refused. Infinite: none
        is known, and only a matrix without zeros bounds what is to come.
    tolerance
        A row is final once no later release can change it by more than this, in nats.

    Raises
    ------
    ParameterError
        `lag` below 1, `largest_epsilon` or `tolerance` negative.

    Notes
    -----
    A step costs O(open rows · log n_vertices). Rows stay open for about ln(1/tolerance) / ln(1/contraction) releases.

    Examples
    --------
    >>> matrix = [[0.8, 0.2], [0.2, 0.8]]
    >>> running = RunningTemporalLoss(backward=matrix, forward=matrix, lag=100, largest_epsilon=0.1)
    >>> state = running.start()
    >>> for _ in range(3):
    ...     state, rows = running.step(state, 0.1)
    >>> rows.total.round(4), rows.total_bound.round(4), rows.final
    (array([0.1958, 0.2199, 0.1958]), array([0.2488, 0.3087, 0.3446]), array([False, False, False]))
    >>> running.finish(state).total.round(4), running.largest(state)[1]
    (array([0.1958, 0.2199, 0.1958]), 2)
    """

    def __init__(
        self,
        *,
        backward: Correlation = None,
        forward: Correlation = None,
        lag: int = 1000,
        largest_epsilon: float = math.inf,
        tolerance: float = 1e-12,
    ) -> None:
        if isinstance(lag, bool) or not isinstance(lag, int | np.integer) or lag < 1:
            raise ParameterError("lag", lag, "a whole number of at least 1 (releases)")
        if not largest_epsilon >= 0:
            raise ParameterError("largest_epsilon", largest_epsilon, "a number of at least 0 (nats)")
        if not 0 <= tolerance < math.inf:
            raise ParameterError("tolerance", tolerance, "a finite number of at least 0 (nats)")
        self.backward: LeakageFunction = leakage_function(backward)
        self.forward: LeakageFunction = leakage_function(forward)
        self.lag, self.largest_epsilon, self.tolerance = int(lag), float(largest_epsilon), float(tolerance)
        self._future = self.forward(self.forward.supremum(self.largest_epsilon))

    def start(self) -> State:
        """State before the first release."""
        empty = np.empty(0)
        return {
            "releases": np.zeros(1, dtype=np.int64),
            "last_backward": np.zeros(1),
            "largest_closed": np.zeros(1),
            "largest_closed_at": np.zeros(1, dtype=np.int64),
            "epsilons": empty,
            "leaked_in": empty,
            "low": empty,
            "high": empty,
        }

    def step(self, state: State, epsilon: float) -> tuple[State, LossRows]:
        """Add one release and revise the open rows before it.

        Parameters
        ----------
        state
            State after the release before; left as it is.
        epsilon
            Pure epsilon of this release for replacing a value: 0 for a repeated or skipped one, infinite without
            guarantee.

        Returns
        -------
        State, LossRows
            The new state, and every row that was open: those now final are reported for the last time.

        Raises
        ------
        ParameterError
            `epsilon` negative, NaN or above `largest_epsilon`.
        """
        if not 0 <= epsilon <= self.largest_epsilon:
            raise ParameterError("epsilon", epsilon, f"between 0 and the declared largest {self.largest_epsilon:g}")
        n_releases = int(state["releases"][0]) + 1
        arriving = self.backward(float(state["last_backward"][0]))
        charges = np.append(state["epsilons"], epsilon)
        leaked_in = np.append(state["leaked_in"], arriving)
        low = self._sweep(charges, state["low"].tolist(), 0.0)
        high = self._sweep(charges, state["high"].tolist(), self._future)
        n_closed = self._n_closed(low, high)
        rows = _rows(n_releases - len(charges) + 1, n_closed, charges, leaked_in, low, high)
        largest, at = _larger(state, rows, n_closed)
        still_open = slice(n_closed, None)
        new_state: State = {
            "releases": np.array([n_releases]),
            "last_backward": np.array([arriving + epsilon]),
            "largest_closed": np.array([largest]),
            "largest_closed_at": np.array([at]),
            "epsilons": charges[still_open],
            "leaked_in": leaked_in[still_open],
            "low": low[still_open],
            "high": high[still_open],
        }
        return new_state, rows

    def finish(self, state: State) -> LossRows:
        """Rows still open when the series ends: nothing comes after them, so all are final with their present loss."""
        charges, leaked_in, low = (np.asarray(state[key], dtype=float) for key in ("epsilons", "leaked_in", "low"))
        return _rows(int(state["releases"][0]) - len(low) + 1, len(low), charges, leaked_in, low, low)

    def largest(self, state: State) -> tuple[float, int]:
        """Largest total loss of any release so far, and the 1-based index of that release (0 before the first)."""
        rows = self.finish(state)
        return _larger(state, rows, len(rows.total))

    def _sweep(self, charges: Array, before: list[float], future: float) -> Array:
        """What leaks into each open release from later ones, from what leaks into the newest; stops when unchanged."""
        values = [*before, future]
        epsilons = charges.tolist()
        for row in range(len(before) - 1, -1, -1):
            value = self.forward(values[row + 1] + epsilons[row + 1])
            if value == values[row]:
                break
            values[row] = value
        return np.array(values)

    def _n_closed(self, low: Array, high: Array) -> int:
        """How many of the oldest rows close: none can change any more, or there are more than `lag`."""
        settled = low + self.tolerance >= high
        n_settled = len(settled) if settled.all() else int(settled.argmin())
        return max(n_settled, len(low) - self.lag)


def _rows(first: int, n_closed: int, charges: Array, leaked_in: Array, low: Array, high: Array) -> LossRows:
    final = (np.arange(len(charges)) < n_closed) & (np.isfinite(high) | (low == high))
    leaked_back = np.where(final, high, low)
    return LossRows(
        first=first,
        backward=leaked_in + charges,
        forward=leaked_back + charges,
        total=leaked_in + charges + leaked_back,
        forward_bound=high + charges,
        total_bound=leaked_in + charges + high,
        final=final,
        n_closed=n_closed,
    )


def _larger(state: State, rows: LossRows, n_rows: int) -> tuple[float, int]:
    """Largest total among the closed rows of a state and the first of these rows, and where it is."""
    largest, at = float(state["largest_closed"][0]), int(state["largest_closed_at"][0])
    if n_rows and (best := float(rows.total[:n_rows].max())) > largest:
        return best, rows.first + int(rows.total[:n_rows].argmax())
    return largest, at
