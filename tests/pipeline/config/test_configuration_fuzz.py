"""Fuzzed configurations either load or report problems, and the JSON Schema agrees."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.mechanisms.core.plugin import ConfigError
from penstock.pipeline.config.run import loads
from penstock.pipeline.config.schema import json_schema
from tests.tools.right_configuration import EVENTS, RIGHT, at, changed

VALIDATOR = jsonschema.Draft202012Validator(json_schema())


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, working_folder: Path) -> None:
    name, text = EVENTS
    (tmp_path / name).write_text(text)


def problems_of(text: str, overrides: tuple[str, ...] = ()) -> tuple[str, ...] | None:
    """Return the problems of a configuration, None if it loads; any other exception ends the test."""
    try:
        loads(text, overrides=overrides)
    except ConfigError as error:
        return error.problems
    return None


def are_words(problems: tuple[str, ...]) -> bool:
    """Return whether there are problems, all printable."""
    return bool(problems) and all(problem.isprintable() for problem in problems)


def paths(values: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    inside = values.items() if isinstance(values, dict) else enumerate(values) if isinstance(values, list) else ()
    return [p for step, value in inside for p in [(*path, step), *paths(value, (*path, step))]]


SOME = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 40),
    st.sampled_from([2**31, 2**63, 10**30, 1e308, 1e-300, 0.5, "inf", "", "0s", "1ms", "1h", "10000d", "07:00-09:00"]),
    st.sampled_from(
        [
            "2008-05-19T00:00:00Z",
            "9999-12-31T23:59:59.999-23:59",
            "2399-12-31T23:59:59.999Z",
            "1900-01-01T00:00:00Z",
            "1/2",
        ]
    ),
    st.sampled_from(["raw", "laplace", "timestamps", "places", "deployment", "Sat,Sun", "UTC", "*", ".", "env:HOME"]),
    st.text(max_size=8),
    st.lists(st.integers(0, 30), max_size=3),
    st.dictionaries(st.sampled_from(["type", "size", "period", "x"]), st.integers(0, 9), max_size=2),
)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_changed_configurations_load_or_have_problems_and_the_schema_is_never_stricter(data: st.DataObject) -> None:
    values = RIGHT
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(paths(values)))
        if data.draw(st.booleans()):
            path = (*path[:-1], data.draw(st.sampled_from(["type", "period", "top", "list", "noise", "origin", "x"])))
        if isinstance(path[-1], str) and not isinstance(at(values, path[:-1]), dict):
            continue
        values = changed(values, path, data.draw(SOME))
    problems = problems_of(json.dumps(values))
    assert are_words(problems) if problems is not None else VALIDATOR.is_valid(values)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_damaged_text_never_raises_anything_else(data: st.DataObject) -> None:
    text = json.dumps(RIGHT, indent=1).replace('"', data.draw(st.sampled_from(['"', "", "'"])))
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(text)))
        stop = start + data.draw(st.integers(0, 12))
        text = (
            text[:start]
            + data.draw(st.text(st.sampled_from("{}[]:,-?!&*|>'\"%@`# \n\t\0é\\x0aZ~"), max_size=4))
            + text[stop:]
        )
    problems = problems_of(text)
    assert problems is None or are_words(problems)


@settings(max_examples=40, deadline=None)
@given(st.text())
def test_any_text_as_an_override_is_applied_or_is_a_problem(text: str) -> None:
    problems = problems_of(json.dumps(RIGHT), overrides=(text, "windows.size=" + text))
    assert problems is None or are_words(problems)
