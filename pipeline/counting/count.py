"""Count distinct users per window and cell exactly, before and after contribution bounding."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from penstock.mechanisms.core.contract import EventStep
from penstock.mechanisms.core.samplers.siphash import keyed_hash
from penstock.mechanisms.sampling import Sampling
from penstock.pipeline.counting.bounding import PeriodQuota, bound, bound_block, identity
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
from penstock.pipeline.counting.ingest import RowCounts, located
from penstock.pipeline.counting.spec import CoreSpec
from penstock.pipeline.counting.targets import no_target_cells, target_cells
from penstock.pipeline.counting.users import TextTable, user_codes
from penstock.pipeline.sources.base import EventBlock

Integers = NDArray[np.int64]


def visits(contributions: Contributions, layout: KeyLayout) -> Contributions:
    """Return the cells of each user in a group of windows, marked with the number of windows."""
    user, bits = contributions.keys >> layout.place_bits, layout.cell_bits
    first = np.flatnonzero(starts_of([user]))
    n_windows = np.add.reduceat(starts_of([contributions.keys >> bits]), first, dtype=np.int64) if len(first) else first
    pairs = user << bits | contributions.keys & ((1 << bits) - 1)
    pairs = distinct_keys(pairs[starts_of([pairs])])  # who stays in a cell is there for windows in a row
    marks = np.zeros(len(pairs), np.min_scalar_type(layout.n_windows))
    marks[starts_of([pairs >> bits])] = n_windows
    return Contributions(pairs, contributions.users, marks)


def join_visits(parts: Sequence[Contributions], n_cells: int) -> Contributions:
    """Join the visits of several groups of windows."""
    return union(parts, KeyLayout(1, n_cells), "most_frequent")


def summarise_users(parts: Iterable[Contributions], n_cells: int) -> dict[str, list[int]]:
    """Return each user's number of distinct cells and active windows over the run, given the visits of every group."""
    joined = join_visits(list(parts), n_cells)
    assert joined.marks is not None
    first = np.flatnonzero(starts_of([joined.keys >> KeyLayout(1, n_cells).cell_bits]))
    windows = np.add.reduceat(joined.marks, first, dtype=np.int64) if len(first) else first
    return {"cells": np.diff(first, append=len(joined)).tolist(), "windows": windows.tolist()}


