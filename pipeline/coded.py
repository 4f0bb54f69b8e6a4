"""Packed memberships of users who are no small integers: keys hold a user's number in a table of identities.

Text and, in a deployment, every id is known by a digest of 128 bits. Numbers in its place are small, so that the fast
form of `pipeline.packed` does for everybody; digests are looked up only where a hash or a summary needs them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.membership import Memberships, factorize, widened
from pipeline.packed import Layout, general
from pipeline.packing import starts_of

Integers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Coded:
    """Memberships of one group of windows.

    Parameters
    ----------
    keys
        As `Layout.pack` makes them, with rows of ``table`` for users; ascending in the pieces of a block.
    table
        Shape (n_users, 1) or (n_users, 2): identities, not all of which need to occur; pieces of one block share it.
    """

    keys: Integers
    table: Integers

    def __len__(self) -> int:
        return len(self.keys)

    def narrowed(self, layout: Layout) -> Coded:
        """The same over a table of those users only who occur; keys ascend.

        Examples
        --------
        >>> layout = Layout(n_windows=2, n_cells=2)
        >>> piece = Coded(np.array([5, 6, 13]), np.array([[7], [8], [9], [10]])).narrowed(layout)
        >>> piece.keys.tolist(), piece.table.tolist()
        ([1, 2, 5], [[8], [10]])
        """
        bits = layout.place_bits
        user = self.keys >> bits
        start = starts_of([user])
        return Coded(np.cumsum(start) - 1 << bits | self.keys & ((1 << bits) - 1), self.table[user[start]])

    def in_general(self, layout: Layout, first: int) -> Memberships:
        """The same in the general form; ``first`` is the first window of the group.

        Examples
        --------
        >>> layout = Layout(n_windows=4, n_cells=1000)
        >>> keys = layout.pack(np.array([1]), np.array([2]), np.array([999]))
        >>> memberships = Coded(keys, np.array([[7, 7], [8, 9]])).in_general(layout, 5)
        >>> memberships.user.tolist(), memberships.window.tolist(), memberships.cell.tolist()
        ([[8, 9]], [7], [999])
        """
        return named(general(self.keys, layout, first), self.table)


def named(memberships: Memberships, table: Integers) -> Memberships:
    """Memberships of users by number as those of the identities in a table."""
    return Memberships(table[memberships.user[:, 0]], memberships.window, memberships.cell, memberships.mark)


def join(pieces: Sequence[Coded], layout: Layout) -> Coded | None:
    """All pieces over one table of ascending identities, keys not yet distinct; None where users are too many for it.

    Examples
    --------
    >>> layout = Layout(n_windows=2, n_cells=2)
    >>> ann, bob = np.array([[5, 1]]), np.array([[3, 2]])
    >>> whole = join([Coded(np.array([1]), ann), Coded(np.array([2]), bob)], layout)
    >>> whole.keys.tolist(), whole.table.tolist()
    ([5, 2], [[3, 2], [5, 1]])
    """
    # A block's users may be many times those of one of its groups and shards, each of which would sort them all.
    pieces = [piece.narrowed(layout) if len(piece.table) > len(piece) else piece for piece in pieces]
    tables = list({id(piece.table): piece.table for piece in pieces}.values())
    table, code = factorize(np.concatenate([widened(table, 2) for table in tables]))
    if not layout.holds(code):
        return None
    begins = dict(zip(map(id, tables), np.cumsum([0, *map(len, tables)]).tolist()))
    bits = layout.place_bits
    keys = np.empty(sum(map(len, pieces)), np.int64)
    end = 0
    for piece in pieces:
        begin, end = end, end + len(piece)
        own = code[begins[id(piece.table)] :]
        keys[begin:end] = own[piece.keys >> bits] << bits
        keys[begin:end] |= piece.keys & ((1 << bits) - 1)
    return Coded(keys, table)
