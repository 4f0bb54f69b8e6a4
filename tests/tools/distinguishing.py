"""Distinguishing tests: lower confidence bounds on the ε of releases of two neighbouring inputs."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import numpy as np
from scipy.linalg import toeplitz
from scipy.stats import beta

from penstock.evaluation.attacks.one_run import log_ratio
from penstock.mechanisms.core.noise import NoiseSource
from penstock.mechanisms.correlated import GRID, strategy

CONFIDENCE = 0.9999


def lower_bound(often, seldom, delta=0.0):
    """Clopper-Pearson lower bound on ln((P − δ)/Q) of two samples of trials, each side at half the level."""
    level, n = (1 - CONFIDENCE) / 2, len(often)
    low = beta.ppf(level, often.sum(), n - often.sum() + 1) if often.any() else 0.0
    high = 1.0 if seldom.all() else beta.ppf(1 - level, seldom.sum() + 1, n - seldom.sum())
    return np.log(max(low - delta, 1e-300) / high)


def evidence(run, without, present):
    """Log-likelihood ratio of presence given the values that were published, one for each replica."""
    gains = (_evidence(made, without[:, made.window - 1], present[:, made.window - 1]) for made in run)
    return sum((gain.sum(axis=1) for gain in gains), np.zeros(len(without)))


def _evidence(release, absent, present):
    """Log-likelihood ratio of two count vectors given one release, cell by cell; 0 where nothing was published."""
    values = np.asarray(release.values, np.float64)
    published = np.asarray(release.action) == "published"
    scale = np.asarray(release.scale, np.float64)
    width = np.where(np.isfinite(scale) & (scale > 0), scale, 1.0)
    gain = log_ratio(values - absent, values - present, width, "gaussian" in release.noise)
    known = np.isfinite(values) & (published[..., None] if published.ndim else published)
    return np.where(known, gain, 0.0)


def correlated_evidence(band, run, without, present):
    """Evidence of presence under correlated noise: the release remixed along the difference."""
    mixed = dense(band, without.shape[1])
    released = np.stack([release.values for release in run], 1)
    return np.einsum("ts,rsc,tu,ruc->r", mixed, released, mixed, present - without, optimize=True)


def dense(band, n_windows):
    """The strategy matrix of `correlated`, whole."""
    entries = np.append(strategy(band) / GRID, np.zeros(n_windows))
    return np.tril(toeplitz(entries[:n_windows]))


def decisions(run, n_replicas):
    """Decision in each window, one word per replica."""
    actions = [np.broadcast_to(np.asarray(release.action), n_replicas) for release in run]
    return [" ".join(word) for word in zip(*actions)]


def best_bound(absent, there, delta=0.0):
    """Lower bound on ε of the best event found: half of the replicas choose it, the other half measure it.

    Parameters
    ----------
    absent, there
        Scores and decisions of the replicas of either input. Events are thresholds on the sum of a replica's score and
        the log-frequency ratio of its decisions, from above for presence, and from below for absence.
    """
    half = len(absent[0]) // 2
    seen = [Counter(words[:half]) for _, words in (absent, there)]
    ratio = {word: np.log((seen[1][word] + 1) / (seen[0][word] + 1)) for word in seen[0] | seen[1]}
    zero, one = (scores + np.array([ratio.get(word, 0.0) for word in words]) for scores, words in (absent, there))
    actual = []
    for often, seldom in ((one, zero), (-zero, -one)):
        levels = np.unique(np.quantile(often[:half], np.linspace(0.02, 0.98, 49)))
        level = max(levels, key=lambda at: lower_bound(often[:half] >= at, seldom[:half] >= at, delta))
        actual.append((lower_bound(often[:half] >= level, seldom[:half] >= level, delta), often, seldom, level))
    _, often, seldom, level = max(actual, key=lambda one: one[0])
    return lower_bound(often[half:] >= level, seldom[half:] >= level, delta)


class HalvedNoise(NoiseSource):
    """Half of the noise that is declared."""

    @classmethod
    def of(cls, source):
        return cls(source.key, configuration=source.configuration, stream=source.stream)

    def at(self, *step, **facts):
        return _Halved(super().at(*step, **facts))


class HalvedTraces(NoiseSource):
    """Half of the noise that is declared."""

    def at_points(self, *step):
        noise = super().at_points(*step)
        return SimpleNamespace(
            planar_laplace=lambda epsilon, shape: noise.planar_laplace(2 * np.asarray(epsilon), shape),
            laplace=lambda scale, shape: noise.laplace(np.asarray(scale) / 2, shape),
            gaussian=lambda scale, shape: noise.gaussian(np.asarray(scale) / 2, shape),
            uniform=noise.uniform,
        )


class _Halved:
    def __init__(self, noise):
        self._noise = noise

    def __getattr__(self, name):
        draw = getattr(self._noise, name)
        if name not in ("laplace", "discrete_laplace", "gaussian", "discrete_gaussian"):
            return draw
        return lambda scale, shape: draw(np.asarray(scale) / 2, shape)
