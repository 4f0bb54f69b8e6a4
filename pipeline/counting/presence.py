"""Read individual-level data into memory: presence matrices for attacks and training data for accountants."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.accountants.core.accountant import Accountant
from penstock.accountants.core.training import Training
from penstock.mechanisms.core.chain import Chain
from penstock.mechanisms.core.plugin import DataError, ParameterError
from penstock.mechanisms.core.samplers.siphash import keyed_hash
from penstock.pipeline.counting.bounding import CountingBounds, bound
from penstock.pipeline.counting.contributions import ContributionRows, merge, starts_of, widened
from penstock.pipeline.counting.count import contributions_of, released_memberships
from penstock.pipeline.counting.spec import Batching, RunKeys
from penstock.pipeline.counting.targets import rows_of
from penstock.pipeline.sources.base import Source
from penstock.pipeline.spaces.base import Space
from penstock.pipeline.windows.grid import WindowGrid

Binary = NDArray[np.bool_]

#: Entries of one binary matrix, a byte each.
MAX_PRESENCE_ENTRIES = 2_000_000_000
#: Distinct (user, window, cell) triples and entries of the table of trajectories held at once: about 1 GB together.
MAX_TRIPLES = 10_000_000
MAX_TRAINING_ENTRIES = 50_000_000
_ALL = 2**64


@dataclass(frozen=True)
class Presence:
    """People's presence in the first windows of a run."""

    users: NDArray[np.int64]  # (n_users, 1) or (n_users, 2): identities of everybody who is seen, ascending
    raw: Binary  # (n_users, n_windows, n_cells): whether a person was in a cell
    released: Binary  # whether that is counted after all steps and bounding; the same array if it all is


