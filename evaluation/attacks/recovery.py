"""Trajectory recovery: decompose aggregate counts into the trajectories of individual people.

People keep to what they did before. The adversary continues every trajectory by an assignment of least cost of the
window's counts to trajectories: at night the cost is the distance from where a trajectory is, by day from where it
would be if it went on as in the window before. Trajectories of successive days are joined by the assignment that makes
a person's visits most regular. She knows no one, only how many people there are.

Xu, Tu, Li, Zhang, Fu, Jin, *Trajectory Recovery From Ash: User Privacy Is NOT Preserved in Aggregated Mobility Data*,
World Wide Web Conference 2017. There everybody is in one cell of every window. This project's are: people who are not
seen in every window (`n_present_of`, `recover`) or in several cells of one (`Recovery`), counts with noise, which are
rounded to the number of people (`places_of`), and the baselines (`Recovery.shuffled`, `Recovery.nothing`).
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from scipy.sparse import csr_array
from scipy.spatial.distance import cdist

from penstock.evaluation.attacks.parameters import AttackedRun, AttackListener, RecoveryGame
from penstock.evaluation.metrics import entropies
from penstock.mechanisms.core.plugin import DataError, ParameterError
from penstock.mechanisms.core.run import run_mechanism

Array = NDArray[np.float64]
Trajectories = NDArray[np.intp]

#: Cell of a trajectory in a window without it.
ABSENT = -1
#: Shuffled trajectories that the figures of `Recovery.shuffled` are means of.
N_SHUFFLES = 5
#: What is recovered from, in the order of the table.
RAW, RELEASED, NOTHING, SHUFFLED = "raw counts", "the release", "without the release", "the release, shuffled"


@dataclass(frozen=True)
class Agreement:
    """Agreement between recovered and true trajectories, under the one-to-one matching with the highest accuracy.

    The question is where people are in the windows with them, not whether they are there: a trajectory that is absent
    is taken to be where it was last, before its first window where it will be first.
    """

    # share of the (person, window) in which a person is present whose trajectory is in a cell of that person's
    accuracy: float
    # mean over the same (person, window) of the distance from the trajectory to the nearest cell of the person's,
    # in the unit of the positions
    distance: float


@dataclass(frozen=True)
class Recovery:
    """Agreement between recovered and true trajectories, compared with two baselines."""

    recovered: Agreement  # the recovered trajectories
    # the same where every window's places are shuffled among the trajectories: what the counts alone give away
    shuffled: Agreement
    nothing: Agreement  # the same attack on a release of zeros: everybody stays, spread evenly over the cells
    n_people: int  # `n_people`, `n_windows`: size of the trajectories
    n_windows: int

    @property
    def baseline(self) -> float:
        """The accuracy of the better baseline. Neither of the two links windows into trajectories."""
        return max(self.shuffled.accuracy, self.nothing.accuracy)

    @property
    def gain(self) -> float:
        """The improvement in accuracy over the baseline."""
        return self.recovered.accuracy - self.baseline


def places_of(released: NDArray[np.floating | np.integer], n_people: int) -> NDArray[np.intp]:
    """Assign ``n_people`` people to cells in proportion to a window's released counts. Return the cells, ascending.

    Negative counts are 0; the others, scaled to the number of people, are rounded by largest remainders. Without any,
    people are spread evenly.
    """
    positive = np.maximum(np.nan_to_num(np.asarray(released, np.float64)), 0.0)
    if not positive.any():
        positive = np.ones(positive.size)
    expected = positive * (n_people / positive.sum())
    n_people_by_cell = np.floor(expected + 1e-9).astype(np.intp)
    largest = np.argsort(-(expected - n_people_by_cell), kind="stable")[: n_people - n_people_by_cell.sum()]
    n_people_by_cell[largest] += 1
    return np.repeat(np.arange(positive.size), n_people_by_cell)


def n_present_of(released: NDArray[np.floating | np.integer], n_people: int) -> NDArray[np.intp]:
    """Estimate each window's number of people from the released totals, or return everybody if all totals are zero."""
    totals = np.rint(np.nan_to_num(np.asarray(released, np.float64)).sum(axis=1))
    present = np.clip(totals, 0, n_people).astype(np.intp)
    return present if present.any() else np.full(len(present), n_people)


