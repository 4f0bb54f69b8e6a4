"""Digests of users: those of SipHash-2-4-128, whatever else is in the block."""

from __future__ import annotations

import hashlib
import struct

import numpy as np
import polars as pl
import pytest

from penstock.pipeline.counting.users import text_digest, user_codes, with_digests

MASK = 2**64 - 1


def siphash_128(key: bytes, message: bytes) -> bytes:
    """The authors' algorithm, word by word."""
    k0, k1 = struct.unpack("<2Q", key)
    v = [k0 ^ 0x736F6D6570736575, k1 ^ 0x646F72616E646F6D ^ 0xEE, k0 ^ 0x6C7967656E657261, k1 ^ 0x7465646279746573]

    def turn(x: int, n: int) -> int:
        return (x << n | x >> (64 - n)) & MASK

    def rounds(n: int) -> None:
        for _ in range(n):
            v[0] = (v[0] + v[1]) & MASK
            v[1] = turn(v[1], 13) ^ v[0]
            v[0] = turn(v[0], 32)
            v[2] = (v[2] + v[3]) & MASK
            v[3] = turn(v[3], 16) ^ v[2]
            v[0] = (v[0] + v[3]) & MASK
            v[3] = turn(v[3], 21) ^ v[0]
            v[2] = (v[2] + v[1]) & MASK
            v[1] = turn(v[1], 17) ^ v[2]
            v[2] = turn(v[2], 32)

    padded = message + bytes(7 - len(message) % 8) + bytes([len(message) % 256])
    for (word,) in struct.iter_unpack("<Q", padded):
        v[3] ^= word
        rounds(2)
        v[0] ^= word
    v[2] ^= 0xEE
    rounds(4)
    low = v[0] ^ v[1] ^ v[2] ^ v[3]
    v[1] ^= 0xDD
    rounds(4)
    return struct.pack("<2Q", low, v[0] ^ v[1] ^ v[2] ^ v[3])


@pytest.mark.parametrize("key", [None, b"k" * 32])
def test_digests_of_texts_are_those_of_the_reference(key):
    texts = ["", "a", "ä", "1234567", "12345678", "123456789", "a\0", "a\0\0", "\0", "x" * 127, "x" * 128, "people 🚲"]
    secret = hashlib.blake2b(b"user identity", digest_size=16, key=key or b"").digest()
    right = [siphash_128(secret, text.encode()) for text in texts]
    codes, table = user_codes(pl.Series(texts), key)
    assert [row.tobytes() for row in table[codes]] == right
    assert len(set(right)) == len(texts)


def test_a_digest_depends_on_the_text_alone():
    rng = np.random.default_rng(0)
    texts = ["".join(rng.choice(list("abcäß€🚲"), rng.integers(0, 60))) for _ in range(500)] + ["y" * 1000, "y" * 1001]
    alone = [text_digest(text) for text in texts]
    shuffled = rng.permutation(len(texts))
    codes, table = user_codes(pl.Series(texts)[shuffled], None)
    assert [tuple(row) for row in table[codes].tolist()] == [alone[i] for i in shuffled]
    assert len(set(alone)) == len(set(texts))
    sliced = pl.Series(["left out", *texts])[1:]
    codes, table = user_codes(sliced, None)
    assert [tuple(row) for row in table[codes].tolist()] == alone


def test_numbers_and_their_texts_are_different_users_under_a_key():
    key = b"k" * 32
    numbers = user_codes(pl.Series([5, 6]), key)[1]
    texts = user_codes(pl.Series(["5", struct.pack("<q", 5).decode()]), key)[1]
    assert numbers.shape == (2, 2)
    assert len({tuple(row) for row in np.concatenate([numbers, texts]).tolist()}) == 4


def test_digests_that_travel_are_those_of_the_users():
    frame = pl.DataFrame({"user": ["b", "a", "b", "c" * 200, ""]})
    hidden = with_digests(frame, b"k" * 32)
    codes, table = user_codes(hidden["user"], b"k" * 32)
    plain = user_codes(frame["user"], b"k" * 32)
    np.testing.assert_array_equal(table[codes], plain[1][plain[0]])
    assert with_digests(hidden, b"k" * 32) is hidden
