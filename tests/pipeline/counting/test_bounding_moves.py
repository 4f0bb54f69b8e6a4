"""Sensitivity after bounding, by brute force over neighbouring inputs, against the composed charges."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from penstock.accountants.composition import Composition
from penstock.accountants.core.accountant import AccountingFacts
from penstock.accountants.core.charges import concentrated_rho, pure_epsilon, replaced
from penstock.mechanisms.core.contract import Facts, Release
from penstock.mechanisms.core.events import Additive, Block
from penstock.pipeline.counting.bounding import CountingBounds, bound, bound_block
from penstock.pipeline.counting.contributions import ContributionRows

KEEPS = ("hash", "first", "last", "most_frequent")
N_STEPS = 4


def data_sets(n_cells, n_steps=N_STEPS, most=4096):
    """Which cells every person is in at every step: all of them, or where they are too many a sample."""
    size = n_cells * n_steps
    numbers = np.arange(2**size)
    if len(numbers) > most:
        numbers = np.random.default_rng(2).choice(numbers, most, replace=False)
    return (numbers[:, None] >> np.arange(size) & 1).astype(bool).reshape(-1, n_steps, n_cells)


def bounded(presence, max_cells, keep):
    """Bounded contribution of every person, shape (people, windows, cells)."""
    n_people, n_steps, n_cells = presence.shape
    rng = np.random.default_rng(3)  # the same marks for the neighbour
    marks = rng.integers(1, 4, presence.shape)
    if keep in ("first", "last"):
        order = rng.permuted(np.tile(np.arange(n_cells), (n_people, n_steps, 1)), axis=2)
        marks = 100 * np.arange(n_steps)[:, None] + order
    user, step, cell = np.nonzero(presence)
    rows = ContributionRows(user[:, None], step + 1, cell, None if keep == "hash" else marks[user, step, cell])
    some = rows.take(bound(rows, max_cells, keep, b"k" * 16))
    shown = np.zeros(presence.shape, np.int64)
    shown[some.user[:, 0], some.window - 1, some.cell] = 1
    return shown


def charged(max_cells, n_cells, w):
    """ε of the rows of composition where every unit of L1 costs 1, and ρ of one replacement."""
    accountant = Composition(w=w)
    model, state = accountant.start(AccountingFacts(n_cells=n_cells, max_cells=max_cells))
    for window in Facts(n_cells=n_cells, n_windows=N_STEPS).windows():
        charge = (Additive("discrete_laplace", float(max_cells), scale=1.0),)
        release = Release(window=window.index, values=np.zeros(n_cells), charge=charge)
        _, state = accountant.charge(release, window, {}, model, state)
    return {row.name: row.value for row in accountant.finish(model, state)}


def moves(presence, without, max_cells, keep):
    apart = bounded(presence, max_cells, keep) - bounded(without, max_cells, keep)
    return np.abs(apart).sum(axis=2)


@pytest.mark.parametrize("keep", KEEPS)
@pytest.mark.parametrize(("max_cells", "n_cells", "w"), [(1, 3, 2), (1, 2, 1), (2, 3, 3), (3, 3, 2)])
def test_charges_are_the_largest_move_of_any_windows(keep, max_cells, n_cells, w):
    presence = data_sets(n_cells)
    figures, actual = charged(max_cells, n_cells, w), {}
    for level, n_steps in (("event", 1), ("w_event", w)):
        worst = 0
        for first in range(N_STEPS - n_steps + 1):
            without = presence.copy()
            without[:, first : first + n_steps] = False
            worst = max(worst, moves(presence, without, max_cells, keep).sum(axis=1).max())
        actual[level] = worst
    for cell, step in itertools.product(range(n_cells), range(N_STEPS)):  # the unit is one of the window's events, too
        without = presence.copy()
        without[:, step, cell] = False
        actual["event"] = max(actual["event"], moves(presence, without, max_cells, keep).sum(axis=1).max())
    for level, worst in actual.items():
        assert worst == figures[f"{level}_epsilon"]


@pytest.mark.parametrize("keep", KEEPS)
def test_two_of_four_cells_give_way_to_the_two_others(keep):
    presence = data_sets(4, n_steps=3, most=4096)
    without = presence.copy()
    without[:, 1, :2] = False
    apart = bounded(presence, 2, keep) - bounded(without, 2, keep)
    assert np.abs(apart).sum(axis=2).max() == 4.0 == pure_epsilon([replaced(Additive("discrete_laplace", 2.0, 1.0))])
    # In L2 a replacement is √2 of an addition: the cells that come are others than those that go.
    sigma = 1 / np.sqrt(2)
    most = (apart**2).sum(axis=2).max()
    assert most == pytest.approx(concentrated_rho([replaced(Additive("gaussian", np.sqrt(2), sigma))]))
    assert most == pytest.approx(2 * concentrated_rho([Additive("gaussian", np.sqrt(2), sigma)]))


@pytest.mark.parametrize("keep", KEEPS)
@pytest.mark.parametrize(("max_windows", "max_block_cells"), [(1, None), (2, None), (2, 1), (None, 1)])
def test_one_window_of_a_block_moves_no_more_than_a_replacement_of_the_block(keep, max_windows, max_block_cells):
    presence = data_sets(2, n_steps=3)
    bounds = CountingBounds(max_windows=max_windows, max_block_cells=max_block_cells, keep=keep, block_length=3)

    def shown(people):
        user, step, cell = np.nonzero(people)
        mark = None if keep == "hash" else 10 * step + cell if keep != "most_frequent" else 1 + (step + cell) % 3
        some = ContributionRows(user[:, None], step + 1, cell, mark)
        some = some.take(bound_block(some, bounds, b"k" * 16))
        result = np.zeros(people.shape, np.int64)
        result[some.user[:, 0], some.window - 1, some.cell] = 1
        return result

    l1 = float(max_windows or 3)
    worst = 0
    for step in range(3):
        without = presence.copy()
        without[:, step] = False
        worst = max(worst, np.abs(shown(presence) - shown(without)).sum(axis=(1, 2)).max())
    assert worst <= pure_epsilon([replaced(Block(Additive("discrete_laplace", l1, 1.0), 1, 3))]) == 2 * l1
    assert worst > l1 or max_windows != 1, "with one window of a block another takes its place"
