"""Contributions: distinct (user, window, cell) triples, stored as sorted 64-bit keys.

A key holds user, window within its group and cell, most significant first, so that one sort orders and deduplicates.
Users who are no small non-negative integers go by their number in a table of identities.
"""

from __future__ import annotations

import shutil
import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.core.plugin import DataError
from penstock.mechanisms.core.state import decode_state, encode_state
from penstock.pipeline.atomic import make_folder, private_opener

Integers = NDArray[np.int64]


KEY_BITS = 63
#: What is remembered of a contribution's events so that `keep` can choose among the user's cells, and how it merges.
REMEMBERED: dict[str, np.ufunc] = {"first": np.minimum, "last": np.maximum, "most_frequent": np.add}


def sorted_order(columns: Sequence[Integers]) -> Integers:
    """Return a stable permutation that sorts rows lexicographically, for any int64 values."""
    key, n_bits = np.zeros(len(columns[0]), np.int64), 0
    for column in columns if len(key) else []:
        low = int(column.min())
        width = (int(column.max()) - low).bit_length()
        n_bits += width
        if n_bits > KEY_BITS:  # what does not fit one key is sorted column by column
            return np.lexsort(tuple(reversed(columns)))
        key = key << width | (column - low)
    return np.argsort(key, kind="stable")


def starts_of(columns: Sequence[Integers]) -> NDArray[np.bool_]:
    """Return a mask of the rows that differ from the previous row. The first row is always marked."""
    start = np.ones(len(columns[0]), bool)
    if len(start) > 1:
        np.not_equal(columns[0][1:], columns[0][:-1], out=start[1:])
        for column in columns[1:]:
            start[1:] |= column[1:] != column[:-1]
    return start


def distinct_marked(columns: Sequence[Integers], marks: Integers | None, keep: str) -> tuple[list[Integers], Any]:
    """Return the distinct rows in lexicographic order, along with each row's merged mark if marks are given."""
    order = sorted_order(columns)
    columns = [np.asarray(column, np.int64)[order] for column in columns]
    start = np.flatnonzero(starts_of(columns))
    if marks is not None and len(start):
        marks = REMEMBERED[keep].reduceat(marks[order], start)
    return [column[start] for column in columns], marks


@dataclass(frozen=True)
class ContributionRows:
    """Distinct contributions stored as columns, sorted by user, window and cell."""

    user: Integers  # shape (n, 1) or (n, 2): identity, as in the tables of `users.user_codes`
    window: Integers  # shape (n,), from 1
    cell: Integers  # shape (n,), from 0
    mark: Integers | None = None  # shape (n,): earliest time, latest time or number of events, as bounding needs

    def __len__(self) -> int:
        return len(self.window)

    def take(self, rows: NDArray[np.bool_] | Integers | slice) -> ContributionRows:
        """Select rows."""
        mark = None if self.mark is None else self.mark[rows]
        return ContributionRows(self.user[rows], self.window[rows], self.cell[rows], mark)


def merge(parts: Iterable[ContributionRows], keep: str = "hash") -> ContributionRows:
    """Return the union of several sets of contributions, deduplicated and sorted by user, window and cell.

    ``parts``: at least one; all with a mark or all without; identities of equally many columns.
    """
    parts = list(parts)
    table, code = factorize(np.concatenate([part.user for part in parts]))
    window = np.concatenate([part.window for part in parts])
    cell = np.concatenate([part.cell for part in parts])
    marks = [part.mark for part in parts if part.mark is not None]
    (code, window, cell), mark = distinct_marked([code, window, cell], np.concatenate(marks) if marks else None, keep)
    return ContributionRows(table[code], window, cell, mark)


def factorize(user: Integers) -> tuple[Integers, Integers]:
    """Return the sorted distinct identities and each row's index among them."""
    if user.shape[1] == 1:
        low, high = int(user.min()), int(user.max())
        if high - low < 4 * len(user):
            return np.arange(low, high + 1, dtype=np.int64)[:, None], user[:, 0] - low
    order = np.argsort(user[:, 0])
    first = starts_of([user[order, 0]])
    each = order[np.flatnonzero(first)]
    code = np.empty(len(user), np.int64)
    code[order] = np.cumsum(first) - 1
    if not np.array_equal(user[each, -1][code], user[:, -1]):  # some users agree in the first column only
        table, code = np.unique(user, axis=0, return_inverse=True)
        return table, code
    return user[each], code


