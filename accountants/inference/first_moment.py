"""Apply Markov's inequality to the number of correct guesses, averaged over the adversary's observations.

*Success ≤ E_y min(1, Σ_t max_x Pr(X_t = x | y) / r, G(y))*, r the right guesses that a success needs and G(y) the
genie ball of the posterior. *Proof.* Given y, the expected number of right guesses is Σ_t Pr(X_t = x̂_t | y) ≤ Σ_t
max_x Pr(X_t = x | y); Markov's inequality; the posterior given y is a Markov chain (not homogeneous) to which the
genie argument of `success_prior` applies. ∎

Raw counts with up to 2,048 possible histories: exact (the rarest 10⁻⁶ of the mass goes without the genie, which is
safe); with noise that value holds too, where it is smaller. Otherwise a Monte Carlo mean over y with a one-sided
upper confidence limit valid for every sample size (Hoeffding in KL form and empirical Bernstein, half the error
probability each).
"""

from __future__ import annotations

import math

import numpy as np
from scipy.optimize import brentq

from penstock.accountants.inference.kernel import Kernel
from penstock.accountants.inference.observation import (
    ADDITIVE,
    CHUNK,
    HiddenMarkovModel,
    log_likelihoods,
    posterior_genie,
    sample_noise,
    scaled,
    smoothed,
)
from penstock.accountants.markov import FloatArray, IntArray

_HISTORIES = 2048
_RARE = 1e-6
_GENIE_OPERATIONS = 2e9


def first_moment(model: HiddenMarkovModel, tolerance: int, n_samples: int, seed: int, confidence: float) -> float:
    """Return the average over observations of the smallest of 1, Markov's bound and the posterior's genie ball."""
    # A bare guarantee is bounded by the raw counts. O(n_samples T s M²) time, of which the genie balls take most:
    # observations go without one where all of them would take more than a few seconds.
    if tolerance >= model.n_steps:
        return 1.0
    if model.noise not in ADDITIVE:
        return _from_raw_counts(model.raw, tolerance, n_samples, seed, confidence, may_sample=True)
    raw = _from_raw_counts(model.raw, tolerance, n_samples, seed, confidence, may_sample=False)
    return min(raw, noisy_first_moment(model, tolerance, n_samples, seed, confidence))


def noisy_first_moment(model: HiddenMarkovModel, tolerance: int, n_samples: int, seed: int, confidence: float) -> float:
    """Return an upper confidence limit on the first-moment bound, by simulating observations with additive noise."""
    kernel = Kernel(model.prior.transition)
    rng = np.random.default_rng(seed)
    with_genie = n_samples <= _affordable_genies(model, tolerance)
    values = []
    for size in np.diff(np.append(np.arange(0, n_samples, CHUNK), n_samples)):
        paths = model.prior.sample(size, model.n_steps, rng)
        observations = sample_noise(str(model.noise), np.broadcast_to(model.scales, (size, *model.scales.shape)), rng)
        observations[np.arange(size)[:, None], np.arange(model.n_steps), paths] += 1
        likelihood = scaled(log_likelihoods(observations, model.active, model.noise, model.scales))
        values.append(_conditional(model, kernel, likelihood, tolerance, with_genie))
    return upper_mean(np.concatenate(values), confidence)


def _affordable_genies(model: HiddenMarkovModel, tolerance: int) -> int:
    return int(_GENIE_OPERATIONS / (model.n_steps * (tolerance + 1) * model.prior.n_locations**2))


def _from_raw_counts(
    model: HiddenMarkovModel, tolerance: int, n_samples: int, seed: int, confidence: float, may_sample: bool
) -> float:
    """Return the first-moment bound for raw counts, or 1 if histories can be neither enumerated nor sampled."""
    histories, weights = _all_histories(model)
    is_exact = len(histories) > 0
    if not is_exact and not may_sample:
        return 1.0
    if not is_exact:
        paths = model.prior.sample(n_samples, model.n_steps, np.random.default_rng(seed))
        seen = np.array([np.isin(path, active) for path, active in zip(paths.T, model.active)]).T
        readings = np.where(seen, paths, -1)
        histories, counts = np.unique(readings, axis=0, return_counts=True)
        weights = counts.astype(float)
    kernel = Kernel(model.prior.transition)
    order = np.argsort(-weights)
    total = np.cumsum(weights[order])
    n_genies = _affordable_genies(model, tolerance)
    n_genies = min(n_genies, int(np.searchsorted(total, 1 - _RARE)) + 1 if is_exact else order.size)
    bounds = np.empty(order.size)
    for first in range(0, order.size, CHUNK):
        rows = order[first : first + CHUNK]
        # rare histories change the average too little to pay for their genie; any of them may go without
        bounds[rows] = _conditional(model, kernel, _raw_likelihood(model, histories[rows]), tolerance, first < n_genies)
    if is_exact:
        return min(1.0, float(weights @ bounds))
    return upper_mean(np.repeat(bounds, weights.astype(int)), confidence)


