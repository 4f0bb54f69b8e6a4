"""Contributions: distinct (user, window, cell) triples, as sorted 64-bit keys or in general form."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np
import polars as pl
from numpy.typing import NDArray

from penstock.mechanisms.core.state import decode_state, encode_state

# Who a row is about, as integers that mean the same in every block and on every worker.


def user_codes(users: pl.Series, digest_key: bytes | None) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Codes of users inside one block, and the table that turns a code into an identity.

    Parameters
    ----------
    users
        Int64 or String, no nulls; or Binary, the digests of `with_digests`.
    digest_key
        Key under which integer ids are replaced by digests too (deployment); None keeps integers as they are.

    Returns
    -------
    codes
        Shape (n_rows,).
    table
        Shape (n_users, 1) for plain integers or (n_users, 2) for 128-bit digests: rows equal exactly when users are
        (two of n text ids share a digest with probability below n²/2¹²⁹).

    Notes
    -----
    A hash per distinct user of the block, not per row.

    Examples
    --------
    >>> codes, table = user_codes(pl.Series(["b", "a", "b"]), None)
    >>> codes.tolist(), table.shape
    ([0, 1, 0], (2, 2))
    """
    if users.dtype in (pl.String, pl.Binary):
        run = users.rle_id()
        if len(users) and len(users) > 4 * (1 + int(run[-1])):
            # Files of one user each, or sorted by user: only the first row of each run is looked up.
            codes, table = user_codes(users.filter(run.diff().fill_null(1) != 0), digest_key)
            return codes[run.to_numpy()], table
        encoded = users.to_arrow().combine_chunks() if hasattr(users.to_arrow(), "combine_chunks") else users.to_arrow()
        dictionary = encoded.dictionary_encode()
        codes = dictionary.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        identities = dictionary.dictionary.to_pylist()
        if users.dtype == pl.Binary:
            return codes, np.frombuffer(b"".join(identities), "<i8").reshape(-1, 2)
        return codes, _digests([text.encode() for text in identities], digest_key)
    values = users.to_numpy()
    if digest_key is None:
        low, high = (int(values.min()), int(values.max())) if len(values) else (0, 0)
        if high - low < 4 * len(values):
            return values - low, np.arange(low, high + 1, dtype=np.int64)[:, None]
        table, codes = np.unique(values, return_inverse=True)
        return codes.astype(np.int64), table.astype(np.int64)[:, None]
    table, codes = np.unique(values, return_inverse=True)
    return codes.astype(np.int64), _digests(
        [int(value).to_bytes(8, "little", signed=True) for value in table], digest_key
    )


def with_digests(frame: pl.DataFrame, digest_key: bytes | None) -> pl.DataFrame:
    """Events with digests in place of their users, 16 bytes each: `user_codes` gives the same table as for the users.

    Parameters
    ----------
    frame
        With a column ``user``.
    digest_key
        None: users stay as they are. Digests stay as they are too.

    Examples
    --------
    >>> frame = pl.DataFrame({"user": ["ann", "bob", "ann"]})
    >>> hidden = with_digests(frame, b"key")["user"]
    >>> tables = [user_codes(users, b"key")[1] for users in (hidden, frame["user"])]
    >>> hidden.dtype, hidden.n_unique(), np.array_equal(*tables)
    (Binary, 2, True)
    """
    if digest_key is None or frame["user"].dtype == pl.Binary:
        return frame
    codes, table = user_codes(frame["user"], digest_key)
    whole = table.astype("<i8").tobytes()
    digests = pl.Series("user", [whole[i : i + 16] for i in range(0, len(whole), 16)], dtype=pl.Binary)
    return frame.with_columns(digests.gather(codes))


def _digests(identities: list[bytes], key: bytes | None) -> NDArray[np.int64]:
    digest = b"".join(hashlib.blake2b(i, digest_size=16, key=key or b"").digest() for i in identities)
    return np.frombuffer(digest, "<i8").reshape(-1, 2)


