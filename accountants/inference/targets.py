"""Targets of trajectory attacks, their declared or estimated priors, and stacked prior arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from scipy.special import entr

from penstock.accountants.core.training import Training
from penstock.accountants.correlation.adversary import Learned, Walk
from penstock.accountants.inference.crowd import UnknownCrowd, at_places
from penstock.accountants.inference.kernel import BLOCK_ENTRIES, Kernel
from penstock.accountants.inference.places import PriorPlaces, Reading
from penstock.accountants.markov import FloatArray, IntArray, MarkovPrior, chain_prior, estimate_prior
from penstock.mechanisms.core.plugin import Checked, ParameterError, check_one_of, parameter

#: Entries of all transition matrices together: 2 GB.
MAX_ENTRIES = 250_000_000


@dataclass(frozen=True, kw_only=True)
class KnownPrior(Checked):
    """An adversary's knowledge about target movements: exactly one of ``estimate``, ``chain`` and ``learned``.

    Parameters
    ----------
    estimate, top, min_windows, smoothing, towards, initial
        A prior for each target from its own cells in the first ``windows`` windows of the run; see `estimate_prior`.
        Smoothing towards places where a person never is understates what a regular person risks
        (``reproductions/reconstruction.md``); ``own`` visits do not.
        Not being seen is a place of its own, which with ``top`` holds all but the most visited cells too.
    chain
        A model, the same for every target.
    learned
        File that ``penstock learn`` wrote, the same for every target.
    windows
        How many windows to learn from, and to draw targets from: people seen there.

    Examples
    --------
    >>> KnownPrior(estimate="first", windows=24, top=100).towards
    'own'
    >>> KnownPrior(estimate="first")
    Traceback (most recent call last):
    penstock.mechanisms.core.plugin.ParameterError: windows: None is not allowed; it must be ...
    """

    estimate: str | None = parameter(None, choices=("first",), doc="learn from the first windows of the run's stream")
    chain: Walk | None = parameter(None, doc="a walk on a line of cells")
    learned: str | None = parameter(None, kind="path", doc="file that `penstock learn` wrote")
    windows: int | None = parameter(None, at_least=2, doc="windows to learn and to draw targets from")
    top: int | None = parameter(None, at_least=1, doc="number of most visited cells that are places; the rest is one")
    min_windows: int = parameter(1, at_least=1, doc="windows a person must be seen in to become a target")
    smoothing: float = parameter(0.1, above=0, doc="total weight of the moves added to each row: no move is ruled out")
    towards: str = parameter(
        "own",
        choices=("own", "uniform", "population"),
        doc="added moves: to one's own places by visits, to all alike, or as the population moves",
    )
    initial: str = parameter("stationary", choices=("stationary", "empirical"), doc="where the walk begins")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_one_of({"estimate": self.estimate, "chain": self.chain, "learned": self.learned})
        if self.estimate is not None and self.windows is None:
            raise ParameterError("windows", None, "given with estimate: how many windows to learn from")


@dataclass(frozen=True, kw_only=True, eq=False)
class KnownTargets:
    """The targets and their adversaries' knowledge, as picklable arrays."""

    # `users` are identities as in `Training`, ids as configured, or None each where no one is named; `priors` is one of
    # each target, or a single one for all; `first` is the number of the first target among all, from 0. `crowd` are the
    # people whose cells the adversaries do not know, `unknown` their identities; None: they know everybody's.

    users: Any
    priors: tuple[MarkovPrior, ...]
    places: PriorPlaces
    first: int
    assumption: str
    unknown: Any = None
    crowd: UnknownCrowd | None = None

    @property
    def watched(self) -> Any:
        """The ids of people whose cells must be known, with targets first and then the crowd."""
        return self.users if self.crowd is None else np.concatenate([self.users, self.unknown])

    @property
    def n_targets(self) -> int:
        """The number of targets."""
        return len(self.users)

    def part(self, first: int, last: int) -> KnownTargets:
        """Return the targets from ``first`` up to but excluding ``last``."""
        priors = self.priors if len(self.priors) == 1 else self.priors[first:last]
        crowd = None if self.crowd is None else self.crowd.part(first, last)
        return replace(self, users=self.users[first:last], priors=priors, first=self.first + first, crowd=crowd)

    def log_likelihood(self, reading: Reading, cells: IntArray, unknown: IntArray) -> FloatArray:
        """Return ln Pr(reading given each target's place), up to a constant. Cell ``n_cells`` stands for unseen."""
        if self.crowd is None:
            evidence = reading.evidence(cells)
        else:
            evidence = self.crowd.evidence(reading, self.crowd.not_known(cells, unknown, self.places.n_cells))
        return at_places(np.where(reading.active, evidence, 0.0), self.places)