def recover(
    released: NDArray[np.floating | np.integer],
    positions: Array,
    n_people: int,
    *,
    n_present: NDArray[np.intp] | None = None,
    night: NDArray[np.bool_] | None = None,
    day: int | None = None,
) -> Trajectories:
    """Reconstruct trajectories, shape (n_people, n_windows), that fit the counts. Entries are cells or `ABSENT`.

    `positions` (n_cells, n_dimensions) of cells without a place: the identity matrix, which keeps all alike apart.
    `n_present` (n_windows,): how many are in a cell of each window; None: all. `night` (n_windows,): windows in which
    people stay where they are; None: all. `day`: windows of a day, after each of which trajectories are joined again by
    their visits; None: one day. O(n_windows·n_people³) time, less in practice.

    Of more trajectories than people in a window those are continued that cost least together. One that is absent is
    expected where it was last, and one not seen yet in the mean of all places.

    Two who cross each other, one window a step, keep their direction by day:

    >>> crossing = np.array([[1, 0, 0, 0, 1], [0, 1, 0, 1, 0], [0, 0, 2, 0, 0], [0, 1, 0, 1, 0], [1, 0, 0, 0, 1]])
    >>> line = np.column_stack([np.arange(5), np.zeros(5)])
    >>> recover(crossing, line, 2, night=np.zeros(5, bool)).tolist()
    [[0, 1, 2, 3, 4], [4, 3, 2, 1, 0]]
    """
    n_windows, n_cells = released.shape
    if positions.ndim != 2 or len(positions) != n_cells:
        raise ParameterError("positions", positions.shape, f"coordinates for each of {n_cells} cells")
    if n_people < 1:
        raise ParameterError("n_people", n_people, "at least 1")
    present = np.full(n_windows, n_people) if n_present is None else n_present
    if present.shape != (n_windows,) or present.min() < 0 or present.max() > n_people:
        raise ParameterError("n_present", present, f"for each of {n_windows} windows 0 to {n_people}")
    stays = np.ones(n_windows, bool) if night is None else night
    length = n_windows if day is None else day
    places = [places_of(counts, number) for counts, number in zip(released, present)]
    centre = _centre(places, positions)
    paths: Trajectories | None = None
    for begin in range(0, n_windows, length):
        part = slice(begin, begin + length)
        walked = _within_a_day(places[part], positions, n_people, stays[part], centre)
        if paths is None:
            paths = walked
        else:  # matched so that the entropy of visits increases least
            visits = [
                np.stack([np.bincount(path[path != ABSENT], minlength=n_cells) for path in part])
                for part in (paths, walked)
            ]
            alone = [entropies(counts) for counts in visits]
            together = np.stack([entropies(path + visits[1]) for path in visits[0]])
            order = linear_sum_assignment(together - (alone[0][:, None] + alone[1]) / 2)[1]
            paths = np.hstack([paths, walked[order]])
    assert paths is not None
    return paths


def _centre(places: list[NDArray[np.intp]], positions: Array) -> Array:
    """Return the mean position of all places in a release."""
    together = np.concatenate(places)
    return np.asarray(positions[together if together.size else slice(None)].mean(axis=0))


def _within_a_day(
    places: list[NDArray[np.intp]], positions: Array, n_people: int, stays: NDArray[np.bool_], centre: Array
) -> Trajectories:
    paths = np.full((n_people, len(places)), ABSENT)
    last_position, step = np.tile(centre, (n_people, 1)), np.zeros((n_people, positions.shape[1]))
    for window, cells in enumerate(places):
        expected = last_position if stays[window] else last_position + step
        cost = cdist(expected, positions[cells])
        assigned, number = linear_sum_assignment(cost)
        paths[assigned, window] = cells[number]
        step = np.zeros_like(step)
        if window:
            lasting = assigned[paths[assigned, window - 1] != ABSENT]
            step[lasting] = positions[paths[lasting, window]] - last_position[lasting]
        last_position[assigned] = positions[cells[number]]
    return paths