# Sorting and deduplicating rows of integers: several columns packed into one 64-bit key where they fit.


Integers = NDArray[np.int64]

#: A column wider than this is replaced by dense codes before packing; sorting it once is cheaper than a lexsort.
WIDE_BITS = 34
KEY_BITS = 63


def distinct_rows(columns: Sequence[Integers]) -> list[Integers]:
    """Distinct rows in lexicographic order.

    Parameters
    ----------
    columns
        Arrays of one length; the first column is the most significant.

    Returns
    -------
    The columns of the distinct rows. O(n log n) time, O(n) memory; exact for any values of int64, whatever their
    range: what does not fit one 64-bit key is sorted column by column.

    Examples
    --------
    >>> [c.tolist() for c in distinct_rows([np.array([2, 1, 2]), np.array([5, 7, 5])])]
    [[1, 2], [7, 5]]
    """
    if len(columns[0]) == 0:
        return [np.asarray(column, np.int64) for column in columns]
    packing = _Packing.of(columns)
    if packing is None:
        order = np.lexsort(tuple(reversed(columns)))
        first = starts_of([column[order] for column in columns])
        return [np.asarray(column, np.int64)[order][first] for column in columns]
    key = np.sort(packing.pack(columns))
    return packing.unpack(key[starts_of([key])])


def sorted_order(columns: Sequence[Integers]) -> Integers:
    """Stable order that sorts rows lexicographically, for columns that carry others with them."""
    packing = _Packing.of(columns) if len(columns[0]) else None
    if packing is None:
        return np.lexsort(tuple(reversed(columns)))
    return np.argsort(packing.pack(columns), kind="stable")


def starts_of(columns: Sequence[Integers]) -> NDArray[np.bool_]:
    """Mask of the rows that differ from the row before them; the first row always does.

    >>> starts_of([np.array([1, 1, 2])])
    array([ True, False,  True])
    """
    start = np.ones(len(columns[0]), bool)
    if len(start) > 1:
        np.not_equal(columns[0][1:], columns[0][:-1], out=start[1:])
        for column in columns[1:]:
            start[1:] |= column[1:] != column[:-1]
    return start


class _Packing:
    """How columns share the bits of one key; wide columns go through a table of their distinct values."""

    def __init__(self, lows: list[int], bits: list[int], tables: list[Integers | None], codes: list[Integers]) -> None:
        self.lows, self.bits, self.tables, self.codes = lows, bits, tables, codes

    @classmethod
    def of(cls, columns: Sequence[Integers]) -> _Packing | None:
        lows: list[int] = []
        bits: list[int] = []
        tables: list[Integers | None] = []
        codes: list[Integers] = []
        for given in columns:
            column, table = given, None
            low, high = int(column.min()), int(column.max())
            if (high - low).bit_length() > WIDE_BITS:
                table, column = np.unique(column, return_inverse=True)
                low, high = 0, len(table) - 1
            lows.append(low)
            bits.append((high - low).bit_length())
            tables.append(table)
            codes.append(column)
        return cls(lows, bits, tables, codes) if sum(bits) <= KEY_BITS else None

    def pack(self, columns: Sequence[Integers]) -> Integers:
        key = np.zeros(len(columns[0]), np.int64)
        for low, width, column in zip(self.lows, self.bits, self.codes):
            key <<= width
            key |= column.astype(np.int64, copy=False) - low
        return key

    def unpack(self, key: Integers) -> list[Integers]:
        columns: list[Integers] = []
        for low, width, table in zip(reversed(self.lows), reversed(self.bits), reversed(self.tables)):
            column = (key & ((1 << width) - 1)) + low
            columns.append(column if table is None else table[column])
            key = key >> width
        return columns[::-1]


# Memberships: the distinct (user, window, cell) triples that counts are made of.


#: What is remembered of a triple's events so that `keep` can choose among the user's cells, and how two blocks merge.
REMEMBERED: dict[str, np.ufunc] = {"first": np.minimum, "last": np.maximum, "most_frequent": np.add}


