"""Empirical privacy of mechanisms: distinguishing tests never exceed the accounted ε."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm

from penstock import mechanisms
from penstock.accountants.core.charges import pure_epsilon
from penstock.accountants.core.renyi import from_renyi, renyi
from penstock.mechanisms.core.concentrated import SMOOTHING, epsilon_at
from penstock.mechanisms.core.contract import Facts, Interpretation
from penstock.mechanisms.core.events import Additive, Block
from penstock.mechanisms.core.plugin import parameters_of
from penstock.mechanisms.core.run import run_mechanism
from penstock.mechanisms.core.unit import PERIOD
from tests.tools.cases import slow
from tests.tools.distinguishing import evidence, lower_bound
from tests.tools.mutants import Undercharging

N_REPLICAS, N_WINDOWS, N_CELLS = 12_000, 6, 2
LANDMARKS = (2, 5)
FACTS = Facts(n_cells=N_CELLS, max_cells=N_CELLS, landmarks=LANDMARKS)


def neighbours(unit):
    """Counts without and with one user in every cell of the windows of ``unit``, in all replicas."""
    without = np.full((N_REPLICAS, N_WINDOWS, N_CELLS), 10)
    without[:, 2] += 40
    present = without.copy()
    present[:, unit] += 1
    return without, present


def audit(mechanism, unit, delta=0.0):
    """Lower confidence bound on ε at δ, and the releases: half of the replicas choose the region, half measure it."""
    inputs = neighbours(unit)
    runs = [run_mechanism(mechanism, counts, FACTS, seed=9) for counts in inputs]
    absent, there = (evidence(run, *inputs) for run in runs)
    half = N_REPLICAS // 2
    candidates = np.quantile(there[:half], np.linspace(0.05, 0.95, 19))
    region = max(candidates, key=lambda level: lower_bound(there[:half] >= level, absent[:half] >= level, delta))
    return lower_bound(there[half:] >= region, absent[half:] >= region, delta), runs


def accounted(runs, unit):
    """Largest ε, over all replicas, that the charges of the unit's windows add up to."""
    totals = np.zeros((2, N_REPLICAS))
    for total, run in zip(totals, runs):
        for release in run:
            if release.window - 1 in unit:
                total += sum(
                    event.sensitivity / event.scale for event in of_windows(release) if hasattr(event, "scale")
                )
    return totals.max()


def of_windows(release):
    """Events of a release; of a block, the noise of all its windows together."""
    return [getattr(event, "inner", event) for event in release.charge]


def unit_of(mechanism):
    """Windows in which the protected user may differ, 0-based."""
    if mechanism.unit == PERIOD:
        return list(range(N_WINDOWS))
    if mechanism.unit.kind == "landmarks":
        return [*(i - 1 for i in LANDMARKS), 2]
    return [1, 2, 3] if hasattr(mechanism, "w") else [2]


def per_window(name, statement):
    """Return whether the guarantee is for single windows of counts."""
    plugin = mechanisms.get(name)
    single, promised = "block" not in parameters_of(plugin), plugin.examples()[0].guarantee
    is_stated = statement in promised.in_general.statement
    return single and promised.independent and not promised.on_points and is_stated


PURE = [name for name in mechanisms.names() if per_window(name, "ε-differential")]
CONCENTRATED = [name for name in mechanisms.names() if per_window(name, "zero-concentrated")]


def test_the_audit_runs_on_what_is_registered():
    assert {"laplace", "discrete_laplace", "landmark_adaptive", "w_event_ba", "w_event_bd"} <= set(PURE)
    assert set(CONCENTRATED) == {"gaussian", "discrete_gaussian", "hierarchy"}
    assert len(SCHEDULES) == 9


@pytest.mark.parametrize("name", PURE)
def test_no_test_finds_more_than_epsilon(name):
    example = replace(mechanisms.get(name).examples()[0], epsilon=2.0)
    actual, runs = audit(example, unit_of(example))
    assert actual <= accounted(runs, unit_of(example)) <= 2.0 * (1 + 1e-9)


