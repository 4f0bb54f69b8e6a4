"""Composition: the privacy cost of one window, of any w successive windows and of a person's entire data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from penstock.accountants.core.accountant import Accountant, AccountingFacts, AccountRow, Rows
from penstock.accountants.core.charges import PRICES, replaced
from penstock.accountants.core.privacy_loss import MAX_DISTINCT, from_loss_distributions, remember
from penstock.accountants.core.renyi import ORDERS, from_renyi, renyi
from penstock.mechanisms.core.concentrated import epsilon_of, epsilon_of_gaussian
from penstock.mechanisms.core.contract import Release, Window
from penstock.mechanisms.core.events import Block, Event
from penstock.mechanisms.core.plugin import chance, check_whole, stretch
from penstock.mechanisms.core.state import State
from penstock.mechanisms.core.unit import PERIOD, WINDOW, Unit
from penstock.mechanisms.temporal_generalization import TemporalGeneralization

ODOMETER = "; amounts follow earlier outputs: the loss along the outputs of this run, not a bound fixed in advance"
FILTER = "; the budget bounded beforehand, by a Rényi filter (Feldman, Zrnic 2021), whatever was spent of it"
#: ε, ρ, half of μ² and a Rényi curve.
N_FIGURES = 3 + len(ORDERS)
TOGETHER = "; one Gaussian release of all windows, whose noise is correlated (Bun and Steinke 2016, proposition 1.6)"


@dataclass(frozen=True, kw_only=True)
class Composition(Accountant):
    """Account for event-level, w-event and user-level privacy loss, as pure ε and as (ε, δ).

    Parameters
    ----------
    delta
        δ of the (ε, δ) figures.
    w
        Length of the protected stretch in windows; None: that of the mechanism, or no such row.

    **Privacy.** Rows: ``event_epsilon`` (largest loss of a user's events in one window, or of one of them),
    ``w_event_epsilon`` (largest sum over w successive windows), ``period_epsilon`` (largest sum over a budget period,
    where the run has any) and ``user_epsilon`` (sum over all windows), each followed by its ``_rdp`` form ((ε, δ) from
    Rényi DP, online, and the exact one where all noise is Gaussian); ``period_rho`` and ``user_rho`` (zCDP), and at the
    end ``user_epsilon_pld`` (privacy loss distributions, tightest). Pure figures are infinite for Gaussian noise. Where
    a mechanism chooses amounts from earlier outputs there are pure figures only: they bound the loss along every
    outcome (Rogers, Roth, Ullman, Vadhan 2016), the others need amounts fixed in advance. What such a schedule bounds
    beforehand in ρ, for its own w windows or for a budget period, is a Rényi filter (Feldman, Zrnic 2021):
    ``w_event_rho`` or ``period_rho``, and ``w_event_epsilon_rdp`` or ``period_epsilon_rdp`` from it. So does
    `correlated`, whose windows cost less together than their charges.

    A charge of a block, or of a whole budget period, counts in full in every window, stretch and period that meets any
    of its windows. Where bounding chooses among the events of all of them, some of a person's events that go may give
    way to others of theirs, so that counts move by up to twice as much: such a *replacement* is charged where a unit
    holds only a part of the block. With C = 1, less than all cells, one event of a window may give way likewise. Bounds
    are compared with brute force over all small neighbours in the tests.

    Time and state O(n_orders · w) a window.
    """

    bounds_periods: ClassVar[bool] = True
    version: ClassVar[int] = 5
    reads: ClassVar[tuple[str, ...]] = ("budget_period",)

    delta: float = chance(1e-6, doc="δ of the (ε, δ) figures")
    w: int | None = stretch(None)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole({"w": self.w})

    def start(self, facts: AccountingFacts) -> tuple[Mapping[str, Any], State]:
        """Return the model and the initial state."""
        unit = facts.mechanism.guarantee.unit if facts.mechanism else WINDOW
        w = self.w or (unit.length if unit.kind == "stretch" else None)
        stretches = {"event": 1} | ({"w_event": w} if w else {})
        longest = max(stretches.values())
        first_ends = None if facts.windows is None else facts.windows(1, 1)[0].period_last
        model = {
            "w": w,
            "stretches": stretches,
            # whether the run spans more than one budget period
            "has_periods": first_ends is not None and (facts.n_windows is None or first_ends < facts.n_windows),
            # One event of a window may be replaced by another one, even where a user counts in a single cell.
            "replaces": facts.max_cells == 1 < facts.n_cells,
            "replaces_in_blocks": facts.replaces_in_blocks,
            "adaptive": bool(facts.mechanism and facts.mechanism.guarantee.adaptive),
            "filtered": _filter_bounds(facts, w),
        }
        return model, {
            # Last windows and figures of the latest charges: in a unit that holds a part of them, and replaced.
            "ends": np.zeros(longest, np.int64),
            "recent": np.zeros((longest, 2, N_FIGURES)),
            "period": np.asarray(-1),
            "of_period": np.zeros(N_FIGURES),
            "sums": np.zeros(N_FIGURES),
            "largest": np.zeros((len(stretches) + 1, 3)),
            "events": np.zeros((MAX_DISTINCT, 5)),
            "n_kinds": np.asarray(0),
        }

    def charge(
        self, release: Release, window: Window, private: Mapping[str, Any], model: Mapping[str, Any], state: State
    ) -> tuple[Rows, State]:
        """Account for one release."""
        figures = _figures(release.charge)
        replacements = tuple(replaced(event) for event in release.charge)
        blocks = [event for event in release.charge if isinstance(event, Block)]
        partly = figures
        if blocks and model["replaces_in_blocks"]:
            pairs = zip(release.charge, replacements)
            partly = _figures(tuple(e if isinstance(e, Block) else event for event, e in pairs))
        last = max([window.index, *(block.last for block in blocks)])
        # The newest charge takes the place of the one that ended first.
        ends, recent = state["ends"].copy(), state["recent"].copy()
        newest, end = np.array([partly, _figures(replacements)]), last
        if newest.any():
            oldest = int(ends.argmin())
            if ends[oldest] > window.index - len(ends):
                # Charges of single windows in a block may leave no room; what still counts is added, which overstates.
                end, newest = max(last, int(ends[oldest])), newest + recent[oldest]
            ends[oldest], recent[oldest] = end, newest
        age = window.index - ends  # negative where a block ends later than the newest release
        totals = [
            recent[age < length, int(level == "event" and model["replaces"])].sum(axis=0)
            for level, length in model["stretches"].items()
        ]
        of_period = state["of_period"]
        if int(state["period"]) != window.period:
            of_period = state["recent"][state["ends"] >= window.index, 0].sum(axis=0)
        of_period = of_period + (figures if last <= (window.period_last or last) else partly)
        priced_totals = np.array([self._price(total) for total in (*totals, of_period)])
        state = {
            "ends": ends,
            "recent": recent,
            "period": np.asarray(window.period),
            "of_period": of_period,
            "sums": state["sums"] + figures,
            "largest": np.maximum(state["largest"], priced_totals),
            **remember(release.charge, state["events"], int(state["n_kinds"])),
        }
        return self._rows(window.index, model, state), state

    def finish(self, model: Mapping[str, Any], state: State) -> Rows:
        """Return the run's final values, including those computed from privacy loss distributions."""
        rows = self._rows(None, model, state)
        if model["adaptive"]:
            return rows
        epsilon = from_loss_distributions(state["events"], int(state["n_kinds"]), self.delta)
        if epsilon is None:
            return rows
        minimum = min(epsilon, float(state["sums"][0]))
        return [*rows, self._row(None, "user_epsilon_pld", minimum, _unit("user"), self._approximate)]

    def summary(self, model: Mapping[str, Any], state: State) -> dict[str, Any]:
        """Return the whole run's values so far, by name."""
        return {row.name: row.value for row in self._rows(None, model, state)} | {"delta": self.delta}

    def _price(self, total: NDArray[np.float64]) -> tuple[float, float, float]:
        """Convert summed costs to pure ε, ε at δ and ρ."""
        epsilon, rho, gaussian = total[:3].tolist()
        exact = epsilon_of_gaussian(gaussian, self.delta)
        return epsilon, min(epsilon, exact, from_renyi(total[3:], self.delta)), rho

    def _rows(self, index: int | None, model: Mapping[str, Any], state: State) -> Rows:
        note, is_adaptive = (ODOMETER if model["adaptive"] else ""), model["adaptive"]
        filtered: Mapping[str, float] = model["filtered"]
        levels = dict(zip([*model["stretches"], "period"], state["largest"].tolist()))
        if not model["has_periods"]:
            del levels["period"]
        rows = []
        for level, (pure, approximate, rho) in levels.items():
            adjacency = _unit(level, model["w"]) + note
            rows.append(self._row(index, f"{level}_epsilon", pure, adjacency))
            if level in filtered:
                approximate = min(approximate, epsilon_of(filtered[level], self.delta))
            if not is_adaptive:
                rows.append(self._row(index, f"{level}_epsilon_rdp", approximate, adjacency, self._approximate))
            if level == "period" and not is_adaptive:
                rows.append(self._row(index, "period_rho", rho, adjacency, "zCDP rho"))
        for level, bounded in filtered.items():
            adjacency = _unit(level, model["w"]) + (FILTER if is_adaptive else TOGETHER)
            rows.append(self._row(index, f"{level}_rho", bounded, adjacency, "zCDP rho"))
            if is_adaptive:
                epsilon = epsilon_of(bounded, self.delta)
                rows.append(self._row(index, f"{level}_epsilon_rdp", epsilon, adjacency, self._approximate))
        pure, approximate, rho = self._price(state["sums"])
        rows.append(self._row(index, "user_epsilon", pure, _unit("user") + note))
        if is_adaptive:
            return rows
        return [
            *rows,
            self._row(index, "user_rho", rho, _unit("user"), "zCDP rho"),
            self._row(index, "user_epsilon_rdp", approximate, _unit("user"), self._approximate),
        ]

    @property
    def _approximate(self) -> str:
        return f"nats at delta {self.delta:g}"

    @staticmethod
    def _row(index: int | None, name: str, value: float, adjacency: str, unit: str = "nats") -> AccountRow:
        status = "final" if index is None else "provisional"
        return AccountRow("everybody", index, name, float(value), None, None, unit, adjacency, status)


def _figures(charge: tuple[Event, ...]) -> NDArray[np.float64]:
    """Return a charge's ε, ρ, μ²/2 and Rényi curve, all of which are additive under composition."""
    return np.concatenate([[price(charge) for price in PRICES.values()], renyi(charge)])


def _filter_bounds(facts: AccountingFacts, w: int | None) -> dict[str, float]:
    """Return any ρ that the mechanism guarantees for w successive windows or for a budget period, by level."""
    mechanism, coarse = facts.mechanism, any(isinstance(step, TemporalGeneralization) for step in facts.steps)
    if mechanism is None or coarse:
        return {}
    promised = mechanism.guarantee
    if promised.amount is None or not (promised.concentrated and (promised.adaptive or promised.linked)):
        return {}
    if promised.unit.kind == "stretch":
        return {"w_event": promised.amount} if w is not None and w <= promised.unit.length else {}
    return {"period": promised.amount} if promised.unit == PERIOD else {}


def _unit(level: str, w: int | None = None) -> str:
    """Describe the unit of privacy that a value refers to."""
    events = {
        "event": WINDOW.words() + ", or one of them",
        "w_event": Unit.stretch(w or 1).words(),
        "period": PERIOD.words(period="one budget period") + ", or in the run where there are none",
        "user": "all of one user's events",
    }
    return f"add/remove {events[level]}"