@dataclass(frozen=True)
class Memberships:
    """Distinct memberships, sorted by user, window and cell.

    Parameters
    ----------
    user
        Shape (n, 1) or (n, 2): identity (see `penstock.pipeline.steps.contributions`).
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


# Memberships as single integers: the fast form for users that are small non-negative integers.
#
# A key holds user, window (within its group) and cell, most significant first, so that one sort orders and
# deduplicates. Where a user id, the group or the cells need more bits than there are, the general form of
# `penstock.pipeline.steps.contributions` is used instead: nothing is ever cut off.


#: Eight bytes, so that the keys behind it are aligned.
_MAGIC = b"PKEYS001"
#: Keys looked at together: what is worked out on the way stays in the processor's cache.
CHUNK = 1 << 18
#: Up to so many groups of windows a mask for each is cheaper than a sort.
_FEW_GROUPS = 8


@dataclass(frozen=True)
class KeyLayout:
    """How many bits window and cell take; users have the rest.

    Parameters
    ----------
    n_windows
        Windows of one group.
    n_cells
        Cells of the space.

    Examples
    --------
    >>> layout = KeyLayout(n_windows=4, n_cells=1000)
    >>> key = layout.pack(np.array([5]), np.array([2]), np.array([999]))
    >>> [part.tolist() for part in layout.unpack(key)]
    [[5], [2], [999]]
    """

    n_windows: int
    n_cells: int

    @property
    def cell_bits(self) -> int:
        """Bits of a cell."""
        return (self.n_cells - 1).bit_length()

    @property
    def place_bits(self) -> int:
        """Bits of window and cell."""
        return (self.n_windows - 1).bit_length() + self.cell_bits

    def holds(self, users: Integers) -> bool:
        """Whether every user fits into what is left of 63 bits."""
        if self.place_bits >= 63 or len(users) == 0:
            return False
        return int(users.min()) >= 0 and int(users.max()).bit_length() <= 63 - self.place_bits

    def pack(self, user: Integers, window: Integers, cell: Integers) -> Integers:
        """Keys; ``window`` counts from 0 within its group."""
        key = user << (self.place_bits - self.cell_bits)
        key |= window
        key <<= self.cell_bits
        key |= cell
        return key

    def unpack(self, keys: Integers) -> tuple[Integers, Integers, Integers]:
        """User, window within the group and cell of every key."""
        place = keys & ((1 << self.place_bits) - 1)
        return keys >> self.place_bits, place >> self.cell_bits, place & ((1 << self.cell_bits) - 1)

    def count(self, keys: Integers) -> Integers:
        """How many keys each window and cell has, shape (n_windows, n_cells)."""
        table = np.zeros(1 << self.place_bits, np.int64)
        step = max(CHUNK, len(table))
        for start in range(0, len(keys), step):
            table += np.bincount(keys[start : start + step] & (len(table) - 1), minlength=len(table))
        return table.reshape(-1, 1 << self.cell_bits)[: self.n_windows, : self.n_cells]


def distinct_keys(keys: Integers) -> Integers:
    """Sorted distinct keys; sorts in place."""
    keys.sort()
    start = starts_of([keys])
    return keys if start.all() else keys[start]


def split_groups(keys: Integers, group: Integers) -> Iterator[tuple[int, Integers]]:
    """Keys of every group: masks where groups are few, otherwise one sort of narrow integers.

    >>> [(number, keys.tolist()) for number, keys in split_groups(np.array([5, 6, 7]), np.array([1, 0, 1]))]
    [(0, [6]), (1, [5, 7])]
    """
    low, high = int(group.min()), int(group.max())
    if low == high:
        yield low, keys
    elif high - low < _FEW_GROUPS:
        for number in range(low, high + 1):
            piece = keys[group == number]
            if len(piece):
                yield number, piece
    else:
        narrow = (group - low).astype(np.int16) if high - low < 2**15 else group - low
        order = np.argsort(narrow, kind="stable")
        keys, group = keys[order], group[order]
        for first, last in pairwise([*np.flatnonzero(starts_of([group])).tolist(), len(group)]):
            yield int(group[first]), keys[first:last]


def encode_keys(keys: Integers) -> bytes:
    """Bytes for the shuffle."""
    return b"".join((_MAGIC, np.ascontiguousarray(keys, "<i8").data))


def decode_keys(data: bytes) -> Integers | None:
    """Inverse of `encode_keys`; None where the bytes are memberships in the general form."""
    return np.frombuffer(data, "<i8", offset=len(_MAGIC)) if data.startswith(_MAGIC) else None


def crowded(keys: Integers, layout: KeyLayout, max_cells: int) -> Integers:
    """Keys of all users that are in more than ``max_cells`` cells of one window, in order.

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
    return np.asarray(keys[np.repeat(skipped, last - first) + np.arange((last - first).sum())], np.int64)


