"""Trajectory estimators and their success rates, estimated by Monte Carlo simulation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, get_args

import numpy as np

from penstock.accountants.inference.kernel import Kernel
from penstock.accountants.inference.observation import (
    CHUNK,
    active_sensors,
    check_likelihood,
    log_likelihoods,
    noise_scales,
    sample_noise,
    scaled,
    smoothed,
)
from penstock.accountants.inference.success_prior import check_horizon
from penstock.accountants.markov import FloatArray, IntArray, MarkovPrior
from penstock.accountants.online_attack import exact_interval
from penstock.mechanisms.core.plugin import ParameterError, check_choice

Estimator = Literal["map", "prior", "posterior_marginals", "constant"]
_IMPOSSIBLE = -700.0
_LEAK = 1e-150


def estimate(
    kind: Estimator,
    prior: MarkovPrior,
    sensors: Sequence[int | Iterable[int]],
    observations: Any,
    noise: str | None = None,
    scale: Any = None,
) -> IntArray:
    """Estimate trajectories from releases, given the prior and everybody else's data.

    Parameters
    ----------
    kind
        map: the most probable trajectory (Viterbi). posterior_marginals: in each window the most probable location,
        best for the expected number of right guesses. prior: the most probable trajectory before any release.
        constant: one location throughout, the one expected to be visited most often.
    prior, sensors, noise, scale
        As for `success_upper_bound`; a bare guarantee (pure_dp, zcdp) has no likelihood and is refused.
    observations
        (..., n_steps, n_locations) release minus everybody else: 0 or 1 plus the noise, NaN where inactive.

    Returns
    -------
    (..., n_steps) locations; ties go to the lowest index. O(n_steps M²) time per trajectory. A reading that the prior
    excludes is explained by the fewest impossible moves.

    Examples
    --------
    >>> prior = MarkovPrior([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])
    >>> seen = [[np.nan, 0.0], [np.nan, 1.0], [np.nan, np.nan]]
    >>> estimate("map", prior, [{1}, {1}, set()], seen)
    array([0, 1, 1])

    Source: Koga, Meehan, Chaudhuri, section 3.2.2, propositions 1 and 2; posterior_marginals is added.
    """
    check_choice("kind", kind, get_args(Estimator))
    active = active_sensors(sensors, prior.n_locations)
    shape = (len(active), prior.n_locations)
    values = np.asarray(observations, dtype=float)
    if values.shape[-2:] != shape:
        raise ParameterError("observations", f"shape {values.shape}", f"of shape (..., {shape[0]}, {shape[1]})")
    if kind in ("prior", "constant"):
        return np.broadcast_to(blind_guess(kind, prior, shape[0]), values.shape[:-1]).copy()
    check_likelihood(noise)
    scales = noise_scales(noise, scale, *shape)
    kernel = Kernel(prior.transition)
    flat = values.reshape(-1, *shape)
    guesses: IntArray = np.empty(flat.shape[:2], dtype=np.intp)
    for first in range(0, len(flat), CHUNK):
        part = slice(first, first + CHUNK)
        guesses[part] = guess(kind, prior.initial, kernel, log_likelihoods(flat[part], active, noise, scales))
    return np.asarray(guesses.reshape(values.shape[:-1]))


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
    """Estimate the fraction of trajectories that an attack reconstructs, with an exact binomial interval.

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
    >>> from penstock.accountants.markov import chain_prior
    >>> rate, low, high = attack_success(
    ...     "map", chain_prior(10, 0.1), [{t} for t in range(5)], 2, 500, np.random.default_rng(1)
    ... )
    >>> low < rate < high
    True

    Source: Koga, Meehan, Chaudhuri, section 3.2.1.
    """
    check_choice("kind", kind, get_args(Estimator))
    active = active_sensors(sensors, prior.n_locations)
    n_steps = len(active)
    check_horizon(n_steps, tolerance)
    if trajectories is not None:
        paths = np.asarray(trajectories, dtype=np.intp)
        if paths.ndim != 2 or paths.shape[1] != n_steps or len(paths) == 0:
            raise ParameterError("trajectories", f"shape {paths.shape}", f"of shape (n, {n_steps}), n at least 1")
        if paths.min() < 0 or paths.max() >= prior.n_locations:
            place = int(paths.min() if paths.min() < 0 else paths.max())
            raise ParameterError("trajectories", place, f"locations from 0 to {prior.n_locations - 1}")
    elif n_trajectories >= 1:
        paths = prior.sample(n_trajectories, n_steps, rng)
    else:
        raise ParameterError("n_trajectories", n_trajectories, "at least 1")
    if kind == "constant":
        hits = np.stack([(paths == place).sum(axis=1) for place in range(prior.n_locations)])
        successes = int((hits >= n_steps - tolerance).sum(axis=1).max())
        return successes / len(paths), *exact_interval(successes, len(paths), confidence, prior.n_locations)
    if kind == "prior":
        guesses = np.broadcast_to(blind_guess(kind, prior, n_steps), paths.shape)
    else:
        check_likelihood(noise)
        scales = noise_scales(noise, scale, n_steps, prior.n_locations)
        guesses = _informed_guesses(kind, prior, active, paths, noise, scales, rng)
    successes = int(((guesses != paths).sum(axis=1) <= tolerance).sum())
    return successes / len(paths), *exact_interval(successes, len(paths), confidence)


def _informed_guesses(
    kind: Estimator,
    prior: MarkovPrior,
    active: tuple[IntArray, ...],
    paths: IntArray,
    noise: str | None,
    scales: FloatArray,
    rng: np.random.Generator,
) -> IntArray:
    """Simulate each trajectory's releases and return the estimates by map or posterior_marginals."""
    back = np.arange(len(paths))
    if noise is None:
        # without noise the release is a function of what the sensors see of the trajectory
        seen = np.stack([np.where(np.isin(paths[:, t], window), paths[:, t], -1) for t, window in enumerate(active)], 1)
        _, chosen, back = np.unique(seen, axis=0, return_index=True, return_inverse=True)
        paths, back = paths[chosen], back.ravel()
    kernel = Kernel(prior.transition)
    guesses = np.empty(paths.shape, dtype=np.intp)
    steps = np.arange(paths.shape[1])
    for first in range(0, len(paths), CHUNK):
        part = paths[first : first + CHUNK]
        shape = (len(part), *scales.shape)
        observed = np.zeros(shape) if noise is None else sample_noise(noise, np.broadcast_to(scales, shape), rng)
        observed[np.arange(len(part))[:, None], steps, part] += 1
        likelihood = log_likelihoods(observed, active, noise, scales)
        guesses[first : first + CHUNK] = guess(kind, prior.initial, kernel, likelihood)
    return guesses[back]


