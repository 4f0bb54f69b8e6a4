"""PeGaSus: noisy counts, smoothed over groups of similar successive windows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.core.contract import Facts, Interpretation, Mechanism, Release, Window
from penstock.mechanisms.core.events import Event, Linked
from penstock.mechanisms.core.guarantee import Guarantee
from penstock.mechanisms.core.noise import Noise
from penstock.mechanisms.core.noise_family import NOISE_FAMILIES, NoiseFamily, families
from penstock.mechanisms.core.plugin import parameter, stretch
from penstock.mechanisms.core.sensitivity import Sensitivity, of_cells, of_deviations
from penstock.mechanisms.core.state import State
from penstock.mechanisms.core.unit import Unit

#: Deviations are compared as whole numbers of this part of a person, so that integer noise serves as well.
GRID = 16


@dataclass(frozen=True, kw_only=True)
class Pegasus(Mechanism, Interpretation):
    """Add Laplace noise to every count, group successive windows with similar counts and smooth within each group.

    Parameters
    ----------
    epsilon
        Budget of any ``w`` successive windows, in nats; each of them has an equal share.
    w
        Length of the protected stretch: 1, as in the paper, protects what a user does in one window.
    grouping
        Share of ε spent on finding out which windows are alike; the noise has the rest.
    threshold
        θ: deviation up to which windows are alike, in units of C/ε, ε being that of the grouping in one window.
    longest
        Most windows that can be alike; the paper has no such bound, and state without one.
    noise
        ``discrete_laplace`` (integers, the default) or ``laplace``.
    smoothing
        ``median`` (which the paper found best) or ``mean`` of the noisy counts that are alike; ``none``: each noisy
        count as it is.

    **Privacy.** ε-differential privacy for any w successive windows: unit all of one user's bounded contributions in
    them, neighbours add or remove it. Each window has ε/w: the perturber adds noise for (1 − grouping) of it. The
    grouper asks in each cell whether Σ abs(count − mean) over the open group and the new window is above θ, by a sparse
    vector with fresh threshold noise for each group; a window is read by one group only, since the window that ends a
    group is a group by itself. Chen, Machanavajjhala, Hay, Miklau 2017, theorems 3 and 5; sparse vector: Dwork and Roth
    2014, theorem 3.23. A user in k windows loses at most k·ε/w (group privacy); since k windows of a group share one
    threshold, ρ does not add up, and is charged 2·longest times (`Linked`).

    Notes
    -----
    Time and state O(longest · n_cells) a window. ``noise`` and ``scale`` of a release are those of the noisy counts;
    smoothing is post-processing (the paper, section 4.3). Groups are those of single cells: the paper's hierarchies are
    not there.

    Examples
    --------
    >>> from penstock.mechanisms.core.run import run_mechanism
    >>> counts = np.repeat([[400], [900]], 4, axis=0)
    >>> pegasus = Pegasus(epsilon=1.0, threshold=30.0, smoothing="median")
    >>> [float(release.values[0]) for release in run_mechanism(pegasus, counts, seed=1)]
    [400.0, 398.5, 400.0, 399.5, 904.0, 899.0, 899.5, 900.0]
    """

    epsilon: float = parameter(doc="budget of any w successive windows", above=0, unit="nats")
    w: int = stretch(1)
    grouping: float = parameter(0.2, doc="share of the budget spent on grouping", above=0, below=1)
    threshold: float = parameter(5.0, doc="deviation up to which windows are alike, in units of C/ε", at_least=0)
    longest: int = parameter(24, doc="most windows that can be alike", at_least=2, unit="windows")
    noise: str = parameter("discrete_laplace", doc="noise family", choices=families("counts", "epsilon"))
    smoothing: str = parameter("none", doc="value released for a group of windows", choices=("none", "median", "mean"))

    @classmethod
    def examples(cls) -> tuple[Pegasus, ...]:
        """Return unsmoothed instances, which release single counts, for both noise families and several w."""
        return cls(epsilon=1.0, w=3), cls(epsilon=1.0, noise="laplace", longest=2)

    @property
    def releases_single_counts(self) -> bool:
        """Return whether counts are released unsmoothed. A smoothed count combines several counts."""
        return self.smoothing == "none"

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee, which is ε-differential privacy for any w successive windows."""
        return Guarantee(
            unit=Unit.stretch(self.w),
            measure="epsilon",
            amount=self.epsilon,
            theorem="Chen, Machanavajjhala, Hay, Miklau 2017, theorems 3 and 5",
            linked=True,
            may_be_sampled=False,
            dependence="" if self.smoothing == "none" else "counts are smoothed; smoothing: none leaves them",
        )

    def start(self, facts: Facts) -> State:
        """Return the initial state, with no open groups."""
        shape = (*facts.shape, facts.n_cells)
        state: State = {
            "max_cells": facts.constant(facts.sensitivity, np.int64),
            # The counts of each cell's open group, how many there are (0: none is open), and its noisy threshold.
            "group": np.zeros((*facts.shape, self.longest, facts.n_cells), np.int64),
            "size": np.zeros(shape, np.int64),
            "limit": np.zeros(shape),
        }
        if self.smoothing != "none":
            state["recent"] = np.full((*facts.shape, self.longest, facts.n_cells), np.nan)
        return state

    def step(self, window: Window, counts: NDArray[Any], state: State, noise: Noise) -> tuple[list[Release], State]:
        """Publish one window and extend or close the open groups."""
        (_, scale), (_, asked) = self._counts(window, state), self._deviation_query(state)
        values = self._family.add(noise, counts, scale)
        size, draw = state["size"], partial(self._family.draw, noise)
        # A user in C cells is in C groups. The scales are those of a group's first window, whatever is active later.
        fresh = self.threshold * GRID * (asked / 2) + draw(2 * GRID * asked, counts.shape)
        limit = np.where(size == 0, fresh, state["limit"])
        place = np.arange(self.longest)[:, None]
        group = np.where(place == size[..., None, :], counts[..., None, :], state["group"])
        deviations = _deviation(np.where(place <= size[..., None, :], group, 0), place <= size[..., None, :])
        question = deviations + draw(4 * GRID * asked, counts.shape)
        joins = (size == 0) | (question < limit)
        after = np.where(joins & (size + 1 < self.longest), size + 1, 0)
        if window.active is not None:
            after, limit = np.where(window.active, after, size), np.where(window.active, limit, state["limit"])
        kept = np.where(place < after[..., None, :], group, 0)
        values, smoothed = self._smooth(window, values, np.where(joins, size + 1, 1), state)
        release = Release.of(window, values, self.worst_charge(window, state), noise=self.noise, scale=scale)
        grouped = {"group": kept, "size": after, "limit": np.asarray(limit, np.float64)}
        return [release], state | grouped | smoothed

    def _smooth(
        self, window: Window, noisy: NDArray[Any], n_similar: NDArray[np.int64], state: State
    ) -> tuple[NDArray[Any], State]:
        """Smooth each cell's last ``n_similar`` noisy counts. Also return the latest counts, newest first."""
        if self.smoothing == "none":
            return noisy, {}
        latest = np.concatenate([noisy[..., None, :], state["recent"][..., :-1, :]], axis=-2)
        if window.active is not None:
            latest = np.where(window.active, latest, state["recent"])
        return middle(latest, n_similar, self.smoothing), {"recent": latest}

    def worst_charge(self, window: Window, state: State) -> tuple[Event, ...]:
        """Return the charge for a window, which covers its noise, a threshold and one sparse-vector query."""
        moved, asked = self._deviation_query(state)
        # The threshold gives way by one shift, the question that it is compared with by two.
        threshold, question = (self._family.event(moved.times(n * GRID), 2 * n * GRID * asked) for n in (1, 2))
        times = 2.0 * self.longest
        return self._family.event(*self._counts(window, state)), Linked(threshold, times), Linked(question, times)

    @property
    def _family(self) -> NoiseFamily:
        return NOISE_FAMILIES[self.noise]

    def _counts(self, window: Window, state: State) -> tuple[Sensitivity, float]:
        """Return the sensitivity and noise scale for the counts of one window."""
        return self._calibrate(1 - self.grouping, of_cells(state["max_cells"], window.active))

    def _deviation_query(self, state: State) -> tuple[Sensitivity, float]:
        """Return the deviation's sensitivity, in people, and the noise scale for a query about it."""
        return self._calibrate(self.grouping, of_deviations(state["max_cells"]))

    def _calibrate(self, share: float, moved: Sensitivity) -> tuple[Sensitivity, float]:
        """Return the largest sensitivity across replicas and the noise scale for a fraction of a window's ε/w."""
        largest = Sensitivity(*(float(np.max(norm)) for norm in moved))
        return largest, float(self._family.scale(self.epsilon / self.w * share, largest))


