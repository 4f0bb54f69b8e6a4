"""How much each user moves about: for the operator's manifest, without any identity."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from pipeline.membership import Memberships, factorize, widened
from pipeline.packed import CHUNK, Layout, distinct_keys
from pipeline.packing import distinct_rows, starts_of

Integers = NDArray[np.int64]

#: Users, active windows of each, and the distinct (position in users, cell) pairs of one group of windows.
Visits = tuple[Integers, Integers, Integers, Integers]


def visits(memberships: Memberships) -> Visits:
    """Activity in one group of windows, from memberships in order of user, window and cell."""
    start_user = starts_of(list(memberships.user.T))
    code = np.cumsum(start_user) - 1
    start_window = starts_of([code, memberships.window])
    pair_user, pair_cell = distinct_rows([code, memberships.cell])
    active = np.bincount(code[start_window], minlength=int(start_user.sum()))
    return memberships.user[start_user], active, pair_user, pair_cell


def packed_visits(keys: Integers, layout: Layout, table: Integers | None = None) -> Visits:
    """The same from sorted distinct keys, some users after the other; ``table`` has the users' identities, if any."""
    users, active, lengths, cells = [keys[:0]], [keys[:0]], [keys[:0]], [keys[:0]]
    # No user is cut in two.
    ends = np.searchsorted(keys, ((keys[CHUNK - 1 :: CHUNK] >> layout.place_bits) + 1) << layout.place_bits)
    for begin, end in pairwise([0, *ends.tolist(), len(keys)]):
        if begin == end:
            continue
        user = keys[begin:end] >> layout.place_bits
        first = np.flatnonzero(starts_of([user]))
        users.append(user[first])
        active.append(np.add.reduceat(starts_of([keys[begin:end] >> layout.cell_bits]), first, dtype=np.int64))
        pairs = distinct_keys(user << layout.cell_bits | keys[begin:end] & ((1 << layout.cell_bits) - 1))
        lengths.append(run_lengths([pairs >> layout.cell_bits]))
        cells.append(pairs & ((1 << layout.cell_bits) - 1))
    n_cells = np.concatenate(lengths)
    pair_user = np.repeat(np.arange(len(n_cells)), n_cells)
    user = np.concatenate(users)
    identity = user[:, None] if table is None else table[user]
    return identity, np.concatenate(active), pair_user, np.concatenate(cells)


def summarise_users(parts: Iterable[Visits]) -> dict[str, list[int]]:
    """Per user: distinct cells and active windows over the whole run, from the visits of every group.

    >>> week = (np.array([[3], [8]]), np.array([5, 2]), np.array([0, 0, 1]), np.array([6, 7, 6]))
    >>> summarise_users([week, week])
    {'cells': [2, 1], 'windows': [10, 4]}
    """
    users, active, members, cells = zip(*parts)
    width = max(user.shape[1] for user in users)
    _, code = factorize(np.concatenate([widened(user, width) for user in users]))
    windows = np.bincount(code, weights=np.concatenate(active))
    every_cell = np.concatenate(cells)
    # Where a group's own users begin among those of all groups.
    begins = np.cumsum([0, *map(len, users)])[:-1].tolist()
    visitor = np.concatenate([code[begin : begin + len(user)][m] for begin, user, m in zip(begins, users, members)])
    bits = int(every_cell.max(initial=0)).bit_length()
    pairs = distinct_keys(visitor << bits | every_cell)
    # Codes may leave out numbers; every user was somewhere.
    return {"cells": run_lengths([pairs >> bits]).tolist(), "windows": windows[windows > 0].astype(int).tolist()}


def run_lengths(columns: list[Integers]) -> Integers:
    """How many rows in a row are equal.

    >>> run_lengths([np.array([5, 5, 7])])
    array([2, 1])
    """
    start = np.flatnonzero(starts_of(columns))
    return np.diff(np.append(start, len(columns[0])))
