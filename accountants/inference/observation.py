"""Observation models for a target: active cells, noise channels and forward-backward smoothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from scipy.special import log_ndtr

from penstock.accountants.inference.kernel import Kernel, genie_step
from penstock.accountants.markov import FloatArray, IntArray, MarkovPrior
from penstock.mechanisms.core.plugin import ParameterError

ADDITIVE = ("gaussian", "laplace", "discrete_gaussian", "discrete_laplace")
GUARANTEE = ("pure_dp", "zcdp")
#: Trajectories that are worked on together.
CHUNK = 64
_GRID = 4096
_TAIL = 9.0
_FLOOR = 1e-300


def active_sensors(sensors: Sequence[int | Iterable[int]], n_locations: int) -> tuple[IntArray, ...]:
    """Return each window's distinct publishing locations in ascending order, given one location or a set per window."""
    windows = []
    for window in sensors:
        entry = (window,) if isinstance(window, int | np.integer) else tuple(window)
        active = np.unique(np.asarray(entry, dtype=np.intp))
        if active.size and not (active[0] >= 0 and active[-1] < n_locations):
            raise ParameterError("sensors", sorted(map(int, entry)), f"locations from 0 to {n_locations - 1}")
        windows.append(active)
    if not windows:
        raise ParameterError("sensors", sensors, "one set of active locations per window, at least one window")
    return tuple(windows)


def noise_scales(noise: str | None, scale: Any, n_steps: int, n_locations: int) -> FloatArray:
    """Return each window's and location's noise scale, (n_steps, n_locations), or zeros if there is no noise."""
    # `scale` is σ, the Laplace scale b, or the add/remove ε or ρ of the window's whole release (a guarantee has no
    # scale per location): a scalar, one per window, or one per window and location.
    if noise is None:
        if scale is not None:
            raise ParameterError("scale", scale, "left out when there is no noise")
        return np.zeros((n_steps, n_locations))
    if noise not in ADDITIVE + GUARANTEE:
        raise ParameterError("noise", noise, "None or one of " + ", ".join(ADDITIVE + GUARANTEE))
    values = np.asarray(np.nan if scale is None else scale, dtype=float)
    shapes = [(), (n_steps,)] + ([(n_steps, n_locations)] if noise in ADDITIVE else [])
    if values.shape not in shapes:
        raise ParameterError("scale", f"shape {values.shape}", f"of shape {' or '.join(map(str, shapes))}")
    lowest_allowed = values > 0 if noise in ADDITIVE else values >= 0
    if not lowest_allowed.all():
        raise ParameterError("scale", scale, "above 0" if noise in ADDITIVE else "at least 0")
    return np.broadcast_to(values[:, None] if values.ndim == 1 else values, (n_steps, n_locations))


@dataclass(frozen=True, eq=False)
class HiddenMarkovModel:
    """A prior on the reachable locations, the sensors that can observe the target and the sensors' noise."""

    # `active` and `hidden` split the locations of each window; `scales` is (n_steps, n_locations).

    prior: MarkovPrior
    active: tuple[IntArray, ...]
    hidden: tuple[IntArray, ...]
    noise: str | None
    scales: FloatArray
    marginals: FloatArray

    @classmethod
    def of(
        cls, prior: MarkovPrior, sensors: Sequence[int | Iterable[int]], noise: str | None = None, scale: Any = None
    ) -> HiddenMarkovModel:
        """Build the model from a prior after checking sensors and noise, and drop unreachable locations."""
        active = active_sensors(sensors, prior.n_locations)
        scales = noise_scales(noise, scale, len(active), prior.n_locations)
        small, locations = prior.reduced
        index = np.full(prior.n_locations, -1, dtype=np.intp)
        index[locations] = np.arange(locations.size)
        kept = tuple(index[window][index[window] >= 0] for window in active)
        everywhere = np.arange(small.n_locations)
        hidden = tuple(np.setdiff1d(everywhere, window, assume_unique=True) for window in kept)
        return cls(small, kept, hidden, noise, scales[:, locations], small.marginals(len(active)))

    @property
    def n_steps(self) -> int:
        """The number of windows."""
        return len(self.active)

    @cached_property
    def raw(self) -> HiddenMarkovModel:
        """A model of the same sensors' raw counts, in which a window's single hidden location counts as seen."""
        is_single = [hidden.size == 1 for hidden in self.hidden]
        everywhere = np.arange(self.prior.n_locations)
        active = tuple(everywhere if known else window for known, window in zip(is_single, self.active))
        hidden = tuple(window[:0] if known else window for known, window in zip(is_single, self.hidden))
        return replace(self, active=active, hidden=hidden, noise=None, scales=np.zeros_like(self.scales))