def _deviation(group: NDArray[np.int64], inside: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return Σ|count − mean| over each group in units of 1/GRID, rounded down. Groups are on the second-to-last axis.

    >>> _deviation(np.array([[4], [5], [9]]), np.ones((3, 1), bool)).tolist()  # 2 + 1 + 3 people
    [96]
    """
    n = np.count_nonzero(inside, axis=-2)
    total = group.sum(-2)
    deviations = np.abs(n[..., None, :] * group - total[..., None, :]) * inside
    return np.asarray(GRID * deviations.sum(-2) // n)


def middle(recent: NDArray[np.float64], n_similar: NDArray[np.int64], by: str) -> NDArray[np.float64]:
    """Return the median or mean of each cell's first ``n_similar`` rows.

    >>> middle(np.array([[11.0], [16.0], [10.0], [90.0]]), np.array([3]), "median").tolist()
    [11.0]
    """
    n = np.minimum(n_similar, recent.shape[-2])[..., None, :]
    inside = np.arange(recent.shape[-2])[:, None] < n
    if by == "mean":
        return np.asarray(np.where(inside, recent, 0.0).sum(-2) / n[..., 0, :])
    ordered = np.sort(np.where(inside, recent, np.inf), axis=-2)
    low, high = (np.take_along_axis(ordered, place, -2)[..., 0, :] for place in ((n - 1) // 2, n // 2))
    return np.asarray((low + high) / 2)