def seconds_to_recover(
    counts: NDArray[np.floating | np.integer], positions: Array, n_people: int, day: int | None
) -> float:
    """Estimate how long `recover` takes, within and across days, from the busiest window and the one before it."""
    n_windows = len(counts)
    last = max(int(counts.sum(axis=1).argmax()), 1)
    present, seconds = counts[last - 1 : last + 1], list[float]()
    for joined in (1, None, 1):  # the first one also loads what all need
        begin = time.monotonic()
        recover(present, positions, n_people, n_present=n_present_of(present, n_people), day=joined)
        seconds.append(time.monotonic() - begin)
    n_joins = 0 if day is None else -(-n_windows // day) - 1
    return seconds[1] / 2 * n_windows + max(seconds[2] - seconds[1], 0.0) * n_joins


def compare(paths: Trajectories, presence: NDArray[np.bool_], positions: Array) -> Agreement:
    """Compare trajectories with people's true cells, given as presence of shape (n_people, n_windows, n_cells)."""
    n_people, n_windows, n_cells = presence.shape
    person, window, cell = np.nonzero(presence)
    if person.size == 0:
        raise ParameterError("presence", presence.shape, "of at least one person in some window")
    people = csr_array((np.ones(person.size), (person, window * n_cells + cell)), shape=(n_people, n_windows * n_cells))
    # Gaps are filled with the cell before, or before the first sighting with the next one.
    is_present = paths != ABSENT
    last = np.maximum.accumulate(np.where(is_present, np.arange(n_windows), -1), axis=1)
    filled = np.take_along_axis(paths, np.where(last < 0, is_present.argmax(axis=1)[:, None], last), axis=1)
    path, at = np.nonzero(filled != ABSENT)
    taken = csr_array((np.ones(path.size), (path, at * n_cells + filled[path, at])), shape=people.shape)
    matches = (people @ taken.T).toarray()
    matched = linear_sum_assignment(matches, maximize=True)
    where = positions[filled]
    where[filled == ABSENT] = _centre([paths[paths != ABSENT]], positions)
    begins = np.flatnonzero(np.diff(person * n_windows + window, prepend=-1))
    metres = np.linalg.norm(where[matched[1][person], window] - positions[cell], axis=1)
    nearest = np.minimum.reduceat(metres, begins)
    return Agreement(float(matches[matched].sum() / begins.size), float(nearest.mean()))


def trajectory_recovery(
    presence: NDArray[np.bool_],
    released: NDArray[np.floating | np.integer],
    positions: Array,
    *,
    night: NDArray[np.bool_] | None = None,
    day: int | None = None,
    seed: int = 0,
) -> Recovery:
    """Recover trajectories from released counts and compare them with the true trajectories.

    `presence` (n_people, n_windows, n_cells) is from before anything was bounded. The adversary knows n_people, and
    takes the totals of the release for how many are present.
    """
    if presence.ndim != 3 or released.shape != presence.shape[1:]:
        raise ParameterError("released", released.shape, f"of the windows and cells of presence {presence.shape}")
    n_people, n_windows, _ = presence.shape
    continued = partial(recover, positions=positions, n_people=n_people, night=night, day=day)
    zeros = np.zeros(released.shape)
    paths = continued(released, n_present=n_present_of(released, n_people))
    blind = continued(zeros, n_present=n_present_of(zeros, n_people))
    rng = np.random.default_rng(seed)
    shuffled = [compare(rng.permuted(paths, axis=0), presence, positions) for _ in range(N_SHUFFLES)]
    by_chance = Agreement(*np.mean([[row.accuracy, row.distance] for row in shuffled], axis=0).tolist())
    return Recovery(
        compare(paths, presence, positions), by_chance, compare(blind, presence, positions), n_people, n_windows
    )


def attack_recovery(
    run: AttackedRun, game: RecoveryGame, positions: Array, known: dict[str, Any], listener: AttackListener
) -> dict[str, Any]:
    """Recover trajectories from both raw and released counts. Return the game, the results, and the gain.

    ``positions`` and ``known``: as for `trajectory_recovery`. With everybody and all windows, the release is that of
    the run. A sample of people is counted and released on its own: its counts are smaller, and the same noise hides
    more.
    """
    n_people, n_windows, n_cells = run.raw.shape
    if n_people < 2:
        raise DataError("one person seen in these windows; trajectories are told apart from two people on")
    rng = np.random.default_rng(run.seed)
    chosen = np.sort(rng.choice(n_people, min(game.people, n_people), replace=False))
    raw, bounded = run.raw[chosen], run.released[chosen].sum(axis=0)
    made = run_mechanism(run.mechanism, bounded, run.facts, windows=run.windows(1, n_windows), source=run.noise)
    released = np.array([np.broadcast_to(release.values, n_cells) for release in made], np.float64)
    counts = {RAW: raw.sum(axis=0), RELEASED: released}
    listener.begun(chosen.size, n_people)
    # Two recoveries from raw, and two from released counts.
    listener.foreseen(2 * len(counts) * seconds_to_recover(counts[RAW], positions, chosen.size, known.get("day")))
    listener.made(0, len(counts))
    agreement: dict[str, Agreement] = {}
    for done, (name, shown) in enumerate(counts.items(), 1):
        result = trajectory_recovery(raw, shown, positions, **known, seed=run.seed)
        agreement |= {name: result.recovered, NOTHING: result.nothing, SHUFFLED: result.shuffled}
        listener.made(done, len(counts))
    rows = [{"from": name, **asdict(agreement[name])} for name in (RAW, RELEASED, NOTHING, SHUFFLED)]
    played = {"people": int(chosen.size), "n_people": n_people, "windows": n_windows, "n_windows": run.facts.n_windows}
    return {"game": played, "found": rows, "gain": result.gain}
