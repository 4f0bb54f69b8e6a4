"""Charges of blocks and periods in every unit that meets them, against sums by hand and exact losses of neighbours."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from penstock.accountants.composition import Composition
from penstock.accountants.core.accountant import AccountingFacts
from penstock.accountants.landmark_budget import LandmarkBudget
from penstock.mechanisms import get
from penstock.mechanisms.core.contract import Facts, Release
from penstock.mechanisms.core.events import Block, Covered, PureDP
from penstock.mechanisms.core.run import run_mechanism
from penstock.mechanisms.core.unit import Unit


def figures(accountant, facts, windows, charges):
    """Largest value of each row of an accountant."""
    model, state = accountant.start(facts)
    rows = []
    for window, charge in zip(windows, charges):
        release = Release(window=window.index, values=np.zeros(facts.n_cells), charge=charge, landmark=window.landmark)
        made, state = accountant.charge(release, window, {}, model, state)
        rows += made
    rows += accountant.finish(model, state)
    return {name: max(row.value for row in rows if row.name == name) for name in {row.name for row in rows}}


@pytest.mark.parametrize("replaces", [False, True])
@pytest.mark.parametrize("seed", range(40))
def test_a_block_counts_in_full_in_every_unit_that_it_meets(seed, replaces):
    rng = np.random.default_rng(seed)
    n_windows, period, w = int(rng.integers(4, 15)), int(rng.integers(1, 8)), int(rng.integers(1, 7))
    marks = tuple(int(i) + 1 for i in np.flatnonzero(rng.random(n_windows) < 0.3))
    windows = Facts(n_cells=3, n_windows=n_windows, landmarks=marks, budget_period=period).windows()
    charges, spans, index = [], [], 1
    while index <= n_windows:
        length = min(int(rng.integers(1, 7)), n_windows - index + 1)
        epsilon = float(rng.integers(1, 9))
        event = PureDP(epsilon)
        charges += [(event if length == 1 else Block(event, index, index + length - 1),)]
        charges += [(Covered(index),)] * (length - 1)
        spans.append((epsilon, index - 1, index + length - 2))
        index += length
    amounts, first, last = (np.array(column) for column in zip(*spans))
    part = np.where(last > first, amounts * (2 if replaces else 1), amounts)
    facts = AccountingFacts(
        n_cells=3,
        max_cells=3,
        max_windows=1 if replaces else None,
        n_windows=n_windows,
        windows=lambda a, b: windows[a - 1 : b],
    )

    def by_hand(unit):
        marked = [window.landmark for window in windows]
        number = [window.period for window in windows]
        return unit.cost(amounts, marked, number, first=first, last=last, part=part)

    actual = figures(Composition(w=w), facts, windows, charges)
    # A stretch is priced as a part of every block that it meets, even of those that it holds as a whole.
    inside = by_hand(Unit.stretch(w))
    assert inside <= actual["w_event_epsilon"] <= inside * (2 if replaces else 1)
    if not replaces:
        assert actual["w_event_epsilon"] == inside
    assert actual["event_epsilon"] == by_hand(Unit())
    assert actual["user_epsilon"] == amounts.sum()
    if period < n_windows:
        assert actual["period_epsilon"] == by_hand(Unit("period"))
    else:
        assert "period_epsilon" not in actual
    assert figures(LandmarkBudget(), facts, windows, charges)["period_loss"] >= by_hand(Unit("landmarks"))


def test_a_charge_that_others_follow_inside_its_block_is_not_forgotten():
    windows = Facts(n_cells=1, n_windows=6).windows()
    charges = [(Block(PureDP(1.0), 1, 6),), (PureDP(0.25),), (PureDP(0.25),), (), (PureDP(4.0),), ()]
    facts = AccountingFacts(n_cells=1, n_windows=6)
    assert figures(Composition(w=1), facts, windows, charges)["event_epsilon"] >= 5.0
    assert figures(Composition(w=3), facts, windows, charges)["w_event_epsilon"] >= 5.25


def kept(events, n_windows, period, max_cells, most):
    """Memberships (n_windows, n_cells) that bounding leaves: C in a window, n in a period, earlier windows first."""
    counted = np.zeros(events.shape, int)
    for window in range(n_windows):
        cells = np.flatnonzero(events[window])[:max_cells]
        begin = window - window % period
        counted[window, cells[: most - counted[begin:window].sum()]] = 1
    return counted


@pytest.mark.parametrize(("max_cells", "most"), [(1, 1), (1, 2), (2, 2), (2, 3), (2, None)])
@pytest.mark.parametrize("period", [2, 3, 4])
def test_the_exact_loss_of_neighbours_is_within_every_figure(period, max_cells, most):
    """Small worlds: everybody's events in 4 windows of 2 cells, every part that a unit may take away, exact losses."""
    n_windows, n_cells, w, epsilon = 4, 2, 2, 1.0
    mechanism = get("period_uniform")(epsilon=epsilon)
    facts = Facts(n_cells=n_cells, n_windows=n_windows, max_cells=max_cells, max_per_period=most, budget_period=period)
    windows = facts.windows()
    releases = run_mechanism(mechanism, np.zeros((n_windows, n_cells), int), facts, seed=1)
    scale = np.array([float(release.scale) for release in releases])
    run_facts = AccountingFacts(
        n_cells=n_cells,
        max_cells=max_cells,
        max_per_period=most,
        n_windows=n_windows,
        mechanism=mechanism,
        windows=lambda a, b: windows[a - 1 : b],
    )
    charges = [release.charge for release in releases]
    actual = figures(Composition(w=w), run_facts, windows, charges)
    spent = figures(LandmarkBudget(), run_facts, windows, charges)["period_loss"]
    units = {
        # A window, or one event of it.
        "event_epsilon": [(t, at) for t in range(n_windows) for at in (slice(None), 0, 1)],
        "w_event_epsilon": [(slice(t, t + w), slice(None)) for t in range(n_windows)],
        "user_epsilon": [(slice(None), slice(None))],
        "period_epsilon": [(slice(t, t + period), slice(None)) for t in range(0, n_windows, period)],
    }
    exact = dict.fromkeys(units, 0.0)
    bound = most or max_cells * period
    for bits in itertools.product((0, 1), repeat=n_windows * n_cells):
        events = np.array(bits).reshape(n_windows, n_cells)
        before = kept(events, n_windows, period, max_cells, bound)
        for name, members in units.items():
            for unit in members:
                rest = events.copy()
                rest[unit] = 0
                # Discrete Laplace noise: the exact loss of a shift is its length in L1 over the scale.
                moved = np.abs(before - kept(rest, n_windows, period, max_cells, bound)).sum(axis=1)
                exact[name] = max(exact[name], float((moved / scale).sum()))
    for name, loss in exact.items():
        if name in actual:
            assert loss <= actual[name] * (1 + 1e-12), name
    assert exact["event_epsilon"] <= spent * (1 + 1e-12)  # without landmarks the unit is any one window
    if period < n_windows:
        assert actual["period_epsilon"] == pytest.approx(epsilon) == exact["period_epsilon"]