@pytest.mark.parametrize("noise", ["laplace", "discrete_laplace"])
def test_no_test_finds_more_than_the_epsilon_of_a_block(noise):
    unit = [1, 2]
    facts = replace(FACTS, max_windows=2, max_block_cells=4, landmarks=())
    mechanism = mechanisms.get("fpa")(epsilon=2.0, coefficients=3, block=N_WINDOWS, noise=noise)
    inputs = neighbours(unit)
    runs = [run_mechanism(mechanism, counts, facts, seed=9) for counts in inputs]
    # What the user adds, as far as the released frequencies show it.
    added = np.subtract(*map(Interpretation.of(mechanism).without_noise, (inputs[1][0], inputs[0][0])))
    scores = [sum((release.values * added[release.window - 1]).sum(axis=1) for release in run) for run in runs]
    [block] = [event for release in runs[0] for event in release.charge if isinstance(event, Block)]
    actual = max(
        lower_bound(scores[1] >= level, scores[0] >= level) for level in np.quantile(scores[1], (0.3, 0.5, 0.7))
    )
    assert 0.1 < actual <= pure_epsilon((block,)) <= 2.0 * (1 + 1e-9)


@pytest.mark.parametrize(
    ("name", "share"),
    [
        ("laplace", 0.7),
        ("discrete_laplace", 0.7),
        ("landmark_uniform", 0.4),
        ("w_event_uniform", 0.4),
        ("period_uniform", 0.3),
    ],
)
def test_the_audit_is_sharp(name, share):
    example = replace(mechanisms.get(name).examples()[0], epsilon=2.0)
    assert audit(example, unit_of(example))[0] > share * 2.0


def test_the_audit_convicts_who_undercharges():
    actual, runs = audit(Undercharging(epsilon=2.0), [2])
    assert accounted(runs, [2]) == pytest.approx(1.0)
    assert actual > 1.0


@pytest.mark.parametrize("name", CONCENTRATED)
def test_no_test_finds_more_than_renyi_dp_says_of_gaussian_noise(name):
    delta = 0.02
    actual, runs = audit(mechanisms.get(name)(rho=0.5), [2], delta)
    [charge] = runs[0][2].replica(0).charge
    assert actual <= from_renyi(renyi((charge,)), delta)
    # Noise of twice that size would be charged a quarter of ρ: too little, and the audit says so.
    assert actual > from_renyi(renyi((Additive("gaussian", charge.sensitivity, 2 * charge.scale),)), delta)


#: FAST inherits the parameters, and allows pure noise only.
SCHEDULES = [name for name in PURE if "rho" in parameters_of(mechanisms.get(name)) and name != "fast"]


@pytest.mark.parametrize(
    ("noise", "accounting"),
    [
        ("gaussian", "rho"),
        ("discrete_gaussian", "gaussian"),
        *slow([("gaussian", "gaussian"), ("discrete_gaussian", "rho")]),
    ],
)
@pytest.mark.parametrize("name", SCHEDULES)
def test_no_test_finds_more_than_a_schedule_promises_at_its_delta(name, noise, accounting):
    delta = 0.02
    first = mechanisms.get(name).examples()[0]
    if accounting == "gaussian" and first.guarantee.adaptive:
        pytest.skip("amounts that follow earlier releases are accounted in ρ")
    example = replace(first, epsilon=2.0, delta=delta, noise=noise, accounting=accounting)
    actual, runs = audit(example, unit_of(example), delta)
    spent = np.zeros((2, N_REPLICAS))
    less = SMOOTHING if (noise, accounting) == ("discrete_gaussian", "gaussian") else 0.0
    for total, run in zip(spent, runs):
        for release in run:
            if release.window - 1 in unit_of(example):
                events = [event for event in of_windows(release) if hasattr(event, "scale")]
                total += sum(event.sensitivity**2 / (event.scale**2 - less) / 2 for event in events)
    assert spent.max() <= example.budget * (1 + 1e-9)
    assert actual <= epsilon_at(accounting, spent.max(), delta) <= 2.0 * (1 + 1e-9)
    # It is not found because nothing would be: a third of the budget is seen where all windows publish.
    assert actual > 2.0 / 3 or name not in ("landmark_uniform", "w_event_uniform")


def test_no_test_finds_more_than_the_exact_gaussian_figure():
    # Balle and Wang 2018, theorem 8: δ(ε) of Gaussian noise whose ratio of sensitivity to σ is mu.
    mu, epsilon = 1.0, 0.5
    delta = norm.cdf(mu / 2 - epsilon / mu) - np.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
    assert audit(mechanisms.get("gaussian")(rho=0.5), [2], delta)[0] <= epsilon
    assert audit(mechanisms.get("gaussian")(rho=0.5), [2], delta / 4)[0] > epsilon