@dataclass(frozen=True, kw_only=True)
class People:
    """Reader of individuals' presence after all counting steps of a run."""

    source: Source
    space: Space
    grid: WindowGrid
    bounds: CountingBounds
    batching: Batching
    keys: RunKeys
    chain: Chain

    def presence(self, n_windows: int, *, max_entries: int = MAX_PRESENCE_ENTRIES) -> Presence:
        """Read each person's presence in the first windows of a run.

        People are bounded and sampled by the code and the keys of the run, so that the sum over everybody is what the
        run's mechanism sees (in the last block if it is whole). 2·n_users·n_cells·n_windows bytes. Raises `DataError`
        if the run is endless, no one is seen, or the matrix would be too large, and `ParameterError` in a deployment or
        for more windows than the run has.
        """
        memberships, chain = self.memberships(n_windows), self.chain
        users, code = np.unique(memberships.user, axis=0, return_inverse=True)
        shape = (len(users), n_windows, self.grid.n_cells)
        if np.prod(shape, dtype=float) > max_entries:
            size = f"{shape[0]:,} people × {shape[1]} windows × {shape[2]} cells are more than {max_entries:,} entries"
            raise DataError(f"{size}: observe fewer windows, or attack a run over fewer people")
        raw = np.zeros(shape, bool)
        raw[code.ravel(), memberships.window - 1, memberships.cell] = True
        kept = released_memberships(memberships, chain, self.grid, self.bounds, self.keys)
        coarse = chain.groups is not None or chain.n_merged > 1
        if not coarse and len(kept) == len(memberships):
            return Presence(users, raw, raw)
        released = np.zeros(shape, bool)
        row = np.unique(np.concatenate([users, kept.user]), axis=0, return_inverse=True)[1].ravel()[len(users) :]
        released[row, kept.window - 1, kept.cell] = True
        if coarse:
            windows = np.arange(n_windows) // chain.n_merged * chain.n_merged
            cells = np.arange(self.grid.n_cells) if chain.groups is None else chain.groups
            released = released[:, windows][:, :, cells]
        return Presence(users, raw, released)

    def memberships(self, n_windows: int) -> ContributionRows:
        """Return the distinct memberships of the first windows in sparse form. Raises the same errors as `presence`."""
        calendar = self.grid.calendar
        if self.keys.users is not None:
            raise ParameterError("mode", "deployment", "simulation: a deployment does not keep who was where")
        if calendar.n_windows is None:
            raise DataError("an endless stream cannot be attacked as a whole; give the source an end (until)")
        if not 1 <= n_windows <= calendar.n_windows:
            raise ParameterError("observation", n_windows, f"1 to {calendar.n_windows} windows, as many as the run has")
        pieces = list(self._contributions(n_windows, self.bounds))
        if not any(map(len, pieces)):
            raise DataError(f"no one is seen in the first {n_windows} windows, so there is no one to attack")
        return merge(pieces, self.bounds.keep)

    def _contributions(self, n_windows: int, bounds: CountingBounds) -> Iterator[ContributionRows]:
        """Yield each block's contributions to the first windows of a finite run, with identities as two columns."""
        calendar, batching = self.grid.calendar, self.batching
        source = replace(self.source, until=min(calendar.end(n_windows), calendar.until_ms or 0))
        for block in source.all_blocks():
            parts = contributions_of(block, self.grid, self.space, bounds, batching, self.keys)[1]
            for (group, _), piece in parts:
                rows = piece.rows(batching.layout, group * batching.group + 1)
                rows = replace(rows, user=widened(rows.user, 2))
                yield rows.take(rows.window <= n_windows)

    def training(
        self, n_windows: int, *, max_triples: int = MAX_TRIPLES, max_entries: int = MAX_TRAINING_ENTRIES
    ) -> Training:
        """Read people's cells during the first windows of a run.

        Where bounding leaves a person one cell a window, that cell counts; otherwise the one with most events (ties:
        the smaller index). People and kept cells are those that counting knows. Where people are more than fit, a part
        of them chosen by a keyed hash is kept: at any time at most about twice ``max_triples`` distinct (user, window,
        cell), and at most ``max_entries`` entries in the result. Raises `ParameterError` for more windows than the run
        has. Raises `DataError` if the source is endless, or no one is seen.
        """
        n_planned, bounds = self.grid.calendar.n_windows, self.bounds
        if n_planned is None:
            raise DataError("an endless stream has no training part; learn from a finite one, and name it as learned")
        if n_windows > n_planned:
            raise ParameterError("windows", n_windows, f"at most the {n_planned} windows of the run")
        keep = bounds.keep if bounds.max_cells == 1 else "most_frequent"
        limit, pieces = _ALL, list[ContributionRows]()

        def of_sampled_people(rows: ContributionRows) -> ContributionRows:
            """Return the contributions of the people whose hash is below the threshold."""
            return rows if limit == _ALL else rows.take(keyed_hash(self.keys.bounding, *rows.user.T) < np.uint64(limit))

        def merged() -> ContributionRows:
            """Merge the contributions, halving the number of people until the data fit."""
            nonlocal limit
            rows = merge(pieces, keep)
            while len(rows) > max_triples:
                limit //= 2
                rows = of_sampled_people(rows)
            pieces[:] = [rows]
            return rows

        for piece in self._contributions(n_windows, replace(bounds, keep=keep)):
            pieces.append(of_sampled_people(piece))
            if sum(map(len, pieces)) > 2 * max_triples:
                merged()
        if not any(map(len, pieces)):
            raise DataError(f"no one is seen in the first {n_windows} windows, so there is nothing to learn from")
        rows = merged()
        while np.count_nonzero(starts_of(list(rows.user.T))) * n_windows > max_entries:
            limit //= 2
            rows = of_sampled_people(rows)
        rows = rows.take(bound(rows, 1, keep, self.keys.bounding))
        start = starts_of(list(rows.user.T))
        trajectories: NDArray[np.int32] = np.full((int(start.sum()), n_windows), -1, np.int32)
        trajectories[np.cumsum(start) - 1, rows.window - 1] = rows.cell
        users, share = rows.user[start], limit / _ALL
        return Training(trajectories=trajectories, users=users, n_cells=self.grid.n_cells, share=share)


def prepared(accountants: Sequence[Accountant], people: People) -> tuple[Mapping[str, Any] | None, ...]:
    """Prepare all of a run's accountants in at most one pass over the input."""
    wanted = [accountant.training_windows or 0 for accountant in accountants]
    training = people.training(max(wanted)) if any(wanted) else None

    def part(accountant: Accountant, n_windows: int) -> Training | None:
        """Return the training data for the first windows, including the rows of the users named by an accountant."""
        if training is None or n_windows == 0:
            return None
        named = rows_of(training.users, accountant.named_users, people.keys.users)
        return replace(training.first(n_windows), named=named)

    return tuple(accountant.prepare(part(accountant, n)) for accountant, n in zip(accountants, wanted))
