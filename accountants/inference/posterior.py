"""What an adversary believes after the releases: forward-backward smoothing and the posterior's ball."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from accountants.inference.channel import log_ratio
from accountants.inference.kernel import Kernel
from mechanisms.core.errors import ParameterError

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.intp]
_FLOOR = 1e-300


def log_likelihoods(
    observations: FloatArray, active: tuple[IntArray, ...], noise: str | None, scales: FloatArray
) -> FloatArray:
    """ln Pr(observation given location) up to a constant per window.

    Parameters
    ----------
    observations
        (..., n_steps, n_locations) releases minus everybody else; only the active locations are read.
    active
        Active locations of every window.
    noise, scales
        None or a noise family, with its (n_steps, n_locations) scales.

    Returns
    -------
    Same shape as ``observations``; minus infinity for locations that a raw count excludes.
    """
    result = np.zeros(observations.shape)
    for step, sensors in enumerate(active):
        values = observations[..., step, sensors]
        if np.isnan(values).any():
            raise ParameterError("observations", "NaN at an active sensor", "NaN only where no sensor is active")
        if noise is not None:
            result[..., step, sensors] = log_ratio(noise, values, scales[step, sensors])
            continue
        if not np.isin(values, (0, 1)).all() or (values.sum(axis=-1) > 1).any():
            raise ParameterError("observations", f"window {step + 1}", "0 or 1, and 1 at most once, for raw counts")
        seen = values.any(axis=-1, keepdims=True)
        result[..., step, :] = np.where(seen, -np.inf, 0.0)
        result[..., step, sensors] = np.where(values == 1, 0.0, -np.inf)
    return result


def scaled(log_values: FloatArray) -> FloatArray:
    """Likelihoods with the largest of each window 1, from their logarithms."""
    return np.asarray(np.exp(log_values - log_values.max(axis=-1, keepdims=True)))


def forward(initial: FloatArray, kernel: Kernel, likelihood: FloatArray, leak: float = 0.0) -> FloatArray:
    """Filtered beliefs Pr(X_t given y_1 … y_t), (n, n_steps, M), from scaled likelihoods of that shape.

    ``leak`` adds a vanishing chance of any move, so that a real trajectory which the prior excludes has a posterior.
    """
    result = np.empty(likelihood.shape)
    current = np.broadcast_to(initial, likelihood[:, 0].shape)
    for step in range(likelihood.shape[1]):
        belief = (kernel.forward(current) if step else current) + leak
        belief = belief * likelihood[:, step]
        current = belief / belief.sum(axis=1, keepdims=True)
        result[:, step] = current
    return result


def backward(kernel: Kernel, likelihood: FloatArray, leak: float = 0.0) -> FloatArray:
    """Pr(y_{t+1} … y_T given X_t) up to a constant per window, (n, n_steps, M)."""
    result = np.ones(likelihood.shape)
    for step in range(likelihood.shape[1] - 2, -1, -1):
        message = kernel.expected(likelihood[:, step + 1] * result[:, step + 1]) + leak
        result[:, step] = message / message.max(axis=1, keepdims=True)
    return result


def smoothed(initial: FloatArray, kernel: Kernel, likelihood: FloatArray, leak: float = 0.0) -> FloatArray:
    """Posterior marginals Pr(X_t given y_1 … y_T), (n, n_steps, M); O(n n_steps M²)."""
    joint = forward(initial, kernel, likelihood, leak) * backward(kernel, likelihood, leak)
    return np.asarray(joint / joint.sum(axis=-1, keepdims=True))


def genie_levels(kernel: Kernel, after: FloatArray) -> FloatArray:
    """Genie's equation one window back for a batch.

    ``after`` is (n, s + 2, n_to): success with 0 … s wrong guesses left, then the total mass. Levels without gain,
    because everything may be guessed wrong, are not worked on.
    """
    rows = (after.shape[0] * after.shape[1], kernel.n_to)
    fewer = np.concatenate([np.zeros_like(after[:, :1]), after[:, :-2], after[:, -1:]], axis=1)
    gain = np.maximum(after - fewer, 0.0).reshape(rows)
    result = kernel.expected(fewer.reshape(rows))
    useful = np.flatnonzero(gain.any(axis=1))
    result[useful] += kernel.best_next(gain[useful])
    return result.reshape(*after.shape[:2], kernel.n_from)


def posterior_genie(initial: FloatArray, kernel: Kernel, likelihood: FloatArray, tolerance: int) -> FloatArray:
    """Bound on the posterior probability of at most ``tolerance`` wrong guesses, (n,); O(n n_steps tolerance M²)."""
    n, n_steps, n_locations = likelihood.shape
    values = np.ones((n, tolerance + 2, n_locations))
    for step in range(n_steps - 1, 0, -1):
        values = genie_levels(kernel, values * likelihood[:, None, step])
        values /= values[:, -1].max(axis=1)[:, None, None]
    start = genie_levels(Kernel(initial[None, :]), values * likelihood[:, None, 0])[:, :, 0]
    return np.minimum(1.0, start[:, -2] / start[:, -1] + _FLOOR)