def _conditional(
    model: HiddenMarkovModel, kernel: Kernel, likelihood: FloatArray, tolerance: int, with_genie: bool = True
) -> FloatArray:
    """Return the bound conditional on each observation."""
    marginals = smoothed(model.prior.initial, kernel, likelihood)
    bound = np.minimum(1.0, marginals.max(axis=-1).sum(axis=-1) / (model.n_steps - tolerance))
    if with_genie:
        bound = np.minimum(bound, posterior_genie(model.prior.initial, kernel, likelihood, tolerance))
    return np.asarray(bound)


def _all_histories(model: HiddenMarkovModel) -> tuple[IntArray, FloatArray]:
    """Enumerate raw readings (n, T), −1: elsewhere, with probabilities. Return empty arrays if there are too many."""
    beliefs = np.empty((1, model.prior.n_locations))
    beliefs[0] = model.prior.initial
    histories = np.empty((1, 0), dtype=np.intp)
    for step, (active, hidden) in enumerate(zip(model.active, model.hidden)):
        if step:
            beliefs = beliefs @ model.prior.transition
        seen = beliefs[:, active]
        unseen = np.where(np.isin(np.arange(model.prior.n_locations), hidden), beliefs, 0.0)
        parent, place = np.nonzero(seen)
        stay = np.flatnonzero(unseen.any(axis=1))
        if parent.size + stay.size > _HISTORIES:
            return np.empty((0, model.n_steps), dtype=np.intp), np.empty(0)
        arrived = np.zeros((parent.size, model.prior.n_locations))
        arrived[np.arange(parent.size), active[place]] = seen[parent, place]
        beliefs = np.concatenate([unseen[stay], arrived])
        reading = np.concatenate([np.full(stay.size, -1), active[place]])
        histories = np.column_stack([histories[np.concatenate([stay, parent])], reading])
    return histories, beliefs.sum(axis=1)


def _raw_likelihood(model: HiddenMarkovModel, readings: IntArray) -> FloatArray:
    """Return each location's 0/1 likelihood given exact readings, shape (n, T, M)."""
    result = np.zeros((*readings.shape, model.prior.n_locations))
    for step, hidden in enumerate(model.hidden):
        seen = np.flatnonzero(readings[:, step] >= 0)
        unseen = np.flatnonzero(readings[:, step] < 0)
        result[seen, step, readings[seen, step]] = 1.0
        result[unseen[:, None], step, hidden[None, :]] = 1.0
    return result


def upper_mean(values: FloatArray, confidence: float) -> float:
    """Return an upper confidence limit on the mean of independent values in [0, 1], valid for any sample size."""
    # The smaller of Hoeffding's limit in its Kullback-Leibler form (1963, theorem 1) and the empirical Bernstein limit
    # (Maurer, Pontil 2009, theorem 4), each at half the remaining error probability.
    n, mean = values.size, float(values.mean())
    error = math.log(2 / (1 - confidence))
    if mean >= 1 or n < 2:
        return 1.0

    def excess(limit: float) -> float:
        """Return the KL divergence between the mean and the limit, minus the maximum at this error probability."""
        rest = (1 - mean) * math.log((1 - mean) / (1 - limit))
        return (mean * math.log(mean / limit) if mean > 0 else 0.0) + rest - error / n

    top = 1 - 1e-12
    entropy_limit = brentq(excess, max(mean, 1e-300), top) if excess(top) > 0 else 1.0
    spread = math.sqrt(2 * float(values.var(ddof=1)) * (error + math.log(2)) / n)
    bernstein_limit = mean + spread + 7 * (error + math.log(2)) / (3 * (n - 1))
    return min(1.0, entropy_limit, bernstein_limit)
