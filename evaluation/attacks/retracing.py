"""The reconstruction game: an adversary who knows where everybody else is retraces a target's steps from releases.

Koga, Meehan, Chaudhuri, *Measuring Privacy Loss in Distributed Spatio-Temporal Data*, section 3.2, played against what
a mechanism has really released of real people's counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.accountants.inference.crowd import at_places, log_evidence, log_noise
from penstock.accountants.inference.estimators import Estimator, blind_guess, guess
from penstock.accountants.inference.kernel import Kernel
from penstock.accountants.inference.observation import forward, log_ratio, scaled
from penstock.accountants.inference.places import PriorPlaces, is_uninformative
from penstock.accountants.markov import MarkovPrior
from penstock.mechanisms.core.contract import Release
from penstock.mechanisms.core.events import Additive, Exact
from penstock.mechanisms.core.plugin import UnsupportedEvent

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.intp]
Shown = Callable[[NDArray[Any]], NDArray[Any]]

_EXACT = "none"
#: Probability of any move, so that the filter continues on a trajectory that the prior excludes.
_LEAK = 1e-150


@dataclass(frozen=True, eq=False)
class Observed:
    """Independent releases of the same windows, from which the true counts have been subtracted."""

    counts: NDArray[Any]  # (n_windows, n_cells) true counts that were released
    residual: FloatArray  # (n_releases, n_windows, n_cells) release minus true counts; NaN where a cell reveals nothing
    scale: FloatArray  # same shape: scale of the noise, 0 where there is none
    noise: str | None = None  # noise family; None: without
    shown: Shown | None = None  # function of a mechanism without noise, applied cell by cell; None: the identity

    def without_others(self, trajectory: NDArray[Any]) -> FloatArray:
        """Subtract everybody but the person with the trajectory (n_windows,). What remains is 0 or 1, plus noise.

        NaN where nothing is revealed, which without noise is wherever one person more would not change the output.
        """
        is_own_cell = np.arange(self.counts.shape[1]) == np.asarray(trajectory)[:, None]
        left: FloatArray = self.residual + is_own_cell
        if self.shown is None:
            return left
        others = self.counts - is_own_cell
        return np.where(self.shown(others) == self.shown(others + 1), np.nan, left)

    def evidence(self, trajectory: NDArray[Any]) -> FloatArray:
        """Return the log-likelihood ratio of the person being in each cell versus elsewhere, by release and window."""
        left = self.without_others(trajectory)
        if self.noise is not None:
            values = log_ratio(self.noise, left, np.where(self.scale > 0, self.scale, 1.0))
        elif np.isin(left, (0, 1)).sum() + np.isnan(left).sum() < left.size:
            raise UnsupportedEvent("reconstruction: counts are said to be exact and are not")
        else:
            values = np.where(left == 1, np.inf, -np.inf)
        return np.where(np.isnan(left), 0.0, values)


@dataclass(frozen=True, eq=False)
class UnknownPeople:
    """The people unknown to a target's adversary, including the target, and the adversary's prior on the others."""

    people: IntArray  # (n_windows, n_cells)
    log_mass: FloatArray  # (n_cells, n), as `UnknownCrowd.log_mass`

    def evidence(self, observed: Observed) -> FloatArray:
        """Return the `log_evidence` of an adversary who knows only some of the others, by release, window and cell."""
        if observed.noise is None:
            known, shown = observed.counts - self.people, observed.shown or np.asarray
            published = shown(observed.counts)
            values = log_evidence(self.log_mass, lambda n: np.where(shown(known + n) == published, 0.0, -np.inf))
        else:
            noise, scale = observed.noise, np.where(observed.scale > 0, observed.scale, 1.0)
            noisy = np.nan_to_num(observed.residual) + self.people
            values = log_evidence(self.log_mass, lambda n: log_noise(noise, noisy - n, scale))
        return np.where(np.isnan(observed.residual), 0.0, values)


def observe(releases: Sequence[Release], counts: NDArray[Any], shown: Shown | None = None) -> Observed:
    """Return the releases as they appear to an adversary who knows all counts except one person's contribution.

    `releases`: one a window, with values (n_releases, n_cells): replicas with noise of their own.

    Repeated, suppressed and refused windows count as no information: an adversary who also interprets the decision
    might do better.

    >>> release = Release(window=1, values=np.array([[2.0, np.nan]]), charge=(Exact(),))
    >>> observe([release], np.array([[2, 5]])).without_others(np.array([0])).tolist()
    [[[1.0, nan]]]
    """
    n_releases, n_cells = releases[0].values.shape
    residual = np.full((n_releases, len(releases), n_cells), np.nan)
    scale = np.zeros(residual.shape)
    families = set()
    for row, release in enumerate(releases):
        for number in range(n_releases):
            replica = release.replica(number)
            family = _family(replica)
            if family is None:
                continue
            families.add(family)
            values = np.asarray(replica.values, float)
            residual[number, row] = values - (counts[row] if shown is None else values)
            scale[number, row] = 0.0 if family == _EXACT else replica.scale
    if len(families) > 1:
        mixed = " and some with ".join(sorted(families))
        raise UnsupportedEvent(f"reconstruction: some windows are released with {mixed} noise")
    noise_family = families.pop() if families else _EXACT
    return Observed(np.asarray(counts), residual, scale, None if noise_family == _EXACT else noise_family, shown)


def _family(release: Release) -> str | None:
    """Return a release's noise family, "none" if its counts are exact, or None if it reveals nothing."""
    if str(release.action) != "published" or is_uninformative(release.charge):
        return None
    if release.charge and isinstance(release.charge[-1], Exact) and release.noise == _EXACT:
        return _EXACT
    # the charge of a dissimilarity query may precede that of the publication
    last = release.charge[-1] if release.charge else None
    family = last.family if isinstance(last, Additive) else None
    scale = np.asarray(release.scale)
    if family is None or family != release.noise or not (scale > 0).all():
        noise = f"noise {release.noise!r} and no known likelihood"
        raise UnsupportedEvent(f"reconstruction: window {release.window} is released with {noise}")
    return None if np.isinf(scale).all() else family


