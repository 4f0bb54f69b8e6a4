"""How often an attack succeeds, by Monte Carlo over trajectories."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta

from accountants.inference.ball import check_horizon
from accountants.inference.channel import check_likelihood, sample_noise
from accountants.inference.estimators import ESTIMATORS, Estimator, blind_guess, guess
from accountants.inference.kernel import Kernel
from accountants.inference.observation import active_sensors, noise_scales
from accountants.inference.posterior import log_likelihoods
from accountants.inference.prior import MarkovPrior
from mechanisms.core.errors import ParameterError

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.intp]
_CHUNK = 64


def attack_success(
    kind: Estimator,
    prior: MarkovPrior,
    sensors: Sequence[int | Iterable[int]],
    tolerance: int,
    n_trajectories: int,
    rng: np.random.Generator,
    noise: str | None = None,
    scale: Any = None,
    trajectories: Any = None,
    confidence: float = 0.9999,
) -> tuple[float, float, float]:
    """Share of trajectories an attack reconstructs, with an exact binomial interval.

    Parameters
    ----------
    kind
        An estimator of `estimate`; constant is the luckiest of all M constant guesses, and its interval pays for the
        choice.
    prior, sensors, tolerance, noise, scale
        As for `success_upper_bound`.
    n_trajectories
        Trajectories drawn from the prior; ignored when ``trajectories`` are given.
    rng
        Draws trajectories and noise.
    trajectories
        (n, n_steps) real ones instead of samples. Then the interval is about people like these, not about the prior.
    confidence
        Two-sided level of the interval (Clopper, Pearson 1934).

    Returns
    -------
    (rate, low, high). O(n_trajectories T M²) time; trajectories that look the same in raw counts are attacked once.

    Examples
    --------
    >>> from accountants.inference.prior import chain_prior
    >>> rate, low, high = attack_success(
    ...     "map", chain_prior(10, 0.1), [{t} for t in range(5)], 2, 500, np.random.default_rng(1)
    ... )
    >>> low < rate < high
    True

    Source: Koga, Meehan, Chaudhuri, section 3.2.1.
    """
    if kind not in ESTIMATORS:
        raise ParameterError("kind", kind, "one of " + ", ".join(ESTIMATORS))
    active = active_sensors(sensors, prior.n_locations)
    n_steps = len(active)
    check_horizon(n_steps, tolerance)
    if trajectories is not None:
        paths = _checked_paths(trajectories, n_steps, prior.n_locations)
    elif n_trajectories >= 1:
        paths = prior.sample(n_trajectories, n_steps, rng)
    else:
        raise ParameterError("n_trajectories", n_trajectories, "at least 1")
    if kind == "constant":
        hits = np.stack([(paths == place).sum(axis=1) for place in range(prior.n_locations)])
        successes = int((hits >= n_steps - tolerance).sum(axis=1).max())
        return _interval(successes, len(paths), confidence, prior.n_locations)
    if kind == "prior":
        guesses = np.broadcast_to(blind_guess(kind, prior, n_steps), paths.shape)
    else:
        check_likelihood(noise)
        scales = noise_scales(noise, scale, n_steps, prior.n_locations)
        guesses = _informed_guesses(kind, prior, active, paths, noise, scales, rng)
    successes = int(((guesses != paths).sum(axis=1) <= tolerance).sum())
    return _interval(successes, len(paths), confidence, 1)


def _checked_paths(trajectories: Any, n_steps: int, n_locations: int) -> IntArray:
    paths: IntArray = np.asarray(trajectories, dtype=np.intp)
    if paths.ndim != 2 or paths.shape[1] != n_steps or len(paths) == 0:
        raise ParameterError("trajectories", f"shape {paths.shape}", f"of shape (n, {n_steps}), n at least 1")
    for place in (int(paths.min()), int(paths.max())):
        if not 0 <= place < n_locations:
            raise ParameterError("trajectories", place, f"locations from 0 to {n_locations - 1}")
    return paths


def _informed_guesses(
    kind: Estimator,
    prior: MarkovPrior,
    active: tuple[IntArray, ...],
    paths: IntArray,
    noise: str | None,
    scales: FloatArray,
    rng: np.random.Generator,
) -> IntArray:
    """Guesses of map or posterior_marginals for releases made from each trajectory."""
    back = np.arange(len(paths))
    if noise is None:
        # without noise the release is a function of what the sensors see of the trajectory
        seen = np.stack([np.where(np.isin(paths[:, t], window), paths[:, t], -1) for t, window in enumerate(active)], 1)
        _, chosen, back = np.unique(seen, axis=0, return_index=True, return_inverse=True)
        paths, back = paths[chosen], back.ravel()
    kernel = Kernel(prior.transition)
    guesses = np.empty(paths.shape, dtype=np.intp)
    steps = np.arange(paths.shape[1])
    for first in range(0, len(paths), _CHUNK):
        part = paths[first : first + _CHUNK]
        shape = (len(part), *scales.shape)
        observed = np.zeros(shape) if noise is None else sample_noise(noise, np.broadcast_to(scales, shape), rng)
        observed[np.arange(len(part))[:, None], steps, part] += 1
        likelihood = log_likelihoods(observed, active, noise, scales)
        guesses[first : first + _CHUNK] = guess(kind, prior.initial, kernel, likelihood)
    return guesses[back]


def _interval(successes: int, n: int, confidence: float, n_choices: int) -> tuple[float, float, float]:
    """Rate with its Clopper-Pearson interval; the error probability is shared among ``n_choices``."""
    error = (1 - confidence) / (2 * n_choices)
    low = float(beta.ppf(error, successes, n - successes + 1)) if successes else 0.0
    high = float(beta.ppf(1 - error, successes + 1, n - successes)) if successes < n else 1.0
    return successes / n, low, high
