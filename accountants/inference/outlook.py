"""What the coming windows will release, as far as it is known before: active cells, noise, or a guarantee alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from accountants.core.charges import concentrated_rho, pure_epsilon
from accountants.inference.observation import ADDITIVE
from accountants.inference.places import Places
from accountants.inference.releasing import Releasing, tells_nothing
from mechanisms.core import event as events
from mechanisms.core.facts import Facts
from mechanisms.core.mechanism import Mechanism
from mechanisms.core.noise import NoiseKey, NoiseSource
from mechanisms.core.state import State
from mechanisms.core.w_event_schedule import WEventSchedule
from mechanisms.core.window import Window

FloatArray = NDArray[np.float64]
WindowsOf = Callable[[int, int], Sequence[Window]]

_DRY = "dry."
#: Columns of the table of planned windows: 1 + place of the noise family in ADDITIVE (0: none known), its scale,
#: ε and ρ of the window or its block, first window of the block (0: none); NaN scale: nothing is observed.
_FAMILY, _SCALE, _EPSILON, _RHO, _BLOCK = range(5)


@dataclass(frozen=True, eq=False)
class Coming:
    """The coming windows in the terms of `horizon_bounds`."""

    sensors: tuple[frozenset[int], ...]
    noise: str | None = None
    scale: FloatArray | None = None


@dataclass(frozen=True, eq=False)
class Outlook:
    """What is known beforehand about ``horizon`` windows from any window on.

    Parameters
    ----------
    places
        Cells as places of the priors.
    horizon
        How many windows.
    releasing
        What releases; where that is unknown, raw counts stand for it (data processing).
    facts
        What the mechanism starts from.
    windows
        Public facts of windows from one to another, both inclusive; None: every cell publishes in every window.

    Notes
    -----
    Where amounts are fixed in advance, the mechanism itself says them: it is stepped through empty windows, always
    ``horizon`` windows ahead, and its charges are written down. Adaptive mechanisms are bounded over all paths from
    their guarantee; the ε that one run spends is no bound.
    """

    places: Places
    horizon: int
    releasing: Releasing
    facts: Facts
    windows: WindowsOf | None

    @property
    def is_planned(self) -> bool:
        """Whether the mechanism's amounts can be written down beforehand."""
        return self.windows is not None and self.mechanism is not None and not self.mechanism.adaptive

    @property
    def mechanism(self) -> Mechanism | None:
        """The mechanism, where its own windows are those of the run."""
        return None if self.releasing.is_coarse else self.releasing.mechanism

    def start(self) -> State:
        """Before window 1: the first ``horizon`` windows, as planned."""
        if not self.is_planned or self.mechanism is None:
            return {}
        state = _encode(np.zeros((0, 5)), self.mechanism.start(self.facts), np.zeros(4))
        for index in range(1, self.horizon + 1):
            state = self._plan(index, state)
        return state

    def after(self, index: int, state: State) -> State:
        """State for the horizon that begins after window ``index``."""
        if not self.is_planned:
            return state
        return self._plan(index + self.horizon, state | {"planned": state["planned"][1:]})

    def coming(self, index: int, state: State) -> Coming:
        """The windows from ``index`` on."""
        last = index + self.horizon - 1
        end = last if self.facts.n_windows is None else min(last, self.facts.n_windows)
        windows = self.windows(index, end) if self.windows is not None and end >= index else ()
        active = [np.ones(self.places.n_cells, bool)] * (end - index + 1)
        if windows and not self.releasing.is_coarse:
            active = [mask if window.active is None else window.active for mask, window in zip(active, windows)]
        if self.is_planned:
            active = [mask & ~np.isnan(row[_SCALE]) for mask, row in zip(active, state["planned"])]
        sensors = [frozenset(self.places.sensors(mask)) for mask in active]
        # After the end of a run nothing is released.
        whole = tuple(sensors + [frozenset[int]()] * (last - max(end, index - 1)))
        noise, scale = self._planned(state["planned"]) if self.is_planned else self._over_all_paths(windows)
        return Coming(whole, noise, scale)

    def _plan(self, index: int, state: State) -> State:
        """Write down one more window."""
        table, dry, block = np.asarray(state["planned"]), _part(state), np.asarray(state["block"])
        if self.mechanism is None or self.windows is None or index > (self.facts.n_windows or math.inf):
            return state | {"planned": np.vstack([table, _row(scale=math.nan)])}
        window = self.windows(index, index)[0]
        charge = self.mechanism.worst_charge(window, dry)
        nothing = np.zeros(self.facts.n_cells, np.int64)
        noise = NoiseSource(NoiseKey.from_seed(0), configuration=b"dry").at(
            window.start, window.end, "step", nothing, dry
        )
        _, dry = self.mechanism.step(window, nothing, dry, noise)
        blocks = [event for event in charge if isinstance(event, events.Block)]
        if blocks:
            block = np.array([index, blocks[0].last, pure_epsilon(charge), concentrated_rho(charge)])
        if block[0] and index <= block[1]:
            row = _row(epsilon=block[2], rho=block[3], block=block[0])
        elif tells_nothing(charge) or (window.active is not None and not window.active.any()):
            row = _row(scale=math.nan)
        else:
            family, scale = self.releasing.additive(charge) or (None, 0.0)
            # An infinite scale hides everything; none at all is a raw count.
            known = ADDITIVE.index(family) + 1 if family and 0 < scale < math.inf else 0
            priced = (pure_epsilon(charge), concentrated_rho(charge)) if charge else (math.inf, math.inf)
            row = _row(known, math.nan if scale == math.inf else scale, *priced)
        return _encode(np.vstack([table, row]), dry, block)

    def _planned(self, table: FloatArray) -> tuple[str | None, FloatArray | None]:
        """Noise of the horizon: one family, else a guarantee, else none."""
        observed = table[~np.isnan(table[:, _SCALE])]
        if len(observed) == 0:
            return None, None
        families = set(observed[:, _FAMILY].tolist())
        if len(families) == 1 and families != {0.0}:
            scale = np.where(np.isnan(table[:, _SCALE]), 1.0, table[:, _SCALE])
            return ADDITIVE[int(families.pop()) - 1], scale
        for noise, column in (("pure_dp", _EPSILON), ("zcdp", _RHO)):
            if np.isfinite(observed[:, column]).all():
                charge = np.where(np.isnan(table[:, _SCALE]), 0.0, table[:, column])
                earlier = np.append(0.0, table[:-1, _BLOCK])
                # a block is charged once, whichever of its windows comes first
                return noise, np.where((table[:, _BLOCK] > 0) & (table[:, _BLOCK] == earlier), 0.0, charge)
        return None, None

    def _over_all_paths(self, windows: Sequence[Window]) -> tuple[str | None, FloatArray | None]:
        """The largest ε on any path: ε in every w windows, or ε at every regular window of a landmark budget."""
        mechanism, charge = self.mechanism, np.zeros(self.horizon)
        if isinstance(mechanism, WEventSchedule):
            charge[:: mechanism.w] = mechanism.epsilon
        elif mechanism is not None and mechanism.landmark_budget is not None and windows:
            # Σ over landmarks and any one other is at most ε; the cost of a sum is no less than the sum of the costs.
            regular = np.array([not window.landmark for window in windows])
            period = np.array([window.period for window in windows])
            for number in np.unique(period):
                own = np.flatnonzero(period == number)
                charge[own[regular[own]] if regular[own].any() else own[:1]] = mechanism.landmark_budget
        else:
            return None, None
        return ("pure_dp", charge) if np.isfinite(charge).all() else (None, None)


def _encode(table: FloatArray, dry: State, block: FloatArray) -> State:
    return {"planned": table, "block": block} | {_DRY + name: value for name, value in dry.items()}


def _row(
    family: float = 0.0, scale: float = 0.0, epsilon: float = math.inf, rho: float = math.inf, block: float = 0.0
) -> FloatArray:
    return np.array([family, scale, epsilon, rho, block])


def _part(state: State) -> State:
    return {name.removeprefix(_DRY): value for name, value in state.items() if name.startswith(_DRY)}
