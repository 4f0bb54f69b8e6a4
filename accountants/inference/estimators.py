"""What an informed adversary guesses: four estimators of a trajectory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from accountants.inference.channel import check_likelihood
from accountants.inference.kernel import Kernel
from accountants.inference.observation import active_sensors, noise_scales
from accountants.inference.posterior import log_likelihoods, scaled, smoothed
from accountants.inference.prior import MarkovPrior
from mechanisms.core.errors import ParameterError

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.intp]
Estimator = Literal["map", "prior", "posterior_marginals", "constant"]
ESTIMATORS = ("map", "prior", "posterior_marginals", "constant")
_IMPOSSIBLE = -700.0
_LEAK = 1e-150
_CHUNK = 64


def estimate(
    kind: Estimator,
    prior: MarkovPrior,
    sensors: Sequence[int | Iterable[int]],
    observations: Any,
    noise: str | None = None,
    scale: Any = None,
) -> IntArray:
    """Guess trajectories from releases, knowing everybody else and the prior.

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
    if kind not in ESTIMATORS:
        raise ParameterError("kind", kind, "one of " + ", ".join(ESTIMATORS))
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
    for first in range(0, len(flat), _CHUNK):
        part = slice(first, first + _CHUNK)
        guesses[part] = guess(kind, prior.initial, kernel, log_likelihoods(flat[part], active, noise, scales))
    return np.asarray(guesses.reshape(values.shape[:-1]))


def blind_guess(kind: Estimator, prior: MarkovPrior, n_steps: int) -> IntArray:
    """The guess of an estimator that looks at no release, (n_steps,)."""
    if kind == "constant":
        return np.full(n_steps, prior.marginals(n_steps).sum(axis=0).argmax())
    nothing = np.zeros((1, n_steps, prior.n_locations))
    return np.asarray(viterbi(prior.initial, Kernel(prior.transition), nothing)[0])


def guess(kind: Estimator, initial: FloatArray, kernel: Kernel, log_likelihood: FloatArray) -> IntArray:
    """Guesses (n, n_steps) of map or posterior_marginals from log-likelihoods (n, n_steps, M).

    ``initial``, where they begin: (M,), or (n, M) with a start of each.
    """
    if kind == "map":
        return viterbi(initial, kernel, log_likelihood)
    likelihood = scaled(log_likelihood)
    return np.asarray(smoothed(initial, kernel, likelihood, _LEAK).argmax(axis=-1))


def viterbi(initial: FloatArray, kernel: Kernel, log_likelihood: FloatArray) -> IntArray:
    """Most probable trajectories (n, n_steps); an impossible move costs e^−700 instead of everything."""
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
