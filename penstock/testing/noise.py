"""Goodness-of-fit tests, which compare noise samples with a distribution family at a given scale."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from penstock.mechanisms.core.plugin import ParameterError

#: Neighbouring values are pooled until a bin expects this many of the sample.
MIN_EXPECTED = 25.0
#: At most about this many bins, and scales up to this: the support of a discrete family is listed.
N_BINS, LARGEST_SCALE = 400, 1e5


def noise_matches(samples: ArrayLike, family: str, scale: float) -> float:
    """Return a sample's p-value under a noise family: chi-square for integers, Kolmogorov-Smirnov for reals.

    Parameters
    ----------
    samples
        Any shape; for ``"planar_laplace"`` the last axis is (east, north) and both radius and direction are tested.
    family
        ``"discrete_laplace"``, ``"discrete_gaussian"``, ``"laplace"``, ``"gaussian"`` or ``"planar_laplace"``.
    scale
        Laplace scale, Gaussian sigma, planar Laplace ε per metre.

    Returns
    -------
    A probability: uniform on [0, 1] if the sample is what it should be (at most that, where a test is conservative).

    Examples
    --------
    >>> samples = np.random.default_rng(0).laplace(scale=2.0, size=100_000)
    >>> noise_matches(samples, "laplace", 2.0) > 1e-4, noise_matches(samples, "laplace", 2.0 * 0.7) < 1e-9
    (True, True)

    Raises
    ------
    ParameterError
        If the family is unknown or the scale outside what can be tested.

    Notes
    -----
    Real-valued samples rounded to integers are no sample of a discrete family, and are rejected as such.
    """
    values = np.asarray(samples, dtype=np.float64)
    if family in _WEIGHTS:
        return _chi_square(values.reshape(-1), _WEIGHTS[family], scale)
    if family in _CONTINUOUS:
        return float(stats.kstest(values.reshape(-1), _CONTINUOUS[family](scale).cdf).pvalue)
    if family == "planar_laplace":
        east, north = values.reshape(-1, 2).T
        radius = stats.kstest(np.hypot(east, north), stats.gamma(2, scale=1 / scale).cdf).pvalue
        direction = stats.kstest(np.arctan2(north, east), stats.uniform(-np.pi, 2 * np.pi).cdf).pvalue
        return min(1.0, 2 * float(min(radius, direction)))
    known = ", ".join([*_WEIGHTS, *_CONTINUOUS, "planar_laplace"])
    raise ParameterError("family", family, f"one of {known}")


_WEIGHTS: dict[str, Callable[[NDArray[np.float64], float], NDArray[np.float64]]] = {
    "discrete_laplace": lambda z, scale: np.exp(-np.abs(z) / scale),
    "discrete_gaussian": lambda z, sigma: np.exp(-(z**2) / (2 * sigma**2)),
}
_CONTINUOUS = {"laplace": lambda scale: stats.laplace(scale=scale), "gaussian": lambda sigma: stats.norm(scale=sigma)}


def _chi_square(
    values: NDArray[np.float64], weight: Callable[[NDArray[np.float64], float], NDArray[np.float64]], scale: float
) -> float:
    if not 0 < scale <= LARGEST_SCALE:
        raise ParameterError("scale", scale, f"above 0 and at most {LARGEST_SCALE:g} for a discrete family")
    reach = 40 * int(np.ceil(scale))
    if not (np.abs(values) <= reach).all() or not (values == np.rint(values)).all():
        return 0.0
    weights = weight(np.arange(-reach, reach + 1, dtype=np.float64), scale)
    expected = values.size * weights / weights.sum()
    seen = np.bincount((values + reach).astype(np.int64), minlength=expected.size)
    means, totals = _pool_bins(expected, seen, max(MIN_EXPECTED, values.size / N_BINS))
    if means.size < 2:  # nearly all are 0: an exact test on how many are not
        other = (weights.sum() - weights[reach]) / weights.sum()
        return float(stats.binomtest(np.count_nonzero(values), values.size, other).pvalue)
    statistic = ((totals - means) ** 2 / means).sum()
    return float(stats.chi2.sf(statistic, means.size - 1))


def _pool_bins(
    expected: NDArray[np.float64], seen: NDArray[np.int64], minimum: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Merge adjacent bins until each expects at least `minimum` samples. Any remainder joins the last bin."""
    totals, begins, reached = np.cumsum(expected), [0], 0.0
    while totals[-1] - reached >= 2 * minimum:
        end = int(np.searchsorted(totals, reached + minimum))
        reached = float(totals[end])
        if totals[-1] - reached < minimum:
            break
        begins.append(end + 1)
    return np.add.reduceat(expected, begins), np.add.reduceat(seen, begins)
