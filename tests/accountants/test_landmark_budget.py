"""The landmark budget: periods, declared maxima, repeated and refused releases, blocks, exhaustion."""

from __future__ import annotations

import itertools
import json

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.accountants.core.accountant import AccountingFacts
from penstock.accountants.landmark_budget import Budget, LandmarkBudget, landmark_allocation, landmark_loss
from penstock.mechanisms import get
from penstock.mechanisms.core.concentrated import gaussian_of, rho_of
from penstock.mechanisms.core.contract import Facts, Release
from penstock.mechanisms.core.events import Additive, Block, PureDP, Repeated
from penstock.mechanisms.core.plugin import BudgetExceeded, ParameterError
from penstock.mechanisms.core.run import run_mechanism
from penstock.pipeline.config.plan import make_plan
from penstock.pipeline.config.run import loads
from penstock.pipeline.monitoring.verify import verify
from tests.tools.ledgers import charges_in
from tests.tools.small_configuration import made_up_events, small_sections


def books(charges, facts, budget=None, mechanism=None, **bounds):
    """Rows by step, the final ones last; a charge is an ε, or events."""
    accountant = LandmarkBudget(budget=budget)
    model, state = accountant.start(AccountingFacts(n_cells=1, mechanism=mechanism, **bounds))
    steps = []
    for window, charge in zip(facts.windows(len(charges)), charges):
        events = charge if isinstance(charge, tuple) else (PureDP(charge),)
        release = Release(window=window.index, values=np.zeros(1), charge=events, landmark=window.landmark)
        rows, state = accountant.charge(release, window, {}, model, state)
        steps.append(rows)
    return [*steps, accountant.finish(model, state)]


def values(steps, name):
    return [row.value for row in itertools.chain(*steps) if row.name == name]


def test_the_figures_of_one_period():
    steps = books([1.0, 0.5, 0.25, 0.75], Facts(n_cells=1, landmarks=(2, 3)), budget=3.0)
    assert values(steps, "epsilon") == [1.0, 0.5, 0.25, 0.75]
    assert values(steps, "landmark_loss") == [1.0, 0.5, 0.75, 1.5]
    assert values(steps, "budget_spent") == [1.0, 1.5, 1.75, 1.75]
    assert values(steps, "budget_left") == [2.0, 1.5, 1.25, 1.25]
    assert values(steps, "period_landmarks") == [0.75]
    assert values(steps, "period_loss") == [1.75]


@pytest.mark.parametrize(("bounds", "cost"), [({}, 0.5), ({"max_windows": 1}, 1.0), ({"max_block_cells": 2}, 1.0)])
def test_a_block_that_users_are_bounded_over_costs_a_replacement(bounds, cost):
    """Without a person's events in the landmark, the bound keeps another of theirs in the same block."""
    charges = [(Block(PureDP(0.5), 1, 2),), 0.0, 0.25]
    steps = books(charges, Facts(n_cells=1, landmarks=(2,)), budget=3.0, **bounds)
    assert values(steps, "period_loss") == [cost + 0.25]


def test_final_rows_close_each_period():
    facts = Facts(n_cells=1, landmarks=(1, 4), budget_period=2)
    steps = books([1.0, 0.5, 0.25, 2.0, 4.0], facts)
    final = [(row.window, row.name, row.value) for row in itertools.chain(*steps) if row.name.startswith("period_")]
    assert final == [
        (2, "period_landmarks", 1.0),
        (2, "period_loss", 1.5),
        (4, "period_landmarks", 2.0),
        (4, "period_loss", 2.25),
        (5, "period_landmarks", 0.0),
        (5, "period_loss", 4.0),
    ]
    assert all(row.status == "final" for step in steps for row in step if row.name.startswith("period_"))
    assert all(row.status == "provisional" for step in steps for row in step if row.name == "budget_spent")


@given(
    epsilons=st.lists(st.floats(0.0, 5.0), min_size=1, max_size=12),
    landmarks=st.sets(st.integers(1, 12)),
    period=st.integers(1, 12),
)
@settings(max_examples=200, deadline=None)
def test_period_loss_is_the_brute_force_maximum(epsilons, landmarks, period):
    n = len(epsilons)
    facts = Facts(n_cells=1, landmarks=tuple(i for i in landmarks if i <= n), budget_period=period)
    expected = []
    for first in range(0, n, period):
        stretch = range(first, min(first + period, n))
        marked = [t for t in stretch if t + 1 in landmarks]
        expected.append(max(sum(epsilons[i] for i in {*marked, t}) for t in stretch))
    assert values(books(epsilons, facts), "period_loss") == pytest.approx(expected)


