"""The additive noise families seen as channels: is the target at this cell (mean 1) or not (mean 0)?"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr

from accountants.inference.observation import GUARANTEE
from mechanisms.core.errors import ParameterError

FloatArray = NDArray[np.float64]
_GRID = 4096
_TAIL = 9.0


def cell_divergence(noise: str, scale: FloatArray) -> FloatArray:
    """Kullback-Leibler divergence between the noisy count with and without the target, in nats.

    >>> cell_divergence("gaussian", np.array([1.0, 2.0]))
    array([0.5  , 0.125])
    """
    if noise in ("gaussian", "discrete_gaussian"):
        return 0.5 / scale**2
    if noise == "laplace":
        return 1 / scale + np.expm1(-1 / scale)
    return np.tanh(0.5 / scale) / scale


def log_ratio(noise: str, values: FloatArray, scale: FloatArray) -> FloatArray:
    """Log-likelihood ratio of a noisy reading, target present against absent; NaN where the reading is NaN."""
    if noise in ("gaussian", "discrete_gaussian"):
        return (2 * values - 1) / (2 * scale**2)
    return (np.abs(values) - np.abs(values - 1)) / scale


def sample_noise(noise: str, scale: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Independent noise of the shape of ``scale``, for simulated attacks (not for releases)."""
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
    """Support and probabilities; what is cut off beyond 40 σ has a probability below 1e-300."""
    reach = int(np.ceil(40 * sigma)) + 1
    support = np.arange(-reach, reach + 1, dtype=float)
    weight = np.exp(-((support / sigma) ** 2) / 2)
    return support, weight / weight.sum()


def _log_exceed(noise: str, scale: float, level: FloatArray) -> FloatArray:
    """ln of the probability, target absent, that the log-likelihood ratio of one cell exceeds each level ≥ 0."""
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


def log_capacity(noise: str, scales: FloatArray) -> float:
    """ln of an upper bound on the Bayes capacity Σ_y max_x Pr(y given x) of one window's noisy counts.

    Parameters
    ----------
    noise
        gaussian, laplace, discrete_gaussian or discrete_laplace.
    scales
        (n_sensors,) noise scale of each active cell the target can be at; none at all gives 0.

    Returns
    -------
    Exact for one cell; for several the integral 1 + ∫₁^∞ (1 − Π_c Pr(R_c ≤ r)) dr over the likelihood ratios R_c of
    independent noisy empty cells, summed from above on a grid (at most a few per cent too large). Never above
    ln(n_sensors + 1).

    Examples
    --------
    >>> from math import exp
    >>> round(exp(log_capacity("laplace", np.array([1.0]))), 6)      # 2 − e^(−1/2)
    1.393469
    >>> exp(log_capacity("gaussian", np.full(100, 5.0))) < 1.7
    True
    """
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


def total_variation(noise: str, scale: float) -> float:
    """Total variation distance between the noisy count with and without the target; the one-cell capacity minus 1."""
    if noise == "gaussian":
        return float(-np.expm1(np.log(2) + log_ndtr(-0.5 / scale)))
    if noise == "laplace":
        return float(-np.expm1(-0.5 / scale))
    if noise == "discrete_laplace":
        return float(np.tanh(0.5 / scale))
    _, mass = _discrete_gaussian(scale)
    return float(mass[mass.size // 2])


def _excess(noise: str, values: tuple[float, ...], counts: tuple[int, ...]) -> float:
    """Upper Riemann sum of ∫₁^∞ Pr(some cell's ratio exceeds r) dr on a grid that is even in ln r."""
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
    return float(
        total + sum(count * np.exp(log_ndtr(0.5 / value - value * top)) for value, count in zip(values, counts))
    )


def check_likelihood(noise: str | None) -> None:
    """Refuse a bare guarantee where a likelihood is needed."""
    if noise in GUARANTEE:
        raise ParameterError("noise", noise, "None or a noise family: a bare guarantee has no likelihood")