def blind_guess(kind: Estimator, prior: MarkovPrior, n_steps: int) -> IntArray:
    """Return an estimator's guess based on the prior alone, shape (n_steps,)."""
    if kind == "constant":
        return np.full(n_steps, prior.marginals(n_steps).sum(axis=0).argmax())
    nothing = np.zeros((1, n_steps, prior.n_locations))
    return np.asarray(viterbi(prior.initial, Kernel(prior.transition), nothing)[0])


def guess_success(prior: MarkovPrior, guessed: IntArray, tolerance: int) -> float:
    """Return the probability that a fixed guess (n_steps,) gets at most ``tolerance`` locations wrong. O(T s M²)."""
    reached = np.zeros((tolerance + 1, prior.n_locations))  # by wrong guesses so far and the location now
    reached[0] = prior.initial
    for step, location in enumerate(guessed):
        if step:
            reached = reached @ prior.transition
        hits = reached[:, location].copy()
        reached = np.concatenate([np.zeros_like(reached[:1]), reached[:-1]])
        reached[:, location] = hits
    return float(reached.sum())


def guess(kind: Estimator, initial: FloatArray, kernel: Kernel, log_likelihood: FloatArray) -> IntArray:
    """Return the guesses (n, n_steps) of map or posterior_marginals, given log-likelihoods (n, n_steps, M)."""
    if kind == "map":
        return viterbi(initial, kernel, log_likelihood)
    return np.asarray(smoothed(initial, kernel, scaled(log_likelihood), _LEAK).argmax(axis=-1))


def viterbi(initial: FloatArray, kernel: Kernel, log_likelihood: FloatArray) -> IntArray:
    """Return the most probable trajectories (n, n_steps). Impossible moves have weight e^−700 rather than 0."""
    n, n_steps, _ = log_likelihood.shape
    with np.errstate(divide="ignore"):
        start = np.maximum(np.log(initial), _IMPOSSIBLE)
    scores = np.empty(log_likelihood.shape)
    scores[:, 0] = start + log_likelihood[:, 0]
    for step in range(1, n_steps):
        before = scores[:, step - 1]
        best = np.maximum(kernel.best_previous_log(before), before.max(axis=1, keepdims=True) + _IMPOSSIBLE)
        scores[:, step] = best + log_likelihood[:, step]
    path = np.empty((n, n_steps), dtype=np.intp)
    path[:, -1] = scores[:, -1].argmax(axis=1)
    for step in range(n_steps - 2, -1, -1):
        moves = np.maximum(kernel.log_column(path[:, step + 1]), _IMPOSSIBLE)
        path[:, step] = (scores[:, step] + moves).argmax(axis=1)
    return path
