"""Targets: the few people whose cells an accountant needs, looked up among all memberships during counting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.accountants.core.accountant import Accountant
from penstock.mechanisms.core.plugin import ParameterError
from penstock.pipeline.counting.bounding import bound
from penstock.pipeline.counting.contributions import ContributionRows, Contributions, KeyLayout, starts_of, widened

Integers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class PrivateFacts:
    """Operator-only data about consecutive windows, passed to the accountants together with the releases."""

    first: int  # first window, 1-based
    counts: Integers  # shape (n_windows, n_cells): true counts as the mechanism saw them
    target_cells: Integers  # shape (n, 3): window, target and cell of every target seen

    @property
    def last(self) -> int:
        """The index of the last window."""
        return self.first + len(self.counts) - 1

    def joined(self, later: PrivateFacts) -> PrivateFacts:
        """Return this data with the next windows' data appended."""
        counts = np.concatenate([self.counts, later.counts])
        return PrivateFacts(self.first, counts, np.concatenate([self.target_cells, later.target_cells]))

    def after(self, window: int) -> PrivateFacts:
        """Return the data for all windows after the given one."""
        first = max(self.first, window + 1)
        cells = self.target_cells[self.target_cells[:, 0] >= first]
        return PrivateFacts(first, self.counts[first - self.first :], cells)

    def of(self, window: int, targets: slice) -> dict[str, Any]:
        """Return one window's data for the given targets, keyed by the names in `Accountant.needs`."""
        rows = self.target_cells[self.target_cells[:, 0] == window]
        rows = rows[(rows[:, 1] >= targets.start) & (rows[:, 1] < targets.stop)]
        cells = np.full(targets.stop - targets.start, -1, np.int64)
        cells[rows[:, 1] - targets.start] = rows[:, 2]
        return {"counts": self.counts[window - self.first], "target_cells": cells}


@dataclass(frozen=True, eq=False)
class Targets:
    """The identities of all targets in a run."""

    identity: Integers  # shape (n_people, 2), ascending: as counting knows a person (an integer and 0, or a digest)
    person: Integers  # shape (n,), ascending: the row of ``identity`` of a target; a person may be several
    number: Integers  # shape (n,): the target
    spans: tuple[tuple[slice, ...], ...]  # targets of each shard of each accountant, empty if it needs none

    @property
    def n_targets(self) -> int:
        """The total number of targets across all accountants. A person tracked by two accountants counts twice."""
        return max((span.stop for spans in self.spans for span in spans), default=0)

    def among(self, contributions: Contributions, layout: KeyLayout, first: int) -> tuple[ContributionRows, Integers]:
        """Find the targets' contributions to a group of windows and each contribution's target, in O(n log n) time.

        ``contributions`` is of `union`; ``first`` is the first window of the group.
        """
        user = contributions.keys >> layout.place_bits
        user = user[starts_of([user])]
        low_half, high_half = widened(contributions.identities(user), 2).T
        order = np.argsort(low_half)
        low, high = (np.searchsorted(low_half, self.identity[:, 0], side, order) for side in ("left", "right"))
        row, person = order[_ranges(low, high)], np.repeat(np.arange(len(self.identity)), high - low)
        same = high_half[row] == self.identity[person, 1]
        user, person = user[row[same]], person[same]
        low = np.searchsorted(contributions.keys, user << layout.place_bits)
        high = np.searchsorted(contributions.keys, (user << layout.place_bits) + (1 << layout.place_bits) - 1, "right")
        return contributions.take(_ranges(low, high)).rows(layout, first), np.repeat(person, high - low)


def _ranges(low: Integers, high: Integers) -> Integers:
    """Concatenate the integers of all ranges [low, high)."""
    lengths = high - low
    before = np.repeat(np.cumsum(lengths) - lengths, lengths)
    return np.asarray(np.arange(lengths.sum()) - before + np.repeat(low, lengths), np.int64)


