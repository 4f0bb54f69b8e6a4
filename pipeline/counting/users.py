"""Map each row's user to a small code and each code to an identity, which is an integer or a 128-bit digest."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from penstock.mechanisms.core.plugin import DataError
from penstock.mechanisms.core.samplers.siphash import keyed_digest
from penstock.pipeline.counting.contributions import starts_of, widened

Integers = NDArray[np.int64]

#: Longer texts, in bytes, are hashed one by one.
_LONG = 128
#: Ids that a table takes: it is full with the block that reaches this.
MAX_IDS = 1 << 22


def user_codes(users: pl.Series, digest_key: bytes | None) -> tuple[Integers, Integers]:
    """Return the user code of each row in a block and a table that maps codes to identities.

    ``users``: Int64 or String, no nulls; or Binary, the digests of `with_digests`. ``digest_key``: key under which
    integer ids are replaced by digests too (deployment); None keeps integers as they are. Returns ``codes``: shape
    (n_rows,); ``table``: shape (n_users, 1) for plain integers or (n_users, 2) for 128-bit digests: rows equal exactly
    when users are (two of n text ids share a digest with probability below n²/2¹²⁹).
    """
    if users.dtype in (pl.String, pl.Binary):
        run = users.rle_id().to_numpy()
        if len(run) > 4 * (1 + run.max(initial=0)):
            # Files of one user each, or sorted by user: only the first row of each run is looked up.
            first = np.flatnonzero(starts_of([run]))
            codes, table = user_codes(users.gather(first), digest_key)
            return np.repeat(codes, np.diff(first, append=len(run))), table
        dictionary = users.rechunk().to_arrow().dictionary_encode()
        codes = dictionary.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        begins, data = _bytes_of(dictionary.dictionary)
        if users.dtype == pl.Binary:
            return codes, data[begins[0] : begins[-1]].view("<i8").reshape(-1, 2)
        return codes, _digests_of_text(begins, data, digest_key)
    values = users.to_numpy()
    if digest_key is None:
        low, high = (int(values.min()), int(values.max())) if len(values) else (0, 0)
        if high - low < 4 * len(values):
            return values - low, np.arange(low, high + 1, dtype=np.int64)[:, None]
    table, codes = np.unique(values, return_inverse=True)
    codes, table = codes.astype(np.int64), table.astype(np.int64)
    return codes, table[:, None] if digest_key is None else _digests_of_numbers(table, digest_key)


class CodeTable:
    """Open-addressing hash table that assigns codes to user ids. Codes stay the same across blocks.

    An id is known by two hashes of 64 bits under secret seeds: the first says where the search for it begins, the
    second whether it has been reached. Two of n ids share a code with probability below n/2⁶²: 2⁻⁴⁰ for a full table.
    With a ``digest_key`` (deployment) ids are told apart by both hashes, or `DataError` is raised.

    >>> table = CodeTable()
    >>> first, second = table.codes(pl.Series(["b", "a"])), table.codes(pl.Series(["c", "a"]))
    >>> bool(first[1] == second[1]), sorted({*first.tolist(), *second.tolist()}), len(table)
    (True, [0, 1, 2], 3)
    """

    def __init__(
        self,
        digest_key: bytes | None = None,
        limit: int = MAX_IDS,
        hashes: Callable[[pl.Series, int], pl.Series] = pl.Series.hash,
    ) -> None:
        self._key, self._limit, self._hash = digest_key, limit, hashes
        self._seeds = [secrets.randbits(63) for _ in range(2)]
        self._n_ids = 0
        self._table = np.zeros(1 << 12, np.int32)  # one more than the code of the id in each slot; 0: none
        self._hashes, self._identities = np.empty((2, 1), np.uint64), np.empty((1, 2), np.int64)  # by code

    def __len__(self) -> int:
        return self._n_ids

    @property
    def has_room(self) -> bool:
        """Return whether more ids fit within the limit of a few hundred megabytes."""
        return len(self) < self._limit

    def codes(self, users: pl.Series) -> Integers:
        """Return each row's code, shape (n_rows,)."""
        hashes = [self._hash(users, seed).to_numpy() for seed in self._seeds]
        codes, slot = self._lookup(hashes)
        if len(new := np.flatnonzero(codes < 0)):
            codes[new] = self._add([column[new] for column in hashes], slot[new], users.gather(new))
        if self._key is not None and not np.array_equal(self._hashes[0].take(codes), hashes[0]):
            raise DataError("two user ids were not told apart by random hashes, which is rare: run once more")
        return codes

    def of(self, codes: Integers | slice) -> Integers:
        """Return the identities for user codes, shape (n, 2)."""
        return self._identities[: len(self)][codes]

    def _lookup(self, hashes: list[NDArray[np.uint64]]) -> tuple[Integers, Integers]:
        """Return the code of each pair of hashes, or -1 if the table lacks it, and the slot where its search ended."""
        slot, mark = self._slots(hashes[0]), hashes[1]
        codes = self._table.take(slot) - np.int64(1)
        others = np.flatnonzero((self._hashes[1].take(codes, mode="clip") != mark) & (codes >= 0))
        while len(others):
            slot[others] = at = self._slots(slot[others] + 1)
            codes[others] = held = self._table.take(at) - np.int64(1)
            others = others[(self._hashes[1].take(held, mode="clip") != mark[others]) & (held >= 0)]
        return codes, slot

    def _slots(self, numbers: NDArray[Any]) -> Integers:
        return numbers.view(np.int64) & (len(self._table) - 1)

    def _add(self, hashes: list[NDArray[np.uint64]], slot: Integers, users: pl.Series) -> Integers:
        """Add the rows' ids, none of which is in the table yet, in order of first appearance. Return each row's code.

        ``slot``: where the search for each ended.
        """
        n_before, rows = len(self), np.arange(len(users))
        if 2 * (n_before + len(rows)) > len(self._table):  # at most half of the slots are in use
            self._table = np.zeros(1 << (3 * (n_before + len(rows))).bit_length(), np.int32)
            self._put(self._slots(self._hashes[0, :n_before]), self._hashes[1, :n_before], 0)
            slot = self._slots(hashes[0])
        chosen = self._put(slot, hashes[1], n_before)
        first = np.full(len(rows), len(rows))
        np.minimum.at(first, chosen, rows)
        first = first[chosen]
        is_first = first == rows
        codes: Integers = (n_before - 1 + np.cumsum(is_first))[first]
        self._table[slot] = codes + 1
        self._keep([column[is_first] for column in hashes], users.filter(pl.Series(is_first)))
        return codes

    def _put(self, slot: Integers, mark: NDArray[np.uint64], first: int) -> Integers:
        """Put rows, numbered from ``first``, into the table, each into the first free slot from its ``slot`` onward.

        Return for each row which one of its id was put. ``slot`` becomes that row's slot.
        """
        others = np.arange(len(slot))
        while len(others):
            at = slot[others]
            free = self._table[at] == 0
            self._table[at[free]] = first + 1 + others[free]  # of several that want one, one has it
            held = self._table[at] - np.int64(first + 1)
            others = others[(mark.take(held, mode="clip") != mark[others]) | (held < 0)]
            slot[others] = self._slots(slot[others] + 1)
        return self._table[slot] - np.int64(first + 1)

    def _keep(self, hashes: list[NDArray[np.uint64]], users: pl.Series) -> None:
        """Store the hashes and identities of new ids under the next codes."""
        n_before, n_ids = len(self), len(self) + len(users)
        if n_ids > len(self._identities):
            # Arrays of their own: groups may be counted in other threads that ask for identities.
            larger = np.empty((2, 2 * n_ids), np.uint64), np.empty((2 * n_ids, 2), np.int64)
            larger[0][:, :n_before], larger[1][:n_before] = self._hashes[:, :n_before], self._identities[:n_before]
            self._hashes, self._identities = larger
        self._hashes[:, n_before:n_ids] = hashes
        if users.dtype == pl.String:
            self._identities[n_before:n_ids] = _digests_of_text(*_bytes_of(users.to_arrow()), self._key)
        elif self._key is not None:
            self._identities[n_before:n_ids] = _digests_of_numbers(users.to_numpy(), self._key)
        else:
            self._identities[n_before:n_ids] = widened(users.to_numpy()[:, None], 2)
        self._n_ids = n_ids