def contributions_of(
    block: EventBlock,
    plan: CoreSpec,
    closed: Integers | None = None,
    used_by_group: dict[int, int] | None = None,
    texts: TextTable | None = None,
) -> tuple[RowCounts, Iterator[tuple[tuple[int, int], Contributions]]]:
    """Return row counts of one block, and its distinct contributions by window group and user shard.

    ``closed``, of shape (n_rows,): the last window that was final when each row arrived; None: all windows are still
    open. ``used_by_group`` is filled with the number of rows used, by the group of their window. ``texts``: text ids
    of the blocks before, to which those of this one are added; None: they are hashed block by block.
    """
    placed = located(block, plan, closed)
    row_counts, window, cell, used = placed.counts, placed.window, placed.cell, placed.used
    frame = block.frame
    if row_counts.used < len(window):
        frame, window, cell = frame.select("user", "time").filter(used), window[used], cell[used]
    if used_by_group is not None:
        groups, n_rows = np.unique((window - 1) // plan.batching.group, return_counts=True)
        used_by_group.update(zip(groups.tolist(), n_rows.tolist()))
    return row_counts, _split(frame, window, cell, plan, texts)


def _split(
    frame: Any, window: Integers, cell: Integers, plan: CoreSpec, texts: TextTable | None
) -> Iterator[tuple[tuple[int, int], Contributions]]:
    if len(window) == 0:
        return
    users, keep, layout = frame["user"], plan.bounds.keep, plan.batching.layout
    marks = {"hash": None, "most_frequent": np.ones(len(window), np.int64)}.get(keep, frame["time"].to_numpy())
    table: UserTable | None = None
    if plan.keys.users is None and users.dtype.is_integer() and layout.holds(users.to_numpy()):
        user = users.to_numpy()
    else:
        if texts is not None and users.dtype == pl.String and texts.has_room:
            user, table = texts.codes(users), texts
        else:
            user, identities = user_codes(users, plan.keys.users)
            if len(identities) > len(user):  # codes of a range of ids with gaps; the table is kept with contributions
                present, user = np.unique(user, return_inverse=True)
                identities = identities[present]
            table = IdentityTable(identities)
        if marks is None:
            # A user who reports often is in one cell for many rows in a row: the first one says it all.
            start = starts_of([cell, window, user])
            user, window, cell = user[start], window[start], cell[start]
        layout.check(user)
    shard = None if table is None or plan.batching.n_shards == 1 else _shards(table.of(slice(None)).T, plan)
    for number, piece in _group_contributions(user, window, cell, marks, table, plan):
        if plan.batching.n_shards == 1:
            yield (number, 0), piece
            continue
        code = piece.keys >> layout.place_bits
        row_shard = _shards([code], plan) if shard is None else shard[code]
        for part in np.unique(row_shard).tolist():
            yield (number, part), piece.take(row_shard == part)


def _group_contributions(
    user: Integers, window: Integers, cell: Integers, marks: Integers | None, table: UserTable | None, plan: CoreSpec
) -> Iterator[tuple[int, Contributions]]:
    """Yield the distinct contributions to each group of windows."""
    minimum, maximum = ((int(end) - 1) // plan.batching.group for end in (window.min(), window.max()))
    if minimum == maximum:  # as in most blocks of an input in the order of time
        group, groups = np.asarray(minimum), iter([(minimum, slice(None))])
    else:
        group = (window - 1) // plan.batching.group
        groups = split_groups(group)
    keys = plan.batching.layout.pack(user, (window - 1) - group * plan.batching.group, cell)
    for number, rows in groups:
        if marks is None:
            yield number, Contributions(distinct_keys(keys[rows]), table)
        else:
            (distinct,), mark = distinct_marked([keys[rows]], marks[rows], plan.bounds.keep)
            yield number, Contributions(distinct, table, mark)


def _shards(identity: Iterable[Integers], plan: CoreSpec) -> Integers:
    """Return the shard of each user."""
    return (keyed_hash(plan.keys.bounding, *identity) % np.uint64(plan.batching.n_shards)).astype(np.int64)


def released_counts(
    memberships: ContributionRows, first: int, n_windows: int, plan: CoreSpec, quota: PeriodQuota | None = None
) -> Integers:
    """Return the counts that the mechanism receives for consecutive windows and one shard of users.

    Coarse cells and windows are counted again: a user in two of a group's cells counts once. Bounding follows, so
    that it holds at the level of the noise, and sampling comes last: sampling first would leave a user with many
    memberships some of them almost surely, and nothing would be gained.

    ``memberships``: distinct, sorted by user, window and cell. ``first`` begins a block. ``quota``: what earlier
    windows have left of a period. A coarse count stands in every cell and window that it covers.
    """
    memberships = released_memberships(memberships, plan, quota)
    place = (memberships.window - first) * plan.grid.n_cells + memberships.cell
    counts = np.bincount(place, minlength=n_windows * plan.grid.n_cells).reshape(n_windows, plan.grid.n_cells)
    if plan.chain.together > 1:
        counts = counts[np.arange(n_windows) // plan.chain.together * plan.chain.together]
    return counts if plan.chain.groups is None else counts[:, plan.chain.groups]


def released_memberships(
    memberships: ContributionRows, plan: CoreSpec, quota: PeriodQuota | None = None
) -> ContributionRows:
    """Return the memberships that `released_counts` counts, merged windows labelled by their first window."""
    chain, bounding = plan.chain, plan.bounds
    if len(memberships) and (chain.groups is not None or chain.together > 1):
        cell = memberships.cell if chain.groups is None else chain.groups[memberships.cell]
        window = (memberships.window - 1) // chain.together * chain.together + 1
        memberships = merge([replace(memberships, window=window, cell=cell)], bounding.keep)
    kept = bound_block(memberships, bounding, plan.keys.bounding)
    if not kept.all():
        memberships = memberships.take(kept)
    if bounding.over_periods and len(memberships):
        period = plan.grid.periods_of(memberships.window)
        quota = quota or PeriodQuota()
        opened = bounding.opened(memberships.window, plan.grid.elapsed)
        memberships = memberships.take(quota.admit(memberships, period, opened, bounding.keep, plan.keys.bounding))
    for step in chain.event_steps:
        memberships = memberships.take(_keep_mask(step, memberships, plan))
    return memberships


def _keep_mask(step: EventStep, memberships: ContributionRows, plan: CoreSpec) -> NDArray[np.bool_]:
    """Return a mask of the memberships that a step keeps."""
    user, kept, window = memberships.user[:, 0], np.ones(len(memberships), bool), memberships.window
    if len(memberships) == 0:
        return kept
    noise, length = plan.keys.noise(), plan.chain.unit_windows
    if getattr(step, "unit", "membership") == "user":
        begins = _starts((window - 1) // length * length + 1, plan)
        hashes = noise.membership_hashes(*identity(memberships), begins)
    else:
        hashes = noise.membership_hashes(*identity(memberships), _starts(window, plan), memberships.cell)
    if isinstance(step, Sampling):  # it looks at the hashes only, hence at all windows together
        return step.keep(user, memberships.cell, plan.grid.windows(1, 1)[0], hashes)
    order = np.argsort(window, kind="stable")
    present, begins = np.unique(window[order], return_index=True)
    for index, rows in zip(present.tolist(), np.split(order, begins[1:])):
        facts = plan.grid.windows(index, index)[0]
        kept[rows] = step.keep(user[rows], memberships.cell[rows], facts, hashes[rows])
    return kept


def _starts(window: Integers, plan: CoreSpec) -> Integers:
    """Return the start of each window in milliseconds since 1970."""
    first = int(window.min())
    return plan.grid.calendar.starts(first, int(window.max()))[window - first]


@dataclass(frozen=True)
class GroupCounts:
    """The counts of consecutive windows."""

    first: int  # first window, 1-based
    counts: Integers  # shape (n_windows, n_cells): distinct users before contribution bounding
    bounded: Integers  # the same as the mechanism sees them after all steps on events
    n_memberships: int  # distinct (user, window, cell) triples: rows used beyond these were duplicates
    target_cells: Integers = field(default_factory=no_target_cells)  # shape (n, 3): window, target, cell

    def as_type(self, dtype: np.dtype[Any] | type[np.int64]) -> GroupCounts:
        """Convert the counts to integers of another width."""
        counts, bounded = (table.astype(dtype, copy=False) for table in (self.counts, self.bounded))
        return replace(self, counts=counts, bounded=bounded)

    def narrowed(self) -> GroupCounts:
        """Convert the counts to the smallest integer type that can hold them. `as_type` reverses this."""
        return self.as_type(np.min_scalar_type(max(self.counts.max(initial=0), self.bounded.max(initial=0))))

    def __add__(self, other: GroupCounts) -> GroupCounts:
        return GroupCounts(
            self.first,
            self.counts + other.counts,
            self.bounded + other.bounded,
            self.n_memberships + other.n_memberships,
            np.concatenate([self.target_cells, other.target_cells]),
        )


def nothing(group: int, plan: CoreSpec) -> GroupCounts:
    """Return zero counts for a group of windows."""
    zeros = np.zeros((plan.batching.windows_of(group), plan.grid.n_cells), np.int64)
    return GroupCounts(group * plan.batching.group + 1, zeros, zeros, 0)


def count_group(
    group: int, pieces: Sequence[Contributions], plan: CoreSpec, quota: PeriodQuota | None = None
) -> tuple[GroupCounts, Contributions | None]:
    """Count the distinct users of one window group and user shard before and after bounding, and their visits.

    ``quota``: what earlier groups have left of a bound on budget periods, with which groups come in order.
    """
    layout, first, n_windows = plan.batching.layout, group * plan.batching.group + 1, plan.batching.windows_of(group)
    contributions = union(pieces, layout, plan.bounds.keep)
    counts = bounded = layout.count(contributions.keys)[:n_windows]
    if plan.bounds.over_blocks or plan.chain.reshapes or plan.bounds.over_periods:
        bounded = released_counts(contributions.rows(layout, first), first, n_windows, plan, quota)
    elif len(over := crowded(contributions.keys, layout, plan.bounds.max_cells)):
        some = contributions.take(over)
        kept = bound(some.rows(layout, first), plan.bounds.max_cells, plan.bounds.keep, plan.keys.bounding)
        bounded = counts - layout.count(some.keys[~kept])[:n_windows]
    seen = visits(contributions, layout) if plan.summarises_users else None
    followed = no_target_cells()
    if plan.targets.n_targets:
        watched = plan.targets.among(contributions, layout, first)
        followed = target_cells(watched, plan.targets, plan.bounds.keep, plan.keys.bounding)
    return GroupCounts(first, counts, bounded, len(contributions), followed), seen
