"""A membership attack that needs no reference group, because its shadows are generated from the released counts.

The adversary knows her target's trace, how many people are counted, and the mechanism. She knows no one else. From the
release she estimates how visits are spread over cells, over windows and over people, makes synthetic traces that fit,
adds them up to groups with and without her target, passes these through the mechanism, trains a classifier on them, and
asks it about the release.

Guan, Guépin, Cretu, de Montjoye, *A Zero Auxiliary Knowledge Membership Inference Attack on Aggregate Location Data*,
Proceedings on Privacy Enhancing Technologies 2024(4). Theirs are: the marginals over cells and windows, the exponential
number of visits, a trace's few cells, the numbers of traces, groups and cells, groups in pairs that share all but one
person and the noise, standardised counts with logistic regression, and the rule that a person who is where no one is
counted is not in an exact release. This project's are:

* A trace's cells are drawn by the marginal, without regard to distance; theirs are a connected patch of the map. The
  game knows no map.
* Marginals of noisy counts are their sums, negative ones taken for 0. Theirs, of counts that are 0 where noise makes
  them negative, are raised to a power against the bias that this brings; the noise here has mean 0.
* The mean number of visits comes from the iteration of `fitted_population`, a ratio in place of their difference.
* One training may serve several releases, as in their experiments (`n_trainings`), but of groups with and without the
  target in turn, where theirs is always of one with.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from penstock.evaluation.attacks.challenge import distinguish, standardize_in_place
from penstock.evaluation.attacks.defenses import Defense
from penstock.mechanisms.core.plugin import ParameterError

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

N_TRACES = 5000
N_PAIRS = 200
#: Different cells of a synthetic trace, at most.
N_PLACES = 10
#: Rounds in which the mean number of visits is corrected.
N_ROUNDS = 5


@dataclass(frozen=True)
class Population:
    """The distribution of people's visits, as estimated from a release."""

    cells: Array  # (n_cells,), (n_windows,): shares of the visits
    windows: Array
    visits: float  # mean number of visits of a person

    @classmethod
    def of(cls, released: Array, group_size: int) -> Population:
        """Estimate marginals and mean visits from a release (n_windows, n_cells) of ``group_size`` people."""
        visits = max(float(released.sum()), 1.0) / group_size
        return cls(_shares(released.sum(axis=0)), _shares(released.sum(axis=1)), visits)

    def traces(self, n_traces: int, rng: np.random.Generator) -> csr_array:
        """Draw synthetic binary traces, shape (n_traces, n_windows·n_cells).

        Each has up to `N_PLACES` cells, drawn without replacement; its visits, an exponential number, fall on these by
        their shares and on windows independently. Several in one cell of a window are one.
        O(n_traces·(n_cells + N_PLACES·visits)).

        >>> population = Population(np.array([0.5, 0.5, 0.0]), np.array([1.0]), visits=4.0)
        >>> population.traces(1000, np.random.default_rng(0)).sum(axis=0) > 0
        array([ True,  True, False])
        """
        n_cells, n_windows = self.cells.size, self.windows.size
        with np.errstate(divide="ignore"):
            keys = np.log(self.cells) + rng.gumbel(size=(n_traces, n_cells))
        n_places = min(N_PLACES, n_cells)
        places = np.argpartition(-keys, n_places - 1, axis=1)[:, :n_places]
        reach = np.cumsum(self.cells[places], axis=1)
        person = np.repeat(np.arange(n_traces), rng.exponential(self.visits, n_traces).astype(np.int64))
        number = (rng.random(person.size) * reach[person, -1])[:, None]
        cells = places[person, np.minimum((number >= reach[person]).sum(axis=1), n_places - 1)]
        windows = rng.choice(n_windows, person.size, p=self.windows)
        shape = (n_traces, n_windows * n_cells)
        traces = csr_array((np.ones(person.size), (person, windows * n_cells + cells)), shape=shape)
        traces.sum_duplicates()
        traces.data[:] = 1
        return traces


def _shares(totals: Array) -> Array:
    positive = np.maximum(totals, 0.0)
    return positive / positive.sum() if positive.any() else np.full(totals.size, 1 / totals.size)


