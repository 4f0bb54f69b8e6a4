"""Brute force over every trajectory, the oracle of the reconstruction tests."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import entr

from penstock.accountants.markov import MarkovPrior, stationary_distribution

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.intp]


class Enumeration:
    """Every trajectory of a small prior with its probability, and which ones are near which guess."""

    def __init__(self, prior: MarkovPrior, n_steps: int) -> None:
        matrix = prior.transition if isinstance(prior.transition, np.ndarray) else prior.transition.toarray()
        self.n_locations, self.n_steps = prior.n_locations, n_steps
        self.paths = np.array(list(itertools.product(range(prior.n_locations), repeat=n_steps)))
        self.weight = prior.initial[self.paths[:, 0]].copy()
        for step in range(1, n_steps):
            self.weight *= matrix[self.paths[:, step - 1], self.paths[:, step]]

    def near(self, tolerance: int) -> FloatArray:
        """(n_guesses, n_paths): 1 where at most ``tolerance`` locations differ."""
        differs = np.zeros((len(self.paths), len(self.paths)), dtype=np.int8)
        for column in self.paths.T:
            differs += column[:, None] != column[None, :]
        return (differs <= tolerance).astype(float)

    def entropy(self) -> float:
        return float(entr(self.weight).sum())

    def ball(self, tolerance: int) -> float:
        return float((self.near(tolerance) @ self.weight).max())

    def raw_readings(self, sensors: Sequence[Iterable[int]]) -> IntArray:
        """Which reading every trajectory gives, as a number."""
        columns = zip(self.paths.T, sensors)
        seen = [np.where(np.isin(column, list(window)), column, -1) for column, window in columns]
        return np.unique(np.column_stack(seen), axis=0, return_inverse=True)[1].ravel()

    def raw_channel(self, sensors: Sequence[Iterable[int]]) -> FloatArray:
        """Pr(reading given trajectory), (n_paths, n_readings)."""
        readings = self.raw_readings(sensors)
        return (readings[:, None] == np.arange(readings.max() + 1)).astype(float)

    def discrete_laplace_channel(self, sensors: Sequence[Iterable[int]], scale: float) -> FloatArray:
        """Pr(signs given trajectory): a discrete Laplace reading tells no more than whether it is 1 or larger."""
        high = 1 / (1 + np.exp(-1 / scale))
        channel = np.ones((len(self.paths), 1))
        for step, window in enumerate(sensors):
            for cell in window:
                present = np.where(self.paths[:, step] == cell, high, 1 - high)
                channel = np.concatenate([channel * present[:, None], channel * (1 - present)[:, None]], axis=1)
        return channel

    def information(self, channel: FloatArray) -> float:
        joint = self.weight[:, None] * channel
        return float(entr(joint.sum(axis=0)).sum() - self.weight @ entr(channel).sum(axis=1))

    def best_success(self, channel: FloatArray, tolerance: int) -> float:
        return min(1.0, float((self.near(tolerance) @ (self.weight[:, None] * channel)).max(axis=0).sum()))


def random_prior(rng: np.random.Generator, n_locations: int, stationary: bool | None = None) -> MarkovPrior:
    """A prior anywhere between nearly deterministic and uniform, sometimes with impossible moves."""
    concentration = rng.choice([0.1, 0.5, 2.0])
    matrix = rng.dirichlet(np.full(n_locations, concentration), size=n_locations)
    if rng.random() < 0.3:
        matrix = matrix * (rng.random(matrix.shape) < 0.6) + 1e-12 * np.eye(n_locations)
        matrix /= matrix.sum(axis=1, keepdims=True)
        matrix[matrix < 1e-6] = 0.0
        matrix /= matrix.sum(axis=1, keepdims=True)
    if stationary if stationary is not None else rng.random() < 0.5:
        return MarkovPrior(stationary_distribution(matrix, np.full(n_locations, 1 / n_locations)), matrix)
    return MarkovPrior(rng.dirichlet(np.full(n_locations, concentration)), matrix)


def random_sensors(rng: np.random.Generator, n_locations: int, n_steps: int, most: int) -> list[set[int]]:
    return [
        set(map(int, rng.choice(n_locations, size=rng.integers(0, most + 1), replace=False))) for _ in range(n_steps)
    ]