def known_targets(
    known: KnownPrior, targets: int | tuple[int | str, ...], seed: int, training: Training | None
) -> KnownTargets:
    """Return targets with their priors, reading any files. Targets are named or drawn from the training part."""
    part = training.first(known.windows) if training is not None and known.windows is not None else None
    if known.estimate is not None:
        return _estimate(known, targets, seed, part)
    if isinstance(targets, tuple):
        users: Any = targets
    elif part is None:
        users = (None,) * targets
    else:
        users = part.users[_draw(part.trajectories >= 0, known.min_windows, targets, seed)]
    if known.chain is not None:
        n, tau = known.chain.n, known.chain.tau
        prior, assumption = chain_prior(n, tau), f"walk on a line of {n} cells, tau = {tau:g}"
    else:
        learned = Learned.read(known.learned or "")
        prior = MarkovPrior(learned.initial, learned.forward)
        assumption = f"as people in general move, smoothing {learned.facts.get('smoothing')}"
    n_cells = prior.n_locations - (known.learned is not None and learned.states[-1] == "unseen")
    if prior.n_locations == n_cells:  # the chain never enters the place for those who are not seen
        matrix = np.eye(n_cells + 1)
        matrix[:n_cells, :n_cells] = prior.transition
        prior = MarkovPrior(np.append(prior.initial, 0.0), matrix)
    places = PriorPlaces.of_cells(n_cells)
    return KnownTargets(users=users, priors=(prior,), places=places, first=0, assumption=assumption)


def with_known_people(
    targets: KnownTargets, known: KnownPrior, share: float, seed: int, training: Training | None
) -> KnownTargets:
    """Return targets whose adversaries know the cells of some people, but only the long-run places of the others."""
    if share == 1:
        return targets
    if training is None or known.windows is None:
        raise ParameterError("prior.windows", None, "given where a part of the crowd is not known: it is drawn there")
    part = training.first(known.windows)
    users = targets.users
    if isinstance(users, tuple):
        users = part.users[_rows_of_ids(part, users)]
    n_unknown = round((1 - share) * part.n_users)
    if n_unknown == 0:
        return targets
    crowd = known_targets(known, n_unknown, seed + 1, training)
    row = {tuple(user): number for number, user in enumerate(crowd.users.tolist())}
    itself = np.array([row.get(tuple(user), -1) for user in users.tolist()], np.intp)
    priors = crowd.priors if len(crowd.priors) > 1 else crowd.priors * len(crowd.users)
    return replace(targets, users=users, unknown=crowd.users, crowd=UnknownCrowd.of(priors, itself, targets.places))


def _estimate(
    known: KnownPrior, targets: int | tuple[int | str, ...], seed: int, part: Training | None
) -> KnownTargets:
    if part is None:
        raise ParameterError("estimate", known.estimate, "used where a run's stream is at hand to learn from")
    places = PriorPlaces.most_visited(part.trajectories, part.n_cells, known.top or part.n_cells)
    paths = places.location[part.with_unseen()]
    if isinstance(targets, tuple):
        rows, users = _rows_of_ids(part, targets), cast(Any, targets)
    else:
        is_top = (part.trajectories >= 0) & (paths < places.n_locations - 1)
        rows = _draw(is_top, known.min_windows, targets, seed)
        users = part.users[rows]
    if len(rows) * places.n_locations**2 > MAX_ENTRIES:
        maximum = max(1, int((MAX_ENTRIES / len(rows)) ** 0.5) - 1)
        expected = f"at most {maximum}: each of {len(rows)} targets has a matrix of its own"
        raise ParameterError("top", known.top, expected)
    towards: FloatArray | None = None  # the distribution of added moves: uniform, unless somebody moves so
    if known.towards == "population":
        towards = np.asarray(estimate_prior(paths, places.n_locations, smoothing=known.smoothing).transition)
    priors = []
    for path in paths[rows]:
        if known.towards == "own":
            visits = np.bincount(path, minlength=places.n_locations) + known.smoothing / places.n_locations
            towards = visits / visits.sum()
        priors.append(estimate_prior(path, places.n_locations, known.smoothing, towards, known.initial))  # type: ignore[arg-type]
    assumption = (
        f"moves estimated from {part.n_windows} windows, {places.n_locations} places, smoothing {known.smoothing:g} "
        f"towards {known.towards}"
    )
    return KnownTargets(users=users, priors=tuple(priors), places=places, first=0, assumption=assumption)


def _draw(is_seen: NDArray[np.bool_], min_windows: int, n_targets: int, seed: int) -> IntArray:
    """Draw row indices of people seen in enough windows. If there are at most `n_targets`, return all of them."""
    enough = np.flatnonzero(is_seen.sum(axis=1) >= min_windows)
    if enough.size == 0:
        raise ParameterError("min_windows", min_windows, f"at most {int(is_seen.sum(axis=1).max(initial=0))} here")
    if enough.size <= n_targets:
        return enough
    return np.sort(np.random.default_rng(seed).choice(enough, n_targets, replace=False))


