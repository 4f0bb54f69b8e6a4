"""Sorting and deduplicating rows of integers: several columns packed into one 64-bit key where they fit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

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
