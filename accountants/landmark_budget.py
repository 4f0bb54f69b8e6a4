"""The landmark budget: what all landmarks and any one other window have cost together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from accountants.core.accountant import Accountant, AccountingFacts, AccountRow, Rows
from accountants.core.charges import pure_epsilon
from mechanisms.core.errors import BudgetExceeded, ParameterError, UnsupportedEvent
from mechanisms.core.event import Event
from mechanisms.core.parameters import parameter
from mechanisms.core.release import Release
from mechanisms.core.state import State
from mechanisms.core.window import Window

__all__ = ["LandmarkBudget", "landmark_allocation", "landmark_loss"]

#: Sums of shares such as 3 · (ε/3) may pass ε by rounding alone.
ROUNDING = 1e-9


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
    would be in several windows.
    """

    budget: float | None = parameter(None, doc="ε available in one budget period", above=0, unit="nats")

    def start(self, facts: AccountingFacts) -> tuple[float, State]:
        """The budget as model; nothing spent yet."""
        if facts.overlapping:
            raise UnsupportedEvent("landmark_budget: windows overlap, so an event is in more than one window")
        guarantee = facts.mechanism.guarantee.unit if facts.mechanism else ""
        declared = getattr(facts.mechanism, "epsilon", None) if "landmark" in guarantee else None
        budget = self.budget if self.budget is not None else declared
        state: State = {"period": np.int64(-1), "landmarks": np.float64(0), "other": np.float64(0)}  # type: ignore[dict-item]
        return (np.inf if budget is None else float(budget)), state

    def check(self, window: Window, charge: tuple[Event, ...], model: float, state: State) -> None:
        """Raise `BudgetExceeded` if ``charge`` in this window would overspend the period; changes nothing."""
        epsilon = pure_epsilon(charge)
        landmarks, other = _spent_before(window, state)
        after = landmarks + epsilon + other if window.landmark else landmarks + max(other, epsilon)
        if epsilon > 0 and after > model * (1 + ROUNDING):
            raise BudgetExceeded(window.index, landmarks + other, epsilon, model)

    def charge(
        self, release: Release, window: Window, private: Mapping[str, Any], model: float, state: State
    ) -> tuple[Rows, State]:
        """Add one release to the books of its period."""
        self.check(window, release.charge, model, state)
        epsilon = pure_epsilon(release.charge)
        landmarks, other = _spent_before(window, state)
        if window.landmark:
            landmarks += epsilon
        else:
            other = max(other, epsilon)
        loss = landmarks if window.landmark else landmarks + epsilon
        rows = [
            AccountRow("everybody", window.index, "epsilon", epsilon),
            AccountRow("everybody", window.index, "landmark_loss", loss, status="provisional"),
            AccountRow("everybody", window.index, "budget_spent", landmarks + other, status="provisional"),
        ]
        if np.isfinite(model):
            rows.append(AccountRow("everybody", window.index, "budget_left", model - landmarks - other))
        return rows, {
            "period": np.int64(window.period),  # type: ignore[dict-item]
            "landmarks": np.float64(landmarks),  # type: ignore[dict-item]
            "other": np.float64(other),  # type: ignore[dict-item]
        }


def _spent_before(window: Window, state: State) -> tuple[float, float]:
    if int(state["period"]) != window.period:
        return 0.0, 0.0
    return float(state["landmarks"]), float(state["other"])
