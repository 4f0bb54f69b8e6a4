"""SipHash-2-4 over whole columns: a keyed hash for bounding, sampling masks, shards and user digests."""

from __future__ import annotations

import struct

import numpy as np
from numpy.typing import ArrayLike, NDArray

from penstock.mechanisms.core.plugin import ParameterError

#: Rows hashed at a time: the four lanes and a scratch column stay in the cache, and other threads, each of which may
#: keep Python's lock for a while whenever a step lets it go, are asked seldom.
ROWS = 16_384


def keyed_hash(key: bytes, *columns: ArrayLike) -> NDArray[np.uint64]:
    """Return every row's 64-bit SipHash-2-4, which is unpredictable without the key.

    About 0.1 µs a row of three columns. Aumasson and Bernstein, "SipHash: a fast short-input PRF", INDOCRYPT 2012.
    """
    if len(key) < 16:
        raise ParameterError("key", f"{len(key)} bytes", "at least 16 bytes long")
    words = np.broadcast_arrays(*(np.atleast_1d(_as_words(column)) for column in columns))
    if not words or words[0].ndim != 1:
        raise ParameterError("columns", [np.shape(c) for c in columns], "one or more one-dimensional arrays")
    result: NDArray[np.uint64] = np.empty((1, words[0].size), np.uint64)
    length = np.full(1, 8 * len(words) % 256 << 56, np.uint64)
    for start in range(0, words[0].size, ROWS):
        rows = slice(start, start + ROWS)
        _hash(key, [column[rows] for column in words], length, result[:, rows])
    return result.reshape(-1)


def keyed_digest(key: bytes, words: NDArray[np.uint64], last: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return every message's 128-bit SipHash-2-4, shape (2, n), which is unpredictable without the key.

    ``words``, shape (n_words, n), are whole words of eight bytes, little endian, ``last``, shape (n,), what is left of
    each message, and its number of bytes modulo 256 in the highest byte. Of the key 16 bytes are used. Here the eight
    bytes from 0 to 7, under the key of the authors' vectors:

    >>> words, last = np.array([[0x0706050403020100]], np.uint64), np.array([8 << 56], np.uint64)
    >>> digest = keyed_digest(bytes(range(16)), words, last)
    >>> digest.astype("<u8").tobytes().hex()
    '3b62a9ba6258f5610f83e264f31497b4'
    """
    result = np.empty((2, last.size), np.uint64)
    for start in range(0, last.size, ROWS):
        rows = slice(start, start + ROWS)
        _hash(key, [*words[:, rows]], last[rows], result[:, rows])
    return result


def _as_words(column: ArrayLike) -> NDArray[np.uint64]:
    array = np.asarray(column)
    if array.dtype == np.uint64:
        return array
    if array.dtype.kind in "iub":
        return array.astype(np.int64).view(np.uint64)
    if array.dtype == np.float64:
        return np.ascontiguousarray(array).view(np.uint64)
    raise ParameterError("columns", str(array.dtype), "integers, booleans or float64")


def _hash(key: bytes, columns: list[NDArray[np.uint64]], last: NDArray[np.uint64], result: NDArray[np.uint64]) -> None:
    """Hash rows into ``result``, shape (1, n) or (2, n). ``last`` is each message's final word, or one word for all."""
    half, n_rows, is_wide = struct.unpack("<2Q", key[:16]), result.shape[1], len(result) == 2
    constants = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)
    lanes: list[NDArray[np.uint64]] = [
        np.full(n_rows, constant ^ half[i % 2], dtype=np.uint64) for i, constant in enumerate(constants)
    ]
    lanes[1] ^= np.uint64(0xEE if is_wide else 0)
    scratch = np.empty(n_rows, np.uint64)
    for word in [*columns, last]:
        lanes[3] ^= word
        for _ in range(2):
            _round(lanes, scratch)
        lanes[0] ^= word
    lanes[2] ^= np.uint64(0xEE if is_wide else 0xFF)
    for hashed in result:
        for _ in range(4):
            _round(lanes, scratch)
        hashed[:] = lanes[0] ^ lanes[1] ^ lanes[2] ^ lanes[3]
        lanes[1] ^= np.uint64(0xDD)


def _round(lanes: list[NDArray[np.uint64]], scratch: NDArray[np.uint64]) -> None:
    v0, v1, v2, v3 = lanes
    for into, lane, turn, swap in ((v0, v1, 13, v0), (v2, v3, 16, None), (v0, v3, 21, None), (v2, v1, 17, v2)):
        into += lane
        _rotate(lane, turn, scratch)
        lane ^= into
        if swap is not None:
            _rotate(swap, 32, scratch)


def _rotate(lane: NDArray[np.uint64], turn: int, scratch: NDArray[np.uint64]) -> None:
    np.right_shift(lane, np.uint64(64 - turn), out=scratch)
    lane <<= np.uint64(turn)
    lane |= scratch