def general(keys: Integers, layout: KeyLayout, first: int) -> Memberships:
    """The same memberships in the general form; ``first`` is the first window of their group."""
    user, window, cell = layout.unpack(keys)
    return Memberships(user[:, None], window + first, cell)


# Packed memberships of users who are no small integers: keys hold a user's number in a table of identities.
#
# Text and, in a deployment, every id is known by a digest of 128 bits. Numbers in its place are small, so that the fast
# form of `pipeline.steps.contributions` does for everybody; digests are looked up only where a hash or a summary needs
# them.


@dataclass(frozen=True, eq=False)
class Coded:
    """Memberships of one group of windows.

    Parameters
    ----------
    keys
        As `KeyLayout.pack` makes them, with rows of ``table`` for users; ascending in the pieces of a block.
    table
        Shape (n_users, 1) or (n_users, 2): identities, not all of which need to occur; pieces of one block share it.
    """

    keys: Integers
    table: Integers

    def __len__(self) -> int:
        return len(self.keys)

    def narrowed(self, layout: KeyLayout) -> Coded:
        """The same over a table of those users only who occur; keys ascend.

        Examples
        --------
        >>> layout = KeyLayout(n_windows=2, n_cells=2)
        >>> piece = Coded(np.array([5, 6, 13]), np.array([[7], [8], [9], [10]])).narrowed(layout)
        >>> piece.keys.tolist(), piece.table.tolist()
        ([1, 2, 5], [[8], [10]])
        """
        bits = layout.place_bits
        user = self.keys >> bits
        start = starts_of([user])
        return Coded(np.cumsum(start) - 1 << bits | self.keys & ((1 << bits) - 1), self.table[user[start]])

    def in_general(self, layout: KeyLayout, first: int) -> Memberships:
        """The same in the general form; ``first`` is the first window of the group.

        Examples
        --------
        >>> layout = KeyLayout(n_windows=4, n_cells=1000)
        >>> keys = layout.pack(np.array([1]), np.array([2]), np.array([999]))
        >>> memberships = Coded(keys, np.array([[7, 7], [8, 9]])).in_general(layout, 5)
        >>> memberships.user.tolist(), memberships.window.tolist(), memberships.cell.tolist()
        ([[8, 9]], [7], [999])
        """
        return named(general(self.keys, layout, first), self.table)


def named(memberships: Memberships, table: Integers) -> Memberships:
    """Memberships of users by number as those of the identities in a table."""
    return Memberships(table[memberships.user[:, 0]], memberships.window, memberships.cell, memberships.mark)


