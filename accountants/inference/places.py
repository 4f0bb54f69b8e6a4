"""Map cells to a prior's places, and derive observations from past and coming releases.

Amounts to come that are fixed in advance are found by stepping the mechanism through empty windows. The largest sum
over the paths of a w-event budget is ε in every w-th window; of a landmark budget, where landmarks and any one other
window share ε, it is ε in each regular window of the period. *Proof.* Both costs, c(ε) = ε and c(ε) = ε tanh(ε/2),
have c(a) + c(b) ≤ c(a + b), because c(ε)/ε never falls. Any w windows in a row spend at most ε together, so at most
c(ε). Landmarks that spend A together and n regular windows with at most ε − A each cost at most c(A) + n·c(ε − A) ≤
c(ε) + (n − 1)·c(ε); without regular windows at most c(ε). ∎
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.accountants.core.charges import concentrated_rho, is_linked, pure_epsilon
from penstock.accountants.inference.observation import ADDITIVE, log_ratio
from penstock.accountants.markov import FloatArray, IntArray
from penstock.mechanisms.core import events
from penstock.mechanisms.core.contract import (
    ChainStep,
    Facts,
    Generalization,
    Interpretation,
    Mechanism,
    Postprocess,
    Release,
    Window,
)
from penstock.mechanisms.core.guarantee import Guarantee
from penstock.mechanisms.core.noise import NoiseSource
from penstock.mechanisms.core.noise_keys import NoiseKey
from penstock.mechanisms.core.state import State, nested, part
from penstock.mechanisms.core.unit import LANDMARKS

WindowsOf = Callable[[int, int], Sequence[Window]]

_DRY = "dry"
#: Columns of the table of planned windows: 1 + place of the noise family in ADDITIVE (0: none known), its scale,
#: ε and ρ of the window or its block, first window of the block (0: none); NaN scale: nothing is observed.
_FAMILY, _SCALE, _EPSILON, _RHO, _BLOCK = range(5)


@dataclass(frozen=True, eq=False)
class Reading:
    """One window's evidence about a target, after subtracting everybody else."""

    # `noise` is None for raw counts and for mechanisms without a known likelihood; else a family, with a number or
    # (n_cells,) as its scale. `residual` (n_cells,) is release minus true counts; it is read where there is noise.

    active: NDArray[np.bool_]
    noise: str | None = None
    scale: Any = None
    residual: FloatArray | None = None

    def evidence(self, cells: IntArray) -> FloatArray:
        """Return the log ratio of each cell's reading: target there versus not, given everybody else's cells."""
        is_own_cell = np.arange(len(self.active)) == cells[:, None]
        if self.noise is None:
            return np.where(is_own_cell, np.inf, -np.inf)
        residual = 0.0 if self.residual is None else self.residual
        return log_ratio(self.noise, residual + is_own_cell, np.asarray(self.scale, float))


@dataclass(frozen=True, eq=False)
class PriorPlaces:
    """A map from n_cells + 1 cells (the last: unseen) to the priors' places, with each cell's weight in its place."""

    # Only the last place, elsewhere, may hold several cells. Given that a person is there, which cell it is has the
    # probability `share`, whatever came before and comes after.

    location: IntArray
    share: FloatArray

    @classmethod
    def of_cells(cls, n_cells: int) -> PriorPlaces:
        """Map each cell to a separate place, and unseen to an additional place."""
        return cls(np.arange(n_cells + 1), np.ones(n_cells + 1))

    @classmethod
    def most_visited(cls, trajectories: NDArray[Any], n_cells: int, n_top: int) -> PriorPlaces:
        """Keep the most visited cells as places (ties: the first). Merge all other cells and unseen into one place."""
        if n_top >= n_cells:
            return cls.of_cells(n_cells)
        visits = np.bincount(np.where(trajectories < 0, n_cells, trajectories).ravel(), minlength=n_cells + 1)
        top = np.argsort(-visits[:-1], kind="stable")[:n_top]
        location = np.full(n_cells + 1, n_top)
        location[top] = np.arange(n_top)
        # one more visit to each, so that no cell is impossible
        share = np.where(location == n_top, visits + 1.0, 0.0)
        share /= share.sum()
        share[top] = 1.0
        return cls(location, share)

    @property
    def n_cells(self) -> int:
        """The number of cells in the run."""
        return len(self.location) - 1

    @property
    def n_locations(self) -> int:
        """The number of places in the priors."""
        return int(self.location.max()) + 1

    def sensors(self, active: NDArray[np.bool_]) -> set[int]:
        """Return the places that active cells observe. Elsewhere counts as seen if any of its cells is active."""
        return set(self.location[:-1][active].tolist())