def empty_target_cells() -> Integers:
    """Return an empty table of target cells."""
    return np.zeros((0, 3), np.int64)


def target_cells(
    contributions: tuple[ContributionRows, Integers], targets: Targets, keep: str, hash_key: bytes
) -> Integers:
    """Return each target's cell by window as rows (window, target, cell), given the output of `Targets.among`."""
    memberships, person = contributions
    if len(person) == 0:
        return empty_target_cells()
    kept = bound(memberships, 1, keep, hash_key)
    window, person, cell = memberships.window[kept], person[kept], memberships.cell[kept]
    first, last = (np.searchsorted(targets.person, person, side) for side in ("left", "right"))
    number, again = targets.number[_ranges(first, last)], last - first
    return np.column_stack([np.repeat(window, again), number, np.repeat(cell, again)]).astype(np.int64)


def targets_of(
    accountants: Sequence[Accountant], prepared: Sequence[tuple[Any, ...]], digest_key: bytes | None
) -> Targets:
    """Collect the targets of all accountants, given the prepared data of each shard (see `Accountant.shards`)."""
    identities, numbers, spans = list[Integers](), list[Integers](), list[tuple[slice, ...]]()
    n = 0
    for accountant, shards in zip(accountants, prepared):
        targets = []
        for shard in shards if "target_cells" in accountant.needs else ():
            users = shard["targets"]
            table, index = as_counted(users, digest_key)
            identities.append(table)
            numbers.append(n + index)
            targets.append(slice(n, n + len(users)))
            n += len(users)
        spans.append(tuple(targets))
    if not identities:
        none = np.zeros(0, np.int64)
        return Targets(np.zeros((0, 2), np.int64), none, none, tuple(spans))
    identity, person = np.unique(np.concatenate(identities), axis=0, return_inverse=True)
    order = np.argsort(person.ravel(), kind="stable")
    return Targets(identity, person.ravel()[order], np.concatenate(numbers)[order], tuple(spans))


def as_counted(users: Any, digest_key: bytes | None) -> tuple[Integers, Integers]:
    """Convert users to the identities used in counting, shape (n, 2). Also return each identity's index in ``users``.

    ``users``: identities from a training part, or ids as people write them: a number is looked for as a number and as
    text. ``digest_key``: None in a simulation; ids are refused in a deployment, which must not hold them.
    """
    if isinstance(users, np.ndarray):
        return widened(users, 2).astype(np.int64), np.arange(len(users))
    if digest_key is not None:
        raise ParameterError("targets", list(users), "a number in a deployment, which must not hold ids of people")
    rows, index = [], []
    for position, name in enumerate(users):
        if name is None:
            raise ParameterError("prior.windows", None, "given: in how many first windows people are drawn as targets")
        from penstock.pipeline.counting.users import text_digest  # loads polars, which few accountants need

        text = str(name)
        is_number = text.removeprefix("-").isdecimal() and -(2**63) <= int(text) < 2**64
        number = [((int(text) + 2**63) % 2**64 - 2**63, 0)] if is_number else []  # of 64 bits without a sign, too
        for identity in [*number, text_digest(text)]:
            rows.append(identity)
            index.append(position)
    return np.array(rows, np.int64), np.array(index, np.int64)


def rows_of(users: Integers, named: Sequence[int | str], digest_key: bytes | None) -> tuple[int, ...]:
    """Return the row of each named person among identities of shape (n, 1) or (n, 2), or −1 if a person is missing."""
    if not named:
        return ()
    wide, _ = as_counted(users, digest_key)
    place = {(int(low), int(high)): row for row, (low, high) in enumerate(wide)}
    rows = [-1] * len(named)
    for identity, position in zip(*as_counted(tuple(named), digest_key)):
        rows[position] = max(rows[position], place.get((int(identity[0]), int(identity[1])), -1))
    return tuple(rows)
