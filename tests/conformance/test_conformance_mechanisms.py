"""Conformance suite over every registered mechanism, with mutants that each check must catch."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from penstock import mechanisms
from penstock.mechanisms.core.chain import Chain
from penstock.mechanisms.core.noise_keys import NoiseKey
from penstock.testing import Subject, cases_of, checks_for
from penstock.testing.runs import SOURCE
from tests.tools.mutants import MECHANISM_MUTANTS, NAMED_MUTANTS, Mutant
from tests.tools.plugin_checks import every_example, failing

CASES = [
    pytest.param(subject, check, id=f"{name}-{number}-{check.__name__}")
    for name, number, example in every_example(mechanisms)
    for subject, check in cases_of(example)
]

COARSE = (
    "cells_have_noise_of_their_own",
    "a_changed_count_draws_independent_noise",
    "decisions_read_releases_alone",
)


def chains():
    """Chains with every kind of step before and after the reading step."""
    dl, ba = mechanisms.get("discrete_laplace")(epsilon=1.0), mechanisms.get("w_event_ba")(epsilon=1.0, w=3)
    fpa = mechanisms.get("fpa")(epsilon=1.0, coefficients=2, block=4)
    adaptive = mechanisms.get("landmark_adaptive")(epsilon=1.0)
    uniform = mechanisms.get("w_event_uniform")(epsilon=1.0, w=3)
    small, ranges = mechanisms.get("suppress_small")(threshold=5), mechanisms.get("fixed_ranges")(width=5)
    coarse = mechanisms.get("spatial_generalization")(rows=1, columns=2)
    longer = mechanisms.get("temporal_generalization")(windows=3)
    sample = mechanisms.get("sampling")(rate=0.5)
    whole = mechanisms.get("sampling")(rate=0.5, unit="user")
    gauss, learned = mechanisms.get("gaussian")(sigma=20.0), mechanisms.get("filter")()
    fast, walk = mechanisms.get("fast")(epsilon=3.0, publications=3), mechanisms.get("kalman")()
    pegasus = mechanisms.get("pegasus")(epsilon=2.0, longest=4)
    steps = (
        (dl, small),
        (adaptive, ranges),
        (longer, dl),
        (coarse, longer, ba, ranges),
        (coarse, sample, uniform),
        (whole, fpa, small),
        (gauss, learned),
        (ba, learned),
        (adaptive, learned),
        (fast, walk),
        (replace(pegasus, smoothing="median"), ranges),
        (replace(pegasus, smoothing="mean"),),
    )
    groups = np.array([0, 0, 1, 1, 1])
    return [Chain.of(some, groups if coarse in some else None) for some in steps]


CASES += [
    pytest.param(Subject(chain), check, id=f"chain-{number}-{check.__name__}")
    for number, chain in enumerate(chains())
    for check in checks_for(chain)
    # Of counts that are coarse already, single cells and windows say nothing.
    if check.__name__ not in COARSE or (chain.groups is None and chain.temporal is None)
]


@pytest.mark.parametrize(("subject", "check"), CASES)
def test_mechanism(subject, check):
    assert failing(subject, [check]) == {}


@pytest.mark.parametrize("name", mechanisms.names())
def test_there_are_examples(name):
    assert mechanisms.get(name).examples()


@pytest.mark.parametrize("mutant", MECHANISM_MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_is_caught_by_its_check(mutant):
    assert failing(mutant.subject, checks_for(mutant.subject.mechanism)).keys() == set(mutant.caught_by)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("mutant", NAMED_MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_is_caught_by_its_check_whatever_the_seed(mutant, seed):
    key = NoiseKey.from_seed(seed)
    broken = replace(mutant.subject, source=replace(mutant.subject.source, key=key))
    kind = type(broken.mechanism)
    parameters = {f.name: getattr(broken.mechanism, f.name) for f in fields(kind) if f.init}
    base = next(one for one in kind.__mro__ if one.__module__ != kind.__module__)
    sound = Subject((base if kind.__module__ == Mutant.__module__ else kind)(**parameters), replace(SOURCE, key=key))
    [check] = [one for one in checks_for(broken.mechanism) if one.__name__ == mutant.caught_by[0]]
    check(sound)
    with pytest.raises(AssertionError):
        check(broken)


def test_every_check_has_a_mutant():
    caught = {name for mutant in MECHANISM_MUTANTS for name in mutant.caught_by}
    every = {check.__name__ for mutant in MECHANISM_MUTANTS for check in checks_for(mutant.subject.mechanism)}
    assert caught == every
