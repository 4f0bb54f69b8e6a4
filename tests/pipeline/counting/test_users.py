"""Digests of users: those of SipHash-2-4-128, whatever else is in the block."""

from __future__ import annotations

import hashlib
import struct

import numpy as np
import polars as pl
import pytest

from penstock.pipeline.counting.users import text_digest, user_codes, with_digests
from tests.tools.siphash import siphash


@pytest.mark.parametrize("key", [None, b"k" * 32])
def test_digests_of_texts_are_those_of_the_reference(key):
    texts = ["", "a", "ä", "1234567", "12345678", "123456789", "a\0", "a\0\0", "\0", "x" * 127, "x" * 128, "people 🚲"]
    secret = hashlib.blake2b(b"user identity", digest_size=16, key=key or b"").digest()
    right = [siphash(secret, text.encode(), wide=True) for text in texts]
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
