"""Exact counting of distinct users per window and cell, before and after contribution bounding."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.core.chain import Chain
from penstock.mechanisms.core.contract import EventStep
from penstock.mechanisms.core.noise import NoiseSource
from penstock.mechanisms.core.samplers.siphash import keyed_hash
from penstock.mechanisms.sampling import Sampling
from penstock.pipeline.counting.bounding import CountingBounds, PeriodQuota, bound, bound_block, identity
from penstock.pipeline.counting.contributions import (
    ContributionRows,
    Contributions,
    IdentityTable,
    KeyLayout,
    UserTable,
    crowded,
    distinct_keys,
    distinct_marked,
    merge,
    split_groups,
    starts_of,
    union,
)
from penstock.pipeline.counting.ingest import RowCounts, classify_rows
from penstock.pipeline.counting.spec import Batching, RunKeys
from penstock.pipeline.counting.targets import Targets, empty_target_cells, target_cells
from penstock.pipeline.counting.users import CodeTable, user_codes
from penstock.pipeline.sources.base import EventBlock
from penstock.pipeline.spaces.base import Space
from penstock.pipeline.windows.grid import WindowGrid

Integers = NDArray[np.int64]


def visits(contributions: Contributions, layout: KeyLayout) -> Contributions:
    """Return each user's cells in a group of windows, the first marked with the user's number of active windows."""
    user, bits = contributions.keys >> layout.place_bits, layout.cell_bits
    first = np.flatnonzero(starts_of([user]))
    n_windows = np.add.reduceat(starts_of([contributions.keys >> bits]), first, dtype=np.int64) if len(first) else first
    pairs = user << bits | contributions.keys & ((1 << bits) - 1)
    pairs = distinct_keys(pairs[starts_of([pairs])])  # who stays in a cell is there for windows in a row
    marks = np.zeros(len(pairs), np.min_scalar_type(layout.n_windows))
    marks[starts_of([pairs >> bits])] = n_windows
    return Contributions(pairs, contributions.users, marks)


def join_visits(parts: Sequence[Contributions], n_cells: int) -> Contributions:
    """Merge the visits from several groups of windows."""
    return union(parts, KeyLayout(1, n_cells), "most_frequent")


def summarise_users(parts: Iterable[Contributions], n_cells: int) -> dict[str, list[int]]:
    """Return each user's number of distinct cells and of active windows in the run, from all groups' visits."""
    joined = join_visits(list(parts), n_cells)
    assert joined.marks is not None
    first = np.flatnonzero(starts_of([joined.keys >> KeyLayout(1, n_cells).cell_bits]))
    windows = np.add.reduceat(joined.marks, first, dtype=np.int64) if len(first) else first
    return {"cells": np.diff(first, append=len(joined)).tolist(), "windows": windows.tolist()}


def contributions_of(
    block: EventBlock,
    grid: WindowGrid,
    space: Space,
    bounds: CountingBounds,
    batching: Batching,
    keys: RunKeys,
    closed: Integers | None = None,
    used_by_group: dict[int, int] | None = None,
    ids: CodeTable | None = None,
) -> tuple[RowCounts, Iterator[tuple[tuple[int, int], Contributions]]]:
    """Return a block's row counts and its distinct contributions by window group and user shard.

    ``closed``, of shape (n_rows,): the last window that was final when each row arrived; None: all windows are still
    open. ``used_by_group`` is filled with the number of rows used, by the group of their window. ``ids``: of the
    blocks before, to which those of this one are added; None: each block has a table of its own.
    """
    placed = classify_rows(block, grid, space, closed)
    row_counts, window, cell, used = placed.counts, placed.window, placed.cell, placed.used
    frame = block.frame
    if row_counts.used < len(window):
        frame, window, cell = frame.select("user", "time").filter(used), window[used], cell[used]
    if used_by_group is not None:
        groups, n_rows = np.unique((window - 1) // batching.group, return_counts=True)
        used_by_group.update(zip(groups.tolist(), n_rows.tolist()))
    return row_counts, _split(frame, window, cell, bounds.keep, batching, keys, ids)


def _split(
    frame: Any,
    window: Integers,
    cell: Integers,
    keep: str,
    batching: Batching,
    keys: RunKeys,
    ids: CodeTable | None,
) -> Iterator[tuple[tuple[int, int], Contributions]]:
    """Yield the distinct contributions for each group of windows and user shard."""
    if len(window) == 0:
        return
    users, layout = frame["user"], batching.layout
    marks = {"hash": None, "most_frequent": np.ones(len(window), np.int64)}.get(keep, frame["time"].to_numpy())
    table: UserTable | None = None
    if keys.users is None and users.dtype.is_integer() and layout.holds(users.to_numpy()):
        user = users.to_numpy()
    else:
        if ids is not None and ids.has_room:
            user, table = ids.codes(users), ids
        else:
            user, identities = user_codes(users, keys.users)
            if len(identities) > len(user):  # codes of a range of ids with gaps; the table is kept with contributions
                present, user = np.unique(user, return_inverse=True)
                identities = identities[present]
            table = IdentityTable(identities)
        if marks is None:
            # A user who reports often is in one cell for many rows in a row: the first one says it all.
            start = starts_of([cell, window, user])
            user, window, cell = user[start], window[start], cell[start]
        layout.check(user)
    minimum, maximum = ((int(end) - 1) // batching.group for end in (window.min(), window.max()))
    if minimum == maximum:  # as in most blocks of an input in the order of time
        group, groups = np.asarray(minimum), iter([(minimum, slice(None))])
    else:
        group = (window - 1) // batching.group
        groups = split_groups(group)
    packed = layout.pack(user, (window - 1) - group * batching.group, cell)
    for number, rows in groups:
        if marks is None:
            piece = Contributions(distinct_keys(packed[rows]), table)
        else:
            (distinct,), mark = distinct_marked([packed[rows]], marks[rows], keep)
            piece = Contributions(distinct, table, mark)
        if batching.n_shards == 1:
            yield (number, 0), piece
            continue
        code = piece.keys >> layout.place_bits
        start = starts_of([code])
        shard = keyed_hash(keys.bounding, *piece.identities(code[start]).T) % np.uint64(batching.n_shards)
        row_shard = shard.astype(np.int64)[np.cumsum(start) - 1]
        for part in np.unique(row_shard).tolist():
            yield (number, part), piece.take(row_shard == part)


def released_counts(
    memberships: ContributionRows,
    first: int,
    n_windows: int,
    chain: Chain,
    grid: WindowGrid,
    bounds: CountingBounds,
    keys: RunKeys,
    quota: PeriodQuota | None = None,
) -> Integers:
    """Return the counts of consecutive windows in one user shard that are passed to the mechanism.

    Coarse cells and windows are counted again: a user in two of a group's cells counts once. Bounding follows, so
    that it holds at the level of the noise, and sampling comes last: sampling first would leave a user with many
    memberships some of them almost surely, and nothing would be gained.

    ``memberships``: distinct, sorted by user, window and cell. ``first`` begins a block. ``quota``: what earlier
    windows have left of a period. A coarse count stands in every cell and window that it covers.
    """
    memberships = released_memberships(memberships, chain, grid, bounds, keys, quota)
    place = (memberships.window - first) * grid.n_cells + memberships.cell
    counts = np.bincount(place, minlength=n_windows * grid.n_cells).reshape(n_windows, grid.n_cells)
    if chain.n_merged > 1:
        counts = counts[np.arange(n_windows) // chain.n_merged * chain.n_merged]
    return counts if chain.groups is None else counts[:, chain.groups]


def released_memberships(
    memberships: ContributionRows,
    chain: Chain,
    grid: WindowGrid,
    bounds: CountingBounds,
    keys: RunKeys,
    quota: PeriodQuota | None = None,
) -> ContributionRows:
    """Return the memberships behind `released_counts`, labelling merged windows by their first window."""
    if len(memberships) and (chain.groups is not None or chain.n_merged > 1):
        cell = memberships.cell if chain.groups is None else chain.groups[memberships.cell]
        window = (memberships.window - 1) // chain.n_merged * chain.n_merged + 1
        memberships = merge([replace(memberships, window=window, cell=cell)], bounds.keep)
    kept = bound_block(memberships, bounds, keys.bounding)
    if not kept.all():
        memberships = memberships.take(kept)
    if bounds.over_periods and len(memberships):
        period = grid.periods_of(memberships.window)
        quota = quota or PeriodQuota()
        opened = bounds.quota_by_window(memberships.window, grid.elapsed)
        memberships = memberships.take(quota.admit(memberships, period, opened, bounds.keep, keys.bounding))
    for step in chain.event_steps:
        memberships = memberships.take(_keep_mask(step, memberships, chain.bounding_windows, grid, keys.noise()))
    return memberships


def _keep_mask(
    step: EventStep, memberships: ContributionRows, length: int, grid: WindowGrid, noise: NoiseSource
) -> NDArray[np.bool_]:
    """Return a mask of the memberships that a step keeps. ``length`` is the mechanism's block length in windows."""
    user, kept, window = memberships.user[:, 0], np.ones(len(memberships), bool), memberships.window
    if len(memberships) == 0:
        return kept
    if step.draws_users:
        begins = grid.calendar.starts_of((window - 1) // length * length + 1)
        hashes = noise.membership_hashes(*identity(memberships), begins)
    else:
        hashes = noise.membership_hashes(*identity(memberships), grid.calendar.starts_of(window), memberships.cell)
    if isinstance(step, Sampling):  # it looks at the hashes only, hence at all windows together
        return step.keep(user, memberships.cell, grid.window(1), hashes)
    order = np.argsort(window, kind="stable")
    present, begins = np.unique(window[order], return_index=True)
    for index, rows in zip(present.tolist(), np.split(order, begins[1:])):
        kept[rows] = step.keep(user[rows], memberships.cell[rows], grid.window(index), hashes[rows])
    return kept


@dataclass(frozen=True)
class GroupCounts:
    """Counts for a group of consecutive windows."""

    first: int  # first window, 1-based
    counts: Integers  # shape (n_windows, n_cells): distinct users before contribution bounding
    bounded: Integers  # the same as the mechanism sees them after all steps on events
    n_memberships: int  # distinct (user, window, cell) triples: rows used beyond these were duplicates
    target_cells: Integers = field(default_factory=empty_target_cells)  # shape (n, 3): window, target, cell

    def as_type(self, dtype: np.dtype[Any] | type[np.int64]) -> GroupCounts:
        """Convert the counts to another integer type."""
        counts, bounded = (table.astype(dtype, copy=False) for table in (self.counts, self.bounded))
        return replace(self, counts=counts, bounded=bounded)

    def narrowed(self) -> GroupCounts:
        """Convert the counts to the smallest integer type that can represent them. `as_type` reverses this."""
        return self.as_type(np.min_scalar_type(max(self.counts.max(initial=0), self.bounded.max(initial=0))))

    def __add__(self, other: GroupCounts) -> GroupCounts:
        return GroupCounts(
            self.first,
            self.counts + other.counts,
            self.bounded + other.bounded,
            self.n_memberships + other.n_memberships,
            np.concatenate([self.target_cells, other.target_cells]),
        )


def nothing(group: int, batching: Batching) -> GroupCounts:
    """Return all-zero counts for a group of windows."""
    zeros = np.zeros((batching.windows_of(group), batching.n_cells), np.int64)
    return GroupCounts(group * batching.group + 1, zeros, zeros, 0)


def count_group(
    group: int,
    pieces: Sequence[Contributions],
    chain: Chain,
    grid: WindowGrid,
    bounds: CountingBounds,
    batching: Batching,
    keys: RunKeys,
    targets: Targets,
    quota: PeriodQuota | None = None,
) -> tuple[GroupCounts, Contributions]:
    """Count the distinct users of a window group in one user shard, both before and after bounding.

    Return the contributions, too, merged. ``quota``: what earlier groups have left of a bound on budget periods, with
    which groups come in order.
    """
    layout, first, n_windows = batching.layout, group * batching.group + 1, batching.windows_of(group)
    contributions = union(pieces, layout, bounds.keep)
    counts = bounded = layout.count(contributions.keys)[:n_windows]
    if bounds.spans_windows(chain.n_merged) or chain.reshapes:
        rows = contributions.rows(layout, first)
        bounded = released_counts(rows, first, n_windows, chain, grid, bounds, keys, quota)
    elif len(over := crowded(contributions.keys, layout, bounds.max_cells)):
        some = contributions.take(over)
        kept = bound(some.rows(layout, first), bounds.max_cells, bounds.keep, keys.bounding)
        bounded = counts - layout.count(some.keys[~kept])[:n_windows]
    followed = empty_target_cells()
    if targets.n_targets:
        watched = targets.among(contributions, layout, first)
        followed = target_cells(watched, targets, bounds.keep, keys.bounding)
    return GroupCounts(first, counts, bounded, len(contributions), followed), contributions
