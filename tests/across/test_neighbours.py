"""Neighbouring inputs through the pipeline: changes stay within the charge; mutants exceed it."""

from __future__ import annotations

import random

import numpy as np
import polars as pl
import pytest

from penstock.accountants.core import charges
from penstock.mechanisms.sampling import Sampling
from penstock.pipeline.counting import bounding, count
from penstock.pipeline.counting.bounding import PeriodQuota
from penstock.pipeline.output import writer
from penstock.pipeline.releasing import traces
from penstock.pipeline.runners import local
from penstock.pipeline.sources.base import EventBlock
from tests.fuzz.neighbours import TRIES, tried
from tests.fuzz.worlds import KINDS

#: Worlds of each kind beyond the first; `.ci/fuzz` tries many more.
FURTHER_ROUNDS = {"files": range(1, 6), "samples": (), "nonces": ()}


@pytest.mark.parametrize("kind", TRIES)
def test_nobody_moves_more_than_is_charged(kind, tmp_path):
    assert TRIES[kind](random.Random(f"7/{kind}/0"), tmp_path) is None


@pytest.mark.slow
@pytest.mark.parametrize("kind", TRIES)
def test_nobody_moves_more_than_is_charged_in_further_worlds(kind, tmp_path):
    for number in FURTHER_ROUNDS.get(kind, range(1, 3)):
        assert TRIES[kind](random.Random(f"7/{kind}/{number}"), tmp_path) is None


# Pipelines that are broken on purpose, each with the kind of world that convicts it.


def whoever_comes_first(patch):
    """Bound a window to some contributions, whoever makes them."""

    def bound(memberships, max_cells, keep, hash_key):
        order = np.argsort(memberships.window, kind="stable")
        window = memberships.window[order]
        place = np.arange(len(window)) - np.searchsorted(window, window)
        kept = np.empty(len(window), bool)
        kept[order] = place < 2 * max_cells
        return kept

    patch.setattr(bounding, "bound", bound)
    patch.setattr(count, "bound", bound)


def one_cell_too_many(patch):
    """Keep C + 1 cells."""
    right = bounding.bound

    def bound(memberships, max_cells, keep, hash_key):
        return right(memberships, max_cells + 1, keep, hash_key)

    patch.setattr(bounding, "bound", bound)
    patch.setattr(count, "bound", bound)


def a_quota_for_each_window(patch):
    """Forget what a person has used of a budget period."""
    right = PeriodQuota.admit

    def admit(self, memberships, period, maximum, *rest):
        kept, maximum = np.ones(len(period), bool), np.broadcast_to(maximum, len(period))
        for window in np.unique(memberships.window):
            rows = np.flatnonzero(memberships.window == window)
            kept[rows] = right(PeriodQuota(), memberships.take(rows), period[rows], maximum[rows], *rest)
        return kept

    patch.setattr(PeriodQuota, "admit", admit)


def late_by_what_others_sent(patch):
    """Close the windows of a row by the latest event that came with it."""

    def closed(piece, grid):
        times = piece.block.frame["time"].to_numpy()
        latest = int(times.max(initial=0))
        return np.full(len(times), grid.last_final(latest))

    patch.setattr(local, "last_final_windows", closed)


def traces_cut_by_area(patch):
    """Leave points out by where they are."""
    right = traces.points_of

    def points_of(block, **parts):
        frame = block.frame.filter(pl.col("latitude") < 1)
        return right(EventBlock(frame, frame.height), **parts)

    patch.setattr(traces, "points_of", points_of)


def half_the_price(patch):
    """Charge half of the ε of every release."""
    right = charges.PRICES["epsilon"]
    patch.setitem(charges.PRICES, "epsilon", lambda *charge: right(*charge) / 2)


def no_row_of_an_empty_cell(patch):
    """Write a row for each cell in which anybody was, and one for each window: a run does not end without these."""
    right = writer.releases_table

    def table(releases, *rest):
        made = right(releases, *rest)
        window = np.asarray(made["window"])
        return made.filter((np.asarray(made["value"]) != 0) | (np.diff(window, prepend=0) > 0))

    patch.setattr(writer, "releases_table", table)


def rows_in_order_of_counts(patch):
    """Write the most visited cell first."""
    right = writer.releases_table

    def table(releases, *rest):
        return right(releases, *rest).sort_by([("window", "ascending"), ("value", "descending")])

    patch.setattr(writer, "releases_table", table)


def every_second_one(patch):
    """Sample by position, so that whoever stands before somebody decides about them."""
    patch.setattr(Sampling, "keep", lambda self, users, cells, window, hashes: np.arange(len(hashes)) % 2 == 0)


#: What is broken, the kind of world that convicts it, and the number of the first world that is tried.
MUTANTS = [
    (whoever_comes_first, "files", 5),
    (one_cell_too_many, "files", 4),
    (a_quota_for_each_window, "periods", 0),
    (every_second_one, "files", 0),
    (no_row_of_an_empty_cell, "files", 0),
    (rows_in_order_of_counts, "files", 0),
    (half_the_price, "files", 0),
    (late_by_what_others_sent, "replays", 0),
    (traces_cut_by_area, "traces", 0),
]


@pytest.mark.parametrize(("broken", "kind", "first"), MUTANTS, ids=lambda value: getattr(value, "__name__", value))
def test_a_broken_pipeline_is_convicted(broken, kind, first, tmp_path, monkeypatch):
    def is_convicted(number):
        random_ = random.Random(f"8/{kind}/{number}")
        return bool(tried(KINDS[kind](random_), random_, tmp_path))

    broken(monkeypatch)
    assert any(map(is_convicted, range(first, first + 30))), "moved nothing in 30 worlds"
