"""Conformance suite over every registered accountant, with mutants that each check must catch."""

from __future__ import annotations

import pytest

from penstock import accountants
from tests.tools.accountant_checks import CHECKS
from tests.tools.mutants import ACCOUNTANT_MUTANTS
from tests.tools.plugin_checks import every_example, failing

CASES = [
    pytest.param(example, check, id=f"{name}-{number}-{check.__name__}")
    for name, number, example in every_example(accountants)
    for check in CHECKS
    if "counts" in example.stages
]


@pytest.mark.parametrize(("accountant", "check"), CASES)
def test_accountant(accountant, check):
    assert failing(accountant, [check]) == {}


@pytest.mark.parametrize("name", accountants.names())
def test_there_are_examples(name):
    assert accountants.get(name).examples()


@pytest.mark.parametrize("mutant", ACCOUNTANT_MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_is_caught_by_its_check(mutant):
    assert failing(mutant.subject, CHECKS).keys() == set(mutant.caught_by)


def test_every_check_has_a_mutant():
    assert {name for mutant in ACCOUNTANT_MUTANTS for name in mutant.caught_by} == {check.__name__ for check in CHECKS}
