"""Every registered mechanism keeps every promise of the contract, and every check notices a mechanism that does not."""

from __future__ import annotations

import pytest
from conformance_checks import checks_for
from conformance_runs import Subject
from mutants import MECHANISM_MUTANTS
from plugin_checks import examples_of, failing

from penstock import mechanisms

CASES = [
    pytest.param(Subject(example), check, id=f"{name}-{number}-{check.__name__}")
    for name, number, example in examples_of(mechanisms)
    for check in checks_for(example)
]


@pytest.mark.parametrize(("subject", "check"), CASES)
def test_mechanism(subject, check):
    check(subject)


@pytest.mark.parametrize("name", mechanisms.names())
def test_there_are_examples(name):
    assert mechanisms.get(name).examples()


@pytest.mark.parametrize("mutant", MECHANISM_MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_is_caught_by_its_check(mutant):
    assert failing(mutant.subject, checks_for(mutant.subject.mechanism)) == set(mutant.caught_by)


def test_every_check_has_a_mutant():
    caught = {name for mutant in MECHANISM_MUTANTS for name in mutant.caught_by}
    every = {check.__name__ for mutant in MECHANISM_MUTANTS for check in checks_for(mutant.subject.mechanism)}
    assert caught == every
