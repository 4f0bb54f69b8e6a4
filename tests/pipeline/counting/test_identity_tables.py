"""Users as numbers in a table of identities: counts equal those by identity, however blocks are joined."""

from __future__ import annotations

import json

import numpy as np
import polars as pl
import pytest

from penstock.mechanisms.core.plugin import DataError
from penstock.pipeline.config.plan import make_plan
from penstock.pipeline.config.run import loads
from penstock.pipeline.counting.contributions import (
    Contributions,
    IdentityTable,
    KeyLayout,
    crowded,
    decoded,
    union,
    widened,
)
from penstock.pipeline.counting.count import summarise_users
from penstock.pipeline.counting.users import CodeTable, user_codes
from penstock.pipeline.runners.shared import counted, reduced
from penstock.pipeline.sources.base import EventBlock
from tests.tools.small_configuration import START, made_up_events, small_sections

#: Whom two pieces of one block are about.
OWN = ([3, 3, 999], [8, 999, 999])


@pytest.fixture
def plan(tmp_path):
    return make_plan(loads(json.dumps(small_sections(tmp_path))))


def blocks(users, n=400, n_blocks=3):
    """Events of made-up users at known places, each of them reported one to three times in a row."""
    rng = np.random.default_rng(1)
    events = [event for event in made_up_events(n) if event[2] != "z" for _ in range(rng.integers(1, 4))]
    start = int(START.timestamp() * 1000)
    for part in np.array_split(np.arange(len(events)), n_blocks):
        user = users[rng.integers(0, len(users), len(part))]
        time = start + rng.integers(0, 6 * 3_600_000, len(part))
        frame = pl.DataFrame({"user": user, "time": time, "place": [events[i][2] for i in part]})
        yield EventBlock(frame.sort("user", "time"), len(part))


USERS = {
    "text": pl.Series([f"user{i}" for i in range(30)]),
    "large numbers": pl.Series([2**62 - i for i in range(30)]),
    "negative numbers": pl.Series([-i * 2**40 for i in range(30)]),
    "a range with gaps": pl.Series([-i * 10 for i in range(30)]),
}


@pytest.mark.parametrize("keep", ["hash", "first", "last", "most_frequent"])
@pytest.mark.parametrize("users", USERS.values(), ids=USERS)
def test_counts_are_the_same_after_encoding(tmp_path, users, keep):
    sections = small_sections(tmp_path)
    sections["bounding"] = {**sections.get("bounding", {}), "keep": keep}
    plan = make_plan(loads(json.dumps(sections)))
    pieces: dict[int, list] = {}
    for block in blocks(users):
        for (group, _), piece in reduced(plan, block)[1]:
            assert len(piece.users) <= block.n_rows
            pieces.setdefault(group, []).append(piece)
    assert len(pieces) > 1
    for group, its in pieces.items():
        whole, seen = counted(plan, group, its)
        after = [decoded(piece.encode(plan.batching.layout)) for piece in its]
        for others in (
            after,
            [its[0], *after[1:]],
            [union(its[:2], plan.batching.layout, plan.bounds.keep), *after[2:]],
        ):
            other, seen_too = counted(plan, group, others)
            assert np.array_equal(whole.counts, other.counts)
            assert np.array_equal(whole.bounded, other.bounded)
            assert whole.n_memberships == other.n_memberships
            assert of_everybody(seen, plan) == of_everybody(seen_too, plan)
        assert whole.counts.sum() > whole.bounded.sum() > 0


def of_everybody(seen, plan):
    """Windows and cells by identity."""
    rows, everybody = seen.rows(KeyLayout(1, plan.grid.n_cells), 1), {}
    for who, cell, n_windows in zip(map(tuple, widened(rows.user, 2).tolist()), rows.cell.tolist(), rows.mark.tolist()):
        windows, cells = everybody.get(who, (0, []))
        everybody[who] = windows + n_windows, [*cells, cell]
    return everybody


@pytest.mark.parametrize("most", [10**6, 20], ids=["one table", "full after some blocks"])
@pytest.mark.parametrize("more", [{}, {"max_cells": 1, "keep": "first"}, {"max_cells": 1}])
@pytest.mark.parametrize("users", USERS.values(), ids=USERS)
def test_ids_by_one_code_are_counted_as_by_their_identities(tmp_path, users, more, most):
    sections = small_sections(tmp_path)
    sections["bounding"] = {**sections.get("bounding", {}), **more}
    plan = make_plan(loads(json.dumps(sections)))
    ids, ways = CodeTable(limit=most), ({}, {})
    for block in blocks(users, n_blocks=9):
        for table, pieces in zip((None, ids), ways):
            for (group, _), piece in reduced(plan, block, ids=table)[1]:
                pieces.setdefault(group, []).append(piece)
    assert len(ids) >= min(most, len(users))
    assert len(ways[0]) > 1
    summaries = []
    for pieces in ways:
        counts_of = [counted(plan, group, pieces[group]) for group in sorted(pieces)]
        figures = [(counts.counts.tolist(), counts.bounded.tolist(), counts.n_memberships) for counts, _ in counts_of]
        summary = summarise_users([seen for _, seen in counts_of], plan.grid.n_cells)
        everybody = [of_everybody(seen, plan) for _, seen in counts_of]
        summaries.append((figures, everybody, {name: sorted(numbers) for name, numbers in summary.items()}))
    assert summaries[0] == summaries[1]
    assert np.sum(summaries[0][0][0][0]) > np.sum(summaries[0][0][0][1]) > 0


