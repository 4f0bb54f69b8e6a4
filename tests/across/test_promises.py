"""Stated guarantees of every configuration in the repository, checked against the charges."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
import yaml

from penstock.accountants.composition import Composition
from penstock.accountants.core.charges import PRICES
from penstock.accountants.landmark_budget import LandmarkBudget
from penstock.mechanisms.core.concentrated import epsilon_at
from penstock.mechanisms.core.events import Block
from penstock.mechanisms.core.guarantee import DELTA
from penstock.mechanisms.core.noise_keys import NoiseKey
from penstock.mechanisms.core.run import run_mechanism, run_traces
from penstock.pipeline.config.plan import outline
from penstock.pipeline.config.run import loads
from penstock.pipeline.output.manifest import public_manifest
from penstock.pipeline.output.registration import stated_guarantee
from tests.tools.checkout import ROOT

GRID = {"type": "grid", "south": 37.74, "north": 37.82, "west": -122.47, "east": -122.37, "rows": 2, "columns": 3}
CITY = {
    "space": GRID,
    "source": {"type": "synthetic", "seed": 1, "n_users": 5, "from": "2024-01-01T00:00:00Z"},
}
LONGER = {"type": "temporal_generalization", "windows": 4}
BOOKS = [{"type": "composition"}, {"type": "landmark_budget"}]
#: What no configuration in the repository does.
FURTHER = {
    "a stated size": {"mechanism": {"type": "discrete_gaussian", "sigma": 4.0}, "bounding": {"max_cells": 3}},
    "a tree": {"mechanism": {"type": "hierarchy", "sigma": 4.0, "fan_out": 2}, "bounding": {"max_cells": 3}},
    "longer windows": {"mechanism": [LONGER, {"type": "laplace", "epsilon": 1}]},
    "stretches of longer windows": {
        "mechanism": [
            {"type": "temporal_generalization", "windows": 4},
            {"type": "w_event_uniform", "epsilon": 1, "w": 3},
        ]
    },
    "blocks": {"mechanism": {"type": "fpa", "epsilon": 1, "block": 12, "coefficients": 3}},
    "a period": {
        "mechanism": {"type": "period_uniform", "rho": 0.5, "noise": "discrete_gaussian"},
        "bounding": {"max_per_period": 5},
        "budget_period": "1d",
    },
    "links": {"mechanism": {"type": "correlated", "rho": 0.5, "w": 4}},
    "groups of windows": {"mechanism": {"type": "pegasus", "epsilon": 1.0, "w": 4}},
    "sampling": {"mechanism": [{"type": "sampling", "rate": 0.5}, {"type": "laplace", "epsilon": 1}]},
    "no limit": {"mechanism": {"type": "laplace", "epsilon": float("inf")}},
    "points": {"mechanism": {"type": "planar_laplace", "epsilon": 1, "radius": 50}, "windows": {"type": "timestamps"}},
    "points of a stretch": {
        "mechanism": {"type": "w_event_bd", "epsilon": 2, "w": 4, "radius": 50, "noise": "planar_laplace"},
        "windows": {"type": "timestamps"},
    },
}


def merged(base, changes):
    """A section with the keys of another, of which some have dots and places in a list."""
    for key, value in changes.items():
        head, _, rest = key.replace("[", ".").replace("]", "").partition(".")
        section = dict(enumerate(base)) if isinstance(base, list) else base
        head = int(head) if isinstance(base, list) else head
        section = section | {head: merged(section.get(head) or {}, {rest: value}) if rest else value}
        base = list(section.values()) if isinstance(base, list) else section
    return base


def configurations():
    """Every run that a file under configs/ or one of the reproductions describes, as plain values.

    Without those of mechanisms that are plug-ins, which would be known to all other tests of the process.
    """
    for path in sorted([*(ROOT / "configs").rglob("*.yaml"), *(ROOT / "reproductions/experiments").glob("*.yaml")]):
        given = yaml.safe_load(path.read_text(encoding="utf-8"))
        base = given.get("base", given)
        if isinstance(base, str):
            base = yaml.safe_load((path.parent / base).read_text(encoding="utf-8"))
        base = merged(base, given.get("set") or {})
        for name, changes in (given.get("variants") or {"": {}}).items():
            run = merged(base, changes or {})
            if "study" not in given and "'fpa_paper'" not in str(run):
                yield f"{path.stem} {name}".strip(), run


def planned(values):
    """The plan of a configuration on a small city for sixty windows, hence without a data set."""
    values = {key: value for key, value in values.items() if key not in ("accountants", "utility", "output", "plugins")}
    begin = (values.get("source") or {}).get("from") or CITY["source"]["from"]
    windows = values.get("windows") or {"type": "fixed", "size": "1h"}
    days = {"7d": 420, "1d": 60}.get(windows.get("size"), 3)
    until = np.datetime64(str(begin)[:19]) + np.timedelta64(days, "D")
    city = CITY | {"source": CITY["source"] | {"from": begin, "until": f"{until}Z"}}
    read = {"accountants": BOOKS} if {"landmarks", "budget_period"} & values.keys() and "size" in windows else {}
    run = {"name": "promised", "mode": "simulation", "seed": 1, "windows": windows, "output": {"path": "x"}}
    return outline(loads(yaml.safe_dump(run | values | city | read)), NoiseKey.from_seed(1))


def windows_and_releases(plan):
    """Windows and releases of a run on synthetic counts."""
    windows = plan.grid.windows(1, plan.grid.calendar.n_windows)
    counts = np.random.default_rng(1).poisson(9, (len(windows), plan.grid.n_cells))
    return windows, run_mechanism(plan.chain.mechanism, counts, plan.facts(), windows=windows)


def cost_of_counts(plan, promised, windows, releases):
    """Cost of the releases for the most expensive unit."""
    price = PRICES[promised.measure]
    charged = []  # price, first and last window, 0-based
    for release in releases:
        for event in release.charge:
            first, last = (event.first, event.last) if isinstance(event, Block) else (release.window, release.window)
            charged.append((price((event,)), first - 1, min(last, len(windows)) - 1))
    amounts, first, last = (np.array(column) for column in zip(*charged))
    # A part of what is counted together may give way to another part: a replacement.
    part = amounts * (2 if plan.chain.n_merged > 1 or plan.bounds.spans_windows(plan.chain.n_merged) else 1)
    facts = {"landmark": [window.landmark for window in windows], "period": [window.period for window in windows]}
    return promised.unit.cost(amounts, **facts, first=first, last=last, part=part)


def cost_of_points(plan, promised):
    """Largest charge on a trace with landmarks."""
    landmarks = np.arange(40) % 7 == 0
    tracks = [np.tile([39.9, 116.4], (40, 1)) + 0.01 * np.arange(40)[:, None]] * 5
    released = run_traces(plan.traces.mechanism, tracks, [landmarks] * 5, seed=1)
    return max(promised.unit.cost(getattr(one, promised.measure), landmark=landmarks) for one in released)


def figures_in(statement):
    """ρ, μ, ε and δ as a statement has them."""
    actual = re.findall(r"(ρ|μ|ε|δ) = ([0-9.e+-]+)", statement)
    return {name: float(figure.rstrip(".")) for name, figure in actual}


def is_rounded_up(stated, exact):
    """Return whether a figure in words is no less than what is priced, and no more than four digits need."""
    return exact * (1 - 1e-9) <= stated <= exact * 1.0021  # μ²: twice the share


CONFIGURATIONS = dict(configurations()) | FURTHER


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_what_is_promised_in_words_is_what_is_charged(name):
    plan = planned(CONFIGURATIONS[name])
    promised, messages = stated_guarantee(plan), public_manifest(plan)["guarantee"]
    [stated] = [step for step in messages if not step["guarantee"].startswith("none")] or [None]
    if stated is None:
        assert not promised.exists
        return
    if promised.goal is not None:  # planned and priced for each trace: tests/accountants/gaussian_process
        assert f"a loss of at most {promised.goal:g}" in stated["guarantee"]
        return
    figures = figures_in(stated["guarantee"])
    assert stated["amount"] == promised.amount
    if promised.concentrated:
        amount = figures["ρ"] if promised.measure == "rho" else figures["μ"] ** 2 / 2
        assert is_rounded_up(amount, promised.amount)
        epsilon = epsilon_at(promised.measure, promised.amount, promised.delta or DELTA)
        assert is_rounded_up(figures["ε"], epsilon)
        assert figures["δ"] == (promised.delta or DELTA)
    else:
        assert is_rounded_up(figures["ε"], promised.amount)
    assert str(promised.unit.length) in stated["unit"] or promised.unit.length == 1
    made = None if plan.on_points else windows_and_releases(plan)
    cost = cost_of_counts(plan, promised, *made) if made else cost_of_points(plan, promised)
    if promised.linked:  # sums of linked charges are no smaller than what is promised
        assert cost >= promised.amount * (1 - 1e-9)
    elif promised.adaptive or plan.chain.sampling or plan.chain.temporal:
        assert 0 < cost <= promised.amount * (1 + 1e-9)
    else:
        assert cost == pytest.approx(promised.amount, rel=1e-9)
    if made:
        check_accountants(plan, promised, *made)


def check_accountants(plan, promised, windows, releases):
    """Check that accounts of the unit stay within the guarantee."""
    facts, length = plan.accounting_facts(), promised.unit.length
    if promised.unit.kind == "landmarks":
        accountant, name, most = LandmarkBudget(), "period_loss", promised.amount
    elif promised.unit.kind in ("stretch", "period") and not promised.linked and length > 1:
        accountant = Composition(w=length, delta=promised.delta or DELTA)
        name, most = "w_event_epsilon", promised.amount
        if promised.concentrated:  # at the orders that the accountant knows
            epsilon = epsilon_at(promised.measure, promised.amount, promised.delta or DELTA)
            name, most = "w_event_epsilon_rdp", 1.001 * epsilon
    else:
        return
    model, state = accountant.start(facts)
    rows = []
    for release, window in zip(releases, windows):
        more, state = accountant.charge(release, window, {}, model, state)
        rows += more
    rows += accountant.finish(model, state)
    figures = [row.value for row in rows if row.name == name]
    assert 0 < max(figures) <= most * (1 + 1e-9)


def test_a_promise_that_is_too_small_would_be_seen():
    plan = planned(FURTHER["stretches of longer windows"])
    promised = replace(stated_guarantee(plan), amount=plan.chain.reader.guarantee.amount)
    assert cost_of_counts(plan, promised, *windows_and_releases(plan)) > promised.amount
