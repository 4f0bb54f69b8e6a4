"""Uniform random bits from SHAKE-256, looked up by address rather than consumed in sequence.

No position advances: every word is a function of (seed, path, round, place in its row). A rejection in one replica
therefore never shifts what another replica draws.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

EXTENSION_BITS = 64

#: Words per row: one number for all rows, or shape (n_rows,).
Counts = int | NDArray[np.int64]


@dataclass(frozen=True)
class Words:
    """A flat block of uniform words drawn from ``bits`` under ``label``, with ``counts`` words per row."""

    values: NDArray[Any]
    bits: Bits
    label: bytes
    counts: NDArray[np.int64]

    def extension(self, index: int) -> Iterator[int]:
        """Yield an endless sequence of additional 64-bit blocks for the word at a flat index."""
        ends = np.cumsum(self.counts)
        row = int(np.searchsorted(ends, index, side="right"))
        place = index - int(ends[row] - self.counts[row])
        for level in count():
            label = self.label + b"x" + place.to_bytes(8, "little") + level.to_bytes(8, "little")
            yield int.from_bytes(self.bits.expand(row, label, EXTENSION_BITS // 8), "little")


@dataclass(frozen=True)
class Bits:
    """Independent streams of uniform bits, one per row (replica), each with a 32-byte seed and a sub-stream path."""

    # SHAKE-256 (FIPS 202, NIST 2015) is an extendable-output function. Distinct labels have distinct, prefix-free
    # encodings, so distinct blocks are independent to anyone without the seed; rows with equal seeds get equal words.
    # About 2 µs per kilobyte.

    seeds: Sequence[bytes]
    path: bytes = b""

    def fork(self, index: int) -> Bits:
        """Return sub-stream `index`, which is independent of all other sub-streams and of this stream's words."""
        return Bits(self.seeds, self.path + b"f" + index.to_bytes(8, "little"))

    def expand(self, row: int, label: bytes, n_bytes: int) -> bytes:
        """Return `n_bytes` uniform bytes for a row and label."""
        return hashlib.shake_256(self.seeds[row] + self.path + label).digest(n_bytes)

    def words(self, block: int, counts: Counts, dtype: str = "<u8") -> Words:
        """Return block `block` of uniform words of type ``"<u8"`` or ``"<u4"``, with `counts` words per row."""
        label = b"w" + block.to_bytes(8, "little")
        sizes = np.full(len(self.seeds), counts, dtype=np.int64)
        width = int(dtype[2:])
        raw = b"".join([self.expand(row, label, width * n) for row, n in enumerate(sizes.tolist()) if n])
        return Words(np.frombuffer(raw, dtype=dtype), self, label, sizes)


Proposal = Callable[[Bits, NDArray[np.int64], NDArray[np.int64]], tuple[NDArray[Any], NDArray[np.bool_]]]


def until_accepted(
    bits: Bits, n_per_row: Counts, propose: Proposal, wanted: NDArray[np.bool_] | None = None
) -> NDArray[np.int64]:
    """Sample by rejection until every wanted position has a value, using fork i in round i. Other positions stay 0."""
    # `propose` maps (bits, pending places in each row, their flat positions) to (values, which are accepted).
    n_rows = len(bits.seeds)
    rows = np.repeat(np.arange(n_rows), n_per_row)
    result = np.zeros(rows.size, dtype=np.int64)
    pending = np.arange(result.size) if wanted is None else np.flatnonzero(wanted)
    for attempt in count():
        if not pending.size:
            break
        counts = np.bincount(rows[pending], minlength=n_rows)
        values, accepted = propose(bits.fork(attempt), counts, pending)
        result[pending[accepted]] = values[accepted]
        pending = pending[~accepted]
    return result


def uniform(words: Words) -> NDArray[np.float64]:
    """Return uniform multiples of 2**-53 in [0, 1)."""
    return leading_bits(words, 53) * 2.0**-53


def leading_bits(words: Words, n_bits: int) -> NDArray[np.float64]:
    """Return the leading bits of each 64-bit word as an integer."""
    leading: NDArray[np.float64] = (words.values >> np.uint64(64 - n_bits)).astype(np.float64)
    return leading