def test_the_loss_of_every_timestamp():
    epsilons, mask = np.array([0.5, 1.0, 2.0, 4.0]), np.array([False, True, False, True])
    assert landmark_loss(epsilons, mask).tolist() == [5.5, 5.0, 7.0, 5.0]
    assert landmark_loss(epsilons, np.ones(4, bool)).tolist() == [7.5] * 4
    assert landmark_loss(epsilons, np.zeros(4, bool)).tolist() == epsilons.tolist()
    with pytest.raises(ParameterError, match="landmarks"):
        landmark_loss(epsilons, [1, 0, 0, 1])
    with pytest.raises(ParameterError, match="kind"):
        landmark_allocation("adaptive", mask, 1.0)


def test_an_overspending_release_is_refused_and_nothing_changes():
    accountant = LandmarkBudget(budget=1.0)
    model, state = accountant.start(AccountingFacts(n_cells=1))
    first, second, third = Facts(n_cells=1, landmarks=(1,)).windows(3)
    for window, epsilon in ((first, 0.75), (second, 0.125)):
        release = Release(window=window.index, values=np.zeros(1), charge=(PureDP(epsilon),))
        _, state = accountant.charge(release, window, {}, model, state)
    kept = dict(state)
    with pytest.raises(BudgetExceeded) as caught:
        accountant.check(third, (PureDP(0.5),), model, state)
    assert (caught.value.window, caught.value.spent, caught.value.charge, caught.value.budget) == (3, 0.875, 0.5, 1.0)
    assert state == kept
    # What costs nothing may always be shown, and what just fits as well.
    accountant.check(third, (Repeated(1),), model, state)
    accountant.check(third, (PureDP(0.25),), model, state)


def test_the_budget_is_the_mechanism_s_own():
    facts = AccountingFacts(n_cells=1, mechanism=get("landmark_uniform")(epsilon=2.5))
    assert LandmarkBudget().start(facts)[0] == Budget(2.5)
    assert LandmarkBudget(budget=1.0).start(facts)[0] == Budget(1.0)
    other = AccountingFacts(n_cells=1, mechanism=get("discrete_laplace")(epsilon=2.5))
    assert LandmarkBudget().start(other)[0] == Budget(np.inf)
    gaussian = get("landmark_uniform")(epsilon=2.0, delta=1e-5, noise="gaussian")
    actual = LandmarkBudget().start(AccountingFacts(n_cells=1, mechanism=gaussian))[0]
    assert actual == Budget(rho_of(2.0, 1e-5), "rho", 1e-5)
    assert LandmarkBudget(rho=0.1).start(facts)[0] == Budget(0.1, "rho")


MEASURES = {"rho": ("zCDP rho", rho_of), "gaussian": ("half of mu squared", gaussian_of)}


@pytest.mark.parametrize(
    ("name", "accounting"),
    [(name, one) for name in ("landmark_uniform", "landmark_skip") for one in MEASURES]
    + [("landmark_adaptive", "rho")],
)
def test_a_budget_with_a_delta_is_kept_in_its_measure_and_said_in_epsilon_and_delta(name, accounting):
    mechanism = get(name)(epsilon=2.0, delta=1e-5, noise="discrete_gaussian", accounting=accounting)
    unit, amount_of = MEASURES[accounting]
    facts = Facts(n_cells=4, max_cells=3, landmarks=(2, 3, 7), budget_period=5, n_windows=10)
    releases = run_mechanism(mechanism, np.full((10, 4), 30), facts, seed=3)
    accountant = LandmarkBudget()
    model, state = accountant.start(AccountingFacts(n_cells=4, max_cells=3, mechanism=mechanism))
    rows = []
    for window, release in zip(facts.windows(), releases):
        accountant.check(window, release.charge, model, state)
        made, state = accountant.charge(release, window, {}, model, state)
        rows += made
    rows += accountant.finish(model, state)
    spent = [row for row in rows if row.name == "budget_spent"]
    assert {row.unit for row in spent} == {unit}
    assert 0 < max(row.value for row in spent) <= amount_of(2.0, 1e-5) * (1 + 1e-9)
    assert [row.value for row in rows if row.name == "period_epsilon"] == pytest.approx([2.0, 2.0])
    assert [row.unit for row in rows if row.name == "period_epsilon"] == ["nats at delta 1e-05"] * 2
    assert accountant.summary(model, state)["epsilon"] == pytest.approx(2.0)
    # One more regular window with all of it would be too much.
    with pytest.raises(BudgetExceeded):
        accountant.check(facts.windows()[6], (Additive("discrete_gaussian", 1.0, 0.1),), model, state)


