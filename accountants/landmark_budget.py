"""The landmark budget: what all landmarks and any one other window have cost together."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from penstock.accountants.core.accountant import Accountant, AccountingFacts, AccountRow, Rows
from penstock.accountants.core.charges import pure_epsilon
from penstock.accountants.core.trace_view import TraceView
from penstock.mechanisms.core.contract import Release, Window
from penstock.mechanisms.core.events import Block, Event
from penstock.mechanisms.core.plugin import BudgetExceeded, ParameterError, UnsupportedEvent, parameter
from penstock.mechanisms.core.state import State

__all__ = ["LandmarkBudget", "landmark_allocation", "landmark_loss"]

#: Sums of shares such as 3 · (ε/3) may pass ε by rounding alone.
ROUNDING = 1e-9
ADJACENCY = "add/remove one user's contributions in all landmarks of a budget period and any one other window"
TRACES = "positions `radius` metres apart at all landmarks of a budget period and at any one other point"


def landmark_loss(epsilons: ArrayLike, landmarks: ArrayLike) -> NDArray[np.float64]:
    """Privacy loss of each timestamp together with all landmarks: the sum of ε over L ∪ {t}.

    Parameters
    ----------
    epsilons
        Shape (n_windows,): what each release spent.
    landmarks
        Boolean mask of the same shape.

    Examples
    --------
    >>> landmark_loss([1.0, 0.5, 0.25], [True, False, False])
    array([1.  , 1.5 , 1.25])
    """
    spent, mask = np.asarray(epsilons, float), np.asarray(landmarks)
    if mask.dtype != bool or mask.shape != spent.shape or spent.ndim != 1:
        raise ParameterError("landmarks", mask.shape, f"a boolean mask of shape {spent.shape}")
    loss: NDArray[np.float64] = np.where(mask, 0.0, spent) + spent[mask].sum()
    return loss


def landmark_allocation(kind: str, landmarks: ArrayLike, epsilon: float) -> NDArray[np.float64]:
    """Budget of every timestamp under a plain allocation.

    Parameters
    ----------
    kind
        ``uniform``: ε/n each, n = abs(L) + 1, or abs(L) if every timestamp is a landmark.
    landmarks
        Boolean mask, shape (n_windows,).
    epsilon
        The budget, in nats.

    Examples
    --------
    >>> landmark_allocation("uniform", [True, False, True], 3.0)
    array([1., 1., 1.])
    """
    if kind != "uniform":
        raise ParameterError("kind", kind, "one of uniform")
    mask = np.asarray(landmarks, bool)
    return np.full(mask.shape, epsilon / max(1, int(mask.sum()) + (not mask.all())))


@dataclass(frozen=True, kw_only=True)
class LandmarkBudget(Accountant):
    """Keep the sum of ε over L ∪ {t} within the budget of each period, and say how much is left.

    Parameters
    ----------
    budget
        ε that the sum may reach in one period; None: the ε of a landmark mechanism, or no limit for others.

    **Privacy.** Unit: one user's bounded contributions in all landmarks of a period and in any one other window;
    add/remove. By sequential composition the period is (sum of ε over L, plus the largest other ε)-differentially
    private (Katsomallos et al. 2022). Costs O(1) time and state a window. Overlapping windows are refused: one event
    would be in several windows. A block of windows is charged once in every period it touches, as a landmark where
    that period has any.

    Rows: ``epsilon`` of the release, and so far in its period ``landmark_loss`` (over the landmarks and this window),
    ``budget_spent`` (over the landmarks and the costliest other window) and ``budget_left``; when the period is over,
    ``period_landmarks`` (over the landmarks) and ``period_loss`` (what was spent in the end). The final loss of a
    regular window is ``period_landmarks`` plus its own ``epsilon``. On traces the unit is one user's positions, ε that
    of two positions ``radius`` metres apart, and the rows ``budget_spent`` and ``budget_left`` are each user's, in the
    dearest period.
    """

    budget: float | None = parameter(None, doc="ε available in one budget period", above=0, unit="nats")

    stages: ClassVar[tuple[str, ...]] = ("counts", "points")

    def start(self, facts: AccountingFacts) -> tuple[float, State]:
        """The budget as model; nothing spent yet."""
        if facts.overlapping:
            raise UnsupportedEvent("landmark_budget: windows overlap, so an event is in more than one window")
        budget = self.budget
        if budget is None and facts.mechanism is not None:
            budget = facts.mechanism.landmark_budget
        state = {"period": np.asarray(-1), "window": np.asarray(0), "block_last": np.asarray(0)}
        amounts = {name: np.asarray(0.0) for name in ("landmarks", "other", "block_epsilon", "largest")}
        return (np.inf if budget is None else float(budget)), state | amounts

    def check(self, window: Window, charge: tuple[Event, ...], model: float, state: State) -> None:
        """Raise `BudgetExceeded` if ``charge`` in this window would overspend the period; changes nothing."""
        self._spend(window, charge, model, state)

    def _spend(
        self, window: Window, charge: tuple[Event, ...], model: float, state: State
    ) -> tuple[float, float, float]:
        """ε of a charge, and of the landmarks and the costliest other window after it."""
        epsilon = pure_epsilon(charge)
        before = _spent_before(window, state)
        landmarks, other = before
        if _counts_as_landmark(window, charge):
            landmarks += epsilon
        else:
            other = max(other, epsilon)
        if epsilon > 0 and landmarks + other > model * (1 + ROUNDING):
            raise BudgetExceeded(window.index, sum(before), epsilon, model)
        return epsilon, landmarks, other

    def charge(
        self, release: Release, window: Window, private: Mapping[str, Any], model: float, state: State
    ) -> tuple[Rows, State]:
        """Add one release to the books of its period."""
        epsilon, landmarks, other = self._spend(window, release.charge, model, state)
        over = int(state["period"]) not in (-1, window.period)
        rows = self.finish(model, state) if over else []
        loss = landmarks if _counts_as_landmark(window, release.charge) else landmarks + epsilon
        row = partial(AccountRow, "everybody", window.index, adjacency=ADJACENCY, status="provisional")
        rows += [
            row("epsilon", epsilon, status="final"),
            row("landmark_loss", loss),
            row("budget_spent", landmarks + other),
        ]
        if math.isfinite(model):
            rows.append(row("budget_left", model - landmarks - other))
        blocks = [event for event in release.charge if isinstance(event, Block)]
        return rows, {
            "period": np.asarray(window.period),
            "window": np.asarray(window.index),
            "landmarks": np.asarray(landmarks),
            "other": np.asarray(other),
            "largest": np.asarray(max(float(state["largest"]), landmarks + other)),
            "block_last": np.asarray(max((b.last for b in blocks), default=int(state["block_last"]))),
            "block_epsilon": np.asarray(pure_epsilon(blocks)) if blocks else state["block_epsilon"],
        }

    def account_traces(self, view: TraceView) -> Rows:
        """``budget_spent`` of every user: the largest sum over L ∪ {t} of any budget period; and ``budget_left``."""
        budget = view.mechanism.landmark_budget if self.budget is None else self.budget
        users, sums = view.landmark_sums()
        spent = np.zeros(len(view.subjects))
        np.maximum.at(spent, users, sums)
        figures = {"budget_spent": spent} | ({} if budget is None else {"budget_left": np.maximum(budget - spent, 0.0)})
        return [
            AccountRow(who, None, name, float(value), adjacency=TRACES)
            for name, values in figures.items()
            for who, value in zip(view.subjects, values)
        ]

    def finish(self, model: float, state: State) -> Rows:
        """Final figures of the period that is over."""
        if int(state["period"]) < 0:
            return []
        landmarks, last = float(state["landmarks"]), int(state["window"])
        return [
            AccountRow("everybody", last, "period_landmarks", landmarks, adjacency=ADJACENCY),
            AccountRow("everybody", last, "period_loss", landmarks + float(state["other"]), adjacency=ADJACENCY),
        ]

    def summary(self, model: float, state: State) -> dict[str, Any]:
        """The most that any period has spent, and of how much."""
        budget = {"budget": model} if np.isfinite(model) else {}
        return {"largest_period_loss": float(state["largest"]), **budget, "adjacency": ADJACENCY}


def _counts_as_landmark(window: Window, charge: tuple[Event, ...]) -> bool:
    # Which windows of a block are landmarks is not told here; where there are any, the block is taken for one.
    return window.landmark or (window.n_landmarks != 0 and any(isinstance(event, Block) for event in charge))


def _spent_before(window: Window, state: State) -> tuple[float, float]:
    """ε of the landmarks, and largest ε of another window, in the window's period so far."""
    if int(state["period"]) == window.period:
        return float(state["landmarks"]), float(state["other"])
    inherited = float(state["block_epsilon"]) if window.index <= int(state["block_last"]) else 0.0
    return (0.0, inherited) if window.n_landmarks == 0 else (inherited, 0.0)
