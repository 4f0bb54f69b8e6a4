"""Trajectory recovery: counts of everybody, window by window, are taken apart into the trajectories of single people.

People keep to what they did before. The adversary continues every trajectory by an assignment of least cost of the
window's counts to trajectories: at night the cost is the distance from where a trajectory is, by day from where it
would be if it went on as in the window before. Trajectories of successive days are joined by the assignment that makes
a person's visits most regular. She knows nobody.

Xu, Tu, Li, Zhang, Fu, Jin, *Trajectory Recovery From Ash: User Privacy Is NOT Preserved in Aggregated Mobility Data*,
World Wide Web Conference 2017. This project's are: counts with noise are rounded to the number of people (`places_of`),
and the share of chance (`Recovery.chance`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from penstock.mechanisms.core.plugin import ParameterError

Array = NDArray[np.float64]
Trajectories = NDArray[np.intp]

#: Shuffled trajectories that the share of chance is the mean of.
N_SHUFFLES = 5


@dataclass(frozen=True)
class Recovery:
    """How much of the trajectories was recovered.

    Attributes
    ----------
    accuracy
        Share of (person, window) with the right cell, if recovered trajectories are matched to true ones, one to one,
        so that it is largest.
    chance
        The same where the places of every window are shuffled among the people: what the counts alone give away.
    n_people, n_windows
        Size of the trajectories.
    """

    accuracy: float
    chance: float
    n_people: int
    n_windows: int


def places_of(released: NDArray[np.floating | np.integer], n_people: int) -> NDArray[np.intp]:
    """Cell of each of ``n_people`` by the released counts of one window, ascending.

    Negative counts are 0; the others, scaled to the number of people, are rounded by largest remainders. Without any,
    people are spread evenly.

    >>> places_of(np.array([2, 0, 1]), 3), places_of(np.array([1.9, -3.0, 0.8]), 3)
    (array([0, 0, 2]), array([0, 0, 2]))
    """
    positive = np.maximum(np.nan_to_num(np.asarray(released, np.float64)), 0.0)
    if not positive.any():
        positive = np.ones(positive.size)
    wanted = positive * (n_people / positive.sum())
    whole = np.floor(wanted + 1e-9).astype(np.intp)
    largest = np.argsort(-(wanted - whole), kind="stable")[: n_people - whole.sum()]
    whole[largest] += 1
    return np.repeat(np.arange(positive.size), whole)


def recover(
    released: NDArray[np.floating | np.integer],
    positions: Array,
    n_people: int,
    *,
    night: NDArray[np.bool_] | None = None,
    day: int | None = None,
) -> Trajectories:
    """Trajectories that fit the counts.

    Parameters
    ----------
    released (n_windows, n_cells)
        Counts of people who are in one cell of every window, or what was released of them.
    positions (n_cells, 2)
        Where cells are; any unit of length.
    n_people
        How many trajectories there are.
    night (n_windows,)
        Windows in which people stay where they are; None: all.
    day
        Windows of a day, after each of which trajectories are joined anew by their visits; None: one day.

    Returns
    -------
    cells (n_people, n_windows)
        O(n_windows·n_people³) time, less in practice.

    Examples
    --------
    Two who cross each other, one window a step, keep their direction by day:

    >>> crossing = np.array([[1, 0, 0, 0, 1], [0, 1, 0, 1, 0], [0, 0, 2, 0, 0], [0, 1, 0, 1, 0], [1, 0, 0, 0, 1]])
    >>> line = np.column_stack([np.arange(5), np.zeros(5)])
    >>> recover(crossing, line, 2, night=np.zeros(5, bool)).tolist()
    [[0, 1, 2, 3, 4], [4, 3, 2, 1, 0]]
    """
    n_windows, n_cells = released.shape
    if positions.shape != (n_cells, 2):
        raise ParameterError("positions", positions.shape, f"two coordinates for each of {n_cells} cells")
    if n_people < 1:
        raise ParameterError("n_people", n_people, "at least 1")
    stays = np.ones(n_windows, bool) if night is None else night
    length = n_windows if day is None else day
    found: Trajectories | None = None
    for begin in range(0, n_windows, length):
        part = slice(begin, begin + length)
        one = _within_a_day(released[part], positions, n_people, stays[part])
        found = one if found is None else np.hstack([found, one[_joined(found, one, n_cells)]])
    assert found is not None
    return found


def _within_a_day(
    released: NDArray[np.floating | np.integer], positions: Array, n_people: int, stays: NDArray[np.bool_]
) -> Trajectories:
    found = np.empty((n_people, len(released)), np.intp)
    found[:, 0] = places_of(released[0], n_people)
    for window in range(1, len(released)):
        here = positions[found[:, window - 1]]
        expected = here if stays[window] or window == 1 else 2 * here - positions[found[:, window - 2]]
        places = places_of(released[window], n_people)
        cost = np.linalg.norm(expected[:, None] - positions[places][None], axis=2)
        found[:, window] = places[linear_sum_assignment(cost)[1]]
    return found


def _joined(before: Trajectories, after: Trajectories, n_cells: int) -> NDArray[np.intp]:
    """The later trajectory that continues each earlier one: least gain of entropy of the visits."""
    visits = [np.stack([np.bincount(own, minlength=n_cells) for own in part]) for part in (before, after)]
    alone = [_entropy(counts) for counts in visits]
    together = np.stack([_entropy(own + visits[1]) for own in visits[0]])
    order: NDArray[np.intp] = linear_sum_assignment(together - (alone[0][:, None] + alone[1]) / 2)[1]
    return order


def _entropy(counts: NDArray[np.integer]) -> Array:
    shares = counts / counts.sum(axis=-1, keepdims=True)
    entropy: Array = -(shares * np.log(shares, out=np.zeros_like(shares), where=shares > 0)).sum(axis=-1)
    return entropy


def share_recovered(found: Trajectories, truth: Trajectories) -> float:
    """Share of the (person, window) that are right, people being matched one to one so that it is largest.

    >>> share_recovered(np.array([[0, 1], [2, 2]]), np.array([[2, 2], [0, 0]]))
    0.75
    """
    right = np.stack([(found == own).sum(axis=1) for own in truth])
    return float(right[linear_sum_assignment(right, maximize=True)].sum() / truth.size)


def trajectory_recovery(
    truth: Trajectories,
    released: NDArray[np.floating | np.integer],
    positions: Array,
    *,
    night: NDArray[np.bool_] | None = None,
    day: int | None = None,
    seed: int = 0,
) -> Recovery:
    """Recover trajectories from what was released of their counts, and compare them with the true ones.

    Parameters
    ----------
    truth (n_people, n_windows)
        Cell of every person in every window.
    released, positions, night, day
        As in `recover`; the adversary knows how many people there are.
    seed
        Of the shuffles of the share of chance.

    Examples
    --------
    >>> truth = np.array([[0, 0, 0], [2, 2, 2]])
    >>> line = np.array([[0.0, 0.0], [1.0, 0.0], [2.0, 0.0]])
    >>> counts = np.stack([np.bincount(cells, minlength=3) for cells in truth.T])
    >>> found = trajectory_recovery(truth, counts, line)
    >>> found.accuracy, found.chance < 1
    (1.0, True)
    """
    n_people, n_windows = truth.shape
    if len(released) != n_windows:
        raise ParameterError("released", released.shape, f"a row for each of {n_windows} windows")
    found = recover(released, positions, n_people, night=night, day=day)
    rng = np.random.default_rng(seed)
    shuffled = [share_recovered(rng.permuted(found, axis=0), truth) for _ in range(N_SHUFFLES)]
    return Recovery(share_recovered(found, truth), float(np.mean(shuffled)), n_people, n_windows)