@dataclass(frozen=True, eq=False)
class Releasing:
    """The mechanism that reads the counts, and all steps in the release."""

    mechanism: Mechanism | None
    steps: tuple[ChainStep, ...] = ()

    @property
    def adds_noise_only(self) -> bool:
        """Return whether releases are counts plus noise."""
        if self.mechanism is None or len(self.steps) > 1:
            return False
        return Interpretation.of(self.mechanism).adds_noise_only

    @property
    def is_coarse(self) -> bool:
        """Return whether cells or windows are merged before counting, so that the release of one may reveal another."""
        return any(isinstance(step, Generalization) for step in self.steps)

    def additive(self, charge: tuple[events.Event, ...]) -> tuple[str, float] | None:
        """Return a release's noise family and scale if its charge determines the likelihood, otherwise None."""
        event = charge[0] if len(charge) == 1 else None
        if not isinstance(event, events.Additive) or not self.adds_noise_only:
            return None
        return event.family, float(event.scale)

    def reading(self, release: Release, counts: FloatArray) -> tuple[Reading | None, NDArray[np.bool_]]:
        """Return any observation available to every target's adversary, and a mask of the published cells."""
        # `counts` are the true bounded ones: the adversary knows everybody's share of them but the target's. Additive
        # noise has a likelihood, also with a scale that follows earlier releases. For everything else counts without
        # noise stand: the beliefs are then those of an adversary with more information.
        if is_uninformative(release.charge):
            return None, np.zeros(counts.shape, bool)
        hidden = release.active is None or self.is_coarse
        active = np.ones(counts.shape, bool) if hidden else np.asarray(release.active)
        known = self.additive(release.charge)
        if known and known[0] == release.noise and str(release.action) == "published" and np.all(release.scale > 0):
            return Reading(active, known[0], release.scale, np.asarray(release.values, float) - counts), active
        return Reading(active), active


def is_uninformative(charge: tuple[events.Event, ...]) -> bool:
    """Return whether a release repeats an earlier one for reasons independent of the counts."""
    return bool(charge) and all(isinstance(event, events.FREE) for event in charge)


@dataclass(frozen=True, eq=False)
class PlannedWindows:
    """The sensors and noise of the coming windows, as arguments for `horizon_bounds`."""

    sensors: tuple[frozenset[int], ...]
    noise: str | None = None
    scale: FloatArray | None = None


