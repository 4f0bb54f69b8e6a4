"""From blocks of events to count vectors, without Beam: what the counting stages of the graph call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mechanisms.core.noise import keyed_hash
from pipeline.block import EventBlock
from pipeline.bounding import bound
from pipeline.identity import user_codes
from pipeline.membership import Memberships, distinct, merge
from pipeline.packing import distinct_rows, starts_of
from pipeline.plan import Plan

Integers = NDArray[np.int64]


@dataclass
class Fate:
    """What became of the rows of some input: every row has exactly one fate."""

    rows: int = 0
    used: int = 0
    late: int = 0
    out_of_area: int = 0
    out_of_time: int = 0
    rejected: dict[str, int] = field(default_factory=dict)

    def add(self, other: Fate) -> None:
        """Add the rows of another piece."""
        for name in ("rows", "used", "late", "out_of_area", "out_of_time"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for reason, n in other.rejected.items():
            self.rejected[reason] = self.rejected.get(reason, 0) + n

    @property
    def balanced(self) -> bool:
        """The row equation."""
        return self.rows == self.used + self.late + self.out_of_area + self.out_of_time + sum(self.rejected.values())


def count_block(block: EventBlock, plan: Plan) -> tuple[Fate, Iterator[tuple[tuple[int, int], bytes]]]:
    """Distinct memberships of one block, split by window group and user shard.

    Returns
    -------
    The fate of the block's rows, and ((group, shard), encoded memberships) pairs.
    """
    window = plan.calendar.index(block.frame["time"].to_numpy())
    cell = np.asarray(plan.space.place(block.frame), np.int64)
    timely = window > 0
    used = timely & (cell >= 0)
    fate = Fate(
        rows=block.n_rows,
        used=int(used.sum()),
        out_of_time=int((~timely).sum()),
        out_of_area=int((timely & (cell < 0)).sum()),
    )
    for reject in block.rejects:
        fate.rejected[reject.reason] = fate.rejected.get(reject.reason, 0) + 1
    frame = block.frame if used.all() else block.frame.filter(used)
    return fate, _split(frame, window[used], cell[used], plan)


def _split(frame: Any, window: Integers, cell: Integers, plan: Plan) -> Iterator[tuple[tuple[int, int], bytes]]:
    if len(window) == 0:
        return
    codes, table = user_codes(frame["user"], plan.digest_key)
    keep = plan.config.bounding.keep
    mark = {"hash": None, "most_frequent": np.ones(len(window), np.int64)}.get(keep, frame["time"].to_numpy())
    window, codes, cell, *marks = distinct(codes, window, cell, mark, keep)
    memberships = Memberships(table[codes], window, cell, marks[0] if marks else None)
    group = (window - 1) // plan.group
    edges = [*np.flatnonzero(starts_of([group])).tolist(), len(group)]
    shard = None
    if plan.n_shards > 1:
        shard = keyed_hash(plan.hash_key, *memberships.user.T) % np.uint64(plan.n_shards)
    for first, last in pairwise(edges):
        piece = memberships.take(slice(first, last))
        if shard is None:
            yield (int(group[first]), 0), piece.encode()
            continue
        for number in np.unique(shard[first:last]):
            yield (int(group[first]), int(number)), piece.take(shard[first:last] == number).encode()


@dataclass(frozen=True)
class GroupCounts:
    """Counts of consecutive windows.

    Parameters
    ----------
    first
        First window, 1-based.
    counts, bounded
        Shape (n_windows, n_cells): distinct users before and after contribution bounding.
    n_memberships
        Distinct (user, window, cell) triples: rows used beyond these were duplicates.
    """

    first: int
    counts: Integers
    bounded: Integers
    n_memberships: int

    def __add__(self, other: GroupCounts) -> GroupCounts:
        return GroupCounts(
            self.first,
            self.counts + other.counts,
            self.bounded + other.bounded,
            self.n_memberships + other.n_memberships,
        )


def count_group(group: int, parts: Iterable[bytes], plan: Plan) -> tuple[GroupCounts, Memberships]:
    """Exact distinct users of one group of windows and one shard of users, bounded."""
    keep = plan.config.bounding.keep
    memberships = merge((Memberships.decode(part) for part in parts), keep)
    first = group * plan.group + 1
    n_windows = min(plan.group, plan.n_windows - first + 1)
    kept = bound(memberships, plan.max_cells, keep, plan.hash_key)
    place = (memberships.window - first) * plan.n_cells + memberships.cell
    size = n_windows * plan.n_cells
    counts = np.bincount(place, minlength=size).reshape(n_windows, plan.n_cells)
    bounded = counts if kept.all() else np.bincount(place[kept], minlength=size).reshape(counts.shape)
    return GroupCounts(first, counts, bounded, len(memberships)), memberships


def visits(memberships: Memberships) -> tuple[Integers, Integers, Integers, Integers]:
    """Activity in one group of windows: users, active windows of each, and distinct (user, cell) pairs."""
    start_user = starts_of(list(memberships.user.T))
    code = np.cumsum(start_user) - 1
    start_window = starts_of([code, memberships.window])
    pair_user, pair_cell = distinct_rows([code, memberships.cell])
    active = np.bincount(code[start_window], minlength=int(start_user.sum()))
    return memberships.user[start_user], active, pair_user, pair_cell


def summarise_users(parts: Iterable[tuple[Integers, Integers, Integers, Integers]]) -> dict[str, list[int]]:
    """Per user: distinct cells and active windows over the whole run, from the visits of every group."""
    identities, active, pair_user, pair_cell = [], [], [], []
    for user, n_windows, member, cell in parts:
        identities.append(user)
        active.append(n_windows)
        pair_user.append(user[member])
        pair_cell.append(cell)
    table, code = np.unique(np.concatenate(identities), axis=0, return_inverse=True)
    windows = np.bincount(code.ravel(), weights=np.concatenate(active), minlength=len(table))
    everyone = np.concatenate(pair_user)
    columns = distinct_rows([*everyone.T, np.concatenate(pair_cell)])
    start = np.flatnonzero(starts_of(columns[:-1]))
    n_cells = np.diff(np.append(start, len(columns[0])))
    return {"cells": n_cells.tolist(), "windows": windows.astype(int).tolist()}
