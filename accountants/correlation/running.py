"""Temporal and landmark loss, updated after every release in bounded memory.

The backward loss is one number. The forward loss of a release grows with every later one, so each open release keeps
two figures: `low`, the leakage from later releases so far, and `high`, their leakage as long as none costs more than
a declared `largest_epsilon`. Both are swept back from the newest release; a row is final as soon as they meet, or
when it is `lag` releases old, with `high` as its loss. Where `high` is infinite, a row leaves without becoming final.
In the landmark loss a closed gap is two numbers, and the open one a few arrays.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.accountants.core.accountant import AccountRow, Rows
from penstock.accountants.correlation.adversary import CorrelationAdversary
from penstock.accountants.correlation.hull import Array
from penstock.accountants.correlation.landmark_losses import LandmarkModel, to_end
from penstock.accountants.correlation.leakage import Correlation, LeakageFunction, leakage_function
from penstock.accountants.correlation.planning import largest_epsilon as planned_epsilon
from penstock.mechanisms.core.plugin import ParameterError
from penstock.mechanisms.core.sensitivity import price_of_replacement
from penstock.mechanisms.core.state import State, nested, part

#: A row is final once no later release can change it by more than this, in nats.
TOLERANCE = 1e-12
#: Releases without a landmark after which the next counts as one, which can only raise the loss.
LONGEST_GAP = 200


@dataclass(frozen=True, kw_only=True)
class LossRows:
    """Losses of consecutive releases, as of the latest one, in nats. All arrays have equal length."""

    first: int  # 1-based index of the first of these releases
    backward: Array  # backward loss; never revised
    # `forward`, `total`: forward and total loss: given the releases so far where provisional, the value that
    # stands where final
    forward: Array
    total: Array
    # `forward_bound`, `total_bound`: what the forward and total loss can still become; infinite where nothing
    # bounds it
    forward_bound: Array
    total_bound: Array
    final: NDArray[np.bool_]  # whether the row will never change again
    # how many rows, the oldest, are reported for the last time: the final ones, and those that grew too old to
    # follow without a finite bound
    n_closed: int


class RunningTemporalLoss:
    """An infinite series' backward, forward and total loss, updated one release at a time in O(open rows)."""

    def __init__(
        self,
        *,
        backward: Correlation = None,
        forward: Correlation = None,
        lag: int = 1000,
        largest_epsilon: float = math.inf,
    ) -> None:
        self.backward: LeakageFunction = leakage_function(backward)
        self.forward: LeakageFunction = leakage_function(forward)
        self.lag, self.largest_epsilon = lag, largest_epsilon
        self._future = self.forward(self.forward.supremum(self.largest_epsilon))

    def start(self) -> State:
        """Return the initial state."""
        empty = np.empty(0)
        return {
            "releases": np.zeros(1, dtype=np.int64),
            "last_backward": np.zeros(1),
            "epsilons": empty,
            "leaked_in": empty,
            "low": empty,
            "high": empty,
        }

    def step(self, state: State, epsilon: float) -> tuple[State, LossRows]:
        """Add one release and return the new state and the updated open rows."""
        if not 0 <= epsilon <= self.largest_epsilon:
            raise ParameterError("epsilon", epsilon, f"between 0 and the declared largest {self.largest_epsilon:g}")
        n_releases = int(state["releases"][0]) + 1
        arriving = self.backward(float(state["last_backward"][0]))
        charges = np.append(state["epsilons"], epsilon)
        leaked_in = np.append(state["leaked_in"], arriving)
        low = self._sweep(charges, state["low"].tolist(), 0.0)
        high = self._sweep(charges, state["high"].tolist(), self._future)
        settled = low + TOLERANCE >= high
        n_settled = len(settled) if settled.all() else int(settled.argmin())
        n_closed = max(n_settled, len(low) - self.lag)  # those that are final or too old
        rows = _rows(n_releases - len(charges) + 1, n_closed, charges, leaked_in, low, high)
        still_open = slice(n_closed, None)
        new_state: State = {
            "releases": np.array([n_releases]),
            "last_backward": np.array([arriving + epsilon]),
            "epsilons": charges[still_open],
            "leaked_in": leaked_in[still_open],
            "low": low[still_open],
            "high": high[still_open],
        }
        return new_state, rows

    def finish(self, state: State) -> LossRows:
        """Mark the open rows as final at the end of the series."""
        charges, leaked_in, low = (np.asarray(state[key], dtype=float) for key in ("epsilons", "leaked_in", "low"))
        return _rows(int(state["releases"][0]) - len(low) + 1, len(low), charges, leaked_in, low, low)

    def _sweep(self, charges: Array, before: list[float], future: float) -> Array:
        """Propagate the newest release's loss backward through the open rows until they stop changing."""
        values = [*before, future]
        epsilons = charges.tolist()
        for row in range(len(before) - 1, -1, -1):
            value = self.forward(values[row + 1] + epsilons[row + 1])
            if value == values[row]:
                break
            values[row] = value
        return np.array(values)


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


