"""Mechanisms as defenses in the membership game. The pipeline's own code is applied to batches of limited size."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.evaluation.attacks.priors import Samples
from penstock.evaluation.attacks.user_space import UserSpace
from penstock.mechanisms.core.chain import Chain
from penstock.mechanisms.core.contract import ChainStep, Facts, Mechanism, Window
from penstock.mechanisms.core.noise import Noise, NoiseSource
from penstock.mechanisms.core.noise_keys import NoiseKey
from penstock.mechanisms.core.plugin import ParameterError
from penstock.mechanisms.core.run import run_mechanism
from penstock.mechanisms.raw import Raw

#: Samples, and counts of them, that pass through a mechanism at one time; its state is a few times as large.
SAMPLES_PER_BATCH, COUNTS_PER_BATCH = 256, 2_000_000
#: Values of all samples together, of which three copies of 8 bytes are held: 12 GB.
MAX_VALUES = 500_000_000

Defense = Callable[[NDArray[np.int64], int], NDArray[Any]]


def released_features(
    space: UserSpace,
    samples: Samples,
    summary: Callable[[NDArray[Any]], NDArray[Any]],
    *,
    defense: Defense | None,
    seed: list[int],
) -> NDArray[np.float64]:
    """Release the aggregate (n_windows, n_cells) of every sample and return the features that ``summary`` computes.

    Memory: 8·n_samples·n_features bytes, plus a few times 8·256·n_windows·n_cells for one batch.
    """
    every = np.arange(samples.labels.size)
    # A batch holds training samples or challenges, never both.
    parts = (every[: samples.n_train], every[samples.n_train :])
    at_once = min(SAMPLES_PER_BATCH, max(1, COUNTS_PER_BATCH // math.prod(space.shape)))
    batches = [part[i : i + at_once] for part in parts for i in range(0, part.size, at_once)]
    seeds = np.random.SeedSequence(seed).generate_state(len(batches))
    features = np.empty((0, 0))
    for chosen, batch_seed in zip(batches, seeds, strict=True):
        released: NDArray[Any] = space.counts(samples, chosen)
        if defense is not None:
            shape, released = released.shape, np.asarray(defense(released, int(batch_seed)))
            if released.shape != shape:
                expected = f"a callable that keeps the shape of the counts, {shape}"
                raise ParameterError("defense", released.shape, expected)
            if not np.isfinite(released).all():
                raise ParameterError("defense", "NaN or infinity", "a callable that releases finite numbers")
        rows = summary(released)
        if features.size == 0:
            maximum, n_features = MAX_VALUES // rows.shape[1], rows.shape[1]
            if every.size > maximum:
                expected = f"at most {maximum} where an aggregate has {n_features:,} values"
                raise ParameterError("n_samples", every.size, expected)
            features = np.empty((every.size, n_features))
        features[chosen] = rows
    return features


def flat(released: NDArray[Any]) -> NDArray[Any]:
    """Flatten each sample to a vector, shape (n_samples, n_windows·n_cells)."""
    return released.reshape(len(released), -1)


Release = Callable[[NDArray[Any], int], NDArray[np.float64]]


def mechanism_defense(
    mechanism: ChainStep | Sequence[ChainStep], *, facts: Facts | None = None, windows: Sequence[Window] | None = None
) -> Release | None:
    """Wrap a mechanism, or a chain in configuration order, as the ``defense`` of a `MembershipGame`.

    Steps on events change who is counted: give the game the memberships that they leave. Every sample is a run of its
    own, whose noise is another than that of a run. What no sensor publishes is 0. None: counts are released as they
    are. `facts` None: one cell per user and window, no landmarks.

    >>> from penstock.mechanisms import get
    >>> suppress = mechanism_defense(get("suppress_small")(threshold=3))
    >>> suppress(np.array([[[2, 3]], [[4, 1]]]), 0).tolist()
    [[[0.0, 3.0]], [[4.0, 0.0]]]
    """
    chain = Chain.of((mechanism,) if isinstance(mechanism, ChainStep) else tuple(mechanism))
    arranged = chain.reader if chain.simple else chain
    if isinstance(chain.reader, Raw) and not chain.after:  # sampling and generalization leave counts as they are
        return None
    return partial(_release, arranged, facts, windows)


class _PooledNoise(NoiseSource):
    """Noise drawn for many samples at once: four times as fast as noise seeded per sample, and just as independent."""

    def at(
        self,
        window_start: int,
        window_end: int,
        step: str,
        counts: NDArray[Any],
        state: Mapping[str, NDArray[Any]],
        n_replicas: int | None = None,
    ) -> Noise:
        """Return the noise of all samples for a given window and step."""
        counted = super().at(window_start, window_end, step, counts, state)
        return Noise(lambda: counted._seeds, n_replicas, counted.exact)


def _release(
    mechanism: Mechanism, facts: Facts | None, windows: Sequence[Window] | None, counts: NDArray[Any], seed: int
) -> NDArray[np.float64]:
    """Release counts of shape (n_replicas, n_windows, n_cells) through a mechanism."""
    facts = replace(facts or Facts(n_cells=counts.shape[2]), n_windows=None, n_replicas=None)
    source = _PooledNoise(NoiseKey.from_seed(seed), configuration=b"")
    releases = run_mechanism(mechanism, counts, facts, windows=windows, source=source)
    if [release.window for release in releases] != list(range(1, counts.shape[1] + 1)):
        raise ParameterError("mechanism", type(mechanism).__name__, "one that releases every window once, in order")
    values = np.empty(counts.shape)
    for row, release in enumerate(releases):
        values[:, row] = release.values
    return np.where(np.isnan(values), 0.0, values)


def random_guess(counts: NDArray[Any], seed: int, largest: int | None = None) -> NDArray[np.float64]:
    """Draw uniform integers from 0 to `largest` (by default each replica's largest count), independently of the data.

    With the size of the group as `largest` this is the random guess of Pyrgelis, Troncoso, De Cristofaro, POMACS 2020,
    table 4, as its figures for the taxi data show.

    >>> random_guess(np.zeros((1, 3)), 0)
    array([[0., 0., 0.]])
    """
    top = np.max(counts, axis=(-2, -1), keepdims=True) if largest is None else largest
    drawn = np.random.default_rng(seed).integers(0, np.asarray(top, np.int64) + 1, np.shape(counts))
    return drawn.astype(np.float64)
