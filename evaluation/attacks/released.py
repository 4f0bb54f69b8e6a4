"""Released aggregates of a game, a bounded number of samples at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluation.attacks.priors import Samples
from evaluation.attacks.user_space import UserSpace
from mechanisms.core.errors import ParameterError

SAMPLES_AT_ONCE = 256
#: Values of all samples together, of which three copies of 8 bytes are held: 12 GB.
MAX_VALUES = 500_000_000

Defense = Callable[[NDArray[np.int64], int], NDArray[Any]]


def released_features(
    space: UserSpace,
    samples: Samples,
    summary: Callable[[NDArray[Any]], NDArray[Any]],
    *,
    defense: Defense | None,
    strategic: bool,
    seed: list[int],
) -> NDArray[np.float64]:
    """Summary of the released aggregate of every sample.

    Parameters
    ----------
    space, samples
        Presence of the users and the groups of the game.
    summary
        Function of released values (n, n_windows, n_cells) giving features (n, n_features).
    defense
        Callable of (counts, seed) as in `MembershipGame.attack`, or None.
    strategic
        Whether training samples pass through the defense too; challenges always do.
    seed
        Of the defense; every batch of samples gets a seed of its own.

    Returns
    -------
    features (n_samples, n_features)
        8·n_samples·n_features bytes, beside a few times 8·256·n_windows·n_cells for one batch.

    Raises
    ------
    ParameterError
        If the features are more than `MAX_VALUES`, or the defense does not release numbers in the shape of the counts.
    """
    every = np.arange(samples.labels.size)
    # A batch holds training samples or challenges, never both.
    parts = ((every[: samples.n_train], strategic), (every[samples.n_train :], True))
    batches = [(part[i : i + SAMPLES_AT_ONCE], on) for part, on in parts for i in range(0, part.size, SAMPLES_AT_ONCE)]
    seeds = np.random.SeedSequence(seed).generate_state(len(batches))
    features = np.empty((0, 0))
    for (chosen, defended), batch_seed in zip(batches, seeds, strict=True):
        released: NDArray[Any] = space.counts(samples, chosen)
        if defense is not None and defended:
            released = _defended(defense, released, int(batch_seed))
        rows = summary(released)
        if features.size == 0:
            features = _room(every.size, rows.shape[1])
        features[chosen] = rows
    return features


def flat(released: NDArray[Any]) -> NDArray[Any]:
    """One row (n_windows·n_cells,) for each sample.

    >>> flat(np.ones((4, 3, 2))).shape
    (4, 6)
    """
    return released.reshape(len(released), -1)


def _room(n_samples: int, n_features: int) -> NDArray[np.float64]:
    if n_samples * n_features > MAX_VALUES:
        most = MAX_VALUES // n_features
        raise ParameterError("n_samples", n_samples, f"at most {most} where an aggregate has {n_features:,} values")
    return np.empty((n_samples, n_features))


def _defended(defense: Defense, counts: NDArray[np.int64], seed: int) -> NDArray[Any]:
    shape = counts.shape
    released = np.asarray(defense(counts, seed))
    if released.shape != shape:
        raise ParameterError("defense", released.shape, f"a callable that keeps the shape of the counts, {shape}")
    if not np.isfinite(released).all():
        raise ParameterError("defense", "NaN or infinity", "a callable that releases finite numbers")
    return released