class LandmarkFigures(NamedTuple):
    """The landmark losses caused by the releases so far, in nats."""

    now: float  # loss about all landmarks and the release just made
    largest: float  # the overall loss: the largest over every release so far


class RunningLandmarkLoss:
    """A growing series' landmark loss, which equals `landmark_temporal_privacy_loss` after every release."""

    def __init__(self, model: LandmarkModel, longest_gap: int = LONGEST_GAP) -> None:
        self.model, self.longest_gap = model, longest_gap

    def start(self) -> State:
        """Return the initial state."""
        n_ends = max((back.n_ends for _, back in self.model.adversaries), default=1)
        return {
            "releases": np.zeros(1, dtype=np.int64),
            "landmarks": np.zeros(1, dtype=np.int64),
            "spent": np.zeros(1),
            "largest_closed": np.full(1, -np.inf),
            "charges": np.empty(0),
            "left": np.zeros(1),
            "from_left": np.zeros((len(self.model.adversaries), n_ends)),
        }

    def step(self, state: State, epsilon: float, landmark: bool) -> tuple[State, LandmarkFigures]:
        """Add one release and return the new state and the losses so far."""
        if landmark or len(state["charges"]) >= self.longest_gap:
            return self._close(state, epsilon)
        return self._extend(state, epsilon)

    def _extend(self, state: State, epsilon: float) -> tuple[State, LandmarkFigures]:
        has_left = bool(state["landmarks"][0])
        charges = np.append(state["charges"], epsilon)
        gap, from_left = 0.0, np.empty_like(state["from_left"])
        for at, (ahead, back) in enumerate(self.model.adversaries):
            from_left[at] = back.step(len(charges), epsilon + state["from_left"][at])
            both = to_end(charges, ahead)[0].max() + from_left[at].max()
            gap = max(gap, ahead.capped(float(both), charges))
        if not has_left:
            gap = self.model.head(float(state["left"][-1]) + epsilon)
        new_state = {
            **state,
            "releases": state["releases"] + 1,
            "charges": charges,
            "left": np.append(state["left"], gap),
            "from_left": from_left,
        }
        right = self.model.after(charges)
        spent = float(state["spent"][0])
        losses = spent + (new_state["left"][:-1] + charges + right[1:])
        landmarks = spent + float(right[0]) if has_left else 0.0
        largest = max(float(losses.max()), landmarks + float(state["largest_closed"][0]))
        return new_state, LandmarkFigures(float(losses[-1]), largest)

    def _close(self, state: State, epsilon: float) -> tuple[State, LandmarkFigures]:
        charges, left = np.asarray(state["charges"], dtype=float), np.asarray(state["left"], dtype=float)
        without = float(left[-1])
        within = left[:-1] + charges + self.model.gaps_back(charges)[1:]
        closed = np.subtract(within, without, out=np.zeros_like(within), where=np.isfinite(without))
        spent = state["spent"] + without + epsilon
        largest_closed = np.array([closed.max(initial=max(0.0, float(state["largest_closed"][0])))])
        new_state = {
            "releases": state["releases"] + 1,
            "landmarks": state["landmarks"] + 1,
            "spent": spent,
            "largest_closed": largest_closed,
            "charges": np.empty(0),
            "left": np.zeros(1),
            "from_left": np.zeros_like(state["from_left"]),
        }
        loss = float(spent[0])
        return new_state, LandmarkFigures(loss, loss + float(largest_closed[0]))


STREAM, LANDMARK = "stream", "landmark"


