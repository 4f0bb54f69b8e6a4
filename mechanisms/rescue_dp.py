"""RescueDP: sample when releases change, spend a share of what is left, and release small counts in groups."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.core.contract import (
    GAUSSIAN_FAMILIES,
    PURE_FAMILIES,
    Facts,
    Release,
    Window,
    active_l1,
    only_active,
)
from penstock.mechanisms.core.draws import LARGEST_SCALE
from penstock.mechanisms.core.events import Event, Repeated
from penstock.mechanisms.core.period import PeriodBound
from penstock.mechanisms.core.plugin import parameter
from penstock.mechanisms.core.portable import log
from penstock.mechanisms.core.schedules import WEventSchedule
from penstock.mechanisms.core.state import State

if TYPE_CHECKING:
    from penstock.mechanisms.core.draws import Noise

Array = NDArray[np.float64]
Integers = NDArray[np.int64]

#: Gains of the controller, proportional and integral, and the publications that its integral and predictions cover.
PROPORTIONAL, INTEGRAL, MEMORY = 0.9, 0.1, 3
#: A publication takes SHARE·ln(interval + 1) of what is left, at most MOST_LEFT of it and MOST_OF_ALL of the budget.
SHARE, MOST_LEFT, MOST_OF_ALL = 0.2, 0.6, 0.2


@dataclass(frozen=True, kw_only=True)
class RescueDp(WEventSchedule):
    """Publish sooner where releases change, with a share of what w windows have left; small counts as means of groups.

    Parameters
    ----------
    epsilon, rho, delta, w, noise
        As in `WEventSchedule`, on counts.
    group_below
        τ: counts that are predicted to be smaller are released in groups that add up to as much. 0: no groups.
    growth
        θ: windows by which the interval between publications can grow at once.

    **Privacy.** w-event ε-differential privacy: a publication spends a part of what the w − 1 windows before it have
    left of ε. Unit: all of one user's bounded contributions within any w successive windows; neighbours add or remove
    it. Kellaris, Papadopoulos, Xiao, Papadias 2014, theorem 3; Wang and others 2018 (RescueDP). When to publish, with
    how much, and which cells form a group are functions of earlier *releases*. The sums of groups move by C in L1; in
    L2 by the root of Σ (cells of one user in a group)², at worst with C cells in the largest groups. With Gaussian
    noise all of this holds of ρ in place of ε, by a Rényi filter (Feldman, Zrnic 2021).

    With ``bounding.max_per_period`` it is as in `w_event_bd`: min(C, n) memberships a window, and as many behind the w
    windows. In L2 each of them counts as much as the most that one of up to min(C, n) moves the sums by.

    Notes
    -----
    Time O(n_cells · log n_cells) a window, state O(w + n_cells). The paper samples each region by itself, which bounds
    a user who stays in one; a user who moves meets the dearest publications of several. Here all cells are published
    together. The paper groups regions by value and by the correlation of their last releases; here successive cells in
    the order of predictions form a group. `kalman` after it is the filter of the paper. In a group the scale is that of
    the mean; how far its cells are from the mean is in no standard deviation.

    Examples
    --------
    >>> from penstock.mechanisms.core.run import run_mechanism
    >>> releases = run_mechanism(RescueDp(epsilon=8.0, w=4), np.full((12, 2), 1000), Facts(n_cells=2), seed=1)
    >>> {release.action for release in releases} <= {"published", "repeated"}
    True
    """

    group_below: float = parameter(30.0, doc="predicted counts below it are released in groups", at_least=0)
    growth: float = parameter(10.0, doc="windows by which the interval can grow at once", at_least=0, unit="windows")
    noise: str = parameter("discrete_laplace", doc="noise family", choices=(*PURE_FAMILIES, *GAUSSIAN_FAMILIES))
    stages: ClassVar[tuple[str, ...]] = ("counts",)
    radius: None = field(default=None, init=False, repr=False)
    adaptive: ClassVar[bool] = True
    bounds_periods: ClassVar[bool] = True
    may_be_sampled: ClassVar[bool] = False

    @classmethod
    def examples(cls) -> tuple[RescueDp, ...]:
        """Without groups, whose means are not the counts: for every family of noise."""
        every = (one for one in super().examples() if isinstance(one, RescueDp))
        return tuple(replace(one, group_below=0.0) for one in every)

    @property
    def releases_single_counts(self) -> bool:
        """Cells in a group are shown its mean."""
        return self.group_below == 0

    def memberships(self, bound: PeriodBound) -> int:
        """Any window may have much of the budget."""
        return bound.at_once(self.w)

    def start(self, facts: Facts) -> State:
        """Due at once, nothing spent, nothing known of any cell."""
        return super().start(facts) | {
            "spent": np.zeros((*facts.shape, self.w)),
            "due": facts.constant(0, np.int64),
            "interval": facts.constant(1.0),
            "changes": np.full((*facts.shape, MEMORY), np.nan),
            "recent": np.full((*facts.shape, MEMORY, facts.n_cells), np.nan),
        }

    def step(self, window: Window, counts: NDArray[Any], state: State, noise: Noise) -> tuple[list[Release], State]:
        """Publish group by group if a publication is due; then set the time of the next one."""
        active = np.ones(counts.shape[-1], bool) if window.active is None else window.active
        groups, sizes = self._groups(active, state)
        share, publish = self._share(window, state), np.asarray(self._publishes(window, state))
        # Sums stand where the first cell of a group is.
        sums = _summed(np.where(active, counts, 0), groups)
        whole, priced = replace(window, active=None), state | self._moved(window, sizes, state)
        made, after = self.publish_or_repeat(whole, sums, priced, share, publish, noise)
        shape, here = counts.shape, publish[..., None]
        size = np.where(here, np.take_along_axis(np.broadcast_to(sizes, shape), groups, -1), 1)
        means = np.take_along_axis(np.broadcast_to(np.asarray(made.values, np.float64), shape), groups, -1) / size
        shown = np.where(here & active, means, state["last"])
        scale = np.broadcast_to(np.asarray(made.scale, np.float64), shape) / size if publish.any() else made.scale
        release = replace(made, values=only_active(window, shown), scale=scale, active=window.active)
        kept = after | {name: state[name] for name in ("max_cells", "memberships") if name in state} | {"last": shown}
        return [release], kept | self._next(window, shown, active, publish, share, self.paid_for(whole, priced), state)

    def worst_charge(self, window: Window, state: State) -> tuple[Event, ...]:
        """The share of what is left where a publication is due, nothing elsewhere."""
        if not np.any(self._publishes(window, state)):
            return (Repeated(int(state["last_window"].max())),)
        active = np.ones(state["last"].shape[-1], bool) if window.active is None else window.active
        moved = self._moved(window, self._groups(active, state)[1], state)
        priced = state | {name: np.max(value) for name, value in moved.items()}
        return self.charge_of(replace(window, active=None), priced, np.max(self._share(window, state)))

    def _publishes(self, window: Window, state: State) -> NDArray[np.bool_]:
        return np.asarray((state["due"] <= window.index) & (self._share(window, state) > 0))

    def _share(self, window: Window, state: State) -> Array:
        """Budget of a publication now; 0 where so little is left that no noise source serves."""
        left = np.maximum(self.budget - state["spent"][..., : self.w - 1].sum(-1), 0.0)
        part = np.minimum(SHARE * log(state["interval"] + 1.0), MOST_LEFT)
        if np.isinf(self.budget):
            return np.full(np.shape(part), np.inf)
        share = np.minimum(part * left, MOST_OF_ALL * self.budget)
        l1 = self.paid_for(replace(window, active=None), state) * state["last"].shape[-1]
        usable = self.scale_of(np.where(share > 0, share, 1.0), l1) < LARGEST_SCALE
        return np.where((share > 0) & usable, share, 0.0)

    def _groups(self, active: NDArray[np.bool_], state: State) -> tuple[Integers, Integers]:
        """First cell of each cell's group, and at first cells the number of cells of their groups."""
        recent = state["recent"]
        n_known = np.count_nonzero(~np.isnan(recent), -2)
        predicted = np.maximum(np.where(np.isnan(recent), 0.0, recent).sum(-2) / np.maximum(n_known, 1), 0.0)
        small = active & (n_known > 0) & (predicted < self.group_below)
        # From the smallest prediction on: a group ends where the running sum passes another multiple of τ.
        order = np.argsort(np.where(small, predicted, np.inf), axis=-1, kind="stable")
        inside = np.take_along_axis(np.broadcast_to(small, predicted.shape), order, -1)
        running = np.cumsum(np.where(inside, np.take_along_axis(predicted, order, -1), 0.0), -1)
        number = np.floor(running / self.group_below) if self.group_below else np.zeros(running.shape)
        begins = ~inside | (np.diff(number, axis=-1, prepend=-1.0) > 0)
        place = np.maximum.accumulate(np.where(begins, np.arange(order.shape[-1]), 0), -1)
        groups = np.empty(order.shape, np.int64)
        np.put_along_axis(groups, order, np.take_along_axis(order, place, -1), -1)
        return groups, _summed(np.ones(groups.shape, np.int64), groups)

    def _moved(self, window: Window, sizes: Integers, state: State) -> State:
        """``max_cells`` and ``memberships`` of the sums: in L1 as of cells, in L2 squares of those in a group."""
        l1 = active_l1(window, state["max_cells"])
        if not self.concentrated:
            return {"max_cells": np.asarray(l1)}
        if "memberships" in state:
            # m memberships in one group move its sum by m: m² is m each, and no other way of m is more.
            each = np.minimum(sizes.max(-1), l1)
            return {"max_cells": np.asarray(l1 * each), "memberships": np.asarray(state["memberships"] * each)}
        largest = -np.sort(-sizes, axis=-1)
        before = np.cumsum(largest, -1) - largest
        own = np.clip(np.asarray(l1)[..., None] - before, 0, largest)
        return {"max_cells": np.asarray((own**2).sum(-1), np.float64)}

    def _next(
        self,
        window: Window,
        shown: Array,
        active: NDArray[np.bool_],
        publish: NDArray[np.bool_],
        share: Array,
        moved: NDArray[Any],
        state: State,
    ) -> State:
        """Time of the next publication, and what was spent and seen."""
        change = np.where(active, np.abs(shown - state["last"]), 0.0).sum(-1) / max(np.count_nonzero(active), 1)
        changes = np.concatenate([change[..., None], state["changes"][..., :-1]], -1)
        mean = np.where(np.isnan(changes), 0.0, changes).sum(-1) / np.count_nonzero(~np.isnan(changes), -1)
        control = PROPORTIONAL * change + INTEGRAL * mean
        error = np.asarray(self.scale_of(np.where(share > 0, share, 1.0), moved), np.float64)
        ratio = np.minimum(control / np.maximum(error, 1e-9), 1e6)
        interval = np.maximum(1.0, state["interval"] + self.growth * (1.0 - ratio * ratio))
        seen = np.where(active, shown, np.nan)[..., None, :]
        recent = np.concatenate([seen, state["recent"][..., :-1, :]], -2)
        spent = np.where(publish & np.isfinite(share), share, 0.0)
        return {
            "spent": np.concatenate([spent[..., None], state["spent"][..., :-1]], -1),
            "interval": np.where(publish, interval, state["interval"]),
            "due": np.where(publish, window.index + np.floor(interval), state["due"]).astype(np.int64),
            "changes": np.where(publish[..., None], changes, state["changes"]),
            "recent": np.where(publish[..., None, None], recent, state["recent"]),
        }


def _summed(values: NDArray[Any], groups: Integers) -> Integers:
    """Sums of groups at their first cells, 0 elsewhere.

    Examples
    --------
    >>> _summed(np.array([5, 1, 2]), np.array([0, 1, 1])).tolist()
    [5, 3, 0]
    """
    n_cells = groups.shape[-1]
    flat = groups.reshape(-1, n_cells) + n_cells * np.arange(groups.size // n_cells)[:, None]
    # Sums of whole numbers are exact in 64 bits of floating point up to 2^53.
    summed = np.bincount(flat.ravel(), np.broadcast_to(values, groups.shape).ravel(), groups.size)
    return summed.reshape(groups.shape).astype(np.int64)
