"""Run mechanisms on test data and compare their outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partialmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.accountants.core.charges import concentrated_rho, pure_epsilon
from penstock.mechanisms.core.chain import Chain
from penstock.mechanisms.core.contract import NOISELESS, Facts, Mechanism, Release, Window, amounts
from penstock.mechanisms.core.noise import Noise, NoiseSource
from penstock.mechanisms.core.noise_keys import NoiseKey
from penstock.mechanisms.core.run import step_through
from penstock.mechanisms.core.state import State
from penstock.mechanisms.core.unit import PERIOD

SOURCE = NoiseSource(NoiseKey.from_seed(11), configuration=b"conformance")
Counts = NDArray[np.int64]


@dataclass(frozen=True)
class Subject:
    """A mechanism under test, together with its source of noise."""

    mechanism: Any  # a `ChainStep`
    source: Any = field(default=SOURCE)


def without_limits(mechanism: Mechanism) -> Mechanism:
    """Return a copy of the mechanism that adds no noise, using the parameters in `NOISELESS`."""
    declared = {field.name for field in fields(mechanism)}
    return replace(mechanism, **{name: NOISELESS[name] for name in amounts(mechanism) if name in declared})


def facts_for(n_windows: int = 12, n_cells: int = 5, **changes: Any) -> Facts:
    """Return the public facts of a run that has contribution bounds and some landmarks."""
    given: dict[str, Any] = {"max_cells": 2, "max_windows": 4, "max_block_cells": 6, "landmarks": (3, 4, 9, 11)}
    return Facts(n_cells=n_cells, n_windows=n_windows, **given | changes)


def worlds(subject: Subject) -> Iterator[tuple[Facts, list[Window]]]:
    """Yield facts and windows to test on: one period, too many landmarks, bounded periods, changing sensors."""
    yield (facts := facts_for()), facts.windows()
    yield (facts := facts_for(budget_period=6, max_landmarks=1)), facts.windows()
    if subject.mechanism.unit == PERIOD:
        yield (facts := facts_for(budget_period=6, max_per_period=5)), facts.windows()
    if isinstance(subject.mechanism, Chain) and subject.mechanism.reshapes:
        return  # where people are generalized all sensors are active
    masks = np.random.default_rng(2).random((12, 5)) < 0.6
    masks[6] = False
    windows = [replace(window, active=mask) for window, mask in zip(facts_for().windows(), masks)]
    yield facts_for(), windows


def counts_for(n_windows: int = 12, n_cells: int = 5, seed: int = 1) -> Counts:
    """Generate counts that include quiet periods, a spike and an empty window."""
    level = np.repeat(np.random.default_rng(seed).poisson(20, (-(-n_windows // 3), n_cells)), 3, axis=0)[:n_windows]
    level[n_windows // 2] = 0
    level[n_windows - 2] += 1000
    return level


def released(
    subject: Subject,
    counts: Counts,
    facts: Facts,
    windows: Sequence[Window] | None = None,
    between: Callable[[State], State] = lambda state: state,
    mechanism: Any = None,
) -> tuple[list[Release], State]:
    """Run a mechanism on a copy of the counts. Return all releases and the final state."""
    releases: list[Release] = []
    state: State = {}
    windows = facts.windows() if windows is None else windows
    runner = mechanism or subject.mechanism
    for made, after in step_through(runner, counts.copy(), facts, windows, subject.source, between):
        releases, state = releases + made, after
    return releases, state


def matrix_of(releases: Iterable[Release], counts: Counts) -> NDArray[np.float64]:
    """Return the released values as a matrix of windows by cells, with NaN for windows that were not released."""
    matrix = np.full(counts.shape, np.nan)
    for release in releases:
        matrix[release.window - 1] = release.values
    return matrix


def content(release: Release) -> tuple[Any, ...]:
    """Return a release's contents in a form that can be compared. Charges are represented by their costs."""
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


def contents(releases: Iterable[Release]) -> list[tuple[Any, ...]]:
    """Return the contents of several releases in a form that can be compared."""
    return list(map(content, releases))


class Amnesiac:
    """Wrapper that creates a new plug-in instance for every call, so that no state can be kept in the instance."""

    def __init__(self, plugin: Any) -> None:
        self._plugin = plugin

    def __getattr__(self, name: str) -> Any:
        return getattr(replace(self._plugin), name)


class OneReplica:
    """Noise source that gives a replica the same noise whether or not there are other replicas."""

    def __init__(self, source: Any, number: int) -> None:
        self.source, self.number = source, number

    def at(self, start: int, end: int, step: str, counts: Counts, state: State, n_replicas: int | None = None) -> Noise:
        """Return this replica's noise."""
        n = self.number + 1
        states = {name: np.stack([value] * n) for name, value in state.items()}
        joint: Noise = self.source.at(start, end, step, np.stack([counts] * n), states, n)
        return joint.of_replica(self.number)


class ScriptedNoise:
    """Noise source that follows a script instead of drawing random numbers, and that records every draw.

    Vectors are a function of the window alone; answers and coins publish every second window: the odd ones, or with
    ``first`` 1 the even ones.
    """

    def __init__(self, first: int = 0) -> None:
        self.first = first
        #: Family and scale of every draw, by step.
        self.draws: list[list[tuple[str, float]]] = []

    def at(self, start: int, end: int, step: str, counts: Counts, state: State, n_replicas: int | None = None) -> Noise:
        """Return the scripted noise for one window."""
        self.draws.append([])
        return _Script(start // 3_600_000 + 1, self.first, counts, self.draws[-1])


class _Script(Noise):
    """The script for the draws of a single window."""

    def __init__(self, number: int, first: int, counts: Counts, draws: list[tuple[str, float]]) -> None:
        super().__init__((bytes(32),), None, exact=False)
        self.publishes, self.counts, self.draws = number % 2 != first, counts, draws
        # Little news, so that rates fall.
        self.shown = 100 + number % 2 + 3 * np.arange(counts.shape[-1])

    def uniform(self, shape: Any) -> NDArray[np.float64]:
        """Return the scripted coin flips."""
        return np.full(shape, 0.0 if self.publishes else 1 - 2**-53)

    def _answer(self, family: str, scale: Any, shape: Any) -> NDArray[Any]:
        """Record a draw, and return either scripted noise or a scripted query answer."""
        shape = tuple(np.atleast_1d(shape).tolist())
        self.draws.extend((family, float(one)) for one in np.unique(np.asarray(scale, float)))
        if shape == self.counts.shape:
            return np.asarray(self.shown - self.counts)
        beyond = 10**9 if self.publishes else -(10**9)
        return np.full(shape, beyond) if shape[-1] == 1 else np.zeros(shape, np.int64)

    discrete_laplace = partialmethod(_answer, "discrete_laplace")
    discrete_gaussian = partialmethod(_answer, "discrete_gaussian")
    laplace = partialmethod(_answer, "laplace")
    gaussian = partialmethod(_answer, "gaussian")
