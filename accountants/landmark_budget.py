"""Landmark budget: the joint privacy cost of all landmarks and any one other window."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from penstock.accountants.core.accountant import Accountant, AccountingFacts, AccountRow, Rows
from penstock.accountants.core.charges import PRICES, replaced
from penstock.mechanisms.core.concentrated import epsilon_at
from penstock.mechanisms.core.contract import Mechanism, Release, Window
from penstock.mechanisms.core.events import Block, Event
from penstock.mechanisms.core.guarantee import DELTA, EPSILON, GAUSSIAN, RHO, Guarantee
from penstock.mechanisms.core.plugin import BudgetExceeded, ParameterError, chance, check_one_of, parameter
from penstock.mechanisms.core.run import ReleasedTraces
from penstock.mechanisms.core.state import State
from penstock.mechanisms.core.unit import LANDMARKS, exceeds

__all__ = ["LandmarkBudget", "landmark_allocation", "landmark_loss"]

ADJACENCY = f"add/remove {LANDMARKS.words()}"
TRACES = "positions `radius` metres apart at all landmarks of a budget period and at any one other point"


def landmark_loss(epsilons: ArrayLike, landmarks: ArrayLike) -> NDArray[np.float64]:
    """Return each timestamp t's joint privacy loss with all landmarks, which is the sum of ε over L ∪ {t}.

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
    return np.asarray(np.where(mask, 0.0, spent) + spent[mask].sum())


def landmark_allocation(kind: str, landmarks: ArrayLike, epsilon: float) -> NDArray[np.float64]:
    """Return every timestamp's budget under a simple allocation.

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


#: Unit of amounts by measure.
UNITS = {EPSILON: "nats", RHO: "zCDP rho", GAUSSIAN: "half of mu squared"}


@dataclass(frozen=True, order=True)
class Budget:
    """A period's budget in one of the measures in `guarantee.Guarantee`, with ``delta`` to convert ρ to (ε, δ).

    ``replaces_in_blocks``: bounding may keep other events of a person's block, so that it is priced as a replacement.
    """

    amount: float
    measure: str = EPSILON
    delta: float = DELTA
    replaces_in_blocks: bool = field(default=False, compare=False)

    def price(self, charge: Iterable[Event]) -> float:
        """Return the cost of a charge in the budget's unit."""
        if self.replaces_in_blocks:
            charge = [replaced(event) if isinstance(event, Block) else event for event in charge]
        return PRICES[self.measure](charge)

    @property
    def concentrated(self) -> bool:
        """Return whether amounts are in ρ or μ²/2 rather than ε."""
        return self.measure != EPSILON

    @property
    def unit(self) -> str:
        """The unit in which amounts are given."""
        return UNITS[self.measure]

    def epsilon(self, amount: float) -> float:
        """Return the ε at δ that corresponds to an amount."""
        return epsilon_at(self.measure, amount, self.delta)