def fitted_population(
    released: Array, group_size: int, defense: Defense | None, rng: np.random.Generator
) -> Population:
    """Fit a population whose synthetic groups, once released, have the same total as the release.

    Visits that coincide and counts that the mechanism suppresses make the mean of a release too small. Five rounds,
    each with ten groups; a round changes the mean by a factor of two at most.
    """
    population, n_groups = Population.of(released, group_size), 10
    maximum = float(released.size)
    for _ in range(N_ROUNDS):
        traces = population.traces(n_groups * group_size, rng).toarray().reshape(n_groups, group_size, -1)
        counts = traces.sum(axis=1).astype(np.int64).reshape(n_groups, *released.shape)
        total = float(_release(defense, counts, int(rng.integers(2**63))).sum()) / n_groups
        factor = np.clip(max(float(released.sum()), 1.0) / max(total, 1.0), 0.5, 2.0)
        population = Population(population.cells, population.windows, min(population.visits * factor, maximum))
    return population


def shadows(
    population: Population,
    trace: NDArray[np.bool_],
    group_size: int,
    defense: Defense | None,
    rng: np.random.Generator,
    *,
    n_pairs: int = N_PAIRS,
    n_traces: int = N_TRACES,
) -> Array:
    """Release synthetic groups, starting with those that include the target. Shape (2·n_pairs, n_windows·n_cells).

    >>> population = Population(np.array([0.5, 0.5]), np.array([1.0]), visits=1.0)
    >>> made = shadows(population, np.array([[True, False]]), 3, None, np.random.default_rng(0), n_pairs=50)
    >>> apart = made[:50] - made[50:]
    >>> apart.min(axis=0), apart.max(axis=0)  # the target in place of another person
    (array([ 0., -1.]), array([1., 0.]))
    """
    people = population.traces(max(n_traces, 2 * group_size), rng)
    chosen = np.argpartition(rng.random((n_pairs, people.shape[0])), group_size - 1, axis=1)[:, :group_size]
    rows = np.repeat(np.arange(n_pairs), group_size - 1)
    shape = (n_pairs, people.shape[0])
    shared = csr_array((np.ones(rows.size), (rows, chosen[:, 1:].ravel())), shape=shape) @ people
    common = shared.toarray()
    pair = (common + trace.ravel(), common + people[chosen[:, 0]].toarray())
    seed = int(rng.integers(2**63))
    counts = [np.rint(traces).astype(np.int64).reshape(n_pairs, *trace.shape) for traces in pair]
    return np.concatenate([_release(defense, traces, seed).reshape(n_pairs, -1) for traces in counts])


def _release(defense: Defense | None, counts: Counts, seed: int) -> Array:
    return (counts if defense is None else np.asarray(defense(counts, seed))).astype(np.float64)


def zero_knowledge_scores(
    released: Array,
    trace: NDArray[np.bool_],
    group_size: int,
    *,
    defense: Defense | None,
    n_trainings: int,
    seed: list[int],
) -> Array:
    """Return the log-odds that each release includes the target, for an adversary who has no reference group.

    The first of ``released`` (n_releases, n_windows, n_cells) are trained on. −∞ where an exact release excludes the
    target. O(n_trainings·(n_pairs²·n_values + n_pairs³)) time.

    The target is alone at night:

    >>> trace = np.array([[False, True], [True, False]])
    >>> released = np.array([[[9.0, 1.0], [8.0, 2.0]], [[9.0, 0.0], [8.0, 2.0]]])
    >>> options = {"defense": None, "n_trainings": 2, "seed": [0]}
    >>> with_target, without = zero_knowledge_scores(released, trace, 10, **options)
    >>> with_target > without
    np.True_
    """
    if n_trainings < 1:
        raise ParameterError("n_trainings", n_trainings, "at least 1")
    n_trainings = min(n_trainings, len(released))
    # Challenges have labels in turn: a training serves pairs of them.
    number = np.where(np.arange(len(released)) < n_trainings, np.arange(len(released)), 0)
    later = np.arange(n_trainings, len(released))
    number[later] = later // 2 % n_trainings
    scores = np.empty(len(released))
    for training in range(n_trainings):
        rng = np.random.default_rng([*seed, training])
        population = fitted_population(released[training], group_size, defense, rng)
        judged = np.flatnonzero(number == training)
        made = shadows(population, trace, group_size, defense, rng)
        known = np.arange(len(made)) < len(made) // 2
        features = np.concatenate([made, released[judged].reshape(judged.size, -1)])
        standardize_in_place(features, len(made))
        scores[judged], _ = distinguish(features, known, len(made), n_components=len(made))
    if defense is None:  # an exact release rules out the target if a cell of theirs is empty, or another has everybody
        excluded = (released == 0) & trace | (released == group_size) & ~trace
        scores[excluded.any(axis=(1, 2))] = -np.inf
    return scores
