"""Units of privacy against brute force: the charges of the dearest one, and how much one of them moves counts."""

from __future__ import annotations

import itertools
import pickle
from itertools import combinations, product

import numpy as np
import pytest

from penstock.mechanisms.core.noise_family import NOISE_FAMILIES, families
from penstock.mechanisms.core.plugin import ParameterError
from penstock.mechanisms.core.sensitivity import (
    Bounds,
    Sensitivity,
    of_any_mixtures,
    of_deviations,
    of_mixtures,
    of_tree,
    price_of_replacement,
)
from penstock.mechanisms.core.unit import LANDMARKS, PERIOD, WINDOW, Unit

N = 6
UNITS = (WINDOW, Unit.stretch(2), Unit.stretch(4), Unit.stretch(9), LANDMARKS, PERIOD, Unit.block(2), Unit.block(4))


def members(unit, landmark, period):
    """Every unit of a kind, as the set of its windows."""
    if unit.kind in ("window", "stretch"):
        return [set(range(max(s, 0), min(s + unit.length, N))) for s in range(1 - unit.length, N)]
    if unit.kind == "block":
        return [set(range(s, min(s + unit.length, N))) for s in range(0, N, unit.length)]
    actual = []
    for number in np.unique(period):
        here = [i for i in range(N) if period[i] == number]
        marks = {i for i in here if landmark[i]}
        actual += [set(here)] if unit.kind == "period" else [marks | {other} for other in here]
    return actual


@pytest.mark.parametrize("unit", UNITS, ids=str)
def test_cost_is_that_of_the_dearest_unit(unit):
    rng = np.random.default_rng(5)
    for _ in range(150):
        landmark, period = rng.random(N) < 0.4, np.cumsum(rng.random(N) < 0.3)
        first = rng.integers(0, N, 5)
        last = np.minimum(first + rng.integers(0, 4, 5) * rng.integers(0, 2, 5), N - 1)
        amounts, more = rng.integers(0, 9, 5).astype(float), rng.integers(0, 9, 5).astype(float)
        paid = unit.cost(amounts, landmark, period, first=first, last=last, part=amounts + more)
        most_expensive = exact = 0.0
        for one in members(unit, landmark, period):
            spans = [set(range(a, b + 1)) for a, b in zip(first, last)]
            met = [bool(span & one) for span in spans]
            whole = [span <= one for span in spans]
            # One window beside the landmarks may complete a charge; it is priced as a part all the same.
            marks = {i for i in range(N) if landmark[i]}
            priced = [w and (unit.kind != "landmarks" or len(s) == 1 or s <= marks) for w, s in zip(whole, spans)]
            most_expensive = max(
                most_expensive, sum(a + (not p) * m for a, m, p, met_ in zip(amounts, more, priced, met) if met_)
            )
            exact = max(exact, sum(a + (not w) * m for a, m, w, met_ in zip(amounts, more, whole, met) if met_))
        assert paid == pytest.approx(most_expensive, abs=1e-9)
        assert paid >= exact - 1e-9
    assert unit.cost([1.0, np.inf, 0.0]) == np.inf
    assert unit.cost([]) == 0.0


def test_units_are_values():
    for unit in UNITS:
        assert Unit.of(str(unit)) == pickle.loads(pickle.dumps(unit)) == unit
    for wrong in ({"kind": "day"}, {"kind": "stretch", "length": 0}, {"kind": "period", "length": 2}):
        with pytest.raises(ParameterError):
            Unit(**wrong)
    with pytest.raises(ParameterError, match="such as stretch"):
        Unit.of("stretch 3")


# A person's memberships as bounding leaves them, over all histories of a small world.

WIDTH, PERIODS = 2, np.array([0, 0, 0, 1])


def kept(person, max_cells, most):
    """Memberships (window, cell) that count: C a window, n a period, in order of windows and then of cells."""
    counts, used = np.zeros((len(PERIODS), WIDTH), int), {}
    for window, cells in enumerate(person):
        for cell in sorted(cells)[:max_cells]:
            number = PERIODS[window]
            if most is None or used.get(number, 0) < most:
                used[number] = used.get(number, 0) + 1
                counts[window, cell] = 1
    return counts


def histories():
    return itertools.product(((), (0,), (1,), (0, 1)), repeat=len(PERIODS))


def largest_change(unit, max_cells, most, landmark):
    """Largest L1 change of a person's counts when one unit is removed."""
    n = len(PERIODS)
    windows = [set(range(s, min(s + unit.length, n))) for s in range(n)]
    if unit.kind in ("period", "landmarks"):
        windows = [{i for i in range(n) if PERIODS[i] == p} for p in (0, 1)]
    if unit.kind == "landmarks":
        windows = [{i for i in here if landmark[i]} | {one} for here in windows for one in here]
    actual = 0
    for person in histories():
        before = kept(person, max_cells, most)
        for gone in windows:
            rest = [() if i in gone else cells for i, cells in enumerate(person)]
            actual = max(actual, int(np.abs(before - kept(rest, max_cells, most)).sum()))
    return actual


LANDMARK = np.array([True, False, False, True])


@pytest.mark.parametrize("max_cells", [1, 2])
def test_sensitivity_without_a_bound_on_periods(max_cells):
    bounds = Bounds(max_cells=max_cells)
    lengths = {"window": None, "stretch": None, "landmarks": 2, "period": 3}
    for unit in (WINDOW, Unit.stretch(2), Unit.stretch(3), LANDMARKS, PERIOD):
        moved = bounds.of_unit(unit, WIDTH, lengths[unit.kind])
        assert moved.l1 == moved.l2_squared == largest_change(unit, max_cells, None, LANDMARK)


