"""Composition over windows: what one event, any w windows and a whole person have cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from penstock.accountants.core.accountant import Accountant, AccountingFacts, AccountRow, Rows
from penstock.accountants.core.charges import concentrated_rho, pure_epsilon
from penstock.accountants.core.privacy_loss import MAX_DISTINCT, classical_gaussian, from_loss_distributions, remember
from penstock.accountants.core.renyi import ORDERS, from_renyi, renyi
from penstock.mechanisms.core.contract import Release, Window
from penstock.mechanisms.core.events import Block
from penstock.mechanisms.core.plugin import ParameterError, UnsupportedEvent, parameter
from penstock.mechanisms.core.state import State

ODOMETER = "; amounts follow earlier outputs: the loss along the outputs of this run, not a bound fixed in advance"
CLASSICAL = "; the papers' formula, which holds for values up to 1 only"


@dataclass(frozen=True, kw_only=True)
class Composition(Accountant):
    """Event-level, w-event and user-level loss, pure and (ε, δ), each with its unit and assumption in its row.

    Parameters
    ----------
    delta
        δ of the (ε, δ) figures.
    w
        Length of the protected stretch in windows; None: that of the mechanism, or no such row.

    **Privacy.** Rows: ``event_epsilon`` (largest loss of one event; windows that overlap add), ``w_event_epsilon``
    (largest sum over w successive windows), ``user_epsilon`` (sum over all windows), each followed by its ``_rdp``
    form ((ε, δ) from Rényi DP through the accounting library, online); ``user_rho`` (zCDP), ``user_epsilon_advanced``
    (Dwork, Rothblum, Vadhan 2010, for comparison), and at the end ``user_epsilon_pld`` (privacy loss distributions,
    tightest) and ``user_epsilon_classical`` (the papers' Gaussian formula). Pure figures are infinite for Gaussian
    noise. Where a mechanism chooses amounts from earlier outputs there are pure figures only: they bound the loss
    along every outcome (Rogers, Roth, Ullman, Vadhan 2016), the others need amounts fixed in advance.

    A block counts in every stretch that touches it. Time and state O(n_orders · w) a window.
    """

    overlapping: ClassVar[bool] = True

    delta: float = parameter(1e-6, doc="δ of the (ε, δ) figures", above=0, below=1)
    w: int | None = parameter(None, doc="length of the protected stretch", at_least=1, unit="windows")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.w is not None and not hasattr(self.w, "__index__"):
            raise ParameterError("w", self.w, "a whole number of windows")

    def start(self, facts: AccountingFacts) -> tuple[Mapping[str, Any], State]:
        """Nothing released yet."""
        if facts.overlapping and facts.n_overlaps < 2:
            raise UnsupportedEvent("composition: windows overlap, but not by how many releases one event touches")
        w = self.w or getattr(facts.mechanism, "w", None)
        # One event is in n_overlaps successive releases, hence events of w successive steps in w − 1 more.
        stretches = {"event": facts.n_overlaps} | ({"w_event": w + facts.n_overlaps - 1} if w else {})
        longest = max(stretches.values())
        model = {
            "w": w,
            "stretches": stretches,
            "adaptive": bool(facts.mechanism and facts.mechanism.adaptive),
        }
        state: State = {
            "ends": np.zeros(longest, np.int64),
            "recent": np.zeros((longest, 1 + len(ORDERS))),
            "largest": np.zeros((len(stretches), 2)),
            "sums": np.zeros(4),
            "rdp": np.zeros(len(ORDERS)),
            "events": np.zeros((MAX_DISTINCT, 5)),
            "n_kinds": np.asarray(0),
        }
        return model, state

    def charge(
        self, release: Release, window: Window, private: Mapping[str, Any], model: Mapping[str, Any], state: State
    ) -> tuple[Rows, State]:
        """Add one release."""
        epsilon, rho, curve = pure_epsilon(release.charge), concentrated_rho(release.charge), renyi(release.charge)
        ends, recent = _with_newest(window, release, np.append(epsilon, curve), state)
        sums = [recent[ends > window.index - length].sum(axis=0) for length in model["stretches"].values()]
        so_far = np.array([[total[0], min(total[0], from_renyi(total[1:], self.delta))] for total in sums])
        with np.errstate(over="ignore"):
            excess = epsilon * np.expm1(epsilon)
        state = {
            "ends": ends,
            "recent": recent,
            "largest": np.maximum(state["largest"], so_far),
            "sums": state["sums"] + [epsilon, rho, epsilon**2, excess],
            "rdp": state["rdp"] + curve,
            **remember(release.charge, state["events"], int(state["n_kinds"])),
        }
        return self._rows(window.index, model, state), state

    def finish(self, model: Mapping[str, Any], state: State) -> Rows:
        """The final figures of the run, those of privacy loss distributions among them."""
        rows = self._rows(None, model, state)
        if model["adaptive"]:
            return rows
        table, n_kinds = state["events"], int(state["n_kinds"])
        total = float(state["sums"][0])
        figures = {
            "user_epsilon_pld": (from_loss_distributions(table, n_kinds, self.delta), ""),
            "user_epsilon_classical": (classical_gaussian(table, n_kinds, self.delta), CLASSICAL),
        }
        return rows + [
            self._row(None, name, value if note else min(value, total), _person() + note, self._approximate)
            for name, (value, note) in figures.items()
            if value is not None
        ]

    def summary(self, model: Mapping[str, Any], state: State) -> dict[str, Any]:
        """The figures so far by name, as in the rows of the whole run."""
        return {row.name: row.value for row in self._rows(None, model, state)} | {"delta": self.delta}

    def _rows(self, index: int | None, model: Mapping[str, Any], state: State) -> Rows:
        total, rho, squares, excess = state["sums"].tolist()
        note = ODOMETER if model["adaptive"] else ""
        rows = []
        for (level, length), (pure, approximate) in zip(model["stretches"].items(), state["largest"].tolist()):
            adjacency = _stretch(level, length, model["w"]) + note
            rows.append(self._row(index, f"{level}_epsilon", pure, adjacency))
            if not model["adaptive"]:
                rows.append(self._row(index, f"{level}_epsilon_rdp", approximate, adjacency, self._approximate))
        rows.append(self._row(index, "user_epsilon", total, _person() + note))
        if model["adaptive"]:
            return rows
        advanced = min(total, np.sqrt(2 * squares * np.log(1 / self.delta)) + excess)
        return [
            *rows,
            self._row(index, "user_rho", rho, _person(), "zCDP rho"),
            self._row(
                index,
                "user_epsilon_rdp",
                min(total, from_renyi(state["rdp"], self.delta)),
                _person(),
                self._approximate,
            ),
            self._row(index, "user_epsilon_advanced", advanced, _person(), self._approximate),
        ]

    @property
    def _approximate(self) -> str:
        return f"nats at delta {self.delta:g}"

    @staticmethod
    def _row(index: int | None, name: str, value: float, adjacency: str, unit: str = "nats") -> AccountRow:
        status = "final" if index is None else "provisional"
        return AccountRow("everybody", index, name, float(value), None, None, unit, adjacency, status)


def _with_newest(window: Window, release: Release, figures: Any, state: State) -> tuple[Any, Any]:
    """Ends and figures of the latest charges; the one that ended first makes room."""
    ends, recent = state["ends"].copy(), state["recent"].copy()
    if not figures.any():
        return ends, recent
    blocks = [event.last for event in release.charge if isinstance(event, Block)]
    oldest = int(ends.argmin())
    # Charges of single windows inside a block may leave no room; what still counts is added, which overstates.
    kept = recent[oldest] if ends[oldest] > window.index - len(ends) else 0.0
    ends[oldest], recent[oldest] = max([window.index, *blocks]), figures + kept
    return ends, recent


def _person() -> str:
    return "add/remove all of one user's events"


def _stretch(level: str, length: int, w: int | None) -> str:
    if level == "w_event":
        return f"add/remove one user's events in any {w} successive windows"
    if length == 1:
        return "add/remove one user's events in one window"
    return f"add/remove one user's events in one step of the windows, which {length} windows share"