def test_a_block_is_charged_once_in_every_period_it_touches():
    block = (Block(PureDP(1.0), 3, 6),)
    charges = [0.25, 0.25, block, (), (), (), 0.25, 0.25]
    with_landmarks = Facts(n_cells=1, landmarks=(2, 4, 6), budget_period=4)
    # Landmark 2 and the block; the block alone, and window 7 or 8.
    assert values(books(charges, with_landmarks), "period_loss") == [0.25 + 1.0 + 0.25, 1.0 + 0.25]
    # A block that ends with the first window of a period has all of its cost there.
    ending = [0.25, 0.25, (Block(PureDP(1.0), 3, 5),), (), (), 0.25, 0.25, 0.25]
    assert values(books(ending, with_landmarks), "period_loss") == [0.25 + 1.0 + 0.25, 1.0 + 0.25 + 0.25]
    # Without landmarks one window is protected at a time.
    assert values(books(charges, Facts(n_cells=1, budget_period=4)), "period_loss") == [1.0, 1.0]


def plan_for(tmp_path, n_windows=8, **changes):
    extra = {
        "space": {"type": "places", "list": ["a", "b"], "elsewhere": False},
        "bounding": {},
        "mechanism": {"type": "discrete_laplace", "epsilon": 1.0},
        "accountants": [{"type": "landmark_budget", "budget": 2.0}, {"type": "composition"}],
    }
    return make_plan(loads(json.dumps(small_sections(tmp_path, n_windows=n_windows, **(extra | changes)))))


def test_an_exhausted_budget_stops_the_run(tmp_path):
    plan = plan_for(tmp_path, on_exhausted="stop")
    loop = plan.release_loop()
    batch, state = loop.advance(loop.start(), 1, np.full((8, 2), 7))
    # Windows 1 and 2 spend it; 3 is regular like 1 and fits; 4 is the second landmark.
    assert [release.window for release in batch.releases] == [1, 2, 3]
    assert "window 4" in batch.stopped
    assert [charge.epsilon for charge in batch.charges] == [1.0, 1.0, 1.0]
    again, _ = loop.advance(state, 4, np.full((5, 2), 7))
    assert again.releases == ()
    book = plan.account_loop(0)
    rows, _ = book.advance(book.start(), batch)
    assert [row.value for row in rows if row.name == "period_loss"] == [2.0]


def test_an_exhausted_budget_repeats(tmp_path):
    plan = plan_for(tmp_path, on_exhausted="repeat")
    loop = plan.release_loop()
    batch, _ = loop.advance(loop.start(), 1, np.full((8, 2), 7))
    assert [release.action for release in batch.releases] == ["published"] * 3 + ["refused"] + ["published"] * 4
    refused = batch.releases[3]
    assert refused.repeats == 3
    assert np.array_equal(refused.values, batch.releases[2].values)
    assert [charge.epsilon for charge in batch.charges] == [1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0]
    book = plan.account_loop(0)
    rows, _ = book.advance(book.start(), batch)
    assert max(row.value for row in rows if row.name == "budget_spent") == 2.0


def test_the_smallest_of_several_budgets_decides(tmp_path):
    accountants = [{"type": "landmark_budget", "budget": b} for b in (9.0, 1.0, 5.0)]
    loop = plan_for(tmp_path, accountants=accountants).release_loop()
    batch, _ = loop.advance(loop.start(), 1, np.zeros((8, 2), int))
    assert [release.window for release in batch.releases] == [1]


@pytest.mark.parametrize("name", ["landmark_adaptive", "w_event_ba"])
def test_a_run_with_a_budget_in_rho(small_run, name):
    """Whole runs, cut differently: the same releases and accounts, within the budget, and a ledger that says so."""
    extra = {"w": 3} if name == "w_event_ba" else {}
    changes = {
        "mechanism": {"type": name, "epsilon": 2.0, "delta": 1e-6, "noise": "discrete_gaussian", **extra},
        "accountants": [{"type": "landmark_budget"}, {"type": "composition"}],
    }
    runs = [small_run(made_up_events(400), f"out{n}", n_shards=n, **changes) for n in (1, 3)]
    for table in ("releases", "accounts"):
        files = [(run.folder / "public" / f"{table}.parquet").read_bytes() for run in runs]
        assert files[0] == files[1]
    assert all(check.passed for check in verify(runs[0].folder))
    charges = charges_in(runs[0].folder)
    spent = np.array([charge.rho for charge in charges])
    assert np.isfinite(spent).all()
    if name == "w_event_ba":
        assert max(np.convolve(spent, np.ones(3))) <= rho_of(2.0, 1e-6) * (1 + 1e-9)
    else:
        releases = pl.read_parquet(runs[0].folder / "public" / "releases.parquet").unique("window").sort("window")
        marks = releases["landmark"].to_numpy()
        assert landmark_loss(spent, marks).max() <= rho_of(2.0, 1e-6) * (1 + 1e-9)
    guarantee = json.loads((runs[0].folder / "public" / "manifest.json").read_text())["guarantee"]
    assert "ε = 2 at δ = 1e-06" in json.dumps(guarantee, ensure_ascii=False)
    assert "Feldman" in json.dumps(guarantee)