def join(pieces: Sequence[Coded], layout: KeyLayout) -> Coded | None:
    """All pieces over one table of ascending identities, keys not yet distinct; None where users are too many for it.

    Examples
    --------
    >>> layout = KeyLayout(n_windows=2, n_cells=2)
    >>> ann, bob = np.array([[5, 1]]), np.array([[3, 2]])
    >>> whole = join([Coded(np.array([1]), ann), Coded(np.array([2]), bob)], layout)
    >>> whole.keys.tolist(), whole.table.tolist()
    ([5, 2], [[3, 2], [5, 1]])
    """
    # A block's users may be many times those of one of its groups and shards, each of which would sort them all.
    pieces = [piece.narrowed(layout) if len(piece.table) > len(piece) else piece for piece in pieces]
    tables = list({id(piece.table): piece.table for piece in pieces}.values())
    table, code = factorize(np.concatenate([widened(table, 2) for table in tables]))
    if not layout.holds(code):
        return None
    begins = dict(zip(map(id, tables), np.cumsum([0, *map(len, tables)]).tolist()))
    bits = layout.place_bits
    keys = np.empty(sum(map(len, pieces)), np.int64)
    end = 0
    for piece in pieces:
        begin, end = end, end + len(piece)
        own = code[begins[id(piece.table)] :]
        keys[begin:end] = own[piece.keys >> bits] << bits
        keys[begin:end] |= piece.keys & ((1 << bits) - 1)
    return Coded(keys, table)


# Memberships of one group of windows as they are collected: whatever form a block's are in, they can be joined.


#: Distinct memberships of one group of windows: packed keys (see `pipeline.packed` and `pipeline.coded`), or the
#: general form.
Distinct = Integers | Coded | Memberships


class Bounds(Protocol):
    """What contributions use of the contribution bounds."""

    @property
    def keep(self) -> str:
        """Which cells are kept where a user has more."""


class Plan(Protocol):
    """What contributions use of the plan of a run."""

    @property
    def group(self) -> int:
        """Windows whose counts travel together."""

    @property
    def layout(self) -> KeyLayout:
        """How contributions to one group of windows are packed into integers."""

    @property
    def bounding(self) -> Bounds:
        """Contribution bounds."""


def encoded(piece: Distinct, plan: Plan, group: int) -> bytes:
    """Memberships as bytes, for the shuffle and for state."""
    return encode_keys(piece) if isinstance(piece, np.ndarray) else in_general(piece, plan, group).encode()


def decoded(data: bytes) -> Distinct:
    """Inverse of `encoded`."""
    keys = decode_keys(data)
    return Memberships.decode(data) if keys is None else keys


def union(pieces: list[bytes], plan: Plan, group: int) -> bytes:
    """Encoded memberships of one group in one piece, each once."""
    if len(pieces) == 1:
        return pieces[0]
    return encoded(merged([decoded(piece) for piece in pieces], plan, group), plan, group)


def merged(pieces: list[Distinct], plan: Plan, group: int) -> Distinct:
    """Memberships of one group in one piece, each once."""
    if len(pieces) == 1:
        return pieces[0]
    whole = joined(pieces, plan, group)
    if isinstance(whole, Coded):
        return Coded(distinct_keys(whole.keys), whole.table)
    return distinct_keys(whole) if isinstance(whole, np.ndarray) else whole


def joined(pieces: Sequence[Distinct], plan: Plan, group: int) -> Distinct:
    """All pieces in one: keys (not yet distinct) where all of them are, or else merged."""
    packed = [piece for piece in pieces if isinstance(piece, np.ndarray)]
    if len(packed) == len(pieces):
        return np.concatenate(packed)
    coded = [piece for piece in pieces if isinstance(piece, Coded)]
    whole = join(coded, plan.layout) if len(coded) == len(pieces) else None
    if whole is not None:
        return whole
    return merge([in_general(piece, plan, group).widened() for piece in pieces], plan.bounding.keep)


def in_general(piece: Distinct, plan: Plan, group: int) -> Memberships:
    """Memberships of a group of windows in the general form."""
    first = group * plan.group + 1
    if isinstance(piece, Memberships):
        return piece
    return piece.in_general(plan.layout, first) if isinstance(piece, Coded) else general(piece, plan.layout, first)