class TemporalLossTracker:
    """A tracker for one adversary's temporal and landmark loss (ε under replacement), public except for its state."""

    def __init__(
        self,
        adversary: CorrelationAdversary,
        *,
        largest_epsilon: float,
        lag: int,
        landmarks: bool,
        goal: float | None,
        horizon: int | None,
    ) -> None:
        self.subject, self.goal = adversary.subject, goal
        self.backward, self.forward = backward, forward = adversary.leakage
        self.running = RunningTemporalLoss(backward=backward, forward=forward, lag=lag, largest_epsilon=largest_epsilon)
        self.landmarks = None
        known = f"replacing one person's cell in one window; adversary knows the correlation ({adversary.assumption})"
        self.adjacency = known
        if landmarks:
            self.landmarks = RunningLandmarkLoss(adversary.landmark_model())
            without_gaps = "" if adversary.pairs else "; too many states to follow gaps, whose releases count in full"
            self.landmark_adjacency = known.replace("one window", "all landmarks and one more window") + without_gaps
        self.planned = None if goal is None else planned_epsilon(goal, backward, forward, horizon)

    def start(self) -> State:
        """Return the initial state, with no open or closed rows."""
        state = nested(STREAM, self.running.start())
        if self.landmarks is not None:
            state |= nested(LANDMARK, self.landmarks.start())
        arrays: State = {
            "windows": np.zeros(0, np.int64),
            "largest": np.array([0.0, 0.0]),
            "largest_landmark": np.array([0.0]),
            "costliest": np.array([0.0]),
        }
        return state | arrays

    def step(self, window: int, epsilon: float, landmark: bool, state: State) -> tuple[Rows, State]:
        """Record one release's pure epsilon under replacement. A block that may contain a landmark counts as one."""
        inner, losses = self.running.step(part(STREAM, state), epsilon)
        windows = np.append(state["windows"], window)
        rows = [self._row(window, "backward_loss", float(losses.backward[-1]))]
        rows += self._revise(losses, windows, sorted({*range(losses.n_closed), len(windows) - 1}))
        new: State = {
            "windows": windows[losses.n_closed :],
            "largest": _largest_window(state["largest"], losses, windows, losses.n_closed),
            "largest_landmark": state["largest_landmark"],
            "costliest": np.maximum(state["costliest"], epsilon),
        }
        new |= nested(STREAM, inner)
        if self.landmarks is not None:
            inner, figures = self.landmarks.step(part(LANDMARK, state), epsilon, landmark)
            new |= nested(LANDMARK, inner)
            new["largest_landmark"] = np.array([figures.largest])
            for name, value in (("landmark_loss", figures.now), ("largest_landmark_loss", figures.largest)):
                rows.append(self._row(window, name, value, status="provisional", adjacency=self.landmark_adjacency))
        return rows, new

    def finish(self, state: State) -> Rows:
        """Close the open rows and return the run's final values."""
        losses = self.running.finish(part(STREAM, state))
        rows = self._revise(losses, state["windows"], range(len(state["windows"])), is_last=True)
        total, _ = self._largest(state)
        rows.append(self._row(None, "largest_total_loss", total))
        rows.append(self._row(None, "supremum", self._supremum(state)))
        if self.landmarks is not None:
            value = float(state["largest_landmark"][0])
            rows.append(self._row(None, "largest_landmark_loss", value, adjacency=self.landmark_adjacency))
        return rows

    def summary(self, state: State) -> dict[str, Any]:
        """Return the values to write to the manifest."""
        total, window = self._largest(state)
        figures: dict[str, Any] = {
            "largest_total_loss": total,
            "in_window": window,
            "supremum_if_it_went_on": self._supremum(state),
        }
        if self.landmarks is not None:
            figures["largest_landmark_loss"] = float(state["largest_landmark"][0])
        if self.planned is not None:
            # What mechanisms are configured with is the ε of add/remove, half of that of replacement.
            epsilon = self.planned / price_of_replacement("epsilon")
            figures |= {"goal": self.goal, "epsilon_for_goal": epsilon, "goal_kept": total <= (self.goal or 0)}
        return figures | {"assumption": self.adjacency}

    def _largest(self, state: State) -> tuple[float, int]:
        losses = self.running.finish(part(STREAM, state))
        total, window = _largest_window(state["largest"], losses, state["windows"], len(losses.total))
        return float(total), int(window)

    def _supremum(self, state: State) -> float:
        """Return an infinite stream's total loss if every release costs as much as the costliest one so far."""
        epsilon = float(state["costliest"][0])
        if math.isinf(epsilon):
            return math.inf
        return self.backward.supremum(epsilon) + self.forward.supremum(epsilon) - epsilon

    def _revise(self, losses: LossRows, windows: Any, positions: Iterable[int], is_last: bool = False) -> Rows:
        """Return updated rows with the forward and total loss for open releases at the given positions."""
        rows = []
        for at in positions:
            is_final = is_last or bool(losses.final[at])
            for name, values, bounds in (
                ("forward_loss", losses.forward, losses.forward_bound),
                ("total_loss", losses.total, losses.total_bound),
            ):
                value = float(values[at])
                is_open = {} if is_final else {"low": value, "high": float(bounds[at]), "status": "provisional"}
                rows.append(self._row(int(windows[at]), name, value, **is_open))
        return rows

    def _row(self, window: int | None, name: str, value: float, **columns: Any) -> AccountRow:
        return AccountRow(self.subject, window, name, value, **{"adjacency": self.adjacency, **columns})


def _largest_window(largest: Any, losses: LossRows, windows: Any, n_rows: int) -> Any:
    """Return the largest total loss so far and the window in which it occurs."""
    if n_rows == 0:
        return largest
    at = int(losses.total[:n_rows].argmax())
    if losses.total[at] <= largest[0]:
        return largest
    return np.array([losses.total[at], float(windows[at])])
