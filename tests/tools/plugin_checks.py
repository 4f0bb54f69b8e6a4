"""Checks for plug-ins of every kind: examples, parameter bounds, documentation."""

from __future__ import annotations

import contextlib
import inspect
import os
from dataclasses import replace

import pytest

from penstock.mechanisms.core.plugin import ParameterError, PenstockError, parameters_of
from penstock.pipeline.config.sections import add_folder


def check_parameters(plugin):
    """Every value outside the declared bounds is refused by an error that names the field."""
    for name, declared in parameters_of(type(plugin)).items():
        for wrong in _outside(declared):
            with pytest.raises(ParameterError) as caught:
                replace(plugin, **{name: wrong})
            assert caught.value.field == (declared.key or name)
            assert declared.expected() in str(caught.value)


def check_documentation(plugin):
    """The Privacy paragraph of a plug-in whose documentation is complete."""
    text = inspect.getdoc(plugin) or ""
    promise = text.split("\n")[0]
    assert promise.endswith("."), "the first line is one sentence"
    assert len(promise) < 130
    assert "**Privacy.**" in text, "there is no Privacy paragraph"
    for name, declared in parameters_of(plugin).items():
        if declared.choices is None or len(declared.choices) > 1:
            assert (declared.key or name) in text, f"the parameter {name} is not described"
    return text.split("**Privacy.**")[1].split("\n\n")[0]


def _outside(declared):
    if declared.choices is not None:
        return ["no such choice"]
    wrong = [limit for limit in (declared.above, declared.below) if limit is not None]
    wrong += [limit - 1 for limit in (declared.above, declared.at_least) if limit is not None]
    wrong += [limit + 1 for limit in (declared.below, declared.at_most) if limit is not None]
    return [*wrong, float("nan"), "text", True] if wrong else []


def examples_of(family):
    """Name, number and instance of every example in a family of plug-ins; one without any fails a test of its own.

    Folders with further plug-ins are named in PENSTOCK_PLUGINS, as under ``plugins:`` in a configuration.
    """
    for folder in filter(None, os.environ.get("PENSTOCK_PLUGINS", "").split(os.pathsep)):
        add_folder(folder)
    for name in family.names():
        with contextlib.suppress(PenstockError):
            yield from ((name, number, example) for number, example in enumerate(family.get(name).examples()))


def failing(subject, checks):
    """Names of the checks that a subject fails."""
    failed = set()
    for check in checks:
        try:
            check(subject)
        except (Exception, pytest.fail.Exception):  # a broken plug-in may fail in any way
            failed.add(check.__name__)
    return failed
