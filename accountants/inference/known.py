"""From a declared prior to targets: who they are, what adversaries know of each, and over which places."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from accountants.core.training import Training
from accountants.correlation.learned import Learned
from accountants.inference.learning import estimate_prior
from accountants.inference.places import Places
from accountants.inference.prior import MarkovPrior, chain_prior
from accountants.inference.sections import KnownPrior
from mechanisms.core.errors import ParameterError

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.intp]
#: Entries of all transition matrices together: 2 GB.
MAX_ENTRIES = 250_000_000


@dataclass(frozen=True, kw_only=True, eq=False)
class KnownTargets:
    """What the adversaries of some targets know, as arrays that can be shipped.

    Parameters
    ----------
    users
        Identity of each target as `Training` has it, ids as configured, or None each where nobody is named.
    priors
        One of each target, or a single one for all.
    places
        Cells as places of the priors.
    first
        Number of the first of these targets among all of them, from 0.
    assumption
        The prior in words.
    """

    users: Any
    priors: tuple[MarkovPrior, ...]
    places: Places
    first: int
    assumption: str

    @property
    def n_targets(self) -> int:
        """How many targets."""
        return len(self.users)

    def part(self, first: int, last: int) -> KnownTargets:
        """The targets from ``first`` to before ``last``."""
        priors = self.priors if len(self.priors) == 1 else self.priors[first:last]
        return KnownTargets(
            users=self.users[first:last],
            priors=priors,
            places=self.places,
            first=self.first + first,
            assumption=self.assumption,
        )


def known_targets(
    known: KnownPrior, targets: int | tuple[int | str, ...], seed: int, training: Training | None
) -> KnownTargets:
    """Choose targets and make their priors; files are read here.

    Parameters
    ----------
    known
        What is known of how they move.
    targets
        How many, drawn from the people of the training part, or ids.
    seed
        Of the draw.
    training
        The training part, where there is one.
    """
    part = training.first(known.windows) if training is not None and known.windows is not None else None
    if known.estimate is not None:
        return _estimated(known, targets, seed, part)
    if isinstance(targets, tuple):
        users: Any = targets
    elif part is None:
        users = (None,) * targets
    else:
        users = part.users[_drawn(part.trajectories >= 0, known.min_windows, targets, seed)]
    if known.chain is not None:
        n, tau = known.chain.n, known.chain.tau
        prior, assumption = chain_prior(n, tau), f"walk on a line of {n} cells, tau = {tau:g}"
    else:
        learned = Learned.read(known.learned or "")
        prior = MarkovPrior(learned.initial, learned.forward)
        assumption = f"as people in general move, smoothing {learned.facts.get('smoothing')}"
    n_cells = prior.n_locations - (known.learned is not None and learned.states[-1] == "unseen")
    return KnownTargets(
        users=users, priors=(_widened(prior, n_cells),), places=Places.of_cells(n_cells), first=0, assumption=assumption
    )


def _widened(prior: MarkovPrior, n_cells: int) -> MarkovPrior:
    """The prior with not being seen as its last place, which it never enters if it does not know it."""
    if prior.n_locations > n_cells:
        return prior
    matrix = np.eye(n_cells + 1)
    matrix[:n_cells, :n_cells] = prior.transition
    return MarkovPrior(np.append(prior.initial, 0.0), matrix)


def _estimated(
    known: KnownPrior, targets: int | tuple[int | str, ...], seed: int, part: Training | None
) -> KnownTargets:
    if part is None:
        raise ParameterError("estimate", known.estimate, "used where a run's stream is at hand to learn from")
    places = (
        Places.of_cells(part.n_cells)
        if known.top is None
        else Places.most_visited(part.trajectories, part.n_cells, known.top)
    )
    paths = places.location[part.with_unseen()]
    if isinstance(targets, tuple):
        rows, users = _named(part, targets), cast(Any, targets)
    else:
        at_top = (part.trajectories >= 0) & (paths < places.n_locations - 1)
        rows = _drawn(at_top, known.min_windows, targets, seed)
        users = part.users[rows]
    if len(rows) * places.n_locations**2 > MAX_ENTRIES:
        most = max(1, int((MAX_ENTRIES / len(rows)) ** 0.5) - 1)
        raise ParameterError("top", known.top, f"at most {most}: each of {len(rows)} targets has a matrix of its own")
    towards = _towards(known, paths, places)
    priors = tuple(
        estimate_prior(path, places.n_locations, known.smoothing, towards(path), known.initial)  # type: ignore[arg-type]
        for path in paths[rows]
    )
    assumption = (
        f"moves estimated from {part.n_windows} windows, {places.n_locations} places, smoothing {known.smoothing:g} "
        f"towards {known.towards}"
    )
    return KnownTargets(users=users, priors=priors, places=places, first=0, assumption=assumption)


def _towards(known: KnownPrior, paths: IntArray, places: Places) -> Callable[[IntArray], FloatArray | None]:
    """Where added moves go, for a person's own trajectory."""
    if known.towards == "own":
        return lambda path: _own_share(path, places, known.smoothing)
    population = None
    if known.towards == "population":
        population = np.asarray(estimate_prior(paths, places.n_locations, smoothing=known.smoothing).transition)
    return lambda path: population


def _own_share(path: IntArray, places: Places, smoothing: float) -> FloatArray:
    """How often each place was visited, no place never."""
    visits = np.bincount(path, minlength=places.n_locations) + smoothing / places.n_locations
    return np.asarray(visits / visits.sum())


def _drawn(is_seen: NDArray[np.bool_], min_windows: int, n_targets: int, seed: int) -> IntArray:
    """Rows of people seen in enough windows; all of them if there are no more than asked for."""
    enough = np.flatnonzero(is_seen.sum(axis=1) >= min_windows)
    if enough.size == 0:
        raise ParameterError("min_windows", min_windows, f"at most {int(is_seen.sum(axis=1).max(initial=0))} here")
    if enough.size <= n_targets:
        return enough
    return np.sort(np.random.default_rng(seed).choice(enough, n_targets, replace=False))


def _named(part: Training, targets: tuple[int | str, ...]) -> IntArray:
    """Rows of the people whose ids are given."""
    for name, row in zip(targets, part.named):
        if row < 0:
            raise ParameterError("targets", name, f"somebody seen in the first {part.n_windows} windows")
    return np.array(part.named, np.intp)
