"""Checks of an accountant's contract, one function for each promise."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest

from penstock.accountants.core.accountant import AccountingFacts, AccountRow
from penstock.mechanisms import get
from penstock.mechanisms.core.events import Event
from penstock.mechanisms.core.plugin import UnsupportedEvent
from penstock.mechanisms.core.run import run_mechanism
from penstock.mechanisms.core.state import decode_state, encode_state
from penstock.testing import Subject, checks
from penstock.testing.checks import check_documentation
from penstock.testing.runs import Amnesiac, counts_for, facts_for

STATUSES = ("provisional", "final")


@dataclass(frozen=True)
class UnknownEvent(Event):
    """An event that no accountant has a theorem for."""


@cache
def run(n_windows=12, name="landmark_uniform", period=6):
    """A mechanism, its releases and their windows."""
    facts = facts_for(n_windows, landmarks=tuple(range(3, n_windows, 4)), budget_period=period)
    mechanism = get(name).examples()[0]
    return mechanism, run_mechanism(mechanism, counts_for(n_windows), facts, seed=5), facts.windows()


def facts_of(mechanism, n_windows, accountant):
    # Who follows people by their cells has theorems for one cell a window only.
    max_cells = 1 if accountant.needs else 2
    return AccountingFacts(n_cells=5, max_cells=max_cells, n_windows=n_windows, mechanism=mechanism)


def private_of(accountant, release):
    """The operator-only facts that an accountant needs: of two people one stays and one comes and goes."""
    counts = counts_for(48 if release.window > 12 else 12)[release.window - 1]
    facts = {"counts": counts, "target_cells": np.array([1, release.window % 3 - 1])}
    return {name: facts[name] for name in accountant.needs}


def account(accountant, mechanism, releases, windows, between=lambda state: state, known=None):
    """All rows, by step, the final ones last."""
    model, state = accountant.start(replace(facts_of(mechanism, len(windows), accountant), **known or {}))
    steps = []
    for release, window in zip(releases, windows):
        state = between(state)
        rows, state = accountant.charge(release, window, private_of(accountant, release), model, state)
        steps.append(rows)
    return [*steps, accountant.finish(model, between(state))]


def state_survives_encoding_at_every_step(accountant):
    def restart(state):
        return decode_state(encode_state("subject", 1, state), "subject", 1)

    mechanism, releases, windows = run()
    whole = account(accountant, mechanism, releases, windows)
    model, state = accountant.start(facts_of(mechanism, len(windows), accountant))
    steps = []
    for release, window in zip(releases, windows):
        rows, state = Amnesiac(accountant).charge(
            release, window, private_of(accountant, release), model, restart(state)
        )
        steps.append(rows)
    assert [*steps, Amnesiac(accountant).finish(model, restart(state))] == whole


def inputs_are_not_modified(accountant):
    mechanism, releases, windows = run()
    seen = []

    def look(state):
        if seen:
            assert encode_state("subject", 1, seen[0]) == seen[1], "the state was changed"
        seen[:] = [state, encode_state("subject", 1, state)]
        return state

    values = [release.values.copy() for release in releases]
    first = account(accountant, mechanism, releases, windows, look)
    assert all(np.array_equal(release.values, copy) for release, copy in zip(releases, values))
    seen.clear()
    assert account(accountant, mechanism, releases, windows, look) == first


def rejects_unknown_events_without_side_effects(accountant):
    mechanism, releases, windows = run()
    model, state = accountant.start(facts_of(mechanism, len(windows), accountant))
    _, state = accountant.charge(releases[0], windows[0], private_of(accountant, releases[0]), model, state)
    before = encode_state("subject", 1, state)
    strange = replace(releases[1], charge=(*releases[1].charge, UnknownEvent()))
    with pytest.raises(UnsupportedEvent):
        accountant.charge(strange, windows[1], private_of(accountant, strange), model, state)
    assert encode_state("subject", 1, state) == before


def rows_are_complete(accountant):
    mechanism, releases, windows = run()
    steps = account(accountant, mechanism, releases, windows)
    for row in itertools.chain(*steps):
        assert isinstance(row, AccountRow)
        assert all((row.subject, row.name, row.unit))
        assert row.status in STATUSES
        assert len(row.adjacency.split()) > 2, f"{row.name} does not say in words what it compares"
        assert row.window is None or 1 <= row.window <= len(windows)
        assert not math.isnan(row.value)
        assert row.low is None or row.low <= row.value
        assert row.high is None or row.high >= row.value
    assert any(row.status == "final" for row in itertools.chain(*steps))
    assert all(row.status == "final" for row in steps[-1]), "nothing is provisional when the run has ended"


def state_does_not_grow(accountant):
    mechanism, releases, windows = run(48, period=12)
    sizes = []

    def measure(state):
        sizes.append(len(encode_state("subject", 1, state)))
        return state

    account(accountant, mechanism, releases, windows, measure)
    assert sizes[48] <= sizes[24] + 8


def figures_cover_brute_force(accountant):
    """Figures of known meaning are at least the exact log-ratio of the worst two neighbours."""
    for name in ("landmark_uniform", "w_event_sample", "discrete_laplace"):
        mechanism, releases, windows = run(name=name)
        # Books may say that so much cannot be afforded; these are about what it costs.
        accountant_without_limit = replace(accountant, budget=None) if hasattr(accountant, "budget") else accountant
        rows = list(itertools.chain(*account(accountant_without_limit, mechanism, releases, windows)))
        losses = np.array([exact_loss(release) for release in releases])
        marks = np.array([window.landmark for window in windows])
        periods = np.array([window.period for window in windows])
        for row in rows:
            if row.status == "final" and row.name in UNITS:
                for unit in UNITS[row.name](row.window, periods, marks, getattr(mechanism, "w", None)):
                    assert row.value >= losses[list(unit)].sum() * (1 - 1e-9), f"{row.name} understates"


def exact_loss(release):
    """Largest log-ratio of what a release shows on two neighbours, over all outputs and all splits of two users."""
    if release.repeats is not None:
        return 0.0
    reach = np.arange(-60, 61)
    weights = -np.abs(reach[:, None] - np.arange(3)) / float(release.scale)
    ratio = np.abs(weights - weights[:, :1]).max(axis=0)  # of one cell shifted by 0, 1, 2
    return max(2 * ratio[1], ratio[2])


def _whole_period(window, periods, marks, w):
    chosen = periods == periods[window - 1]
    landmarks = np.flatnonzero(marks & chosen).tolist()
    return [{*landmarks, t} for t in np.flatnonzero(chosen).tolist()]


UNITS = {
    "event_epsilon": lambda window, periods, marks, w: [{t} for t in range(len(marks))],
    "w_event_epsilon": lambda window, periods, marks, w: [range(t, t + w) for t in range(len(marks) - w + 1)],
    "user_epsilon": lambda window, periods, marks, w: [range(len(marks))],
    "period_loss": _whole_period,
}


def reads_what_it_says(accountant):
    """Figures depend on landmarks and budget periods where the accountant names the key, and nowhere else."""
    mechanism = get("discrete_laplace")(epsilon=1.0)  # reads neither itself

    def figures(**facts):
        facts = facts_for(12, **{"landmarks": ()} | facts)
        releases = run_mechanism(mechanism, counts_for(12), facts, seed=5)
        windows = facts.windows()
        known = {"landmarks": bool(facts.landmarks), "windows": lambda first, last: windows[first - 1 : last]}
        return account(accountant, mechanism, releases, windows, known=known)

    given = {"landmarks": (3, 4, 9, 11), "budget_period": 6}
    for key, value in given.items():
        others = {name: one for name, one in given.items() if name != key}
        differs = any(figures(**{key: value}, **rest) != figures(**rest) for rest in ({}, others))
        assert differs == (key in accountant.reads), f"{key}: read {differs}, declared {key in accountant.reads}"


def parameters_are_checked(accountant):
    checks.parameters_are_checked(Subject(accountant))


def is_documented(accountant):
    check_documentation(type(accountant))


CHECKS = (
    state_survives_encoding_at_every_step,
    inputs_are_not_modified,
    rejects_unknown_events_without_side_effects,
    rows_are_complete,
    state_does_not_grow,
    figures_cover_brute_force,
    reads_what_it_says,
    parameters_are_checked,
    is_documented,
)
