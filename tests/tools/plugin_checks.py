"""Examples of all plug-ins of a kind, and which checks a broken one fails."""

from __future__ import annotations

import contextlib
import traceback

import pytest

from penstock.mechanisms.core.plugin import PenstockError


def every_example(family):
    """Name, number and instance of every example in a family of plug-ins; one without any fails a test of its own."""
    for name in family.names():
        with contextlib.suppress(PenstockError):
            yield from ((name, number, example) for number, example in enumerate(family.get(name).examples()))


def failing(subject, checks):
    """Tracebacks of the checks that a subject fails, by name."""
    failed = {}
    for check in checks:
        try:
            check(subject)
        except (Exception, pytest.fail.Exception):  # a broken plug-in may fail in any way
            failed[check.__name__] = traceback.format_exc()
    return failed
