"""Exact sampling of integers by inversion: compare lazily drawn bits of one uniform number with tail probabilities."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mechanisms.core.sampling.bits import EXTENSION_BITS, Words


@dataclass(frozen=True, eq=False)
class InversionTable:
    """Sampler of an integer M ≥ 0 from a function that rounds 2**bits · P(M ≥ m) down exactly.

    A uniform number U in [0, 1) whose first bits are the integer w satisfies U < P(M ≥ m) surely if w is below the
    rounded tail and surely not if w is above it; only w *equal* to a tail needs more bits, which are drawn then. The
    result, the number of m with U < P(M ≥ m), therefore has exactly the distribution of M (Devroye 1986, section II.2;
    lazily drawn bits after Knuth and Yao 1976).

    Parameters
    ----------
    thresholds
        From a number of bits to the rounded tails for m = 1, 2, …; decreasing, ending with the first 0 if M has no
        largest value.
    bits
        Bits of a word that are looked at first.
    """

    thresholds: Callable[[int], list[int]]
    bits: int

    @cached_property
    def ascending(self) -> NDArray[np.uint32]:
        """The tails for the first look, smallest first."""
        return np.array(self.thresholds(self.bits)[::-1], dtype=np.uint32)

    def invert(self, words: Words, where: Any) -> NDArray[np.int64]:
        """One value for each of the selected 32-bit words, from their upper bits.

        Parameters
        ----------
        words
            A block of words of type ``"<u4"``.
        where
            Flat positions of the words to use, or ``slice(None)`` for all.
        """
        prefixes = words.values[where] >> (32 - self.bits)
        above = self.ascending.searchsorted(prefixes, side="right")
        values: NDArray[np.int64] = len(self.ascending) - above
        undecided = np.flatnonzero(self.ascending[above - 1] == prefixes)
        if undecided.size:
            positions = np.arange(words.values.size)[where]
            for index in undecided.tolist():
                values[index] = self._resolve(int(prefixes[index]), words.extension(int(positions[index])))
        return values

    def _resolve(self, prefix: int, extension: Iterator[int]) -> int:
        bits = self.bits
        for more in extension:
            prefix, bits = prefix << EXTENSION_BITS | more, bits + EXTENSION_BITS
            tails = self.thresholds(bits)[::-1]
            above = bisect_right(tails, prefix)
            if above == 0 or tails[above - 1] != prefix:
                return len(tails) - above
        raise AssertionError("an extension never ends")