@dataclass(frozen=True, kw_only=True)
class LandmarkBudget(Accountant):
    """Keep the sum of ε over L ∪ {t} within each period's budget and report the remainder.

    Parameters
    ----------
    budget
        ε that the sum may reach in one period; None: the budget of a landmark mechanism, or no limit for others.
    rho
        In place of it, ρ of zero-concentrated differential privacy, as Gaussian noise needs.
    delta
        δ at which ρ is said as (ε, δ); None: that of the mechanism, or 1e-6.

    **Privacy.** Unit: one user's bounded contributions in all landmarks of a period and in any one other window;
    add/remove. By sequential composition the period is (sum of ε over L, plus the largest other ε)-differentially
    private (Katsomallos et al. 2022). Costs O(1) time and state a window. A block of windows (or a whole period, of
    `period_uniform`) is charged once in every period it touches, as a landmark where that period has any; where users
    are bounded over the block, for a replacement: without the person's events in the unit, bounding may keep others of
    theirs.

    Sums of ρ hold where amounts follow earlier releases, too, since the budget is set beforehand and nothing is
    released beyond it: a Rényi filter (Feldman, Zrnic 2021). The accounting library's tight conversion turns it into
    (ε, δ).

    Rows: ``epsilon`` (or ``rho``) of the release, and so far in its period ``landmark_loss`` (over the landmarks and
    this window), ``budget_spent`` (over the landmarks and the costliest other window) and ``budget_left``; when the
    period is over, ``period_landmarks`` (over the landmarks), ``period_loss`` (what was spent in the end), and of a
    budget in ρ ``period_epsilon``, its ε at ``delta``. The final loss of a regular window is ``period_landmarks`` plus
    its own. On traces the unit is one user's positions, ε or ρ that of two positions ``radius`` metres apart, and the
    rows ``budget_spent``, ``budget_left`` and, of a budget in ρ, ``period_epsilon`` are each user's, in the dearest
    period.
    """

    budget: float | None = parameter(None, doc="ε available in one budget period", above=0, unit="nats")
    rho: float | None = parameter(None, doc="ρ available in one budget period, in place of budget", above=0)
    delta: float | None = chance(doc="δ at which ρ is said as (ε, δ); unset: 1e-6")

    stages: ClassVar[tuple[str, ...]] = ("counts", "points")
    bounds_periods: ClassVar[bool] = True
    version: ClassVar[int] = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        check_one_of({"budget": self.budget, "rho": self.rho}, required=False)

    def start(self, facts: AccountingFacts) -> tuple[Budget, State]:
        """Return the budget as the model, and an empty state."""
        state = {"period": np.asarray(-1), "window": np.asarray(0), "block_last": np.asarray(0)}
        amounts = {name: np.asarray(0.0) for name in ("landmarks", "other", "block_epsilon", "largest")}
        return replace(self._budget(facts.mechanism), replaces_in_blocks=facts.replaces_in_blocks), state | amounts

    def _budget(self, mechanism: Mechanism | None) -> Budget:
        """Return the accountant's configured budget. By default, this is the budget that the mechanism guarantees."""
        promised = Guarantee() if mechanism is None else mechanism.guarantee
        delta = self.delta or promised.delta or DELTA
        if self.budget is not None or self.rho is not None:
            return Budget(float(self.budget or self.rho or 0.0), EPSILON if self.rho is None else RHO, delta)
        amount = promised.amount_of(LANDMARKS)
        return Budget(np.inf if amount is None else float(amount), promised.measure or EPSILON, delta)

    def check(self, window: Window, charge: tuple[Event, ...], model: Budget, state: State) -> None:
        """Raise `BudgetExceeded` if ``charge`` would exceed the period's budget in this window. Nothing is changed."""
        self._spend(window, charge, model, state)

    def _spend(
        self, window: Window, charge: tuple[Event, ...], model: Budget, state: State
    ) -> tuple[float, float, float]:
        """Return a charge's cost and the period's resulting totals on landmarks and on the costliest other window."""
        cost = model.price(charge)
        if int(state["period"]) == window.period:
            landmarks, other = float(state["landmarks"]), float(state["other"])
        else:  # a block may reach into this period
            inherited = float(state["block_epsilon"]) if window.index <= int(state["block_last"]) else 0.0
            landmarks, other = (0.0, inherited) if window.n_landmarks == 0 else (inherited, 0.0)
        before = landmarks + other
        if counts_as_landmark(window, charge):
            landmarks += cost
        else:
            other = max(other, cost)
        if cost > 0 and exceeds(landmarks + other, model.amount):
            raise BudgetExceeded(window.index, before, cost, model.amount)
        return cost, landmarks, other

    def charge(
        self, release: Release, window: Window, private: Mapping[str, Any], model: Budget, state: State
    ) -> tuple[Rows, State]:
        """Add a release to its period's spending."""
        cost, landmarks, other = self._spend(window, release.charge, model, state)
        over = int(state["period"]) not in (-1, window.period)
        rows = self.finish(model, state) if over else []
        loss = landmarks if counts_as_landmark(window, release.charge) else landmarks + cost
        row = partial(AccountRow, "everybody", window.index, unit=model.unit, adjacency=ADJACENCY, status="provisional")
        rows += [
            row("rho" if model.concentrated else "epsilon", cost, status="final"),
            row("landmark_loss", loss),
            row("budget_spent", landmarks + other),
        ]
        if math.isfinite(model.amount):
            rows.append(row("budget_left", model.amount - landmarks - other))
        blocks = [event for event in release.charge if isinstance(event, Block)]
        return rows, {
            "period": np.asarray(window.period),
            "window": np.asarray(window.index),
            "landmarks": np.asarray(landmarks),
            "other": np.asarray(other),
            "largest": np.asarray(max(float(state["largest"]), landmarks + other)),
            "block_last": np.asarray(max((b.last for b in blocks), default=int(state["block_last"]))),
            "block_epsilon": np.asarray(model.price(blocks)) if blocks else state["block_epsilon"],
        }

    def account_traces(self, released: ReleasedTraces) -> Rows:
        """Return each user's ``budget_spent`` (the largest sum over L ∪ {t} in a budget period) and ``budget_left``."""
        model = self._budget(released.mechanism)
        users, sums = released.landmark_sums(released.rho if model.concentrated else released.epsilon)
        spent = np.zeros(len(released.users))
        np.maximum.at(spent, users, sums)
        is_bounded = math.isfinite(model.amount)
        figures = {"budget_spent": (spent, model.unit)}
        if is_bounded:
            figures["budget_left"] = (np.maximum(model.amount - spent, 0.0), model.unit)
        # Where amounts follow earlier releases, only a budget that was set beforehand has an ε.
        if model.concentrated and (is_bounded or not released.mechanism.guarantee.adaptive):
            promised = np.full_like(spent, model.amount) if is_bounded else spent
            epsilon = np.array([model.epsilon(float(rho)) for rho in promised])
            figures["period_epsilon"] = (epsilon, f"nats at delta {model.delta:g}")
        return [
            AccountRow(who, None, name, float(value), unit=unit, adjacency=TRACES)
            for name, (values, unit) in figures.items()
            for who, value in zip(released.pseudonyms, values)
        ]

    def finish(self, model: Budget, state: State) -> Rows:
        """Return the completed period's final values."""
        if int(state["period"]) < 0:
            return []
        landmarks, last = float(state["landmarks"]), int(state["window"])
        loss = landmarks + float(state["other"])
        row = partial(AccountRow, "everybody", last, adjacency=ADJACENCY)
        rows = [row("period_landmarks", landmarks, unit=model.unit), row("period_loss", loss, unit=model.unit)]
        if model.concentrated:
            unit = f"nats at delta {model.delta:g}"
            # Where amounts follow earlier releases it is the budget that is promised, whatever was spent of it.
            promised = model.amount if math.isfinite(model.amount) else loss
            rows.append(row("period_epsilon", model.epsilon(promised), unit=unit))
        return rows

    def summary(self, model: Budget, state: State) -> dict[str, Any]:
        """Return the largest spending in any period and the budget."""
        budget: dict[str, Any] = {"budget": model.amount} if np.isfinite(model.amount) else {}
        if model.concentrated:
            budget |= {"unit": model.unit, "epsilon": model.epsilon(model.amount), "delta": model.delta}
        return {"largest_period_loss": float(state["largest"]), **budget, "adjacency": ADJACENCY}


def counts_as_landmark(window: Window, charge: tuple[Event, ...]) -> bool:
    """Return whether a charge covers a landmark, or a block in a period with landmarks."""
    # Which windows of a block are landmarks is not told here; where there are any, the block is taken for one.
    return window.landmark or (window.n_landmarks != 0 and any(isinstance(event, Block) for event in charge))