def with_digests(frame: pl.DataFrame, digest_key: bytes | None) -> pl.DataFrame:
    """Replace user ids with 16-byte digests that have the same `user_codes` table. Without a key, nothing changes.

    >>> frame = pl.DataFrame({"user": ["ann", "bob", "ann"]})
    >>> hidden = with_digests(frame, b"key")["user"]
    >>> tables = [user_codes(users, b"key")[1] for users in (hidden, frame["user"])]
    >>> hidden.dtype, hidden.n_unique(), np.array_equal(*tables)
    (Binary, 2, True)
    """
    if digest_key is None or frame["user"].dtype == pl.Binary:
        return frame
    codes, table = user_codes(frame["user"], digest_key)
    ends = pa.py_buffer(np.arange(0, 16 * len(table) + 1, 16, dtype=np.int64))
    digests = pa.Array.from_buffers(pa.large_binary(), len(table), [None, ends, pa.py_buffer(table.astype("<i8"))])
    return frame.with_columns(pl.Series("user", digests, dtype=pl.Binary).gather(codes))


def text_digest(text: str, digest_key: bytes | None = None) -> tuple[int, int]:
    """Return the identity for a string user id."""
    low, high = user_codes(pl.Series([text]), digest_key)[1][0].tolist()
    return low, high


