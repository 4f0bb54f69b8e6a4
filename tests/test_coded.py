"""Users by number in a table of identities: the same counts as those of their identities, however blocks are joined."""

from __future__ import annotations

import json

import numpy as np
import polars as pl
import pytest
from small_configuration import START, made_up_events, small_sections

from penstock.pipeline.config.plan import make_plan
from penstock.pipeline.config.run import loads
from penstock.pipeline.sources.base import EventBlock
from penstock.pipeline.steps.contributions import Coded, KeyLayout, encoded, in_general, join, joined
from penstock.pipeline.steps.count import contributions_of, count_group

LAYOUT = KeyLayout(n_windows=3, n_cells=3)
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


@pytest.mark.parametrize("users", USERS.values(), ids=USERS)
def test_counts_are_those_of_the_general_form(plan, users):
    pieces: dict[int, list] = {}
    for block in blocks(users):
        for (group, _), piece in contributions_of(block, plan)[1]:
            assert isinstance(piece, Coded)
            assert len(piece.table) <= block.n_rows
            pieces.setdefault(group, []).append(piece)
    assert len(pieces) > 1
    for group, its in pieces.items():
        coded, seen = count_group(group, its, plan)
        general, seen_too = count_group(group, [encoded(piece, plan, group) for piece in its], plan)
        mixed, _ = count_group(group, [its[0], *(encoded(piece, plan, group) for piece in its[1:])], plan)
        for other in (general, mixed):
            assert np.array_equal(coded.counts, other.counts)
            assert np.array_equal(coded.bounded, other.bounded)
            assert coded.n_memberships == other.n_memberships
        assert coded.counts.sum() > coded.bounded.sum() > 0
        assert [part.tolist() for part in seen] == [part.tolist() for part in seen_too]


def test_a_piece_of_every_form_joins_every_other(plan):
    place = plan.layout.pack(np.array([7]), np.array([0]), np.array([2]))
    number = Coded(plan.layout.pack(np.array([0]), np.array([0]), np.array([2])), np.array([[7, 0]]))
    general = in_general(place, plan, 0)
    whole = joined([place, number, general], plan, 0)
    assert (whole.user.tolist(), whole.window.tolist(), whole.cell.tolist()) == ([[7, 0]], [1], [2])


def test_tables_that_pieces_share_are_joined_once():
    table = np.array([[9, 0], [4, 4], [4, 3]])
    pieces = [Coded(LAYOUT.pack(np.array([i]), np.array([i]), np.array([i])), table) for i in range(3)]
    whole = join([*pieces, Coded(pieces[0].keys, np.array([[4, 3]]))], LAYOUT)
    assert whole.table.tolist() == [[4, 3], [4, 4], [9, 0]]
    assert [part.tolist() for part in LAYOUT.unpack(whole.keys)] == [[2, 1, 0, 0], [0, 1, 2, 0], [0, 1, 2, 0]]


def test_too_many_users_for_a_key_are_not_coded():
    wide = KeyLayout(n_windows=2**31, n_cells=2**31)
    keys = np.arange(2) << wide.place_bits
    pieces = [Coded(keys, np.array([[i, i], [i + 9, 0]])) for i in range(2)]
    assert join(pieces, wide) is None


def test_only_those_who_occur_are_looked_up():
    everybody = np.array([[i, i] for i in range(1000)])
    pieces = [Coded(LAYOUT.pack(np.array(own), np.array([0, 1, 2]), np.array([0, 1, 2])), everybody) for own in OWN]
    whole = join(pieces, LAYOUT)
    assert whole.table.tolist() == [[3, 3], [8, 8], [999, 999]]
    assert [part.tolist() for part in LAYOUT.unpack(whole.keys)] == [[0, 0, 2, 1, 2, 2], [0, 1, 2] * 2, [0, 1, 2] * 2]