def widened(user: Integers, width: int) -> Integers:
    """Pad identities to ``width`` columns, filling the extra columns with zeros."""
    return np.pad(user, ((0, 0), (0, width - user.shape[1])))


#: Keys looked at together: what is worked out on the way stays in the processor's cache.
CHUNK = 1 << 18


@dataclass(frozen=True)
class KeyLayout:
    """The number of bits for the window and for the cell in a key. The remaining bits encode the user.

    >>> layout = KeyLayout(n_windows=4, n_cells=1000)
    >>> key = layout.pack(np.array([5]), np.array([2]), np.array([999]))
    >>> [part.tolist() for part in layout.unpack(key)]
    [[5], [2], [999]]
    """

    n_windows: int  # windows of one group
    n_cells: int  # cells of the space

    @property
    def cell_bits(self) -> int:
        """The number of bits for the cell."""
        return (self.n_cells - 1).bit_length()

    @property
    def place_bits(self) -> int:
        """The combined number of bits for the window and the cell."""
        return (self.n_windows - 1).bit_length() + self.cell_bits

    def holds(self, users: Integers) -> bool:
        """Return whether the user codes fit in the remaining bits of a 62-bit key."""
        low, high = (int(users.min()), int(users.max())) if len(users) else (0, 0)
        return low >= 0 and high.bit_length() + self.place_bits < KEY_BITS

    def check(self, users: Integers) -> None:
        """Raise `DataError` if the users do not fit in the remaining bits of a key."""
        if not self.holds(users):
            size = f"{int(users.max()) + 1:,} users × {self.n_windows:,} windows × {self.n_cells:,} cells"
            cure = "use fewer cells, or shorter blocks of windows"
            raise DataError(f"{size} are more than {KEY_BITS - 1} bits tell apart: {cure}")

    def pack(self, user: Integers, window: Integers, cell: Integers) -> Integers:
        """Pack users, windows and cells into keys. ``window`` is 0-based within its group."""
        key = user << (self.place_bits - self.cell_bits)
        key |= window
        key <<= self.cell_bits
        key |= cell
        return key

    def unpack(self, keys: Integers) -> tuple[Integers, Integers, Integers]:
        """Split each key into user, window within the group, and cell."""
        place = keys & ((1 << self.place_bits) - 1)
        return keys >> self.place_bits, place >> self.cell_bits, place & ((1 << self.cell_bits) - 1)

    def count(self, keys: Integers) -> Integers:
        """Count the keys per window and cell, shape (n_windows, n_cells)."""
        table = np.zeros(1 << self.place_bits, np.int64)
        step = max(CHUNK, len(table))
        for start in range(0, len(keys), step):
            table += np.bincount(keys[start : start + step] & (len(table) - 1), minlength=len(table))
        return table.reshape(-1, 1 << self.cell_bits)[: self.n_windows, : self.n_cells]


def distinct_keys(keys: Integers, *, in_runs: bool = False) -> Integers:
    """Sort keys in place and return the distinct ones. ``in_runs``: merge sort, which is faster for few sorted runs."""
    keys.sort(kind="stable" if in_runs else None)
    start = starts_of([keys])
    return keys if start.all() else keys[start]


def split_groups(group: Integers) -> Iterator[tuple[int, Any]]:
    """Yield each distinct group with the indices of its rows, using a single integer sort."""
    low, high = int(group.min()), int(group.max())
    narrow = (group - low).astype(np.int16) if high - low < 2**15 else group
    order = np.argsort(narrow, kind="stable")
    group = group[order]
    for first, last in pairwise([*np.flatnonzero(starts_of([group])).tolist(), len(group)]):
        yield int(group[first]), order[first:last]


def crowded(keys: Integers, layout: KeyLayout, max_cells: int) -> Integers:
    """Return the sorted indices of rows whose user has more than ``max_cells`` cells in the row's window.

    O(n) without a sort: keys are sorted by user and window already, so a key that equals the one ``max_cells`` places
    on in these belongs to such a user.
    """
    beyond = [keys[:0]]
    for start in range(0, len(keys) - max_cells, CHUNK):
        units = keys[start : start + CHUNK + max_cells] >> layout.cell_bits
        beyond.append(units[max_cells:][units[max_cells:] == units[:-max_cells]])
    full = np.concatenate(beyond)
    if len(full) == 0:
        return full
    full = full[starts_of([full])]
    first, last = (np.searchsorted(keys, unit << layout.cell_bits) for unit in (full, full + 1))
    skipped = first - np.concatenate([[0], np.cumsum(last - first)[:-1]])
    return np.asarray(np.repeat(skipped, last - first) + np.arange((last - first).sum()), np.int64)


