"""Mechanisms and accountants under a period bound, against all small users."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest

from penstock.accountants.core.charges import concentrated_rho, pure_epsilon
from penstock.mechanisms import get
from penstock.mechanisms.core.contract import MECHANISMS, Facts
from penstock.mechanisms.core.period import PeriodBound, costliest
from penstock.mechanisms.core.run import run_mechanism
from penstock.mechanisms.correlated import strategy
from penstock.mechanisms.hierarchy import squared_sensitivity
from penstock.mechanisms.landmark_adaptive import even_budget

N_CELLS = 5
#: Windows of a period, cells a window, memberships a period, periods.
WORLDS = [
    (1, 2, 1, 3),
    (2, 2, 3, 3),
    (3, 1, 2, 2),
    (3, 2, 1, 2),
    (3, 2, 2, 2),
    (3, 2, 5, 2),
    (3, 3, 4, 2),
    (5, 2, 3, 1),
]


def bound_of(world) -> PeriodBound:
    length, max_cells, most, n_periods = world
    return PeriodBound(most=most, max_cells=max_cells, shortest=length, longest=length, alone=n_periods == 1)


@cache
def users(world) -> np.ndarray[Any, Any]:
    """Memberships that users have in each window before the bound, every way, shape (n_users, n_windows)."""
    length, max_cells, _, n_periods = world
    return np.array(list(product(range(max_cells + 1), repeat=length * n_periods)))


def kept(rows, world):
    """Memberships that the bound leaves, the first of each period."""
    length, _, most, n_periods = world
    periods = rows.reshape(-1, n_periods, length)
    before = np.cumsum(periods, -1) - periods
    return np.clip(most - before, 0, periods).reshape(rows.shape)


@cache
def moves(world, units) -> np.ndarray[Any, Any]:
    """What is left minus what was there, for every user and every unit that may go: different rows, by window."""
    rows = users(world)
    found = []
    for unit in units:
        left = np.where(np.isin(np.arange(rows.shape[1]), list(unit)), 0, rows)
        found.append(kept(left, world) - kept(rows, world))
    return np.unique(np.concatenate(found), axis=0)


def windows_alone(world):
    return tuple((t,) for t in range(world[0] * world[3]))


def stretches(world, w):
    n = world[0] * world[3]
    return tuple(tuple(range(begin, min(begin + w, n))) for begin in range(n))


@cache
def within(world, w):
    """All parts of all stretches: windows of which some keep their rows."""
    n = world[0] * world[3]
    return tuple(
        sorted(
            {
                tuple(t for t, goes in zip(range(begin, n), which) if goes)
                for begin in range(n)
                for which in product((False, True), repeat=min(w, n - begin))
            }
        )
    )


def periods(world):
    return tuple(tuple(range(begin, begin + world[0])) for begin in range(0, world[0] * world[3], world[0]))


def with_landmarks(world, landmarks):
    marks = {t - 1 for t in landmarks}
    own = [(set(period), marks & set(period)) for period in periods(world)]
    return tuple(tuple(sorted(inside | {t})) for period, inside in own for t in sorted(period))


def everybody(world):
    return (tuple(range(world[0] * world[3])),)


@cache
def released(mechanism, world, landmarks, seed):
    length, max_cells, _, n_periods = world
    n = length * n_periods
    facts = Facts(
        n_cells=N_CELLS,
        max_cells=max_cells,
        n_windows=n,
        budget_period=length,
        landmarks=landmarks,
        period_bound=bound_of(world),
    )
    counts = np.random.default_rng(seed).poisson(20, (n, N_CELLS))
    counts[seed % n] += 500
    return run_mechanism(mechanism, counts, facts, seed=seed), facts.windows()


#: Of these questions or groups are in the charge only, which is that of the most memberships of a window.
BY_CHARGE = ("WEventBd", "WEventBa", "Pegasus", "RescueDp")


def prices(mechanism, release, of_window):
    """What no membership costs, one, two, …: from the noise that is written down."""
    n, kind = np.arange(of_window + 1), type(mechanism).__name__
    if kind in BY_CHARGE:
        return (concentrated_rho if mechanism.concentrated else pure_epsilon)(release.charge) * n / of_window
    if release.action != "published":
        return 0.0 * n
    if kind == "Hierarchy":
        squares = [squared_sensitivity(N_CELLS, int(m), mechanism.fan_out) for m in n]
        return np.array(squares) / (2 * release.charge[0].scale ** 2)
    scale = float(np.max(release.scale))
    return n / scale if "laplace" in release.noise else n / (2 * scale**2)


def loss(mechanism, world, units, landmarks=(), seed=0):
    """The most that any user loses by the releases when a unit goes."""
    releases, _ = released(mechanism, world, landmarks, seed)
    changes = moves(world, units)
    if type(mechanism).__name__ == "Correlated":
        sigma = releases[0].charge[0].inner.scale
        return max(_length(change, mechanism.band) for change in changes) / (2 * sigma**2)
    table = np.array([prices(mechanism, release, bound_of(world).of_window) for release in releases])
    return table[np.arange(len(releases)), np.abs(changes)].sum(axis=1).max()


def _length(change, band):
    """Squared length of C·x where memberships of a window are in the first cells."""
    entries, total = strategy(band), 0.0
    for cell in range(int(np.abs(change).max(initial=0))):
        own = np.sign(change) * (np.abs(change) > cell)
        total += float((np.convolve(entries, own) ** 2).sum())
    return total


BUDGET = 1.5
PURE = {"epsilon": BUDGET}
GAUSSIAN = {"rho": BUDGET, "noise": "discrete_gaussian"}
BY_WINDOW = [
    ("laplace", PURE),
    ("discrete_laplace", PURE),
    ("gaussian", {"rho": BUDGET}),
    ("discrete_gaussian", {"rho": BUDGET}),
    ("hierarchy", {"rho": BUDGET, "fan_out": 2}),
]
BY_STRETCH = [
    *((f"w_event_{name}", budget) for name in ("uniform", "sample", "bd", "ba") for budget in (PURE, GAUSSIAN)),
    *(("rescue_dp", budget | {"group_below": below}) for budget in (PURE, GAUSSIAN) for below in (0.0, 30.0)),
    ("pegasus", PURE | {"longest": 2}),
    ("correlated", {"rho": BUDGET, "band": 3}),
    ("correlated", {"rho": BUDGET, "band": 1}),
]
BY_LANDMARKS = [(f"landmark_{name}", budget) for name in ("uniform", "skip", "adaptive") for budget in (PURE, GAUSSIAN)]
BY_PERIOD = [("fast", budget | {"publications": n}) for budget in (PURE, GAUSSIAN) for n in (1, 2, 8)]


def cases(world):
    """Every mechanism with what its unit may be: (mechanism, landmarks, units)."""
    n, lengths = world[0] * world[3], {1, world[0], world[0] + 1}
    for name, budget in BY_WINDOW:
        yield get(name)(**budget), (), windows_alone(world)
    for name, budget in BY_STRETCH:
        for w in sorted(lengths):
            yield get(name)(**budget, w=w), (), within(world, w)
    for name, budget in BY_LANDMARKS:
        for landmarks in ((), (1,), tuple(range(2, n + 1, 2)), tuple(range(1, n + 1))):
            yield get(name)(**budget), landmarks, with_landmarks(world, landmarks)
    for name, budget in BY_PERIOD:
        yield get(name)(**budget), (), periods(world)


@pytest.mark.parametrize("world", WORLDS)
def test_nobody_loses_more_than_the_budget(world):
    for mechanism, landmarks, units in cases(world):
        for seed in range(2):
            assert loss(mechanism, world, units, landmarks, seed) <= BUDGET * (1 + 1e-9), (mechanism, landmarks, seed)


def test_every_mechanism_of_counts_is_held_against_users():
    known = {name for name, _ in (*BY_WINDOW, *BY_STRETCH, *BY_LANDMARKS, *BY_PERIOD)}
    kinds = {name: MECHANISMS.get(name) for name in MECHANISMS.names()}
    bounded = {name for name, kind in kinds.items() if kind.bounds_periods and kind.guarantee.exists}
    assert bounded - {"period_uniform"} == known  # that one: tests/mechanisms/test_units.py
    noisy = {name for name, kind in kinds.items() if kind.guarantee.exists and "counts" in kind.stages}
    assert noisy - bounded == {"fpa"}


def test_what_is_spent_at_once_is_counted_behind_the_stretch_too():
    """Of all ways to divide a budget among any w successive windows the worst give each window all or nothing."""
    for world in WORLDS:
        bound, n = bound_of(world), world[0] * world[3]
        for w in range(1, world[0] + 2):
            changes = np.abs(moves(world, within(world, w)))
            every = np.array(list(product((0, 1), repeat=n)))
            apart = [row for row in every if np.convolve(row, np.ones(w)).max() <= 1]
            assert (changes @ np.array(apart).T).max() <= bound.at_once(w)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("moved_up", lambda self, n_windows, length=None: 0),
        ("at_once", lambda self, n_windows: self.of_window),
        ("part_of_stretch", lambda self, n_windows: self.part(min(n_windows, self.longest))),
        ("part_of_stretch", lambda self, n_windows: -(-PeriodBound.gone_from(self, n_windows) // 2)),
        ("gone_from", lambda self, n_windows: self.gone(n_windows)),
    ],
)
def test_noise_for_fewer_memberships_is_found(monkeypatch, name, wrong):
    monkeypatch.setattr(PeriodBound, name, wrong)
    released.cache_clear()
    found = [
        loss(mechanism, world, units, landmarks, 0) > BUDGET * (1 + 1e-9)
        for world in WORLDS[1:5:3]
        for mechanism, landmarks, units in cases(world)
    ]
    monkeypatch.undo()
    released.cache_clear()
    assert any(found)


def test_the_dearest_windows_are_filled_first():
    random_ = np.random.default_rng(1)
    for _ in range(50):
        n, most = int(random_.integers(0, 7)), int(random_.integers(1, 4))
        own = random_.integers(0, 5, 4).astype(float)
        every = [m for m in product(range(most + 1), repeat=4) if sum(m) <= n]
        assert costliest(own, n, most) == pytest.approx(max(np.dot(m, own) / most for m in every))
    assert costliest(np.array([np.inf, 1.0]), 1, 2) == np.inf
    assert costliest(np.zeros((0, 2)), 3, 2).tolist() == [0, 0]


def test_what_adaptive_leaves_goes_to_all_windows_to_come():
    random_ = np.random.default_rng(2)
    for _ in range(50):
        n_full, to_come = float(random_.integers(1, 9)) / 2, int(random_.integers(1, 5))
        spent = -np.sort(-random_.random((3, 4)))
        total = costliest(spent.T, int(2 * n_full), 2).max() + float(random_.random())
        budget = even_budget(total, spent, to_come, n_full)
        for row, own in zip(spent, budget):
            after = [costliest(np.append(row, [f * own] * to_come), int(2 * n_full), 2) for f in (1.0, 1.001)]
            assert after[0] <= total * (1 + 1e-9)
            assert after[1] > total
    assert even_budget(np.inf, np.zeros(2), 3, 2.0) == np.inf


def test_bounds_make_noise_less_where_a_whole_period_is_protected():
    day = PeriodBound(most=30, max_cells=15, shortest=24, longest=24)
    every = {"n_cells": 20, "max_cells": 15, "n_windows": 24, "budget_period": 24, "landmarks": tuple(range(1, 25))}
    many = np.full((24, 20), 10_000)

    def first(mechanism, **changes):
        return float(np.max(run_mechanism(mechanism, many, Facts(**every | changes), seed=1)[0].scale))

    for mechanism, free, bounded in (
        (get("landmark_uniform")(epsilon=2.0), 180, 15),
        (get("landmark_adaptive")(epsilon=2.0), 180, 15),
        (get("fast")(epsilon=2.0, publications=8), 60, 15),
        (get("landmark_adaptive")(rho=0.5, noise="gaussian"), np.sqrt(360), np.sqrt(30)),
        (get("pegasus")(epsilon=2.0, w=24, grouping=0.2), 225, 120 / 1.6),
        (get("w_event_bd")(epsilon=2.0, w=24), 30, 60),
        (get("discrete_laplace")(epsilon=2.0), 7.5, 15),
    ):
        assert first(mechanism) == pytest.approx(free)
        assert first(mechanism, period_bound=day) == pytest.approx(bounded)
    few = replace(day, most=2)
    assert first(get("w_event_bd")(epsilon=2.0, w=24), period_bound=few) == pytest.approx(8)
    correlated = get("correlated")(rho=0.5, w=24, band=24)
    assert first(correlated, period_bound=day) < 0.6 * first(correlated)
