"""Composition over windows: what one event, any w windows and a whole person have cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import compute_epsilon

from accountants.core.accountant import Accountant, AccountingFacts, AccountRow, Rows
from accountants.core.charges import concentrated_rho, pure_epsilon
from accountants.core.renyi import ORDERS, renyi
from mechanisms.core import event as events
from mechanisms.core.parameters import parameter
from mechanisms.core.release import Release
from mechanisms.core.state import State
from mechanisms.core.window import Window

#: Different events of a run that are remembered for the figure at its end; beyond them it is left out.
MAX_DISTINCT = 32
KINDS: tuple[type[events.Event], ...] = (events.Laplace, events.DiscreteLaplace, events.Gaussian)

EVENT = "add/remove one user's events in one window"
PERSON = "add/remove all of one user's events"
CHOSEN = f"{PERSON}; amounts chosen from earlier outputs: an odometer reading, not a bound fixed in advance"


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
    (largest sum over w successive windows), ``user_epsilon`` (sum over all windows), ``user_rho`` (zCDP),
    ``user_epsilon_rdp`` ((ε, δ) from Rényi DP through the accounting library, online), ``user_epsilon_advanced``
    (Dwork, Rothblum, Vadhan 2010, for comparison), and at the end ``user_epsilon_pld`` (privacy loss distributions,
    tightest; only for amounts fixed in advance) and ``user_epsilon_classical`` (the papers' Gaussian formula, valid
    for ε ≤ 1 only). Pure figures are infinite for Gaussian noise. O(n_orders + w) time and state a window.
    """

    delta: float = parameter(1e-6, doc="δ of the (ε, δ) figures", above=0, below=1)
    w: int | None = parameter(None, doc="length of the protected stretch", at_least=1, unit="windows")

    def start(self, facts: AccountingFacts) -> tuple[Mapping[str, Any], State]:
        """Nothing released yet."""
        w = self.w or getattr(facts.mechanism, "w", None)
        model = {
            "w": w,
            "n_overlaps": facts.n_overlaps,
            "adaptive": bool(facts.mechanism and facts.mechanism.adaptive),
        }
        state: State = {
            "recent": np.zeros(max(w or 1, facts.n_overlaps)),
            "largest": np.zeros(2),
            "sums": np.zeros(4),
            "rdp": np.zeros(len(ORDERS)),
            "events": np.zeros((0, 4)),
            "n_kinds": np.asarray(0),
        }
        return model, state

    def charge(
        self, release: Release, window: Window, private: Mapping[str, Any], model: Mapping[str, Any], state: State
    ) -> tuple[Rows, State]:
        """Add one release."""
        epsilon, rho = pure_epsilon(release.charge), concentrated_rho(release.charge)
        rdp = state["rdp"] + renyi(release.charge)
        recent = np.append(state["recent"][1:], epsilon)
        stretches = (recent[-model["n_overlaps"] :].sum(), recent[-model["w"] :].sum() if model["w"] else 0.0)
        largest = np.maximum(state["largest"], stretches)
        with np.errstate(over="ignore", invalid="ignore"):
            excess = epsilon * np.expm1(epsilon) if epsilon < np.inf else np.inf
        sums = state["sums"] + [epsilon, rho, epsilon**2, excess]
        state = {
            "recent": recent,
            "largest": largest,
            "sums": sums,
            "rdp": rdp,
            **_remember(release.charge, state),
        }
        return self._rows(window.index, model, state), state

    def _rows(self, index: int | None, model: Mapping[str, Any], state: State) -> Rows:
        total, rho, squares, excess = state["sums"]
        person = CHOSEN if model["adaptive"] else PERSON
        status = "provisional" if index is not None else "final"
        advanced = min(total, np.sqrt(2 * squares * np.log(1 / self.delta)) + excess)

        def row(name: str, value: float, adjacency: str, unit: str = "nats") -> AccountRow:
            return AccountRow("everybody", index, name, float(value), None, None, unit, adjacency, status)

        rows = [row("event_epsilon", state["largest"][0], EVENT)]
        if model["w"]:
            unit = f"add/remove one user's events in any {model['w']} successive windows"
            rows.append(row("w_event_epsilon", state["largest"][1], unit))
        approximate = f"nats at delta {self.delta:g}"
        return [
            *rows,
            row("user_epsilon", total, PERSON),
            row("user_rho", rho, person, "zCDP rho"),
            row("user_epsilon_rdp", min(total, _from_rdp(state["rdp"], self.delta)), person, approximate),
            row("user_epsilon_advanced", advanced, person, approximate),
        ]

    def finish(self, model: Mapping[str, Any], state: State) -> Rows:
        """The final figures of the run, those of privacy loss distributions among them."""
        rows = self._rows(None, model, state)
        if model["adaptive"] or int(state["n_kinds"]) > MAX_DISTINCT or len(state["events"]) == 0:
            return rows
        approximate = f"nats at delta {self.delta:g}"
        pld = _from_pld(state["events"], self.delta)
        if pld is not None:
            total = float(state["sums"][0])
            rows.append(
                AccountRow("everybody", None, "user_epsilon_pld", min(pld, total), None, None, approximate, PERSON)
            )
        kinds = set(state["events"][:, 0].tolist())
        if kinds == {float(KINDS.index(events.Gaussian))}:
            ratio = float(np.sqrt((state["events"][:, 3] * (state["events"][:, 1] / state["events"][:, 2]) ** 2).sum()))
            classical = ratio * float(np.sqrt(2 * np.log(1.25 / self.delta)))
            note = f"{PERSON}; the classical formula holds for values up to 1 only"
            rows.append(
                AccountRow("everybody", None, "user_epsilon_classical", classical, None, None, approximate, note)
            )
        return rows