def _rows_of_ids(part: Training, targets: tuple[int | str, ...]) -> IntArray:
    """Return the row indices of people with the given ids."""
    for name, row in zip(targets, part.named):
        if row < 0:
            raise ParameterError("targets", name, f"a person seen in the first {part.n_windows} windows")
    return np.array(part.named, np.intp)


#: Destinations of a place that a maximum over all of them looks at first.
_FIRST = 8


@dataclass(frozen=True, eq=False)
class TargetPriors:
    """Many targets' priors, padded to the maximum number of reachable places."""

    locations: IntArray  # (n_targets, n_places) location behind each place of each target, −1 for padding
    initial: FloatArray  # (n_targets, n_places), 0 for padding
    # (n_targets, n_places, n_places), or (1, n_places, n_places) when all move alike; padding stays where it is
    transition: FloatArray
    n_locations: int  # locations of the run

    @classmethod
    def of(cls, priors: Sequence[MarkovPrior], n_places: int | None = None) -> TargetPriors:
        """Stack priors, storing repeated ones only once."""
        # `n_places` pads further than needed, so that figures of a part of the targets are those of all, bit by bit.
        if not priors or len({prior.n_locations for prior in priors}) > 1:
            raise ParameterError("priors", f"{len(priors)} priors", "at least one, all over the same locations")
        small = [prior.reduced for prior in priors]
        n_places = max([n_places or 0, *(reached.size for _, reached in small)])
        is_shared = all(prior is priors[0] for prior in priors)
        locations = np.full((len(priors), n_places), -1, dtype=np.intp)
        initial = np.zeros((len(priors), n_places))
        transition = np.tile(np.eye(n_places), (1 if is_shared else len(priors), 1, 1))
        for target, (prior, reached) in enumerate(small):
            locations[target, : reached.size] = reached
            initial[target, : reached.size] = prior.initial
            if target == 0 or not is_shared:
                dense = prior.transition if isinstance(prior.transition, np.ndarray) else prior.transition.toarray()
                transition[target, : reached.size, : reached.size] = dense
        return cls(locations, initial, transition, priors[0].n_locations)

    @cached_property
    def move_entropy(self) -> FloatArray:
        """The entropy of the next move from each place, in nats, (n_targets or 1, n_places)."""
        return np.stack([entr(matrix).sum(axis=1) for matrix in self.transition])

    @property
    def n_targets(self) -> int:
        """The number of targets."""
        return len(self.locations)

    def forward(self, rows: FloatArray) -> FloatArray:
        """Propagate rows (n_targets, k, n_places) by each target's transition matrix."""
        return np.asarray(rows @ self.transition)

    def expected(self, rows: FloatArray) -> FloatArray:
        """Return the sum over x' of P[x, x'] rows[x']."""
        return np.asarray(rows @ self.transition.transpose(0, 2, 1))

    @cached_property
    def _likeliest(self) -> tuple[FloatArray, IntArray, FloatArray]:
        """The likeliest moves from each place: their probabilities and destinations, both (at most `_FIRST`, n_targets,
        n_places), and the probability of the next likeliest. Places are numbered consecutively across targets.
        """
        n_targets, n_places, _ = self.transition.shape
        n_first = min(_FIRST, n_places - 1)
        order = np.argpartition(-self.transition, n_first, axis=2)[:, :, : n_first + 1]
        chances = np.take_along_axis(self.transition, order, axis=2).transpose(2, 0, 1)
        places = order.transpose(2, 0, 1) + n_places * np.arange(n_targets)[:, None]
        first, after = np.split(np.ascontiguousarray(chances), [n_first])
        return first, np.ascontiguousarray(places[:n_first]), after[0]

    def best_next(self, rows: FloatArray) -> FloatArray:
        """Return the exact maximum over x' of P[x, x'] rows[x'] for rows ≥ 0, skipping hopeless places."""
        if len(self.transition) == 1:
            return Kernel(self.transition[0]).best_next(rows)
        chances, places, after = self._likeliest
        result, n_places = np.zeros_like(rows), rows.shape[-1]
        moves, size = self.transition.reshape(-1, n_places), max(1, BLOCK_ENTRIES // n_places)
        for level in np.flatnonzero(rows.any(axis=(0, 2))):
            values = np.ascontiguousarray(rows[:, level])
            best = (values.take(places) * chances).max(axis=0, initial=0.0)
            # The other moves may be better where the next one is, to a place of the largest value.
            others = np.flatnonzero(best < after * values.max(axis=1, keepdims=True))
            for first in range(0, len(others), size):
                part = others[first : first + size]
                best.reshape(-1)[part] = (moves[part] * values[part // n_places]).max(axis=1)
            result[:, level] = best
        return result
