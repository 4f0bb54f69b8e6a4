"""The reconstruction game: an adversary who knows where everybody else is retraces people's ways from releases.

Koga, Meehan, Chaudhuri, *Measuring Privacy Loss in Distributed Spatio-Temporal Data*, section 3.2, played against what
a mechanism has really released of real people's counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accountants.inference.estimators import Estimator, estimate
from accountants.inference.places import Places
from accountants.inference.prior import MarkovPrior
from accountants.inference.releasing import FAMILIES, tells_nothing
from mechanisms.core.errors import UnsupportedEvent
from mechanisms.core.event import Exact
from mechanisms.core.release import Release

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.intp]
Shown = Callable[[NDArray[Any]], NDArray[Any]]

_EXACT = "none"


@dataclass(frozen=True, eq=False)
class Observed:
    """Several independent releases of the same windows, less everybody's share.

    Parameters
    ----------
    counts
        (n_windows, n_cells) true counts that were released.
    residual
        (n_releases, n_windows, n_cells) release minus true counts; NaN where a cell tells nothing.
    scale
        Same shape: scale of the noise, 0 where there is none.
    noise
        Noise family; None: without.
    shown
        What a mechanism without noise makes of counts, cell by cell; None: it leaves them as they are.
    """

    counts: NDArray[Any]
    residual: FloatArray
    scale: FloatArray
    noise: str | None = None
    shown: Shown | None = None

    def without_others(self, way: NDArray[Any]) -> FloatArray:
        """What is left of the releases once everybody but one person is subtracted.

        Parameters
        ----------
        way
            (n_windows,) the person's cells, n_cells where not counted.

        Returns
        -------
        (n_releases, n_windows, n_cells): 0 or 1 plus the noise; NaN where nothing is told, which without noise is
        wherever one person more would not change what is shown.
        """
        own = np.arange(self.counts.shape[1]) == np.asarray(way)[:, None]
        left: FloatArray = self.residual + own
        if self.shown is None:
            return left
        others = self.counts - own
        return np.where(self.shown(others) == self.shown(others + 1), np.nan, left)


def observe(releases: Sequence[Release], counts: NDArray[Any], shown: Shown | None = None) -> Observed:
    """What releases tell an adversary who knows the counts but for one person.

    Parameters
    ----------
    releases
        One a window, with values of shape (n_releases, n_cells): replicas with noise of their own.
    counts
        (n_windows, n_cells) what was released.
    shown
        As for `Observed`.

    Raises
    ------
    UnsupportedEvent
        A release without a known likelihood.

    Notes
    -----
    Repeated, suppressed and refused windows are taken to tell nothing: an adversary who also read something into the
    decision might do better.

    Examples
    --------
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
            own = release.replica(number)
            family = _family(own)
            if family is None:
                continue
            families.add(family)
            values = np.asarray(own.values, float)
            residual[number, row] = values - (counts[row] if shown is None else values)
            scale[number, row] = 0.0 if family == _EXACT else own.scale
    if len(families) > 1:
        mixed = " and some with ".join(sorted(families))
        raise UnsupportedEvent(f"reconstruction: some windows are released with {mixed} noise")
    found = families.pop() if families else _EXACT
    return Observed(np.asarray(counts), residual, scale, None if found == _EXACT else found, shown)


def _family(release: Release) -> str | None:
    """Noise family of a release, "none" for exact counts; None where it tells nothing."""
    if str(release.action) != "published" or tells_nothing(release.charge):
        return None
    if release.charge and isinstance(release.charge[-1], Exact) and release.noise == _EXACT:
        return _EXACT
    # a question that was asked before may stand in front of what was published
    family = FAMILIES.get(type(release.charge[-1])) if release.charge else None
    scale = np.asarray(release.scale)
    if family is None or family != release.noise or not (scale > 0).all():
        raise UnsupportedEvent(
            f"reconstruction: window {release.window} is released with noise {release.noise!r} in a way that has no "
            "known likelihood"
        )
    return None if np.isinf(scale).all() else family


def retrace(
    kinds: Sequence[Estimator],
    prior: MarkovPrior,
    observed: Observed,
    ways: NDArray[Any],
    places: Places,
    n_steps: int,
) -> dict[Estimator, IntArray]:
    """Guess where people were, a stretch of windows at a time.

    Parameters
    ----------
    kinds
        Estimators of `accountants.reconstruction.estimate`.
    prior
        What the adversary knows of how each of these people moves.
    observed
        The releases.
    ways
        (n_people, n_windows) their cells, n_cells where not counted.
    places
        Cells as places of the prior. A place of several cells is not looked at: people are elsewhere if nothing
        else fits.
    n_steps
        Windows guessed together; they divide the windows into stretches.

    Returns
    -------
    Places guessed by each estimator, (n_people, n_releases, n_stretches, n_steps). Vectorised over everything that
    shares its active sensors and scales; 8·n_people·n_releases·n_windows·(n_cells + 2·n_places) bytes.

    Examples
    --------
    >>> release = Release(window=1, values=np.array([[2.0, 3.0]]), charge=(Exact(),))
    >>> stay = MarkovPrior([0.2, 0.3, 0.5], np.eye(3))
    >>> seen = observe([release], np.array([[2, 3]]))
    >>> retrace(["map", "prior"], stay, seen, np.array([[1]]), Places.of_cells(2), 1)
    {'map': array([[[[1]]]]), 'prior': array([[[[2]]]])}
    """
    left = np.stack([observed.without_others(way) for way in ways])
    n_people, n_releases, n_windows, n_cells = left.shape
    single = np.flatnonzero(np.bincount(places.location)[places.location[:-1]] == 1)
    trials = (-1, n_steps, n_cells)
    values = np.full((n_people * n_releases * n_windows // n_steps, n_steps, prior.n_locations), np.nan)
    scale = np.ones(values.shape)
    values[..., places.location[single]] = left.reshape(trials)[..., single]
    scales = np.broadcast_to(observed.scale, left.shape).reshape(trials)
    scale[..., places.location[single]] = scales[..., single]
    guesses = {kind: np.empty(values.shape[:2], np.intp) for kind in kinds}
    for rows, sensors in _schedules(values, scale):
        own = None if observed.noise is None else np.where(np.isnan(values[rows[0]]), 1.0, scale[rows[0]])
        for kind in kinds:
            guesses[kind][rows] = estimate(kind, prior, sensors, values[rows], observed.noise, own)
    shape = (n_people, n_releases, n_windows // n_steps, n_steps)
    return {kind: guess.reshape(shape) for kind, guess in guesses.items()}


def _schedules(values: FloatArray, scale: FloatArray) -> Iterator[tuple[list[int], list[set[int]]]]:
    """Trials with the same active sensors and scales, and the sensors of each window."""
    groups: dict[bytes, list[int]] = {}
    hidden = np.isnan(values)
    for row in range(len(values)):
        groups.setdefault(np.where(hidden[row], -1.0, scale[row]).tobytes(), []).append(row)
    for rows in groups.values():
        yield rows, [set(np.flatnonzero(~window).tolist()) for window in hidden[rows[0]]]


def right(guesses: IntArray, ways: NDArray[Any], places: Places) -> IntArray:
    """Windows of each stretch that were guessed right, (n_people, n_releases, n_stretches).

    >>> right(np.array([[[[1, 2]]]]), np.array([[1, 0]]), Places.of_cells(2)).tolist()
    [[[1]]]
    """
    n_people, _, n_stretches, n_steps = guesses.shape
    truth = places.location[ways].reshape(n_people, 1, n_stretches, n_steps)
    return np.asarray((guesses == truth).sum(axis=-1))