def _from_rdp(rdp: Any, delta: float) -> float:
    finite = np.isfinite(rdp)
    if not finite.any():
        return float("inf")
    return float(compute_epsilon(ORDERS[finite], rdp[finite], delta)[0])


def _remember(charge: tuple[events.Event, ...], state: State) -> State:
    """Count equal events; an event of another kind, or too many different ones, closes the book for PLD."""
    table, n_kinds = state["events"], int(state["n_kinds"])
    for event in charge:
        if isinstance(event, events.Repeated | events.Nothing):
            continue
        key = _key(event)
        if key is None or n_kinds > MAX_DISTINCT:
            return {"events": table[:0], "n_kinds": np.asarray(MAX_DISTINCT + 1)}
        same = np.flatnonzero((table[:, :3] == key).all(axis=1))
        if len(same):
            table = table.copy()
            table[same[0], 3] += 1
        else:
            table, n_kinds = np.vstack([table, [*key, 1.0]]), n_kinds + 1
    return {"events": table, "n_kinds": np.asarray(n_kinds)}


def _key(event: events.Event) -> list[float] | None:
    if isinstance(event, events.Gaussian):
        return [KINDS.index(events.Gaussian), float(event.l2), float(event.sigma)]
    if isinstance(event, events.Laplace | events.DiscreteLaplace):
        return [KINDS.index(type(event)), float(event.l1), float(event.scale)]
    return None


def _from_pld(table: Any, delta: float) -> float | None:
    accountant = PLDAccountant()
    for kind, sensitivity, scale, count in table.tolist():
        if sensitivity == 0:
            continue
        if scale == 0:
            return float("inf")
        event: dp_event.DpEvent
        if KINDS[int(kind)] is events.Gaussian:
            event = dp_event.GaussianDpEvent(scale / sensitivity)
        elif KINDS[int(kind)] is events.Laplace:
            event = dp_event.LaplaceDpEvent(scale / sensitivity)
        else:
            event = dp_event.DiscreteLaplaceDpEvent(1 / scale, int(np.ceil(sensitivity)))
        accountant.compose(event, int(count))
    return float(accountant.get_epsilon(delta))