# Additive noise as a channel: is the target at this cell (mean 1) or not (mean 0)?


def cell_divergence(noise: str, scale: FloatArray) -> FloatArray:
    """Return the Kullback-Leibler divergence between the noisy counts with and without the target, in nats."""
    if noise in ("gaussian", "discrete_gaussian"):
        return 0.5 / scale**2
    if noise == "laplace":
        return 1 / scale + np.expm1(-1 / scale)
    return np.tanh(0.5 / scale) / scale


def log_ratio(noise: str, values: FloatArray, scale: FloatArray) -> FloatArray:
    """Return the log-likelihood ratio of a noisy reading: target present versus target absent. NaN stays NaN."""
    if noise in ("gaussian", "discrete_gaussian"):
        return (2 * values - 1) / (2 * scale**2)
    return (np.abs(values) - np.abs(values - 1)) / scale


def sample_noise(noise: str, scale: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Draw independent noise in the shape of ``scale``, for simulated attacks and not for releases."""
    if noise == "gaussian":
        return rng.normal(0.0, scale)
    if noise == "laplace":
        return rng.laplace(0.0, scale)
    if noise == "discrete_laplace":
        stop = -np.expm1(-1 / scale)
        return rng.geometric(stop).astype(float) - rng.geometric(stop)
    result = np.empty(np.shape(scale))
    for sigma in np.unique(scale):
        support, mass = _discrete_gaussian(float(sigma))
        where = scale == sigma
        result[where] = rng.choice(support, size=np.count_nonzero(where), p=mass)
    return result


@lru_cache(maxsize=64)
def _discrete_gaussian(sigma: float) -> tuple[FloatArray, FloatArray]:
    """Return the support and probabilities of a discrete Gaussian truncated at 40 σ, omitting mass below 1e-300."""
    reach = int(np.ceil(40 * sigma)) + 1
    support = np.arange(-reach, reach + 1, dtype=float)
    weight = np.exp(-((support / sigma) ** 2) / 2)
    return support, weight / weight.sum()


def total_variation(noise: str, scale: float) -> float:
    """Return a cell's capacity minus 1: the total variation between noisy counts with and without the target."""
    if noise == "gaussian":
        return float(-np.expm1(np.log(2) + log_ndtr(-0.5 / scale)))
    if noise == "laplace":
        return float(-np.expm1(-0.5 / scale))
    if noise == "discrete_laplace":
        return float(np.tanh(0.5 / scale))
    _, mass = _discrete_gaussian(scale)
    return float(mass[mass.size // 2])


def log_capacity(noise: str, scales: FloatArray) -> float:
    """Return the log of an upper bound on one window's Bayes capacity Σ_y max_x Pr(y given x) with noisy counts."""
    # `scales` (n_sensors,) holds the scale of each active cell the target can be at; none at all gives 0. Exact for one
    # cell; for several the integral (see `information`) is at most a few per cent too large.
    values, counts = np.unique(np.asarray(scales, dtype=float), return_counts=True)
    return _log_capacity(noise, tuple(values.tolist()), tuple(counts.tolist())) if values.size else 0.0


@lru_cache(maxsize=4096)
def _log_capacity(noise: str, values: tuple[float, ...], counts: tuple[int, ...]) -> float:
    advantage = np.array([total_variation(noise, value) for value in values])
    n_sensors = sum(counts)
    crude = min(float(advantage @ np.array(counts)), float(n_sensors))
    if n_sensors == 1:
        return float(np.log1p(crude))
    return float(np.log1p(min(crude, _excess(noise, values, counts))))


def _excess(noise: str, values: tuple[float, ...], counts: tuple[int, ...]) -> float:
    """Return an upper Riemann sum of ∫₁^∞ Pr(some cell's ratio exceeds r) dr on a log-spaced grid."""
    if noise in ("laplace", "discrete_laplace"):
        top = 1 / min(values)
    else:
        top = max((0.5 / value + _TAIL) / value for value in values)
    level = np.linspace(0.0, top, _GRID + 1)
    log_none = np.zeros(_GRID)
    log_some = np.full(_GRID, -np.inf)
    for value, count in zip(values, counts):
        exceed = _log_exceed(noise, value, level[:-1])
        log_none += count * np.log1p(-np.exp(exceed))
        log_some = np.logaddexp(log_some, exceed + np.log(count))
    with np.errstate(divide="ignore"):
        log_union = np.minimum(np.where(log_none > -1e-8, log_some, np.log(-np.expm1(log_none))), log_some)
    total = np.exp(np.minimum(log_union + level[:-1], 700.0)) @ np.expm1(np.diff(level))
    if noise in ("laplace", "discrete_laplace"):
        return float(total)
    # beyond the grid the excess is at most the probability, target present, that a ratio is that large
    beyond = sum(count * np.exp(log_ndtr(0.5 / value - value * top)) for value, count in zip(values, counts))
    return float(total + beyond)


def _log_exceed(noise: str, scale: float, level: FloatArray) -> FloatArray:
    """Return ln Pr(a cell's log-likelihood ratio exceeds the level if the target is absent) for each level ≥ 0."""
    if noise == "gaussian":
        return np.asarray(log_ndtr(-(scale * level + 0.5 / scale)))
    if noise == "laplace":
        return np.where(level < 1 / scale, np.log(0.5) - (1 + level * scale) / (2 * scale), -np.inf)
    if noise == "discrete_laplace":
        return np.where(level < 1 / scale, -1 / scale - np.log1p(np.exp(-1 / scale)), -np.inf)
    support, mass = _discrete_gaussian(scale)
    tail = np.append(np.cumsum(mass[::-1])[::-1], 0.0)
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(tail[np.searchsorted(support, scale**2 * level + 0.5, side="right")]))


# Forward-backward smoothing.


def check_likelihood(noise: str | None) -> None:
    """Raise an error if only the noise's guarantee is known, since a guarantee has no likelihood."""
    if noise in GUARANTEE:
        raise ParameterError("noise", noise, "None or a noise family: a bare guarantee has no likelihood")


def log_likelihoods(
    observations: FloatArray, active: tuple[IntArray, ...], noise: str | None, scales: FloatArray
) -> FloatArray:
    """Return ln Pr(observation given location), up to a constant, for releases minus everybody else's counts."""
    # Only active locations are read; minus infinity for locations that a raw count excludes.
    result = np.zeros(observations.shape)
    for step, sensors in enumerate(active):
        values = observations[..., step, sensors]
        if np.isnan(values).any():
            raise ParameterError("observations", "NaN at an active sensor", "NaN only if no sensor is active")
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
    """Exponentiate log-likelihoods and scale them to a maximum of 1 per window."""
    return np.asarray(np.exp(log_values - log_values.max(axis=-1, keepdims=True)))


def forward(initial: FloatArray, kernel: Kernel, likelihood: FloatArray, leak: float = 0.0) -> FloatArray:
    """Return filtered beliefs Pr(X_t given y_1 … y_t), (n, n_steps, M), from scaled likelihoods by a forward pass."""
    # `leak` adds a vanishing chance of any move, so that a real trajectory which the prior excludes has a posterior.
    result = np.empty(likelihood.shape)
    current = np.broadcast_to(initial, likelihood[:, 0].shape)
    for step in range(likelihood.shape[1]):
        belief = (kernel.forward(current) if step else current) + leak
        belief = belief * likelihood[:, step]
        current = belief / belief.sum(axis=1, keepdims=True)
        result[:, step] = current
    return result


def backward(kernel: Kernel, likelihood: FloatArray, leak: float = 0.0) -> FloatArray:
    """Return Pr(y_{t+1} … y_T given X_t) up to a constant per window, (n, n_steps, M), by a backward pass."""
    result = np.ones(likelihood.shape)
    for step in range(likelihood.shape[1] - 2, -1, -1):
        message = kernel.expected(likelihood[:, step + 1] * result[:, step + 1]) + leak
        result[:, step] = message / message.max(axis=1, keepdims=True)
    return result


def smoothed(initial: FloatArray, kernel: Kernel, likelihood: FloatArray, leak: float = 0.0) -> FloatArray:
    """Return the posterior marginals Pr(X_t given y_1 … y_T), (n, n_steps, M). O(n n_steps M²)."""
    joint = forward(initial, kernel, likelihood, leak) * backward(kernel, likelihood, leak)
    return np.asarray(joint / joint.sum(axis=-1, keepdims=True))


def posterior_genie(initial: FloatArray, kernel: Kernel, likelihood: FloatArray, tolerance: int) -> FloatArray:
    """Bound the posterior probability that at most ``tolerance`` guesses are wrong. O(n n_steps tolerance M²)."""
    n, n_steps, n_locations = likelihood.shape
    values = np.ones((n, tolerance + 2, n_locations))
    for step in range(n_steps - 1, 0, -1):
        values = genie_step(kernel, values * likelihood[:, None, step], has_total=True)
        values /= values[:, -1].max(axis=1)[:, None, None]
    start = genie_step(Kernel(initial[None, :]), values * likelihood[:, None, 0], has_total=True)[:, :, 0]
    return np.minimum(1.0, start[:, -2] / start[:, -1] + _FLOOR)
