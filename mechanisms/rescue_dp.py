"""RescueDP: adaptive sampling, a fraction of the remaining budget per publication, and grouping of small counts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.core.contract import Facts, Interpretation, Window
from penstock.mechanisms.core.guarantee import Guarantee
from penstock.mechanisms.core.noise import Noise
from penstock.mechanisms.core.plugin import parameter
from penstock.mechanisms.core.portable import log
from penstock.mechanisms.core.schedules import Offer, WEventSchedule
from penstock.mechanisms.core.sensitivity import Sensitivity, of_groups
from penstock.mechanisms.core.state import State

Array = NDArray[np.float64]
Integers = NDArray[np.int64]

#: Gains of the controller, proportional and integral, and the publications that its integral and predictions cover.
PROPORTIONAL, INTEGRAL, MEMORY = 0.9, 0.1, 3
#: A publication takes SHARE·ln(interval + 1) of the remaining budget, up to MAX_REMAINING_SHARE
#: of it and MAX_BUDGET_SHARE of the whole.
SHARE, MAX_REMAINING_SHARE, MAX_BUDGET_SHARE = 0.2, 0.6, 0.2


@dataclass(frozen=True, kw_only=True)
class RescueDp(WEventSchedule, Interpretation):
    """Publish sooner if releases change, spend a fraction of the remaining budget, and group small counts.

    Parameters
    ----------
    epsilon, rho, delta, w, noise, accounting
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
    adaptive: ClassVar[bool] = True
    first: ClassVar[dict[str, Any]] = {"due": 0, "interval": 1.0, "changes": np.full(MEMORY, np.nan)}

    @property
    def guarantee(self) -> Guarantee:
        """The schedule's guarantee. Groups depend only on earlier releases."""
        return replace(super().guarantee, may_be_sampled=False)

    @classmethod
    def examples(cls) -> tuple[RescueDp, ...]:
        """Return one ungrouped instance per noise family, because group means are not the counts of single cells."""
        every = (example for example in super().examples() if isinstance(example, RescueDp))
        return tuple(replace(example, group_below=0.0) for example in every)

    @property
    def releases_single_counts(self) -> bool:
        """Return whether cells are released ungrouped. A group reveals only its mean."""
        return self.group_below == 0

    def start(self, facts: Facts) -> State:
        """Return the initial state, in which a publication is due at once and the whole budget remains."""
        return super().start(facts) | {
            "spent": self.unspent(facts),
            "recent": np.full((*facts.shape, MEMORY, facts.n_cells), np.nan),
        }

    def amount(self, window: Window, state: State) -> Any:
        """Return a fraction of the remaining budget if a publication is due and enough remains, otherwise 0."""
        is_due = state["due"] <= window.index
        left = np.maximum(self.budget - state["spent"][..., : self.w - 1].sum(-1), 0.0)
        part = np.minimum(SHARE * log(state["interval"] + 1.0), MAX_REMAINING_SHARE)
        if np.isinf(self.budget):
            return np.where(is_due, np.inf, 0.0)
        return np.where(is_due, np.minimum(part * left, MAX_BUDGET_SHARE * self.budget), 0.0)

    def sensitivity(self, window: Window, state: State) -> Sensitivity:
        """Return the sensitivity of group sums: L1 as for cells, L2 as if the user were in the largest groups."""
        _, sizes = self._groups(_active(window, state), state)
        return of_groups(sizes, self.view.sensitivity(window, state).l1)

    def perturb(
        self, window: Window, values: NDArray[Any], offer: Offer, scale: Any, noise: Noise
    ) -> tuple[Array, Any]:
        """Return noisy group sums divided by group size, and the noise scale of the resulting means."""
        groups, sizes = self._groups(_active(window, offer.state), offer.state)
        # Sums stand where the first cell of a group is.
        noisy = self.family.add(noise, _sum_groups(np.where(_active(window, offer.state), values, 0), groups), scale)
        size, total = (np.take_along_axis(np.broadcast_to(one, values.shape), groups, -1) for one in (sizes, noisy))
        return total / size, np.asarray(scale)[..., None] / size

    def _groups(self, active: NDArray[np.bool_], state: State) -> tuple[Integers, Integers]:
        """Return the group of each cell, named by its first cell, and each group's size, stored at that cell."""
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
        return groups, _sum_groups(np.ones(groups.shape, np.int64), groups)

    def record(self, window: Window, offer: Offer, after: State) -> State:
        """Schedule the next publication and record the spending and the releases."""
        active, publish, shown = _active(window, after), offer.publish, after["last"]
        change = np.where(active, np.abs(shown - offer.state["last"]), 0.0).sum(-1)
        change = change / max(np.count_nonzero(active), 1)
        changes = np.concatenate([change[..., None], after["changes"][..., :-1]], -1)
        mean = np.where(np.isnan(changes), 0.0, changes).sum(-1) / np.count_nonzero(~np.isnan(changes), -1)
        control = PROPORTIONAL * change + INTEGRAL * mean
        ratio = np.minimum(control / np.maximum(offer.scale, 1e-9), 1e6)
        interval = np.maximum(1.0, after["interval"] + self.growth * (1.0 - ratio * ratio))
        seen = np.where(active, shown, np.nan)[..., None, :]
        recent = np.concatenate([seen, after["recent"][..., :-1, :]], -2)
        spent = np.where(publish & np.isfinite(offer.amount), offer.amount, 0.0)
        return {
            "spent": np.concatenate([spent[..., None], after["spent"][..., :-1]], -1),
            "interval": np.where(publish, interval, after["interval"]),
            "due": np.where(publish, window.index + np.floor(interval), after["due"]).astype(np.int64),
            "changes": np.where(publish[..., None], changes, after["changes"]),
            "recent": np.where(publish[..., None, None], recent, after["recent"]),
        }


def _active(window: Window, state: State) -> NDArray[np.bool_]:
    return np.ones(state["last"].shape[-1], bool) if window.active is None else window.active


def _sum_groups(values: NDArray[Any], groups: Integers) -> Integers:
    """Return the sum of each group at its first cell, and 0 elsewhere.

    >>> _sum_groups(np.array([5, 1, 2]), np.array([0, 1, 1])).tolist()
    [5, 3, 0]
    """
    n_cells = groups.shape[-1]
    flat = groups.reshape(-1, n_cells) + n_cells * np.arange(groups.size // n_cells)[:, None]
    # Sums of whole numbers are exact in 64 bits of floating point up to 2^53.
    summed = np.bincount(flat.ravel(), np.broadcast_to(values, groups.shape).ravel(), groups.size)
    return summed.reshape(groups.shape).astype(np.int64)
