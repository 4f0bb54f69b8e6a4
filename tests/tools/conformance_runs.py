"""Runs on which plug-ins are checked, and the comparison of their outputs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from penstock.accountants.core.charges import concentrated_rho, pure_epsilon
from penstock.mechanisms.core.contract import Facts, Mechanism
from penstock.mechanisms.core.draws import Noise
from penstock.mechanisms.core.noise import NoiseSource
from penstock.mechanisms.core.noise_keys import NoiseKey
from penstock.mechanisms.core.period import PeriodBound
from penstock.mechanisms.core.run import step_through

SOURCE = NoiseSource(NoiseKey.from_seed(11), configuration=b"conformance")


@dataclass(frozen=True)
class Subject:
    """What is checked: a mechanism, and where its noise comes from."""

    mechanism: Mechanism
    source: Any = field(default=SOURCE)


def facts_for(n_windows=12, n_cells=5, **changes):
    given = {"max_cells": 2, "max_windows": 4, "max_block_cells": 6, "landmarks": (3, 4, 9, 11)}
    return Facts(n_cells=n_cells, n_windows=n_windows, **given | changes)


def worlds(subject):
    """Public facts and windows: one period; too many landmarks; bounded periods; sensors that come and go."""
    yield (facts := facts_for()), facts.windows()
    yield (facts := facts_for(budget_period=6, max_landmarks=1)), facts.windows()
    if subject.mechanism.bounds_periods:
        bound = PeriodBound(most=5, max_cells=2, shortest=6, longest=6)
        yield (facts := facts_for(budget_period=6, period_bound=bound)), facts.windows()
    if subject.mechanism.period_budget is not None:
        yield (facts := facts_for(budget_period=6, max_per_period=5)), facts.windows()
    if getattr(subject.mechanism, "reshapes", False):
        return  # where people are generalized all sensors are active
    masks = np.random.default_rng(2).random((12, 5)) < 0.6
    masks[6] = False
    windows = [replace(window, active=mask) for window, mask in zip(facts_for().windows(), masks)]
    yield facts_for(), windows


def counts_for(n_windows=12, n_cells=5, seed=1):
    """Quiet stretches, a spike, and an empty window."""
    level = np.repeat(np.random.default_rng(seed).poisson(20, (-(-n_windows // 3), n_cells)), 3, axis=0)[:n_windows]
    level[n_windows // 2] = 0
    level[n_windows - 2] += 1000
    return level


def released(subject, counts, facts, windows=None, between=lambda state: state, mechanism=None):
    """All releases, and the last state; counts are copied, so that nobody's changes reach the next run."""
    releases, state = [], {}
    windows = facts.windows() if windows is None else windows
    runner = mechanism or subject.mechanism
    for made, after in step_through(runner, counts.copy(), facts, windows, subject.source, between):
        releases, state = releases + made, after
    return releases, state


def matrix_of(releases, counts):
    """Released values by window and cell, NaN where a window was not released."""
    matrix = np.full(counts.shape, np.nan)
    for release in releases:
        matrix[release.window - 1] = release.values
    return matrix


def content(release):
    """Everything a release says, comparable; charges by what they cost."""
    return (
        release.window,
        np.asarray(release.values, np.float64).tobytes(),
        str(release.action),
        release.noise,
        np.broadcast_to(np.asarray(release.scale, np.float64), np.shape(release.values)).tolist(),
        pure_epsilon(release.charge),
        concentrated_rho(release.charge),
        release.landmark,
        None if release.repeats is None else int(release.repeats),
        release.available_at,
        None if release.active is None else release.active.tolist(),
    )


def contents(releases):
    return [content(release) for release in releases]


class Amnesiac:
    """A mechanism that is made anew for every call: nothing can be remembered in the object."""

    def __init__(self, mechanism):
        self._mechanism = mechanism

    def __getattr__(self, name):
        return getattr(replace(self._mechanism), name)


class OneReplica:
    """The noise source of one replica's run without the others."""

    def __init__(self, source, number):
        self.source, self.number = source, number

    def at(self, start, end, step, counts, state, n_replicas=None):
        n = self.number + 1
        states = {name: np.stack([value] * n) for name, value in state.items()}
        joint = self.source.at(start, end, step, np.stack([counts] * n), states, n)
        return Noise(joint._seeds[self.number :], None, joint.exact)


FAMILIES = ("laplace", "discrete_laplace", "gaussian", "discrete_gaussian")


class ScriptedNoise:
    """A noise source that publishes what it likes when it likes, whatever the counts, and notes every draw.

    Vectors come out as a function of the window alone. Questions are answered with a number beyond any count, and coins
    fall, so that every second window publishes: the odd ones, or with ``first`` 1 the even ones.
    """

    def __init__(self, source, first=0):
        self.source, self.first, self.draws = source, first, []

    def at(self, start, end, step, counts, state, n_replicas=None):
        number = start // 3_600_000 + 1
        yes = number % 2 != self.first
        drawn: list[tuple[str, float]] = []
        self.draws.append(drawn)
        public = self.source.at(start, end, step, np.zeros_like(counts), {}, n_replicas)
        shown = 100 + number % 2 + 3 * np.arange(counts.shape[-1])  # little news, so that rates fall

        class Scripted(Noise):
            def uniform(self, shape):
                return np.full(shape, 0.0 if yes else 1 - 2**-53)

        def draw(family):
            def scripted(self, scale, shape):
                shape = tuple(np.atleast_1d(shape))
                drawn.extend((family, float(one)) for one in np.unique(np.asarray(scale, float)))
                if shape == counts.shape:
                    return shown - counts
                return np.full(shape, 10**9 if yes else -(10**9)) if shape[-1] == 1 else np.zeros(shape, np.int64)

            return scripted

        for family in FAMILIES:
            setattr(Scripted, family, draw(family))
        return Scripted(public._seeds, n_replicas, public.exact)