def _digests(key: bytes | None, words: NDArray[np.uint64], last: NDArray[np.uint64]) -> Integers:
    """Return each message's digest under a derived key, shape (n, 2)."""
    secret = hashlib.blake2b(b"user identity", digest_size=16, key=key or b"").digest()
    return np.ascontiguousarray(keyed_digest(secret, words, last).T).view(np.int64)


def _digests_of_numbers(numbers: Integers, key: bytes) -> Integers:
    """Return the digest of each number."""
    # No text ends like this, so that no number has the digest of a text.
    return _digests(key, numbers.view(np.uint64)[None], np.full(len(numbers), 8 << 56 | 1, np.uint64))


def _bytes_of(texts: pa.Array) -> tuple[Integers, NDArray[np.uint8]]:
    """Return the offsets of strings in their shared buffer, including the end of the last string, and the buffer."""
    texts = texts.view(pa.large_binary())
    _, begins, data = texts.buffers()
    begins = np.frombuffer(begins, np.int64, len(texts) + 1, 8 * texts.offset) if len(texts) else np.zeros(1, np.int64)
    return begins, np.frombuffer(data, np.uint8) if data else np.zeros(0, np.uint8)


def _digests_of_text(begins: Integers, data: NDArray[np.uint8], key: bytes | None) -> Integers:
    """Return the digest of each string's bytes."""
    begin, length = begins[:-1], np.diff(begins)
    # The eight bytes from each on.
    eight = np.ndarray(len(data) + 1, "<u8", np.concatenate([data, np.zeros(8, np.uint8)]), strides=(1,))
    table = np.empty((len(length), 2), np.int64)
    n_words = length // 8
    for n in np.flatnonzero(np.bincount(n_words[length <= _LONG])).tolist():
        rows = np.flatnonzero(n_words == n)
        words = [eight[begin[rows] + 8 * i] for i in range(n + 1)]
        # Of the last eight bytes those that belong to the text, and its length in the highest.
        mask = (np.uint64(1) << (8 * (length[rows] % 8)).astype(np.uint64)) - np.uint64(1)
        last = words.pop() & mask | (length[rows] << 56).view(np.uint64)
        table[rows] = _digests(key, np.array(words, np.uint64).reshape(n, len(rows)), last)
    for row in np.flatnonzero(length > _LONG).tolist():
        text = hashlib.blake2b(data[begin[row] : begins[row + 1]].tobytes(), digest_size=16, key=key or b"").digest()
        table[row] = np.frombuffer(text, "<i8")
    return table
