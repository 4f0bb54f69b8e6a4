"""The training part of a stream: one cell for each person and window, for accountants that learn how people move."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from accountants.core.accountant import Accountant
from accountants.core.training import Training
from mechanisms.core.errors import DataError, ParameterError
from mechanisms.core.noise import keyed_hash
from pipeline.block import EventBlock
from pipeline.bounding import bound
from pipeline.configuration.sections import Bounding
from pipeline.identity import user_codes
from pipeline.membership import Memberships, distinct, merge
from pipeline.packing import starts_of
from pipeline.source import Source
from pipeline.space import Space
from pipeline.targets import rows_of
from pipeline.window import Calendar

if TYPE_CHECKING:
    from pipeline.plan import Plan

#: Distinct (user, window, cell) triples and entries of the table of trajectories held at once: about 1 GB together.
MAX_TRIPLES = 10_000_000
MAX_ENTRIES = 50_000_000
_ALL = 2**64


def training_part(
    source: Source,
    space: Space,
    calendar: Calendar,
    n_windows: int,
    *,
    bounding: Bounding,
    hash_key: bytes,
    digest_key: bytes | None = None,
    max_triples: int = MAX_TRIPLES,
    max_entries: int = MAX_ENTRIES,
) -> Training:
    """Read where people were in the first windows of a stream.

    Parameters
    ----------
    source, space, calendar
        Of the run; the space is resolved.
    n_windows
        How many windows, at most those of the run.
    bounding
        Where it leaves a person one cell a window, that cell counts; otherwise the one with most events (ties: the
        smaller index).
    hash_key, digest_key
        Keys of the run, so that people and kept cells are those that counting knows.
    max_triples, max_entries
        Where people are more than fit, a part of them chosen by a keyed hash is kept: at any time at most about twice
        ``max_triples`` distinct (user, window, cell), and at most ``max_entries`` entries in the result.

    Raises
    ------
    ParameterError
        More windows than the run has.
    DataError
        The source is endless, or nobody is seen.

    Notes
    -----
    One pass over the source, vectorised: a sort of each block.
    """
    if calendar.n_windows is None:
        raise DataError(
            "an endless stream has no training part; learn from a finite one, then name the file as learned"
        )
    if n_windows > calendar.n_windows:
        raise ParameterError("windows", n_windows, f"at most the {calendar.n_windows} windows of the run")
    keep = bounding.keep if bounding.max_cells == 1 else "most_frequent"
    part = _Part(n_windows, len(space.cells), keep, hash_key, max_triples, max_entries)
    beginning = replace(source, until=min(calendar.end(n_windows), calendar.until_ms or 0))
    for span in beginning.spans():
        for block in beginning.read(span):
            part.add(block, space, calendar, digest_key)
    return part.training()


@dataclass
class _Part:
    """Distinct memberships collected so far, of the people whose hash lies under a limit."""

    n_windows: int
    n_cells: int
    keep: str
    hash_key: bytes
    max_triples: int
    max_entries: int
    limit: int = _ALL
    pieces: list[Memberships] = field(default_factory=list)

    def add(self, block: EventBlock, space: Space, calendar: Calendar, digest_key: bytes | None) -> None:
        """Collect one block."""
        window = calendar.index(block.frame["time"].to_numpy())
        cell = np.asarray(space.place(block.frame), np.int64)
        used = (window > 0) & (window <= self.n_windows) & (cell >= 0)
        if not used.any():
            return
        frame = block.frame.filter(used)
        codes, table = user_codes(frame["user"], digest_key)
        marks = {"hash": None, "most_frequent": np.ones(len(frame), np.int64)}
        mark = marks.get(self.keep, frame["time"].to_numpy())
        window, codes, cell, *kept = distinct(codes, window[used], cell[used], mark, self.keep)
        self.pieces.append(self._chosen(Memberships(table[codes], window, cell, kept[0] if kept else None)))
        if sum(map(len, self.pieces)) > 2 * self.max_triples:
            self._merge()

    def _chosen(self, memberships: Memberships) -> Memberships:
        if self.limit == _ALL:
            return memberships
        return memberships.take(keyed_hash(self.hash_key, *memberships.user.T) < np.uint64(self.limit))

    def _merge(self) -> Memberships:
        """One piece of at most `max_triples` rows: every halving drops half of the people."""
        whole = merge([piece.widened() for piece in self.pieces] if self._is_mixed else self.pieces, self.keep)
        while len(whole) > self.max_triples:
            self.limit //= 2
            whole = self._chosen(whole)
        self.pieces = [whole]
        return whole

    @property
    def _is_mixed(self) -> bool:
        return len({piece.user.shape[1] for piece in self.pieces}) > 1

    def training(self) -> Training:
        """The trajectories of the people that are left."""
        if not any(map(len, self.pieces)):
            raise DataError(f"nobody is seen in the first {self.n_windows} windows, so there is nothing to learn from")
        whole = self._merge()
        while _n_users(whole) * self.n_windows > self.max_entries:
            self.limit //= 2
            whole = self._chosen(whole)
        whole = whole.take(bound(whole, 1, self.keep, self.hash_key))
        start = starts_of(list(whole.user.T))
        trajectories: NDArray[np.int32] = np.full((int(start.sum()), self.n_windows), -1, np.int32)
        trajectories[np.cumsum(start) - 1, whole.window - 1] = whole.cell
        return Training(
            trajectories=trajectories, users=whole.user[start], n_cells=self.n_cells, share=self.limit / _ALL
        )


def _n_users(memberships: Memberships) -> int:
    return int(starts_of(list(memberships.user.T)).sum())


def prepared(plan: Plan) -> tuple[Mapping[str, Any] | None, ...]:
    """What every accountant of a plan works out before the run, in their order; the stream is read at most once."""
    wanted = [accountant.training_windows or 0 for accountant in plan.accountants]
    training = plan_training(plan, max(wanted)) if any(wanted) else None

    def part(accountant: Accountant, n_windows: int) -> Training | None:
        if training is None or n_windows == 0:
            return None
        named = rows_of(training.users, accountant.named_users, plan.digest_key)
        return replace(training.first(n_windows), named=named)

    return tuple(accountant.prepare(part(accountant, n)) for accountant, n in zip(plan.accountants, wanted))


def plan_training(plan: Plan, n_windows: int) -> Training:
    """The first windows of a planned run."""
    return training_part(
        plan.config.source,
        plan.space,
        plan.calendar,
        n_windows,
        bounding=plan.config.bounding,
        hash_key=plan.hash_key,
        digest_key=plan.digest_key,
    )
