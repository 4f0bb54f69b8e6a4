"""Conformance tests for third-party mechanisms. There is a test for every promise in the contract.

Examples
--------
A test file beside a plug-in; `pytest` then runs every check on every example of the mechanism:

    import pytest
    from penstock.testing import mechanism_cases

    @pytest.mark.parametrize("case", mechanism_cases("fading", "my_plugins"), ids=str)
    def test_fading(case):
        case()

Without `pytest`:

>>> from penstock.testing import failed_checks
>>> failed_checks("suppress_small")
[]
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from penstock.mechanisms.core.contract import MECHANISMS, ChainStep
from penstock.mechanisms.core.plugin import PenstockError
from penstock.pipeline.config.sections import add_folder
from penstock.testing.checks import Check, cases_of, checks_for
from penstock.testing.noise import noise_matches
from penstock.testing.runs import Subject

__all__ = ["Case", "Subject", "cases_of", "checks_for", "failed_checks", "mechanism_cases", "noise_matches"]

if not __debug__:
    raise PenstockError("penstock.testing: run Python without -O, which leaves out what it checks")


@dataclass(frozen=True)
class Case:
    """A check of one mechanism instance. Calling it raises `AssertionError` if the check fails."""

    name: str
    subject: Subject
    check: Check

    def __call__(self) -> None:
        """Run the check."""
        self.check(self.subject)

    def __str__(self) -> str:
        return self.name


def mechanism_cases(mechanism: str | ChainStep, plugins: str | Path | None = None) -> list[Case]:
    """Return a test case for each check that applies to a mechanism.

    Parameters
    ----------
    mechanism
        Its name, for all its `examples`; or one instance.
    plugins
        The folder that it is in, as under ``plugins:`` in a configuration (the mechanism's file is in its sub-folder
        ``mechanisms``); None: it is part of penstock, or installed.

    Raises
    ------
    UnknownPlugin
        If there is no mechanism of that name.
    ParameterError
        If the mechanism has no examples: it must define them.

    Examples
    --------
    >>> cases = mechanism_cases("suppress_small")
    >>> str(cases[0]), len(cases) > 10
    ('suppress_small-0-parameters_are_checked', True)
    """
    if plugins is not None:
        add_folder(str(plugins))
    examples = MECHANISMS.get(mechanism).examples() if isinstance(mechanism, str) else (mechanism,)
    return [
        Case(f"{MECHANISMS.name_of(type(example))}-{number}-{check.__name__}", subject, check)
        for number, example in enumerate(examples)
        for subject, check in cases_of(example)
    ]


def failed_checks(mechanism: str | ChainStep, plugins: str | Path | None = None) -> list[str]:
    """Return the names of the checks that fail. Takes the same parameters as `mechanism_cases`."""
    failed = []
    for case in mechanism_cases(mechanism, plugins):
        try:
            case()
        except Exception:  # a broken plug-in may fail in any way
            failed.append(case.name)
    return failed
