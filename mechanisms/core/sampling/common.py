"""Draws that are exact in both modes: Bernoulli, bounded integers, permutations."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mechanisms.core.sampling.bits import Bits
from mechanisms.core.sampling.rejection import until_accepted


def bernoulli(bits: Bits, n_per_row: int, probabilities: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Trials that succeed with exactly the probability that the float stands for."""
    every = np.broadcast_to(probabilities, (len(bits.seeds) * n_per_row,))

    def propose(
        fork: Bits, counts: NDArray[np.int64], where: NDArray[np.int64]
    ) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Compare 32 binary digits of the probability at a time; scaling by a power of two and the floor are exact."""
        scaled = rest[where] * 2.0**32
        digits = np.floor(scaled)
        rest[where] = scaled - digits
        words = fork.words(0, counts, "<u4").values
        return words < digits, (words != digits) | (rest[where] == 0)

    rest = every.copy()
    certain = every >= 1.0
    rest[certain] = 0.0
    return until_accepted(bits, n_per_row, propose).astype(np.bool_) | certain


def integers(bits: Bits, n_per_row: int, n: int) -> NDArray[np.int64]:
    """Integers that are exactly uniform on 0, …, n - 1."""
    excess = 2**64 % n

    def propose(
        fork: Bits, counts: NDArray[np.int64], where: NDArray[np.int64]
    ) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """A word modulo n, refused above the last whole multiple of n."""
        words = fork.words(0, counts).values
        accepted = words <= np.uint64(2**64 - 1 - excess)
        return (words % np.uint64(n)).astype(np.int64), accepted

    return until_accepted(bits, n_per_row, propose)


def permutations(bits: Bits, n: int) -> NDArray[np.int64]:
    """One exactly uniform permutation of 0, …, n - 1 per row, shape (n_rows, n): the order of distinct random words."""
    n_rows = len(bits.seeds)
    result = np.zeros((n_rows, n), dtype=np.int64)
    pending, attempt = np.arange(n_rows), 0
    while pending.size and n:
        counts = np.zeros(n_rows, dtype=np.int64)
        counts[pending] = n
        words = bits.words(attempt, counts).values.reshape(-1, n)
        order = np.argsort(words, axis=1)
        result[pending] = order
        ordered = np.take_along_axis(words, order, axis=1)
        pending, attempt = pending[(ordered[:, 1:] == ordered[:, :-1]).any(axis=1)], attempt + 1
    return result
