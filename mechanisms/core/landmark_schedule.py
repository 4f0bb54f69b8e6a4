"""What landmark schedules share: budget periods, and landmarks beyond the declared maximum."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mechanisms.core.budget_schedule import LANDMARK_GUARANTEE, BudgetSchedule
from mechanisms.core.errors import ParameterError
from mechanisms.core.event import Event, Repeated
from mechanisms.core.facts import Facts
from mechanisms.core.mechanism import Guarantee
from mechanisms.core.release import Release
from mechanisms.core.state import State
from mechanisms.core.timestamp import Mask, Timestamp
from mechanisms.core.trace_schedule import LANDMARK_TRACES, Budgets
from mechanisms.core.window import Window

if TYPE_CHECKING:
    from mechanisms.core.noise import Noise


@dataclass(frozen=True, kw_only=True)
class LandmarkSchedule(BudgetSchedule):
    """Base of landmark mechanisms: counts the landmarks of a period and refuses those over the declared maximum."""

    guarantee: ClassVar[Guarantee] = LANDMARK_GUARANTEE
    point_guarantee: ClassVar[Guarantee] = LANDMARK_TRACES

    @property
    def landmark_budget(self) -> float:
        """The whole ε, in every budget period."""
        return self.epsilon

    def start(self, facts: Facts) -> State:
        """No period begun yet."""
        return super().start(facts) | {
            "period": facts.constant(-1, np.int64),
            "landmarks_seen": facts.constant(0, np.int64),
        }

    def begin_period(self, window: Window, state: State) -> State:
        """State as the window finds it: a new budget period starts afresh."""
        if _latest(state["period"]) == window.period:
            return state
        fresh = {
            "period": np.full_like(state["period"], window.period),
            "landmarks_seen": np.zeros_like(state["landmarks_seen"]),
        }
        return state | fresh

    def is_refused(self, window: Window, state: State) -> bool:
        """Whether the window is a landmark beyond the declared maximum of its period."""
        if window.n_landmarks is None:
            raise ParameterError("landmarks", None, "listed, or bounded by max_per_period with a budget_period")
        if not window.landmark:
            return False
        return _latest(self.begin_period(window, state)["landmarks_seen"]) >= window.n_landmarks

    def share(self, window: Window) -> float:
        """ε/n, n the landmarks of the period and one more window, if there are that many."""
        n_together = (window.n_landmarks or 0) + 1
        return self.epsilon / (n_together if window.n_windows is None else min(n_together, window.n_windows))

    def step(self, window: Window, counts: NDArray[Any], state: State, noise: Noise) -> tuple[list[Release], State]:
        """Release one window, or refuse a landmark that was not planned for."""
        state = self.begin_period(window, state)
        refused = self.is_refused(window, state)
        if window.landmark:
            state = state | {"landmarks_seen": state["landmarks_seen"] + 1}
        if refused:
            return [replace(self.repeat(window, state), action="refused")], state
        release, state = self.release(window, counts, state, noise)
        return [release], state

    def worst_charge(self, window: Window, state: State) -> tuple[Event, ...]:
        """Nothing for a refused landmark, else the most that the schedule can spend."""
        state = self.begin_period(window, state)
        if self.is_refused(window, state):
            return (Repeated(0),)
        return self.worst(window, state)

    def enter(self, time: Timestamp, state: State) -> State:
        """A new budget period of a user starts afresh."""
        is_new = state["period"] != time.period
        return state | {"period": time.period, "landmarks_seen": np.where(is_new, 0, state["landmarks_seen"])}

    def refused(self, time: Timestamp, state: State) -> Mask:
        """Landmarks beyond the declared maximum of their period."""
        return time.landmark & (state["landmarks_seen"] >= time.n_landmarks)

    def shares(self, time: Timestamp) -> Budgets:
        """The share of every user's timestamp."""
        return self.epsilon / np.minimum(time.n_landmarks + 1, time.n_timestamps)

    def follow(self, time: Timestamp, before: State, after: State, epsilon: Budgets, publish: Mask) -> State:
        """Count the landmarks."""
        return after | {"landmarks_seen": before["landmarks_seen"] + time.landmark}

    @abstractmethod
    def release(self, window: Window, counts: NDArray[Any], state: State, noise: Noise) -> tuple[Release, State]:
        """Release a window that is not refused."""

    @abstractmethod
    def worst(self, window: Window, state: State) -> tuple[Event, ...]:
        """The most that `release` can charge."""


def _latest(number: NDArray[Any]) -> int:
    """The largest of the replicas' numbers, or the only one."""
    return int(number.max() if number.ndim else number)