def decode_trajectories(
    kinds: Sequence[Estimator],
    prior: MarkovPrior,
    observed: Observed,
    trajectories: NDArray[Any],
    places: PriorPlaces,
    n_steps: int,
    n_before: int = 0,
    crowd: UnknownPeople | None = None,
) -> dict[Estimator, IntArray]:
    """Decode trajectories one segment at a time, using every release up to the end of the segment.

    Returns the places guessed by each estimator, (n_people, n_releases, n_segments, n_steps). `crowd`: people whom the
    adversary of a single trajectory does not know. O(n_windows n_places²) time for a release of a person;
    8·n_people·n_releases·n_windows·(n_cells + 4·n_places) bytes.

    A forward filter runs through all windows; a segment begins from its prediction. Releases after a segment are not
    used for it. A reading that the prior excludes is explained by an impossible move.

    A person who never moves was seen in the window before:

    >>> stay = MarkovPrior([0.2, 0.3, 0.5], np.eye(3))
    >>> exact = Release(window=1, values=np.array([[2.0, 3.0]]), charge=(Exact(),))
    >>> silent = Release(window=2, values=np.full((1, 2), np.nan), charge=(Exact(),))
    >>> seen = observe([exact, silent], np.array([[2, 3], [0, 0]]))
    >>> decode_trajectories(["map", "prior"], stay, seen, np.array([[1, 1]]), PriorPlaces.of_cells(2), 1, n_before=1)
    {'map': array([[[[1]]]]), 'prior': array([[[[2]]]])}
    """
    evidence = [observed.evidence(path) for path in trajectories] if crowd is None else [crowd.evidence(observed)]
    likelihood = at_places(np.concatenate(evidence), places)
    kernel = Kernel(prior.transition)
    beliefs = forward(prior.initial, kernel, scaled(likelihood), _LEAK)
    begins = range(n_before, likelihood.shape[1], n_steps)
    guesses = {kind: np.empty((len(likelihood), len(begins), n_steps), np.intp) for kind in kinds}
    for number, first in enumerate(begins):
        initial = kernel.forward(beliefs[:, first - 1]) if first else prior.initial
        part = likelihood[:, first : first + n_steps]
        for kind in kinds:
            is_blind = kind in ("prior", "constant")
            made = blind_guess(kind, prior, n_steps) if is_blind else guess(kind, initial, kernel, part)
            guesses[kind][:, number] = made
    return {kind: guessed.reshape(len(trajectories), -1, len(begins), n_steps) for kind, guessed in guesses.items()}


def count_correct(guesses: IntArray, trajectories: NDArray[Any], places: PriorPlaces) -> IntArray:
    """Count the windows in each segment that were guessed correctly, shape (n_people, n_releases, n_segments)."""
    n_people, _, n_segments, n_steps = guesses.shape
    truth = places.location[trajectories].reshape(n_people, 1, n_segments, n_steps)
    return np.asarray((guesses == truth).sum(axis=-1))
