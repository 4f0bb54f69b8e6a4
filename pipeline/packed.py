"""Memberships as single integers: the fast form for users that are small non-negative integers.

A key holds user, window (within its group) and cell, most significant first, so that one sort orders and
deduplicates. Where a user id, the group or the cells need more bits than there are, the general form of
`pipeline.membership` is used instead: nothing is ever cut off.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from pipeline.membership import Memberships
from pipeline.packing import starts_of

Integers = NDArray[np.int64]

#: Eight bytes, so that the keys behind it are aligned.
_MAGIC = b"PKEYS001"
#: Keys looked at together: what is worked out on the way stays in the processor's cache.
CHUNK = 1 << 18
#: Up to so many groups of windows a mask for each is cheaper than a sort.
_FEW_GROUPS = 8


@dataclass(frozen=True)
class Layout:
    """How many bits window and cell take; users have the rest.

    Parameters
    ----------
    n_windows
        Windows of one group.
    n_cells
        Cells of the space.

    Examples
    --------
    >>> layout = Layout(n_windows=4, n_cells=1000)
    >>> key = layout.pack(np.array([5]), np.array([2]), np.array([999]))
    >>> [part.tolist() for part in layout.unpack(key)]
    [[5], [2], [999]]
    """

    n_windows: int
    n_cells: int

    @property
    def cell_bits(self) -> int:
        """Bits of a cell."""
        return (self.n_cells - 1).bit_length()

    @property
    def place_bits(self) -> int:
        """Bits of window and cell."""
        return (self.n_windows - 1).bit_length() + self.cell_bits

    def holds(self, users: Integers) -> bool:
        """Whether every user fits into what is left of 63 bits."""
        if self.place_bits >= 63 or len(users) == 0:
            return False
        return int(users.min()) >= 0 and int(users.max()).bit_length() <= 63 - self.place_bits

    def pack(self, user: Integers, window: Integers, cell: Integers) -> Integers:
        """Keys; ``window`` counts from 0 within its group."""
        key = user << (self.place_bits - self.cell_bits)
        key |= window
        key <<= self.cell_bits
        key |= cell
        return key

    def unpack(self, keys: Integers) -> tuple[Integers, Integers, Integers]:
        """User, window within the group and cell of every key."""
        place = keys & ((1 << self.place_bits) - 1)
        return keys >> self.place_bits, place >> self.cell_bits, place & ((1 << self.cell_bits) - 1)

    def count(self, keys: Integers) -> Integers:
        """How many keys each window and cell has, shape (n_windows, n_cells)."""
        table = np.zeros(1 << self.place_bits, np.int64)
        step = max(CHUNK, len(table))
        for start in range(0, len(keys), step):
            table += np.bincount(keys[start : start + step] & (len(table) - 1), minlength=len(table))
        return table.reshape(-1, 1 << self.cell_bits)[: self.n_windows, : self.n_cells]


def distinct_keys(keys: Integers) -> Integers:
    """Sorted distinct keys; sorts in place."""
    keys.sort()
    start = starts_of([keys])
    return keys if start.all() else keys[start]


def split_groups(keys: Integers, group: Integers) -> Iterator[tuple[int, Integers]]:
    """Keys of every group: masks where groups are few, otherwise one sort of narrow integers.

    >>> [(number, keys.tolist()) for number, keys in split_groups(np.array([5, 6, 7]), np.array([1, 0, 1]))]
    [(0, [6]), (1, [5, 7])]
    """
    low, high = int(group.min()), int(group.max())
    if low == high:
        yield low, keys
    elif high - low < _FEW_GROUPS:
        for number in range(low, high + 1):
            piece = keys[group == number]
            if len(piece):
                yield number, piece
    else:
        narrow = (group - low).astype(np.int16) if high - low < 2**15 else group - low
        order = np.argsort(narrow, kind="stable")
        keys, group = keys[order], group[order]
        for first, last in pairwise([*np.flatnonzero(starts_of([group])).tolist(), len(group)]):
            yield int(group[first]), keys[first:last]


def encode_keys(keys: Integers) -> bytes:
    """Bytes for the shuffle."""
    return b"".join((_MAGIC, np.ascontiguousarray(keys, "<i8").data))


def decode_keys(data: bytes) -> Integers | None:
    """Inverse of `encode_keys`; None where the bytes are memberships in the general form."""
    return np.frombuffer(data, "<i8", offset=len(_MAGIC)) if data.startswith(_MAGIC) else None


def crowded(keys: Integers, layout: Layout, max_cells: int) -> Integers:
    """Keys of all users that are in more than ``max_cells`` cells of one window, in order.

    O(n) without a sort: keys are sorted by user and window already, so a key that equals the one ``max_cells`` places
    on in these belongs to such a user.
    """
    beyond = [keys[:0]]
    for start in range(0, len(keys) - max_cells, CHUNK):
        units = keys[start : start + CHUNK + max_cells] >> layout.cell_bits
        beyond.append(units[max_cells:][units[max_cells:] == units[:-max_cells]])
    full = np.concatenate(beyond)
    if len(full) == 0:
        return full
    full = full[starts_of([full])]
    first, last = (np.searchsorted(keys, unit << layout.cell_bits) for unit in (full, full + 1))
    skipped = first - np.concatenate([[0], np.cumsum(last - first)[:-1]])
    return np.asarray(keys[np.repeat(skipped, last - first) + np.arange((last - first).sum())], np.int64)


def general(keys: Integers, layout: Layout, first: int) -> Memberships:
    """The same memberships in the general form; ``first`` is the first window of their group."""
    user, window, cell = layout.unpack(keys)
    return Memberships(user[:, None], window + first, cell)
