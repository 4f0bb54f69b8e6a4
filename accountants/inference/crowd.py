"""Likelihood of releases for an adversary who knows part of the crowd and has priors on the rest.

A released count is known people, the target if there, unknown people and noise. The number of unknown people in a cell
has a Poisson-binomial distribution: each is there independently of the others, with a probability of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from scipy.special import logsumexp

from penstock.accountants.inference.places import PriorPlaces, Reading
from penstock.accountants.markov import FloatArray, IntArray, MarkovPrior

#: Standard deviations above the mean, and people beside, that are told apart; more are as good as impossible.
_MARGIN_DEVIATIONS, _MARGIN_PEOPLE = 12, 30


def poisson_binomial(presence: FloatArray, maximum: int | None = None) -> FloatArray:
    """Return the distribution of the number of people per cell, (n_cells, most + 1), exact up to ``maximum`` people."""
    n_people, n_cells = presence.shape
    mass = np.zeros((n_cells, (n_people if maximum is None else min(maximum, n_people)) + 1))
    mass[:, 0] = 1.0
    for row in presence:
        moved = mass[:, :-1] * row[:, None]
        mass *= 1 - row[:, None]
        mass[:, 1:] += moved
    return mass


def log_evidence(log_mass: FloatArray, log_density: Callable[[int], FloatArray]) -> FloatArray:
    """Return the log-likelihood ratio of each reading: target there versus elsewhere, or 0 if both are impossible.

    `log_mass`: (..., n_cells, n) ln of the distribution of unknown people. `log_density`: ln Pr(reading given n people
    who are not known, the target among them), up to a constant, (..., n_cells).
    """
    without = log_density(0)
    absent = np.full(np.broadcast_shapes(without.shape, log_mass.shape[:-1]), -np.inf)
    present = absent.copy()
    for n in range(log_mass.shape[-1]):
        mass = log_mass[..., n]
        absent = np.logaddexp(absent, mass + without)
        without = log_density(n + 1)
        present = np.logaddexp(present, mass + without)
    is_known = ~(np.isneginf(absent) & np.isneginf(present))
    return np.asarray(np.subtract(present, absent, out=np.zeros(absent.shape), where=is_known))


def at_places(evidence: FloatArray, places: PriorPlaces) -> FloatArray:
    """Convert `log_evidence` (..., n_cells) to log-likelihoods by place, (..., n_locations), up to a constant."""
    impossible = np.isposinf(evidence).any(axis=-1, keepdims=True)
    certain = np.where(np.isposinf(evidence), 0.0, -np.inf)
    unseen = np.zeros((*evidence.shape[:-1], 1))
    at_cells = np.concatenate([np.where(impossible, certain, evidence), np.where(impossible, -np.inf, unseen)], axis=-1)
    result = np.empty((*evidence.shape[:-1], places.n_locations))
    is_elsewhere = places.location == places.n_locations - 1
    result[..., places.location[~is_elsewhere]] = at_cells[..., ~is_elsewhere]
    # Rows in a row of memory, so that sums do not depend on how many targets there are.
    elsewhere = np.take(at_cells, np.flatnonzero(is_elsewhere), axis=-1)
    result[..., -1] = logsumexp(elsewhere + np.log(places.share[is_elsewhere]), axis=-1)
    return result


@dataclass(frozen=True, eq=False)
class UnknownCrowd:
    """The people for whom adversaries know only the probability of each cell.

    The likelihood is exact in a window with one sensor, and over windows if nobody's place depends on the one before.
    Otherwise it is that of an adversary who takes cells and windows as independent given the target's places; they
    share people, so that she is surer than she should be.
    """

    presence: FloatArray  # (n_unknown, n_cells)
    itself: IntArray  # (n_targets,) row of `presence` that is the target, whose adversary leaves it out; −1: none

    @classmethod
    def of(cls, priors: Sequence[MarkovPrior], itself: IntArray, places: PriorPlaces) -> UnknownCrowd:
        """Build a crowd from the stationary distributions of people's individual priors."""
        initial = np.stack([prior.initial for prior in priors])
        return cls(initial[:, places.location[:-1]] * places.share[:-1], itself)

    def part(self, first: int, last: int) -> UnknownCrowd:
        """Return the crowd for the targets from ``first`` up to but excluding ``last``."""
        return replace(self, itself=self.itself[first:last])

    @cached_property
    def log_mass(self) -> FloatArray:
        """The log-probability of each number of unknown people besides the target in a cell, (targets, cells, n)."""
        variance = (self.presence * (1 - self.presence)).sum(axis=0)
        reach = self.presence.sum(axis=0) + _MARGIN_DEVIATIONS * np.sqrt(variance)
        maximum = int(reach.max(initial=0)) + _MARGIN_PEOPLE
        rows = np.arange(len(self.presence))
        of_row = {row: poisson_binomial(self.presence[rows != row], maximum) for row in set(self.itself.tolist())}
        widest = max(mass.shape[1] for mass in of_row.values())
        mass = np.zeros((len(self.itself), self.presence.shape[1], widest))
        for target, row in enumerate(self.itself.tolist()):
            mass[target, :, : of_row[row].shape[1]] = of_row[row]
        with np.errstate(divide="ignore"):
            return np.log(mass)

    def not_known(self, cells: IntArray, unknown: IntArray, n_cells: int) -> IntArray:
        """Count the people per cell unknown to each target's adversary, including the target: (targets, cells)."""
        crowd = np.bincount(unknown, minlength=n_cells + 1)[:n_cells]
        is_here = np.arange(n_cells) == cells[:, None]
        return np.asarray(crowd + (is_here & (self.itself < 0)[:, None]), np.intp)

    def evidence(self, reading: Reading, people: IntArray) -> FloatArray:
        """Return `log_evidence` for one window, (n_targets, n_cells), with ``people`` as in `not_known`."""
        noise = reading.noise
        if noise is None:
            return log_evidence(self.log_mass, lambda n: np.where(people == n, 0.0, -np.inf))
        seen = people + (0.0 if reading.residual is None else reading.residual)
        scale = np.broadcast_to(np.asarray(reading.scale, float), seen.shape)
        return log_evidence(self.log_mass, lambda n: log_noise(noise, seen - n, scale))


def log_noise(noise: str, values: Any, scale: Any) -> FloatArray:
    """Return the log-density or log-probability of the noise values, up to a constant that depends on the scale."""
    if noise in ("gaussian", "discrete_gaussian"):
        return np.asarray(-((values / scale) ** 2) / 2)
    return np.asarray(-np.abs(values) / scale)
