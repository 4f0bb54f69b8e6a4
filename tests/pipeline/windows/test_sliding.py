"""Runs over overlapping windows: an event counts in every window that contains it, and is charged in each."""

from __future__ import annotations

import json
from datetime import datetime, timedelta

import polars as pl
import pytest
from small_configuration import START, made_up_events

from penstock.mechanisms.core.plugin import ConfigError

SLIDING = {"type": "sliding", "size": "1h", "period": "20m"}
HOPS = 3
SECTIONS = {
    "windows": SLIDING,
    "landmarks": None,
    "mechanism": {"type": "raw"},
    "accountants": [],
}


def brute_force(events, n_windows=18):
    """Users of every window and place, by looking at each window's own interval."""
    found = {(w, p): set() for w in range(1, n_windows + 1) for p in "abc"}
    for user, time, place in events:
        at = datetime.fromisoformat(time) - START
        if not timedelta(0) <= at < timedelta(hours=6) or place not in "abc":
            continue
        for window in range(1, n_windows + 1):
            begin = timedelta(minutes=20 * (window - 1))
            if begin <= at < begin + timedelta(hours=1):
                found[window, place].add(user)
    return {key: len(users) for key, users in found.items()}


def counts(result, column="count"):
    truth = pl.read_parquet(result.folder / "operator" / "truth.parquet").with_columns(pl.col("cell").cast(pl.String))
    return {(w, c): n for w, c, n in truth.select("window", "cell", column).iter_rows()}


@pytest.mark.parametrize("integers", [False, True], ids=["text users", "integer users"])
def test_an_event_counts_in_every_window_that_holds_it(small_run, integers):
    events = made_up_events(1500)
    changes = {}
    if integers:
        events = [(user.removeprefix("user"), time, place) for user, time, place in events]
        changes["source"] = {"user_type": "integer"}
    result = small_run(events, **SECTIONS, bounding={"max_cells": 3}, **changes)
    assert counts(result) == brute_force(events)


def test_the_first_and_the_last_windows_reach_beyond_the_run(small_run):
    first = (START + timedelta(minutes=5)).isoformat()
    last = (START + timedelta(hours=5, minutes=59)).isoformat()
    found = counts(small_run([("u", first, "a"), ("v", last, "b")], **SECTIONS))
    assert {key for key, n in found.items() if n} == {(1, "a"), (16, "b"), (17, "b"), (18, "b")}


@pytest.mark.parametrize("keep", ["hash", "first", "last", "most_frequent"])
def test_bounding_holds_in_every_window(small_run, keep):
    events = made_up_events(1500, n_users=8)
    result = small_run(events, **SECTIONS, bounding={"max_cells": 1, "keep": keep})
    everybody = brute_force([(user, time, "a") for user, time, place in events if place in "abc"])
    bounded = counts(result, "bounded")
    for window in range(1, 19):
        assert sum(bounded[window, place] for place in "abc") == everybody[window, "a"]


def test_rows_have_one_fate_and_duplicates_are_counted_in_every_window(small_run):
    events = made_up_events(1500)
    rows = small_run([*events, *events[:100]], **SECTIONS).manifest["rows"]
    memberships = sum(brute_force(events).values())
    assert rows["rows"] == 1600 == rows["used"] + rows["out_of_area"] + rows["out_of_time"]
    assert rows["used"] + rows["overlaps"] - rows["duplicates"] == memberships


def test_shards_and_blocks_do_not_matter(small_run):
    events = made_up_events(1500)
    noisy = SECTIONS | {"mechanism": {"type": "discrete_laplace", "epsilon": 1.0}}
    plain = small_run(events, "plain", **noisy)
    split = small_run(events, "split", n_shards=3, source={"block_rows": 100}, **noisy)
    read = [(r.folder / "public" / "releases.parquet").read_bytes() for r in (plain, split)]
    assert read[0] == read[1]


def test_composition_pays_for_every_hop(small_run):
    noisy = SECTIONS | {
        "mechanism": {"type": "discrete_laplace", "epsilon": 1.0},
        "accountants": [{"type": "composition"}],
    }
    sliding = small_run(made_up_events(300), "sliding", **noisy)
    fixed = small_run(made_up_events(300), "fixed", **noisy | {"windows": {"type": "fixed", "size": "1h"}})
    figures = {}
    for name, result in (("sliding", sliding), ("fixed", fixed)):
        accounts = pl.read_parquet(result.folder / "public" / "accounts.parquet")
        event = accounts.filter(pl.col("name") == "event_epsilon").sort("window")
        figures[name] = event["value"][-1]
    assert figures["fixed"] == pytest.approx(1.0)
    # Other events of a window may take the place of the one that goes: a replacement in each of them.
    assert figures["sliding"] == pytest.approx(2 * HOPS * 1.0)


@pytest.mark.parametrize("accountant", ["landmark_budget"])
def test_accountants_without_a_theorem_refuse(small_run, accountant):
    with pytest.raises(ConfigError, match="an accountant for overlapping windows"):
        small_run(made_up_events(10), **SECTIONS | {"accountants": [{"type": accountant}]})


def test_the_manifest_is_plain_json(small_run):
    result = small_run(made_up_events(50), **SECTIONS)
    written = json.loads((result.folder / "operator" / "manifest.json").read_text())
    assert written["rows"]["overlaps"] == result.manifest["rows"]["overlaps"]
