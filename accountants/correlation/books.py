"""The running books of one adversary: temporal loss and landmark loss, release by release, as rows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from accountants.core.accountant import AccountRow, Rows
from accountants.correlation.adversary import Adversary
from accountants.correlation.landmark_losses import Method
from accountants.correlation.planning import largest_epsilon
from accountants.correlation.running import LossRows, RunningTemporalLoss
from accountants.correlation.running_landmarks import RunningLandmarkLoss
from mechanisms.core.state import State

STREAM, LANDMARK = "stream.", "landmark."


@dataclass(frozen=True, kw_only=True)
class BookSettings:
    """What all adversaries of an accountant share; epsilons are those of the replacement adjacency, in nats.

    Parameters
    ----------
    largest_epsilon
        Bound on every release's epsilon; infinite: none is known.
    lag
        Releases that stay open at most.
    landmark
        Method of the landmark loss; None: the run has no landmarks.
    longest_gap
        Releases without a landmark after which the next counts as one.
    goal
        Total loss that is not to be passed, if one is stated.
    horizon
        Releases of the run; None where it is endless.
    """

    largest_epsilon: float
    lag: int
    landmark: Method | None
    longest_gap: int
    goal: float | None
    horizon: int | None


class Books:
    """Books of one adversary; the object is public and unchanging, the state a flat dict of arrays.

    Parameters
    ----------
    adversary
        What is known of the correlation.
    settings
        Shared by all adversaries.
    """

    def __init__(self, adversary: Adversary, settings: BookSettings) -> None:
        self.subject, self.goal = adversary.subject, settings.goal
        self.backward, self.forward = adversary.leakage
        self.running = RunningTemporalLoss(
            backward=self.backward, forward=self.forward, lag=settings.lag, largest_epsilon=settings.largest_epsilon
        )
        self.landmarks = None
        known = f"replacing one person's cell in one window; adversary knows the correlation ({adversary.assumption})"
        self.adjacency = known
        if settings.landmark is not None:
            model = adversary.landmark_model(settings.landmark)
            self.landmarks = RunningLandmarkLoss(model=model, longest_gap=settings.longest_gap)
            whole = "" if adversary.pairs else "; too many states to follow gaps, whose releases count in full"
            suffix = whole if settings.landmark == "sound" else "; the published figure, which can be too small"
            self.landmark_adjacency = known.replace("one window", "all landmarks and one more window") + suffix
        self.planned = self._plan(settings.horizon)

    def _plan(self, horizon: int | None) -> float | None:
        if self.goal is None:
            return None
        return largest_epsilon(self.goal, self.backward, self.forward, horizon)

    def start(self) -> State:
        """State before the first release: nothing is open, nothing closed."""
        state = {STREAM + key: value for key, value in self.running.start().items()}
        if self.landmarks is not None:
            state |= {LANDMARK + key: value for key, value in self.landmarks.start().items()}
        own: State = {
            "windows": np.zeros(0, np.int64),
            "largest": np.array([0.0, 0.0]),
            "largest_landmark": np.array([0.0]),
            "costliest": np.array([0.0]),
        }
        return state | own

    def step(self, window: int, epsilon: float, landmark: bool, state: State) -> tuple[Rows, State]:
        """Enter one release.

        Parameters
        ----------
        window
            1-based window of the release.
        epsilon
            Its pure epsilon for replacement.
        landmark
            Whether it is a landmark, or a block that may hold one.
        state
            Left as it is.
        """
        inner, losses = self.running.step(part(state, STREAM), epsilon)
        windows = np.append(state["windows"], window)
        rows = [self._row(window, "backward_loss", float(losses.backward[-1]))]
        rows += self._revised(losses, windows, range(losses.n_closed), force_final=False)
        if losses.n_closed < len(windows):
            rows += self._revised(losses, windows, range(len(windows) - 1, len(windows)), force_final=False)
        new: State = {
            "windows": windows[losses.n_closed :],
            "largest": _larger(state["largest"], losses, windows, losses.n_closed),
            "largest_landmark": state["largest_landmark"],
            "costliest": np.maximum(state["costliest"], epsilon),
        }
        new |= {STREAM + key: value for key, value in inner.items()}
        if self.landmarks is not None:
            inner, figures = self.landmarks.step(part(state, LANDMARK), epsilon, landmark)
            new |= {LANDMARK + key: value for key, value in inner.items()}
            new["largest_landmark"] = np.array([figures.largest])
            for name, value in (("landmark_loss", figures.now), ("largest_landmark_loss", figures.largest)):
                rows.append(self._row(window, name, value, status="provisional", adjacency=self.landmark_adjacency))
        return rows, new

    def finish(self, state: State) -> Rows:
        """What is still open becomes final, and the figures of the whole run."""
        losses = self.running.finish(part(state, STREAM))
        rows = self._revised(losses, state["windows"], range(len(state["windows"])), force_final=True)
        total, _ = self._largest(state)
        rows.append(self._row(None, "largest_total_loss", total))
        rows.append(self._row(None, "supremum", self._supremum(state)))
        if self.landmarks is not None:
            value = float(state["largest_landmark"][0])
            rows.append(self._row(None, "largest_landmark_loss", value, adjacency=self.landmark_adjacency))
        return rows

    def summary(self, state: State) -> dict[str, Any]:
        """Figures for the manifest."""
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
            figures |= {"goal": self.goal, "epsilon_for_goal": self.planned / 2, "goal_kept": total <= (self.goal or 0)}
        return figures | {"assumption": self.adjacency}

    def _largest(self, state: State) -> tuple[float, int]:
        losses = self.running.finish(part(state, STREAM))
        total, window = _larger(state["largest"], losses, state["windows"], len(losses.total))
        return float(total), int(window)

    def _supremum(self, state: State) -> float:
        """Total loss of an endless stream of releases like the costliest so far."""
        epsilon = float(state["costliest"][0])
        if math.isinf(epsilon):
            return math.inf
        return self.backward.supremum(epsilon) + self.forward.supremum(epsilon) - epsilon

    def _revised(self, losses: LossRows, windows: Any, which: range, force_final: bool) -> Rows:
        """Forward and total loss of some of the open releases."""
        rows = []
        for at in which:
            is_final = force_final or bool(losses.final[at])
            for name, values, bounds in (
                ("forward_loss", losses.forward, losses.forward_bound),
                ("total_loss", losses.total, losses.total_bound),
            ):
                value, high = float(values[at]), float(bounds[at])
                status = "final" if is_final else "provisional"
                rows.append(self._row(int(windows[at]), name, value, None if is_final else (value, high), status))
        return rows

    def _row(
        self,
        window: int | None,
        name: str,
        value: float,
        interval: tuple[float, float] | None = None,
        status: str = "final",
        adjacency: str | None = None,
    ) -> AccountRow:
        low, high = interval or (None, None)
        return AccountRow(self.subject, window, name, value, low, high, "nats", adjacency or self.adjacency, status)


def part(state: State, prefix: str) -> State:
    """What a state holds under names that begin with a prefix, without it."""
    return {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}


def _larger(largest: Any, losses: LossRows, windows: Any, n_rows: int) -> Any:
    """Largest total loss among what was closed before and the first rows, and its window."""
    if n_rows == 0:
        return largest
    at = int(losses.total[:n_rows].argmax())
    if losses.total[at] <= largest[0]:
        return largest
    return np.array([losses.total[at], float(windows[at])])
