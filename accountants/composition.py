"""Composition over windows: what one window's events, those of any w windows and a whole person have cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from penstock.accountants.core.accountant import Accountant, AccountingFacts, AccountRow, Rows
from penstock.accountants.core.charges import concentrated_rho, of_memberships, pure_epsilon, replaced
from penstock.accountants.core.privacy_loss import MAX_DISTINCT, from_loss_distributions, remember
from penstock.accountants.core.renyi import ORDERS, from_renyi, renyi
from penstock.mechanisms.core.concentrated import epsilon_of
from penstock.mechanisms.core.contract import Release, Window
from penstock.mechanisms.core.events import Block, Event
from penstock.mechanisms.core.period import costliest
from penstock.mechanisms.core.plugin import ParameterError, parameter
from penstock.mechanisms.core.schedules import WEventSchedule
from penstock.mechanisms.core.state import State
from penstock.mechanisms.correlated import Correlated
from penstock.mechanisms.temporal_generalization import TemporalGeneralization

PERSON = "add/remove all of one user's events"
ODOMETER = "; amounts follow earlier outputs: the loss along the outputs of this run, not a bound fixed in advance"
FILTER = "; the budget bounded beforehand, by a Rényi filter (Feldman, Zrnic 2021), whatever was spent of it"
TOGETHER = "; one Gaussian release of all windows, whose noise is correlated (Bun and Steinke 2016, proposition 1.6)"


@dataclass(frozen=True, kw_only=True)
class Composition(Accountant):
    """Event-level, w-event and user-level loss, pure and (ε, δ), each with its unit and assumption in its row.

    Parameters
    ----------
    delta
        δ of the (ε, δ) figures.
    w
        Length of the protected stretch in windows; None: that of the mechanism, or no such row.

    **Privacy.** Rows: ``event_epsilon`` (largest loss of a user's events in one window, or of one of them),
    ``w_event_epsilon`` (largest sum over w successive windows), ``user_epsilon`` (sum over all windows), each followed
    by its ``_rdp`` form ((ε, δ) from Rényi DP through the accounting library, online); ``user_rho`` (zCDP), and at the
    end ``user_epsilon_pld`` (privacy loss distributions, tightest). Pure figures are infinite for Gaussian noise. Where
    a mechanism chooses amounts from earlier outputs there are pure figures only: they bound the loss along every
    outcome (Rogers, Roth, Ullman, Vadhan 2016), the others need amounts fixed in advance. What such a schedule bounds
    beforehand in ρ, for its own w windows or for a budget period, is a Rényi filter (Feldman, Zrnic 2021):
    ``w_event_rho`` or ``period_rho``, and ``w_event_epsilon_rdp`` or ``period_epsilon_rdp`` from it. So does
    `correlated`, whose windows cost less together than their charges.

    Where bounding chooses among a user's cells (C less than all), what is left of a window may take the place of what
    goes, so that counts move by up to 2·C. Such a *replacement* is charged for every window that a stretch holds only
    a part of: blocks of windows, and with C = 1 one event of a window. Bounds are
    compared with brute force over all small neighbours in the tests.

    Where a user is bounded over whole budget periods (``max_per_period``), what a stretch leaves makes room for later
    memberships of the period that it ends in: the loss is that of all memberships that change (`PeriodBound`), and a
    person's that of n memberships in each period. Each costs its part of its window's charge, min(C, n) of them the
    whole; they are priced in the windows of least noise among those that they may be in (`costliest`). Amounts of ε and
    ρ add; the Rényi curve is ρ times the steepest of the run.

    A block counts in every stretch that touches it. Time and state O(n_orders · w) a window.
    """

    bounds_periods: ClassVar[bool] = True
    version: ClassVar[int] = 3
    reads: ClassVar[tuple[str, ...]] = ()

    delta: float = parameter(1e-6, doc="δ of the (ε, δ) figures", above=0, below=1)
    w: int | None = parameter(None, doc="length of the protected stretch", at_least=1, unit="windows")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.w is not None and not hasattr(self.w, "__index__"):
            raise ParameterError("w", self.w, "a whole number of windows")

    def start(self, facts: AccountingFacts) -> tuple[Mapping[str, Any], State]:
        """Nothing released yet."""
        w = self.w or getattr(facts.mechanism, "w", None)
        stretches = {"event": 1} | ({"w_event": w} if w else {})
        longest = max(stretches.values())
        chooses = facts.max_cells < facts.n_cells
        bounded = _memberships(facts, w)
        over_blocks = bool(facts.mechanism and facts.mechanism.unit_windows > 1)
        model = {
            "w": w,
            "stretches": stretches,
            # One event of a window may be replaced by another one, even where a user counts in a single cell.
            "replaces": facts.max_cells == 1 and chooses,
            "chooses_in_blocks": bool(facts.max_windows or facts.max_block_cells) if over_blocks else chooses,
            "adaptive": bool(facts.mechanism and facts.mechanism.adaptive),
            "filtered": _filtered(facts, w),
            "bounded": bounded,
        }
        state: State = {
            "ends": np.zeros(longest, np.int64),
            "recent": np.zeros((longest, 2, 1 + len(ORDERS))),
            "largest": np.zeros((len(stretches), 2)),
            "sums": np.zeros(2),
            "rdp": np.zeros(len(ORDERS)),
            "events": np.zeros((MAX_DISTINCT, 5)),
            "n_kinds": np.asarray(0),
        }
        if bounded:
            # Windows that a unit may change, the latest ones: their numbers, ε and ρ.
            state |= {"amounts": np.zeros((bounded["reach"], 3)), "steepest": np.zeros(len(ORDERS))}
            state |= {"period": np.asarray(-1), "begins": np.asarray(1), "of_period": np.zeros(2)}
            state["booked"] = np.zeros(2)
        return model, state

    def charge(
        self, release: Release, window: Window, private: Mapping[str, Any], model: Mapping[str, Any], state: State
    ) -> tuple[Rows, State]:
        """Add one release."""
        if model["bounded"]:
            state = self._charge_bounded(release, window, model, state)
            return self._rows(window.index, model, state), state
        epsilon, rho, curve = pure_epsilon(release.charge), concentrated_rho(release.charge), renyi(release.charge)
        anew = tuple(replaced(event) for event in release.charge)
        part = [own if isinstance(event, Block) else event for event, own in zip(release.charge, anew)]
        whole = tuple(part) if model["chooses_in_blocks"] else release.charge
        figures = np.array([np.append(pure_epsilon(charge), renyi(charge)) for charge in (whole, anew)])
        ends, recent = _with_newest(window, release, figures, state)
        age = window.index - ends  # negative where a block ends later than the newest release
        sums = {
            level: recent[age < length, int(level == "event" and model["replaces"])].sum(axis=0)
            for level, length in model["stretches"].items()
        }
        so_far = np.array([self._priced(total) for total in sums.values()])
        state = {
            "ends": ends,
            "recent": recent,
            "largest": np.maximum(state["largest"], so_far),
            "sums": state["sums"] + [epsilon, rho],
            "rdp": state["rdp"] + curve,
            **remember(release.charge, state["events"], int(state["n_kinds"])),
        }
        return self._rows(window.index, model, state), state

    def _charge_bounded(self, release: Release, window: Window, model: Mapping[str, Any], state: State) -> State:
        """Add one release of a run that bounds each user's whole budget periods."""
        bounded, most = model["bounded"], model["bounded"]["of_window"]
        whole = of_memberships(release.charge, bounded["period"], most)
        own, curve = np.array([pure_epsilon(release.charge), concentrated_rho(release.charge)]), renyi(release.charge)
        amounts = np.concatenate([state["amounts"][1:], [[window.index, *own]]])
        steepest = state["steepest"]
        if own[1] > 0:
            with np.errstate(invalid="ignore"):
                steepest = np.maximum(steepest, np.where(np.isinf(curve), np.inf, curve / own[1]))
        is_new = int(state["period"]) != window.period
        begins = window.index if is_new else int(state["begins"])

        def costs(first: int, n_memberships: int) -> NDArray[np.float64]:
            """Cost of the dearest memberships since a window, in ε and ρ."""
            since = amounts[amounts[:, 0] >= first, 1:]
            return costliest(since, n_memberships, most)

        def priced(epsilon: float, rho: float) -> list[float]:
            """Figures of a pair of ε and ρ."""
            return self._priced(np.append(epsilon, _steep(rho, steepest)))

        units = [costs(window.index - bounded[f"{level} reach"] + 1, bounded[level]) for level in model["stretches"]]
        # One event may give way to another one in its window: two memberships, though a user has one there at a time.
        units[0] = np.maximum(units[0], amounts[:, 1:].max(axis=0) * (2 / most))
        so_far = np.array([priced(*unit) for unit in units])
        price = costs(begins, bounded["period"])
        before = np.zeros_like(price) if is_new else state["of_period"]
        dearest = np.maximum(before, price)
        sums = state["sums"] + np.where(dearest == before, 0.0, dearest) - np.where(dearest == before, 0.0, before)
        return state | {
            "largest": np.maximum(state["largest"], so_far),
            "sums": sums,
            "rdp": _steep(float(sums[1]), steepest),
            "amounts": amounts,
            "steepest": steepest,
            "period": np.asarray(window.period),
            "begins": np.asarray(begins),
            "of_period": dearest,
            **_booked(whole, own, np.zeros(2) if is_new else state["booked"], state),
        }

    def finish(self, model: Mapping[str, Any], state: State) -> Rows:
        """The final figures of the run, those of privacy loss distributions among them."""
        rows = self._rows(None, model, state)
        if model["adaptive"]:
            return rows
        epsilon = from_loss_distributions(state["events"], int(state["n_kinds"]), self.delta)
        if epsilon is None:
            return rows
        least = min(epsilon, float(state["sums"][0]))
        return [*rows, self._row(None, "user_epsilon_pld", least, PERSON, self._approximate)]

    def summary(self, model: Mapping[str, Any], state: State) -> dict[str, Any]:
        """The figures so far by name, as in the rows of the whole run."""
        return {row.name: row.value for row in self._rows(None, model, state)} | {"delta": self.delta}

    def _priced(self, total: NDArray[np.float64]) -> list[float]:
        """Pure ε and ε at δ of a sum of figures."""
        return [float(total[0]), min(float(total[0]), from_renyi(total[1:], self.delta))]

    def _rows(self, index: int | None, model: Mapping[str, Any], state: State) -> Rows:
        total, rho = state["sums"].tolist()
        note = ODOMETER if model["adaptive"] else ""
        rows = []
        for level, (pure, approximate) in zip(model["stretches"], state["largest"].tolist()):
            adjacency = _stretch(level, model) + note
            rows.append(self._row(index, f"{level}_epsilon", pure, adjacency))
            if level in model["filtered"]:
                approximate = min(approximate, epsilon_of(model["filtered"][level], self.delta))
            if not model["adaptive"]:
                rows.append(self._row(index, f"{level}_epsilon_rdp", approximate, adjacency, self._approximate))
        for level, bounded in model["filtered"].items():
            adjacency = _stretch(level, model) + (FILTER if model["adaptive"] else TOGETHER)
            rows.append(self._row(index, f"{level}_rho", bounded, adjacency, "zCDP rho"))
            if model["adaptive"]:
                epsilon = epsilon_of(bounded, self.delta)
                rows.append(self._row(index, f"{level}_epsilon_rdp", epsilon, adjacency, self._approximate))
        rows.append(self._row(index, "user_epsilon", total, PERSON + note))
        if model["adaptive"]:
            return rows
        approximate = min(total, from_renyi(state["rdp"], self.delta))
        return [
            *rows,
            self._row(index, "user_rho", rho, PERSON, "zCDP rho"),
            self._row(index, "user_epsilon_rdp", approximate, PERSON, self._approximate),
        ]

    @property
    def _approximate(self) -> str:
        return f"nats at delta {self.delta:g}"

    @staticmethod
    def _row(index: int | None, name: str, value: float, adjacency: str, unit: str = "nats") -> AccountRow:
        status = "final" if index is None else "provisional"
        return AccountRow("everybody", index, name, float(value), None, None, unit, adjacency, status)


def _steep(rho: float, steepest: NDArray[np.float64]) -> NDArray[np.float64]:
    """A Rényi curve of so much ρ."""
    return rho * steepest if rho else np.zeros(len(steepest))


def _booked(whole: tuple[Event, ...], own: NDArray[np.float64], before: NDArray[np.float64], state: State) -> State:
    """A period's memberships are in the books once, with its noise; noise of several widths closes them."""
    if not own.any() or np.array_equal(own, before):
        return {"booked": before}
    if before.any():
        return {"booked": before, "n_kinds": np.asarray(MAX_DISTINCT + 1)}
    return {"booked": own, **remember(whole, state["events"], int(state["n_kinds"]))}


def _memberships(facts: AccountingFacts, w: int | None) -> dict[str, int]:
    """Memberships that each unit changes where users are bounded over budget periods; empty: they are not.

    With the windows that they may be in, from the first of the unit on: its ``reach``.
    """
    bound = facts.period_bound
    if bound is None:
        return {}
    found = {"of_window": bound.of_window, "period": bound.whole, "event": bound.stretch(1)}
    found["event reach"] = bound.longest
    if w:
        reach = bound.longest if bound.alone else w + bound.longest - 1
        found |= {"w_event": bound.part_of_stretch(w), "w_event reach": reach}
    return found | {"reach": max(found["event reach"], found.get("w_event reach", 0))}


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


def _filtered(facts: AccountingFacts, w: int | None) -> dict[str, float]:
    """ρ that a mechanism bounds by level, for w successive windows together or for a budget period.

    Nothing where sums over them are no more than that.
    """
    one, coarse = facts.mechanism, any(isinstance(step, TemporalGeneralization) for step in facts.steps)
    if one is None or coarse:
        return {}
    if isinstance(one, Correlated):
        return {"w_event": one.promised} if w is not None and w <= one.w else {}
    if not (one.adaptive and one.concentrated):
        return {}
    if isinstance(one, WEventSchedule):
        return {"w_event": one.budget} if w is not None and w <= one.w else {}
    return {} if one.period_budget is None else {"period": one.period_budget}


def _stretch(level: str, model: Mapping[str, Any]) -> str:
    if level == "period":
        return "add/remove one user's events in one budget period, or in the run where there are none"
    if level == "w_event":
        return f"add/remove one user's events in any {model['w']} successive windows"
    return "add/remove one user's events in one window, or one of them"