@pytest.mark.parametrize(("max_cells", "most"), [(1, 1), (1, 2), (2, 1), (2, 2), (2, 3), (2, 9)])
def test_a_period_costs_n_and_its_parts_a_replacement(max_cells, most):
    bounds = Bounds(max_cells=max_cells, max_per_period=most)
    whole = bounds.of_unit(PERIOD, WIDTH, 3)
    assert whole.l1 == whole.l2_squared == largest_change(PERIOD, max_cells, most, LANDMARK)
    # A charge of a period, for noise of scale 1, against what any other unit really changes.
    charges, first, last = [whole.l1, bounds.of_unit(PERIOD, WIDTH, 1).l1], [0, 3], [2, 3]
    part = [price_of_replacement("epsilon") * whole.l1, charges[1]]
    for unit in (WINDOW, Unit.stretch(2), Unit.stretch(3), Unit.stretch(4), LANDMARKS, PERIOD):
        paid = unit.cost(charges, LANDMARK, PERIODS, first=first, last=last, part=part)
        assert paid >= largest_change(unit, max_cells, most, LANDMARK)
        if unit != PERIOD:
            with pytest.raises(ParameterError, match="period_uniform"):
                bounds.of_unit(unit, WIDTH, 2)


def test_a_part_of_a_period_may_cost_twice_the_period():
    """One event of one window makes room for another: a charge in full would be too little."""
    assert largest_change(WINDOW, 1, 1, LANDMARK) == 2 * Bounds(max_per_period=1).of_unit(PERIOD, WIDTH, 3).l1


def test_blocks():
    assert Bounds(max_cells=3, max_windows=4, max_block_cells=2).of_unit(Unit.block(6), 9).l1 == 8
    assert Bounds(max_cells=3).of_unit(Unit.block(6), 2).l2_squared == 12


def test_functions_of_counts_move_by_no_more_than_their_sensitivity():
    """Every person and every set of cells, and of windows: in L1 and in L2, of which the worst is met."""
    for n_cells, fan_out, max_cells in ((4, 2, 2), (5, 3, 3), (6, 2, 4)):
        nodes = [np.eye(n_cells)]
        while len(nodes[-1]) > 1:
            level = nodes[-1]
            nodes.append(np.stack([level[i : i + fan_out].sum(0) for i in range(0, len(level), fan_out)]))
        moved = [np.concatenate(nodes)[:, cells].sum(1) for cells in map(list, combinations(range(n_cells), max_cells))]
        stated = of_tree(n_cells, max_cells, fan_out)
        assert (stated.l1, stated.l2_squared) == (max(one.sum() for one in moved), max((one**2).sum() for one in moved))
    entries = np.array([4.0, 2.0, 1.0])
    mixing = np.array([np.convolve(np.eye(6)[t], entries) for t in range(6)])
    for w in (1, 2, 4):
        moved = mixing[:w].sum(0)
        assert of_mixtures(entries, w, 3) == Sensitivity(3 * moved.sum(), 3 * (moved**2).sum())
    for n in range(1, 7):  # amounts of single windows add up to no less than that of any set of them
        sets = [mixing[list(some)].sum(0) for some in combinations(range(6), n)]
        one = of_any_mixtures(entries, 2)
        assert n * one.l1 == max(2 * some.sum() for some in sets)
        assert n * one.l2_squared >= max(2 * (some**2).sum() for some in sets)


def test_deviations_from_the_mean_move_by_less_than_is_priced():
    def deviation(counts):
        return np.abs(np.subtract(counts, np.mean(counts))).sum()

    largest = 0.0
    for n in range(1, 5):
        for counts in product(range(4), repeat=n):
            more = [*counts[:-1], counts[-1] + 1]
            largest = max(largest, abs(deviation(more) - deviation(counts)))
    assert 1.4 < largest < of_deviations(1).l1 == 2
    assert (of_deviations(3).l1, of_deviations(3).times(16).l1) == (6, 96)


# Families of noise.


@pytest.mark.parametrize("name", families("counts"))
@pytest.mark.parametrize("scale", [0.3, 0.5, 1.0, 2.0, 7.5])
def test_sizes_are_those_of_the_law(name, scale):
    family = NOISE_FAMILIES[name]
    if family.is_integer:
        z = np.arange(-1000, 1001.0)
        weights = np.exp(-np.abs(z) / scale if family.measure == "epsilon" else -(z**2) / (2 * scale**2))
    else:
        z = np.linspace(-40 * scale, 40 * scale, 400_001)
        weights = np.exp(-np.abs(z) / scale if family.measure == "epsilon" else -(z**2) / (2 * scale**2))
    weights /= weights.sum()
    assert family.standard_deviation(scale) == pytest.approx((weights * z * z).sum() ** 0.5, rel=1e-4)


def test_scales_spend_the_budget():
    moved = Sensitivity(3.0, 3.0)
    for name in families(measure="epsilon"):
        assert NOISE_FAMILIES[name].scale(0.5, moved) == 6.0
    for name in families(measure="rho"):
        assert NOISE_FAMILIES[name].scale(0.5, moved) == pytest.approx(3.0**0.5)
        event = NOISE_FAMILIES[name].event(moved, 3.0**0.5)
        assert event.sensitivity**2 / (2 * event.scale**2) == pytest.approx(0.5)
    for name in families():
        assert NOISE_FAMILIES[name].scale(np.inf, moved) == 0
        assert np.isinf(NOISE_FAMILIES[name].scale(np.array([0.0]), moved)).all()