@pytest.mark.parametrize("key", [None, b"k" * 32])
@pytest.mark.parametrize("n_hashes", [1, 3, None], ids=["all equal", "three", "as they are"])
@pytest.mark.parametrize("make", ["user {}".format, int], ids=["texts", "numbers"])
def test_ids_of_one_hash_have_codes_of_their_own(n_hashes, key, make):
    """The first hash of an id is that of others: the second tells them apart."""
    seeds = []

    def coarse(users, seed):
        seeds.append(seed)
        hashes = users.hash(seed)
        return hashes % n_hashes if n_hashes and seed == seeds[0] else hashes

    random, table, code_of = np.random.default_rng(5), CodeTable(key, hashes=coarse), {}
    assert table.codes(pl.Series([], dtype=pl.String if make is not int else pl.Int64)).tolist() == []
    for n in (1, 4, 40, 400):
        names = list(map(make, random.integers(n, size=2 * n).tolist()))
        for name, code in zip(names, table.codes(pl.Series(names)).tolist()):
            assert code_of.setdefault(name, code) == code
    assert list(code_of.values()) == list(range(len(table)))  # in the order of their first rows
    codes, identities = user_codes(pl.Series(list(code_of)), key)
    assert np.array_equal(table.of(np.array(list(code_of.values()))), widened(identities[codes], 2))


def test_a_deployment_never_takes_two_ids_for_one():
    seeds = []

    def coarse(users, seed):
        """Return the same second hash for every id, and a first hash with the same beginning."""
        seeds.append(seed)
        return users.hash(seed) // 2**40 * 2**40 if seed == seeds[0] else users.hash(seed) * 0

    names = pl.Series(["ann", "bob"])
    assert len(set(CodeTable(hashes=coarse).codes(names).tolist())) == 1
    seeds.clear()
    with pytest.raises(DataError, match="run once more"):
        CodeTable(b"k" * 32, hashes=coarse).codes(names)


def test_bare_keys_are_read_as_they_are_written(plan):
    keys = plan.batching.layout.pack(np.array([7, 8]), np.array([0, 1]), np.array([2, 0]))
    actual = decoded(memoryview(b"PKEYS001" + keys.astype("<i8").tobytes()))
    assert (actual.keys.tolist(), actual.users, actual.marks) == (keys.tolist(), None, None)


def test_ids_join_identities(plan):
    place = Contributions(plan.batching.layout.pack(np.array([7]), np.array([0]), np.array([2])))
    number = Contributions(
        plan.batching.layout.pack(np.array([0]), np.array([0]), np.array([2])), IdentityTable(np.array([[7, 0]]))
    )
    rows = union([place, number], plan.batching.layout, plan.bounds.keep).rows(plan.batching.layout, 1)
    assert (rows.user.tolist(), rows.window.tolist(), rows.cell.tolist()) == ([[7, 0]], [1], [2])


def test_tables_that_pieces_share_are_joined_once(plan):
    table = IdentityTable(np.array([[9, 0], [4, 4], [4, 3]]))
    layout = plan.batching.layout
    pieces = [Contributions(layout.pack(np.array([i]), np.array([0]), np.array([i])), table) for i in range(3)]
    alone = Contributions(pieces[0].keys, IdentityTable(np.array([[4, 3]])))
    whole = union([*pieces, alone], plan.batching.layout, plan.bounds.keep)
    assert whole.users.identities.tolist() == [[4, 3], [4, 4], [9, 0]]
    assert [part.tolist() for part in layout.unpack(whole.keys)] == [[0, 0, 1, 2], [0] * 4, [0, 2, 1, 0]]


def test_more_than_a_key_can_hold_is_refused():
    wide = KeyLayout(n_windows=2**30, n_cells=2**31)
    wide.check(np.array([0, 1]))
    with pytest.raises(DataError, match=r"3 users × .* use fewer cells"):
        wide.check(np.array([0, 2]))


def test_only_those_who_occur_are_looked_up(plan):
    everybody = IdentityTable(np.array([[i, i] for i in range(1000)]))
    window, cell = np.array([0, 0, 0]), np.array([0, 1, 2])
    pieces = [
        Contributions(plan.batching.layout.pack(np.array(user_codes), window, cell), everybody) for user_codes in OWN
    ]
    other = Contributions(pieces[0].keys[:1] & 1, IdentityTable(np.array([[8, 8]])))
    whole = union([*pieces, other], plan.batching.layout, plan.bounds.keep)
    assert whole.users.identities.tolist() == [[3, 3], [8, 8], [999, 999]]
    assert plan.batching.layout.unpack(whole.keys)[0].tolist() == [0, 0, 1, 2, 2]


def test_the_largest_id_that_a_key_holds_can_be_bounded():
    layout = KeyLayout(n_windows=2, n_cells=2)
    largest = max(2**bits - 1 for bits in range(63) if layout.holds(np.array([2**bits - 1])))
    keys = layout.pack(np.array([5, largest, largest]), np.array([1, 1, 1]), np.array([0, 0, 1]))
    assert crowded(keys, layout, 1).tolist() == [1, 2]
