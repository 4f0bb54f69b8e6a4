"""Memberships: the distinct (user, window, cell) triples that counts are made of."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mechanisms.core.state import decode_state, encode_state
from pipeline.packing import distinct_rows, sorted_order, starts_of

Integers = NDArray[np.int64]

#: What is remembered of a triple's events so that `keep` can choose among the user's cells, and how two blocks merge.
REMEMBERED: dict[str, np.ufunc] = {"first": np.minimum, "last": np.maximum, "most_frequent": np.add}


@dataclass(frozen=True)
class Memberships:
    """Distinct memberships, sorted by user, window and cell.

    Parameters
    ----------
    user
        Shape (n, 1) or (n, 2): identity (see `pipeline.identity`).
    window, cell
        Shape (n,): 1-based window, 0-based cell.
    mark
        Shape (n,) or None: earliest time, latest time or number of events of the triple, as bounding needs.
    """

    user: Integers
    window: Integers
    cell: Integers
    mark: Integers | None = None

    def __len__(self) -> int:
        return len(self.window)

    def encode(self) -> bytes:
        """Compact bytes for the shuffle."""
        arrays = {"user": self.user, "window": _narrow(self.window), "cell": _narrow(self.cell)}
        if self.mark is not None:
            arrays["mark"] = self.mark
        return encode_state("memberships", 1, arrays)

    @classmethod
    def decode(cls, data: bytes) -> Memberships:
        """Inverse of `encode`."""
        arrays = decode_state(data, "memberships", 1)
        columns = {name: array.astype(np.int64, copy=False) for name, array in arrays.items()}
        return cls(**columns)

    def widened(self) -> Memberships:
        """The same with identities of two columns, so that integers and digests can be merged."""
        return Memberships(widened(self.user, 2), self.window, self.cell, self.mark)

    def take(self, rows: NDArray[np.bool_] | Integers | slice) -> Memberships:
        """Some of the rows."""
        mark = None if self.mark is None else self.mark[rows]
        return Memberships(self.user[rows], self.window[rows], self.cell[rows], mark)


def distinct(codes: Integers, window: Integers, cell: Integers, mark: Integers | None, keep: str) -> list[Integers]:
    """Distinct rows of (window, code, cell), and the merged mark of each where one is kept.

    Returns
    -------
    ``[window, code, cell]`` or ``[window, code, cell, mark]``, sorted in that order. One sort of packed keys.
    """
    if mark is None:
        return distinct_rows([window, codes, cell])
    order = sorted_order([window, codes, cell])
    columns = [column[order] for column in (window, codes, cell)]
    start = np.flatnonzero(starts_of(columns))
    merged = REMEMBERED[keep].reduceat(mark[order], start) if len(start) else mark
    return [*(column[start] for column in columns), merged]


def merge(parts: Iterable[Memberships], keep: str = "hash") -> Memberships:
    """Union of memberships from several blocks, each triple once, in order of user, window and cell.

    Parameters
    ----------
    parts
        At least one; all with a mark or all without.
    keep
        How marks of the same triple merge.

    Examples
    --------
    >>> one = Memberships(np.array([[7]]), np.array([1]), np.array([0]))
    >>> len(merge([one, one]))
    1
    """
    parts = list(parts)
    user = np.concatenate([part.user for part in parts])
    window = np.concatenate([part.window for part in parts])
    cell = np.concatenate([part.cell for part in parts])
    table, code = factorize(user)
    marks = [part.mark for part in parts if part.mark is not None]
    if not marks:
        code, window, cell = distinct_rows([code, window, cell])
        return Memberships(table[code], window, cell)
    order = sorted_order([code, window, cell])
    columns = [column[order] for column in (code, window, cell)]
    start = np.flatnonzero(starts_of(columns))
    mark = REMEMBERED[keep].reduceat(np.concatenate(marks)[order], start)
    code, window, cell = (column[start] for column in columns)
    return Memberships(table[code], window, cell, mark)


def factorize(user: Integers) -> tuple[Integers, Integers]:
    """Distinct identities, ascending, and the position of each row's in them."""
    if user.shape[1] == 1:
        low, high = int(user.min()), int(user.max())
        if high - low < 4 * len(user):
            return np.arange(low, high + 1, dtype=np.int64)[:, None], user[:, 0] - low
        table, code = np.unique(user[:, 0], return_inverse=True)
        return table[:, None], code
    some = np.unique(user[:, 0])
    code = np.searchsorted(some, user[:, 0])
    first = np.empty(len(some), np.int64)
    first[code] = np.arange(len(user))  # any row of each
    if np.array_equal(user[first, 1][code], user[:, 1]):
        return user[first], code
    table, code = np.unique(user, axis=0, return_inverse=True)
    return table, code


def widened(user: Integers, width: int) -> Integers:
    """Identities of so many columns: a plain integer is followed by zeros.

    >>> widened(np.array([[7]]), 2).tolist()
    [[7, 0]]
    """
    missing = width - user.shape[1]
    return np.pad(user, ((0, 0), (0, missing))) if missing else user


def _narrow(column: Integers) -> NDArray[np.generic]:
    fits = len(column) == 0 or int(column.max()) < 2**31
    return column.astype(np.int32) if fits else column
