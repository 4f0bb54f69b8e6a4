"""The keyed hash: SipHash-2-4 over the words of each row."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from penstock.mechanisms.core.plugin import ParameterError
from penstock.mechanisms.core.samplers.siphash import ROWS, keyed_hash
from tests.tools.siphash import siphash

KEY = bytes(range(16))
#: From the reference implementation: key 00 … 0f, messages 00 01 02 … of 8, 16, …, 56 bytes.
REFERENCE = [
    0x93F5F5799A932462,
    0x3F2ACC7F57C29BDB,
    0xB8AD50C6F649AF94,
    0x7127512F72F27CCE,
    0x0E3EA96B5304A7D0,
    0xE612A3CB9ECBA951,
    0xB78DBFAF3A8D83BD,
]


@pytest.mark.parametrize("n_words", range(1, 8))
def test_reference_vectors(n_words: int) -> None:
    words = np.arange(8 * n_words, dtype=np.uint8).view("<u8")
    assert keyed_hash(KEY, *words.reshape(n_words, 1)).tolist() == [REFERENCE[n_words - 1]]


def test_rows_are_hashed_one_by_one() -> None:
    generator = np.random.default_rng(7)
    columns = generator.integers(-(2**63), 2**63 - 1, size=(3, 2 * ROWS + 5))
    together = keyed_hash(KEY, *columns)
    for row in (0, 1, ROWS - 1, ROWS, 2 * ROWS + 4):
        assert int(together[row]).to_bytes(8, "little") == siphash(KEY, columns[:, row].tobytes())


def test_column_types() -> None:
    plain = keyed_hash(KEY, np.array([1, -2]), np.array([3, 3]))
    assert (keyed_hash(KEY, np.array([1, -2], dtype=np.int8), np.int64(3)) == plain).all()
    assert (keyed_hash(KEY, np.array([1, 2**64 - 2], dtype=np.uint64), np.array([3])) == plain).all()
    assert keyed_hash(KEY, np.array([True])) == keyed_hash(KEY, np.array([1]))
    assert keyed_hash(KEY, np.array([0.5])) == keyed_hash(KEY, np.array([0.5]).view(np.int64))
    assert keyed_hash(KEY, np.array([], dtype=int)).shape == (0,)
    for columns in ([np.array(["a"])], [np.zeros((2, 2), int)], [np.array([1 + 1j])], []):
        with pytest.raises(ParameterError, match="columns"):
            keyed_hash(KEY, *columns)
    with pytest.raises(ParameterError, match="16 bytes"):
        keyed_hash(KEY[:15], np.array([1]))


def test_keys_and_columns_separate() -> None:
    users, cells = np.arange(50_000), np.zeros(50_000, dtype=int)
    hashes = [keyed_hash(KEY, users, cells), keyed_hash(KEY[::-1], users, cells), keyed_hash(KEY, cells, users)]
    assert np.unique(np.concatenate(hashes)).size == 150_000 - 1  # row 0 is (0, 0) in two of them
    for some in hashes:
        assert stats.chisquare(np.bincount((some >> np.uint64(57)).astype(int))).pvalue > 1e-4


@pytest.mark.parametrize("n_rows", [1, 7, ROWS - 1, ROWS, ROWS + 1, 2 * ROWS + 5])
@pytest.mark.parametrize("highest", [(0, 0, 0), (2, 60, 3), (3, 3, 10**6), (10**6, 1, 1)])
def test_rows_that_begin_alike_are_hashed_as_each_alone(n_rows: int, highest: tuple[int, ...]) -> None:
    rng = np.random.default_rng(n_rows)
    columns = [np.sort(rng.integers(0, high, n_rows, endpoint=True)) for high in highest[:2]]
    columns.append(rng.integers(0, highest[2], n_rows, endpoint=True))
    # In an order in which hardly any row begins like the one before it.
    order = rng.permutation(n_rows)
    apart = keyed_hash(KEY, *(column[order] for column in columns))
    assert np.array_equal(keyed_hash(KEY, *columns)[order], apart)
    some = rng.integers(0, n_rows, 5)
    alone = [int(keyed_hash(KEY, *(column[i : i + 1] for column in columns))[0]) for i in some]
    assert keyed_hash(KEY, *columns)[some].tolist() == alone