@dataclass(frozen=True, eq=False)
class ReleaseForecast:
    """Public information about the next ``horizon`` windows, starting from any window."""

    # Where amounts are fixed in advance, the mechanism itself gives them: it is stepped through empty windows, always
    # `horizon` windows ahead, and its charges are written down. Adaptive mechanisms are bounded over all paths from
    # their guarantee; the ε that one run spends is no bound. Where the releasing mechanism is unknown, raw counts stand
    # for it (data processing); without `windows` every cell publishes in every window.

    places: PriorPlaces
    horizon: int
    releasing: Releasing
    facts: Facts
    windows: WindowsOf | None

    @property
    def is_planned(self) -> bool:
        """Return whether the mechanism's budgets are known in advance."""
        return self.windows is not None and self.mechanism is not None and not self.mechanism.guarantee.adaptive

    @property
    def mechanism(self) -> Mechanism | None:
        """The run's mechanism, or None if it releases coarser windows."""
        return None if self.releasing.is_coarse else self.releasing.mechanism

    def start(self) -> State:
        """Return the initial state, in which the first ``horizon`` windows are planned."""
        if not self.is_planned or self.mechanism is None:
            return {}
        state = _encode(np.zeros((0, 5)), self.mechanism.start(self.facts), np.zeros(4))
        for index in range(1, self.horizon + 1):
            state = self._plan(index, state)
        return state

    def after(self, index: int, state: State) -> State:
        """Return the state for the horizon that starts after window ``index``."""
        if not self.is_planned:
            return state
        return self._plan(index + self.horizon, state | {"planned": state["planned"][1:]})

    def horizons(self, n_windows: int) -> Iterator[PlannedWindows]:
        """Yield the horizons of the first ``n_windows`` windows, as known before the run."""
        state = self.start()
        for index in range(1, n_windows + 1):
            yield self.coming(index, state)
            state = self.after(index, state)

    def coming(self, index: int, state: State) -> PlannedWindows:
        """Return the planned windows from ``index`` onward."""
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
        schedule = tuple(sensors + [frozenset[int]()] * (last - max(end, index - 1)))
        noise, scale = self._planned_noise(state["planned"]) if self.is_planned else self._over_all_paths(windows)
        return PlannedWindows(schedule, noise, scale)

    def _plan(self, index: int, state: State) -> State:
        """Add one window to the plan."""
        table, dry, block = np.asarray(state["planned"]), part(_DRY, state), np.asarray(state["block"])
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
        elif is_uninformative(charge) or (window.active is not None and not window.active.any()):
            row = _row(scale=math.nan)
        else:
            # Before post-processing, which reveals at least as much.
            steps = tuple(step for step in self.releasing.steps if not isinstance(step, Postprocess))
            family, scale = Releasing(self.mechanism, steps).additive(charge) or (None, 0.0)
            # An infinite scale hides everything; none at all is a raw count.
            known = ADDITIVE.index(family) + 1 if family and 0 < scale < math.inf else 0
            # What linked windows tell together is more than the sum of what each of them tells.
            is_priced = charge and not is_linked(charge)
            priced = (pure_epsilon(charge), concentrated_rho(charge)) if is_priced else (math.inf, math.inf)
            row = _row(known, math.nan if scale == math.inf else scale, *priced)
        return _encode(np.vstack([table, row]), dry, block)

    def _planned_noise(self, table: FloatArray) -> tuple[str | None, FloatArray | None]:
        """Return the horizon's noise as one additive family or as a guarantee, or None if neither is known."""
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
        """Return the largest ε on any path, over any w windows or, with a landmark budget, in any regular window."""
        mechanism, charge = self.mechanism, np.zeros(self.horizon)
        promised = mechanism.guarantee if mechanism is not None else Guarantee()
        if promised.amount is None or promised.concentrated or promised.linked:
            return None, None  # of ρ the cost of a sum may be less than the sum of the costs
        if promised.unit.kind == "stretch":
            charge[:: promised.unit.length] = promised.amount
        elif promised.unit == LANDMARKS and windows:
            # Σ over landmarks and any one other is at most ε; the cost of a sum is no less than the sum of the costs.
            regular = np.array([not window.landmark for window in windows])
            period = np.array([window.period for window in windows])
            for number in np.unique(period):
                of_period = np.flatnonzero(period == number)
                charge[of_period[regular[of_period]] if regular[of_period].any() else of_period[:1]] = promised.amount
        else:
            return None, None
        return ("pure_dp", charge) if np.isfinite(charge).all() else (None, None)


def _encode(table: FloatArray, dry: State, block: FloatArray) -> State:
    return {"planned": table, "block": block} | nested(_DRY, dry)


def _row(
    family: float = 0.0, scale: float = 0.0, epsilon: float = math.inf, rho: float = math.inf, block: float = 0.0
) -> FloatArray:
    return np.array([family, scale, epsilon, rho, block])
