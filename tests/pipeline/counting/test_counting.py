"""The vectorised count against Python sets, for any range of windows, cells and user ids."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import groupby

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.pipeline.counting.bounding import CountingBounds, _first_of_unit, bound, bound_block, unbounded
from penstock.pipeline.counting.contributions import (
    ContributionRows,
    distinct_marked,
    merge,
    sorted_order,
    starts_of,
)
from penstock.pipeline.counting.users import user_codes

INT64 = st.integers(-(2**63), 2**63 - 1)
SMALL = st.integers(-3, 3)
rows = st.lists(st.tuples(INT64 | SMALL, INT64 | SMALL, SMALL), max_size=40)


def columns_of(table, n_columns=3):
    return [np.array([row[i] for row in table], np.int64) for i in range(n_columns)]


@given(rows)
@settings(max_examples=200, deadline=None)
def test_distinct_rows_are_a_sorted_set(table):
    assert list(zip(*(c.tolist() for c in distinct_marked(columns_of(table), None, "hash")[0]))) == sorted(set(table))


@given(rows)
@settings(max_examples=100, deadline=None)
def test_sorted_order_sorts_rows_stably(table):
    order = sorted_order(columns_of(table)) if table else np.array([], int)
    assert [table[i] for i in order] == sorted(table)
    assert order.tolist() == sorted(range(len(table)), key=lambda i: table[i])


def test_rows_too_wide_for_one_key_are_still_exact():
    rng = np.random.default_rng(5)
    n = 2**16 + 1
    columns = [rng.permutation(n).astype(np.int64) * 2**38 for _ in range(4)]
    twice = [np.concatenate([column, column[:1000]]) for column in columns]
    actual, _ = distinct_marked(twice, None, "hash")
    assert len(actual[0]) == n
    assert np.array_equal(actual[0], np.sort(columns[0]))
    back = {int(a): int(b) for a, b in zip(columns[0][:1000], columns[2][:1000])}
    where = np.searchsorted(actual[0], columns[0][:1000])
    assert [int(x) for x in actual[2][where]] == list(back.values())


def test_starts_of_nothing_is_nothing():
    assert starts_of([np.array([], np.int64)]).tolist() == []


@pytest.mark.parametrize(
    "users",
    [
        pl.Series(["a", "b", "a", "", "ä"]),
        pl.Series([2**62, -(2**62), 2**62, 0, 1]),
        pl.Series([5, 3, 5, 3, 4]),
    ],
)
@pytest.mark.parametrize("key", [None, b"k" * 16])
def test_identities_are_equal_exactly_when_users_are(users, key):
    codes, table = user_codes(users, key)
    identities = [tuple(row) for row in table[codes].tolist()]
    for i in range(len(users)):
        for j in range(len(users)):
            assert (identities[i] == identities[j]) == (users[i] == users[j])


def test_identities_are_the_same_in_another_block():
    codes, table = user_codes(pl.Series(["a", "b"]), None)
    codes2, table2 = user_codes(pl.Series(["x", "b"]), None)
    assert table[codes][1].tolist() == table2[codes2][1].tolist()


def test_a_deployment_key_changes_every_identity():
    plain, keyed = user_codes(pl.Series([1, 2]), None), user_codes(pl.Series([1, 2]), b"secret" * 3)
    assert plain[1].shape[1] == 1
    assert keyed[1].shape[1] == 2


events = st.lists(st.tuples(st.integers(0, 6), st.integers(1, 3), st.integers(0, 5), st.integers(0, 99)), min_size=1)


def memberships_of(table, keep, pieces=3):
    """Merge the table through several blocks, as the pipeline does."""
    parts = []
    for piece in (table[i::pieces] for i in range(pieces)):
        if not piece:
            continue
        user, window, cell, time = columns_of(piece, 4)
        mark = {"hash": None, "most_frequent": np.ones(len(piece), np.int64)}.get(keep, time)
        (window, user, cell), marks = distinct_marked([window, user, cell], mark, keep)
        parts.append(ContributionRows(user[:, None], window, cell, marks))
    return merge(parts, keep)


@given(events, st.integers(1, 4), st.sampled_from(["hash", "first", "last", "most_frequent"]))
@settings(max_examples=150, deadline=None)
def test_bounding_keeps_the_right_cells(table, max_cells, keep):
    actual = memberships_of(table, keep)
    kept = bound(actual, max_cells, keep, b"key" * 6)
    cells = defaultdict(set)
    for i in np.flatnonzero(kept):
        cells[int(actual.user[i, 0]), int(actual.window[i])].add(int(actual.cell[i]))
    times = defaultdict(list)
    for user, window, cell, time in table:
        times[user, window, cell].append(time)
    by_window = defaultdict(dict)
    for (user, window, cell), seen in times.items():
        mark = {"first": min(seen), "last": -max(seen), "most_frequent": -len(seen), "hash": 0}[keep]
        by_window[user, window][cell] = mark
    assert set(cells) == set(by_window)
    for unit, marks in by_window.items():
        assert len(cells[unit]) == min(max_cells, len(marks))
        if keep != "hash":
            assert cells[unit] == set(sorted(marks, key=lambda c: (marks[c], c))[:max_cells])


@pytest.mark.parametrize(
    ("bounds", "kept"),
    [
        ({"max_windows": 1}, [1, 6, 17, 21]),
        ({"max_block_cells": 1}, [1, 3, 5, 6, 8, 10, 12, 14, 16, 18, 20, 22]),
    ],
)
def test_what_stays_of_a_block_is_the_same_on_every_machine_and_drawn_anew_in_every_block(bounds, kept):
    user, window = np.repeat([[0], [1]], 12, axis=0), np.tile(np.repeat(np.arange(1, 7), 2), 2)
    memberships = ContributionRows(user, window, np.tile([0, 1], 12))
    actual = bound_block(memberships, CountingBounds(**bounds, block_length=3), b"k" * 16)
    assert np.flatnonzero(actual).tolist() == kept


def test_hashed_bounding_prefers_no_cell():
    users = np.arange(20_000)
    user = np.repeat(users, 2)
    window, cell = np.ones_like(user), np.tile([0, 1], len(users))
    table = merge([ContributionRows(user[:, None], window, cell)])
    kept = bound(table, 1, "hash", b"key" * 6)
    share = Counter(table.cell[kept].tolist())[0] / len(users)
    assert abs(share - 0.5) < 5 * 0.5 / np.sqrt(len(users))


@pytest.mark.parametrize("n_values", [3, 2**20, 2**63])
@pytest.mark.parametrize("limit", [1, 2, 5])
def test_bounding_chooses_the_smallest_hashes_also_where_these_begin_alike_or_are_equal(n_values, limit):
    rng = np.random.default_rng(limit)
    user, window, cell = np.unique(rng.integers(0, [40, 3, 12], (3000, 3)), axis=0).T
    hashes = rng.integers(0, n_values, len(user), dtype=np.uint64)
    kept = _first_of_unit(user * 3 + window, hashes, cell, limit)
    rows = sorted(zip(user.tolist(), window.tolist(), hashes.tolist(), cell.tolist()))
    units = [list(its) for _, its in groupby(rows, key=lambda row: row[:2])]
    expected = {(user, window, cell) for its in units for user, window, _, cell in its[:limit]}
    assert set(zip(user[kept].tolist(), window[kept].tolist(), cell[kept].tolist())) == expected


@pytest.mark.parametrize("bounding", [{}, {"max_cells": None, "keep": "first"}])
def test_a_person_who_may_count_in_every_cell_is_warned_of(bounding):
    assert "one person may count in all 2,000 cells" in (unbounded(bounding, 2_000) or "")
    assert unbounded(bounding, 1) is None


@pytest.mark.parametrize("bounding", [{"max_cells": 3}, {"max_per_period": 3}])
def test_a_person_who_counts_in_few_cells_is_not(bounding):
    assert unbounded(bounding, 2_000) is None