class UserTable(Protocol):
    """An append-only table of users, indexed by code."""

    def __len__(self) -> int: ...

    def of(self, codes: Integers | slice) -> Integers:
        """Return the identities for user codes, shape (n, 1) or (n, 2)."""


@dataclass(frozen=True, eq=False)
class IdentityTable:
    """A `UserTable` backed by an array of identities."""

    identities: Integers  # shape (n_users, 1) or (n_users, 2)

    def __len__(self) -> int:
        return len(self.identities)

    def of(self, codes: Integers | slice) -> Integers:
        """Return the identities for user codes, shape (n, 1) or (n, 2)."""
        return self.identities[codes]


@dataclass(frozen=True, eq=False)
class Contributions:
    """Distinct contributions to one group of windows, sorted by key."""

    keys: Integers  # shape (n,): as `KeyLayout.pack` makes them, ascending
    users: UserTable | None = None  # whose codes the keys hold, shared by pieces; None: keys hold the ids themselves
    marks: Integers | None = None  # shape (n,), as in `ContributionRows`

    def __len__(self) -> int:
        return len(self.keys)

    def take(self, rows: NDArray[np.bool_] | Integers) -> Contributions:
        """Select contributions, preserving their order."""
        return Contributions(self.keys[rows], self.users, None if self.marks is None else self.marks[rows])

    def rows(self, layout: KeyLayout, first: int) -> ContributionRows:
        """Unpack the keys into columns. ``first`` is the first window of the group."""
        user, window, cell = layout.unpack(self.keys)
        return ContributionRows(self.identities(user), window + first, cell, self.marks)

    def identities(self, user: Integers) -> Integers:
        """Return the identities for the user codes stored in keys, shape (n, 1) or (n, 2)."""
        return user[:, None] if self.users is None else self.users.of(user)

    def tabled(self, layout: KeyLayout) -> tuple[UserTable, Contributions]:
        """Return a user table no larger than the contributions, along with the contributions re-keyed to it.

        >>> layout = KeyLayout(n_windows=2, n_cells=2)
        >>> four = IdentityTable(np.array([[7], [8], [9], [10]]))
        >>> users, piece = Contributions(np.array([5, 6, 13]), four).tabled(layout)
        >>> users.of(slice(None)).tolist(), piece.keys.tolist()
        ([[8], [10]], [1, 2, 5])
        """
        if self.users is not None and len(self.users) <= len(self):
            return self.users, self
        bits = layout.place_bits
        user = self.keys >> bits
        start = starts_of([user])
        users = IdentityTable(self.identities(user[start]))
        keys = np.cumsum(start) - 1 << bits | self.keys & ((1 << bits) - 1)
        return users, Contributions(keys, users, self.marks)

    def encode(self, layout: KeyLayout) -> bytes:
        """Serialise the contributions for the shuffle and for state."""
        if self.users is None and self.marks is None:
            return b"".join((_MAGIC, np.ascontiguousarray(self.keys, "<i8").data))
        users, piece = self.tabled(layout)
        arrays = {"keys": piece.keys, "users": users.of(slice(None))}
        return encode_state(*_FORMAT, arrays if self.marks is None else arrays | {"marks": self.marks})


#: Before bare keys. Eight bytes, so that the keys behind it are aligned.
_MAGIC = b"PKEYS001"
#: Of all others.
_FORMAT = ("memberships", 3)


def decoded(data: bytes | memoryview) -> Contributions:
    """Deserialise contributions serialised by `Contributions.encode`."""
    if data[: len(_MAGIC)] == _MAGIC:
        return Contributions(np.frombuffer(data, "<i8", offset=len(_MAGIC)))
    arrays = decode_state(bytes(data), *_FORMAT)
    return Contributions(arrays["keys"], IdentityTable(arrays["users"]), arrays.get("marks"))


def union(pieces: Sequence[Contributions], layout: KeyLayout, keep: str) -> Contributions:
    """Merge sets of distinct contributions to one group of windows. Either all of the sets carry marks or none do."""
    if len(pieces) == 1:
        return pieces[0]
    marks = [piece.marks for piece in pieces if piece.marks is not None]
    users, keys = pieces[0].users, np.concatenate([piece.keys for piece in pieces])
    in_runs = all(piece.users is users for piece in pieces)
    if not in_runs:
        users, keys = _over_one_table(pieces, layout)
    if marks:
        (keys,), merged = distinct_marked([keys], np.concatenate(marks), keep)
        return Contributions(keys, users, merged)
    return Contributions(distinct_keys(keys, in_runs=in_runs), users)


