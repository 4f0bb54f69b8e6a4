"""Who was where and when, person by person: what a membership attack is simulated on. Held in memory, never written."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mechanisms.core.errors import DataError, ParameterError
from pipeline.counting import memberships_of
from pipeline.event_steps import released_memberships
from pipeline.membership import Memberships, merge
from pipeline.pieces import in_general
from pipeline.plan import Plan

Binary = NDArray[np.bool_]

#: Entries of one binary matrix, a byte each.
MAX_ENTRIES = 2_000_000_000


@dataclass(frozen=True)
class Presence:
    """Presence of people in the first windows of a run.

    Attributes
    ----------
    users (n_users, 1) or (n_users, 2)
        Identities of everybody who is seen, ascending.
    raw, released (n_users, n_cells, n_windows)
        Whether a person was in a cell, and whether that is counted after all steps on events and bounding; the same
        array where these change nothing.
    """

    users: NDArray[np.int64]
    raw: Binary
    released: Binary


def read_presence(plan: Plan, n_windows: int, *, max_entries: int = MAX_ENTRIES) -> Presence:
    """Read the binary matrices of the first windows of a run.

    Parameters
    ----------
    plan
        Of a simulation over a finite source, without shards of users.
    n_windows
        How many windows, at most those of the run.
    max_entries
        Most entries of one matrix.

    Raises
    ------
    DataError
        The run is endless, nobody is seen, or the matrix would be too large.
    ParameterError
        In a deployment, and for more windows than the run has.

    Notes
    -----
    One pass over the source. People are bounded and sampled by the code and the keys of the run, so that the sum over
    everybody is what the run's mechanism sees (in the last block if it is whole). 2·n_users·n_cells·n_windows bytes.
    """
    memberships = read_memberships(plan, n_windows)
    users, code = np.unique(memberships.user, axis=0, return_inverse=True)
    shape = (len(users), plan.n_cells, n_windows)
    if np.prod(shape, dtype=float) > max_entries:
        raise DataError(
            f"{shape[0]:,} people × {shape[1]} cells × {shape[2]} windows are more than {max_entries:,} entries: "
            "observe fewer windows, or attack a run over fewer people"
        )
    raw = np.zeros(shape, bool)
    raw[code.ravel(), memberships.cell, memberships.window - 1] = True
    kept, chain = released_memberships(memberships, plan), plan.chain
    coarse = chain.groups is not None or chain.together > 1
    if not coarse and len(kept) == len(memberships):
        return Presence(users, raw, raw)
    released = np.zeros(shape, bool)
    released[_rows(users, kept.user), kept.cell, kept.window - 1] = True
    if coarse:
        windows = np.arange(n_windows) // chain.together * chain.together
        cells = np.arange(plan.n_cells) if chain.groups is None else chain.groups
        released = released[:, cells][:, :, windows]
    return Presence(users, raw, released)


def read_memberships(plan: Plan, n_windows: int) -> Memberships:
    """Distinct memberships of the first windows, as `read_presence` makes its matrices of; its errors are the same."""
    calendar = plan.calendar
    if plan.config.mode != "simulation":
        raise ParameterError("mode", plan.config.mode, "simulation: a deployment does not keep who was where")
    if calendar.n_windows is None:
        raise DataError("an endless stream cannot be attacked as a whole; give the source an end (until)")
    if not 1 <= n_windows <= calendar.n_windows:
        raise ParameterError("observation", n_windows, f"1 to {calendar.n_windows} windows, as many as the run has")
    source = replace(plan.config.source, until=min(calendar.end(n_windows), calendar.until_ms or 0))
    groups: dict[int, list[Memberships]] = defaultdict(list)
    for span in source.spans():
        for block in source.read(span):
            for (group, _), piece in memberships_of(block, plan)[1]:
                groups[group].append(in_general(piece, plan, group).widened())
    pieces = [piece for _, its in sorted(groups.items()) for piece in its]
    if not pieces:
        raise DataError(f"nobody is seen in the first {n_windows} windows, so there is nobody to attack")
    whole = merge(pieces, plan.config.bounding.keep)
    return whole.take(whole.window <= n_windows)


def _rows(users: NDArray[np.int64], wanted: NDArray[np.int64]) -> NDArray[np.intp]:
    """Row of each wanted identity among all users, every one of which is there."""
    _, code = np.unique(np.concatenate([users, wanted]), axis=0, return_inverse=True)
    rows: NDArray[np.intp] = code.ravel()[len(users) :]
    return rows
