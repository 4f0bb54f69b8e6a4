"""How much each user moves about: for the operator's manifest, without any identity."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from pipeline.membership import Memberships
from pipeline.packed import Layout
from pipeline.packing import distinct_rows, starts_of

Integers = NDArray[np.int64]

#: Users, active windows of each, and the distinct (position in users, cell) pairs of one group of windows.
Visits = tuple[Integers, Integers, Integers, Integers]

#: A table of users by cells up to this size is cheaper than sorting pairs.
TABLE = 200_000_000


def visits(memberships: Memberships) -> Visits:
    """Activity in one group of windows, from memberships in order of user, window and cell."""
    start_user = starts_of(list(memberships.user.T))
    code = np.cumsum(start_user) - 1
    start_window = starts_of([code, memberships.window])
    pair_user, pair_cell = distinct_rows([code, memberships.cell])
    active = np.bincount(code[start_window], minlength=int(start_user.sum()))
    return memberships.user[start_user], active, pair_user, pair_cell


def packed_visits(keys: Integers, layout: Layout) -> Visits:
    """The same from sorted distinct keys."""
    user = keys >> layout.place_bits
    start_user = starts_of([user])
    first = np.flatnonzero(start_user)
    code = np.cumsum(start_user, dtype=np.int64)
    code -= 1
    cell = keys & ((1 << layout.cell_bits) - 1)
    start_window = starts_of([keys >> layout.cell_bits])
    active = np.add.reduceat(start_window, first, dtype=np.int64) if len(first) else first
    if len(first) * layout.n_cells > TABLE:
        pair_user, pair_cell = distinct_rows([code, cell])
        return user[first, None], active, pair_user, pair_cell
    seen = np.zeros(len(first) * layout.n_cells, bool)
    code *= layout.n_cells
    code += cell
    seen[code] = True
    pairs = np.flatnonzero(seen)
    return user[first, None], active, pairs // layout.n_cells, pairs % layout.n_cells


def summarise_users(parts: Iterable[Visits]) -> dict[str, list[int]]:
    """Per user: distinct cells and active windows over the whole run, from the visits of every group."""
    identities, active, pair_user, pair_cell = [], [], [], []
    for user, n_windows, member, cell in parts:
        wide = user if user.shape[1] == 2 else np.column_stack([user, np.zeros(len(user), np.int64)])
        identities.append(wide)
        active.append(n_windows)
        pair_user.append(wide[member])
        pair_cell.append(cell)
    if len(identities) == 1:
        n_cells = np.bincount(np.unique(member, return_inverse=True)[1] if len(member) else member)
        return {"cells": n_cells.tolist(), "windows": active[0].tolist()}
    everyone = np.concatenate(pair_user)
    columns = distinct_rows([*everyone.T, np.concatenate(pair_cell)])
    n_cells = _lengths(columns[:-1])
    people = np.concatenate(identities)
    table, code = np.unique(people, axis=0, return_inverse=True)
    windows = np.bincount(code.ravel(), weights=np.concatenate(active), minlength=len(table))
    return {"cells": n_cells.tolist(), "windows": windows.astype(int).tolist()}


def _lengths(columns: list[Integers]) -> Integers:
    start = np.flatnonzero(starts_of(columns))
    return np.diff(np.append(start, len(columns[0])))