def _over_one_table(pieces: Sequence[Contributions], layout: KeyLayout) -> tuple[UserTable, Integers]:
    """Build one user table for all sets of contributions. Return it with their keys, remapped and in order."""
    # A block's users may be many times those of one of its groups and shards, each of which would sort them all.
    tables, pieces = zip(*(piece.tabled(layout) for piece in pieces))
    shared = {id(table): table for table in tables}
    users, code = factorize(np.concatenate([widened(table.of(slice(None)), 2) for table in shared.values()]))
    layout.check(code)
    begins = dict(zip(shared, np.cumsum([0, *map(len, shared.values())]).tolist()))
    bits = layout.place_bits
    keys = np.empty(sum(map(len, pieces)), np.int64)
    end = 0
    for table, piece in zip(tables, pieces):
        begin, end = end, end + len(piece)
        codes = code[begins[id(table)] :]
        keys[begin:end] = codes[piece.keys >> bits] << bits
        keys[begin:end] |= piece.keys & ((1 << bits) - 1)
    return IdentityTable(users), keys


# Contributions to groups of windows that are not counted yet: in memory up to a limit, beyond it on disk.

#: Bytes of contributions that are held in memory.
HELD_BYTES = 1 << 30
#: Before contributions on disk: their number of bytes, and whether their users are codes of the shared table.
_HEAD = struct.Struct("<q?")


class HeldContributions:
    """A store that holds contributions by window group and user shard until they are taken.

    Beyond ``max_bytes`` those of each group and shard are merged and appended to a file of its own in ``folder``. A
    group that is taken has to fit into memory. ``ids``: the table of users that pieces share, which stays in memory.
    """

    def __init__(
        self, layout: KeyLayout, keep: str, folder: Path, ids: UserTable | None = None, max_bytes: int = HELD_BYTES
    ) -> None:
        self._layout, self._keep, self._folder, self._ids, self._max_bytes = layout, keep, folder, ids, max_bytes
        self._pieces: dict[int, dict[int, list[Contributions]]] = defaultdict(lambda: defaultdict(list))
        self._bytes = 0
        self.drop()  # what a killed run has left

    def add(self, group: int, shard: int, piece: Contributions) -> None:
        """Add contributions of one user shard to a window group."""
        self._pieces[group][shard].append(piece)
        self._bytes += _size(piece)
        if self._bytes <= self._max_bytes:
            return
        make_folder(self._folder)
        for number, shards in self._pieces.items():
            for part, pieces in shards.items():
                whole = union(pieces, self._layout, self._keep)
                is_coded = whole.users is not None and whole.users is self._ids and whole.marks is None
                data = (replace(whole, users=None) if is_coded else whole).encode(self._layout)
                with open(self._folder / f"{number}-{part}", "ab", opener=private_opener) as file:
                    file.write(_HEAD.pack(len(data), is_coded))
                    file.write(data)
                pieces.clear()
        self._pieces.clear()
        self._bytes = 0

    def take(self, group: int) -> dict[int, list[Contributions]]:
        """Remove and return all contributions to a window group, by user shard."""
        pieces = self._pieces.pop(group, {})
        self._bytes -= sum(_size(piece) for shard in pieces.values() for piece in shard)
        taken = defaultdict(list, pieces)
        for path in self._folder.glob(f"{group}-*"):
            with open(path, "rb") as file:
                while head := file.read(_HEAD.size):
                    n_bytes, is_coded = _HEAD.unpack(head)
                    piece = decoded(file.read(n_bytes))
                    piece = replace(piece, users=self._ids) if is_coded else piece
                    taken[int(path.name.partition("-")[2])].append(piece)
            path.unlink()
        return dict(taken)

    def drop(self) -> None:
        """Delete the store's temporary files."""
        shutil.rmtree(self._folder, ignore_errors=True)


def _size(piece: Contributions) -> int:
    """Return the total size in bytes of a set's keys, marks and user table."""
    users = piece.users.identities.nbytes if isinstance(piece.users, IdentityTable) else 0
    return piece.keys.nbytes + (0 if piece.marks is None else piece.marks.nbytes) + min(users, 2 * piece.keys.nbytes)
