"""What a configuration may contain, read from the dataclasses: keys, types, bounds, and how to say them."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any, Literal, Union

from evaluation.utility import METRICS
from mechanisms.core.parameters import Parameter
from mechanisms.core.registry import Registry
from pipeline.configuration.values import A_DURATION, A_TIME, format_duration, format_time


@dataclass(frozen=True)
class Field:
    """One key of a section.

    Parameters
    ----------
    name, key
        How the field is called in Python and in YAML.
    hint
        Its type.
    declared
        Its meaning and bounds.
    default
        Value if the key is absent; MISSING where it must be given.
    """

    name: str
    key: str
    hint: Any
    declared: Parameter
    default: Any

    @property
    def required(self) -> bool:
        """Whether the key must be given."""
        return self.default is MISSING


def fields_of(cls: type) -> tuple[Field, ...]:
    """Every key of a section, in order of declaration: the fields that are made with `parameter`.

    >>> from pipeline.source import Source
    >>> [field.key for field in fields_of(Source)]
    ['from', 'until', 'block_rows']
    """
    if cls in _KNOWN:
        return _KNOWN[cls]
    hints = typing.get_type_hints(cls)
    found = []
    for field in dataclasses.fields(cls):
        declared = field.metadata.get("parameter")
        if declared is not None:
            default = field.default_factory() if field.default_factory is not MISSING else field.default
            found.append(Field(field.name, declared.key or field.name, hints[field.name], declared, default))
    return _KNOWN.setdefault(cls, tuple(found))


_KNOWN: dict[type, tuple[Field, ...]] = {}


def alternatives(hint: Any) -> tuple[Any, ...]:
    """Members of a union (None as NoneType), or the hint alone.

    >>> alternatives(int | None)
    (<class 'int'>, <class 'NoneType'>)
    """
    if typing.get_origin(hint) in (Union, types.UnionType):
        return typing.get_args(hint)
    return (hint,)


def is_section(hint: Any) -> bool:
    """Whether a type is written as a YAML section with fixed keys."""
    return isinstance(hint, type) and dataclasses.is_dataclass(hint)


def is_tuple(hint: Any) -> bool:
    """Whether a type is written as a YAML list."""
    return typing.get_origin(hint) is tuple


def expected(hint: Any, declared: Parameter, unions: dict[type, Registry[Any]]) -> str:
    """What would be right for a field, as a phrase that completes "must be …".

    >>> expected(int, Parameter(doc="", at_least=1), {})
    'a whole number at least 1'
    >>> expected(tuple[float, ...] | None, Parameter(doc=""), {})
    'a list, each entry a number'
    """
    return " or ".join(_phrase(member, declared, unions) for member in alternatives(hint) if member is not type(None))


def _phrase(hint: Any, declared: Parameter, unions: dict[type, Registry[Any]]) -> str:
    if hint in unions:
        return f"a section with a type: {', '.join(unions[hint].names())}"
    if is_section(hint):
        return f"a section with keys out of: {', '.join(field.key for field in fields_of(hint))}"
    if is_tuple(hint):
        entries = typing.get_args(hint)
        if entries[-1] is Ellipsis:
            return f"a list, each entry {expected(entries[0], declared, unions)}"
        return f"a list of {len(entries)}: {', '.join(expected(entry, declared, unions) for entry in entries)}"
    if typing.get_origin(hint) is dict:
        return f"a section, each value {expected(typing.get_args(hint)[1], declared, unions)}"
    if typing.get_origin(hint) is Literal:
        return "one of " + ", ".join(str(choice) for choice in typing.get_args(hint))
    return _phrase_of_scalar(hint, declared)


def _phrase_of_scalar(hint: Any, declared: Parameter) -> str:
    if hint is bool:
        return "true or false"
    if declared.choices is not None:
        return declared.expected()
    if declared.kind == "duration":
        return f"{A_DURATION}{_limits(declared, format_duration)}"
    if declared.kind == "time":
        return f"{A_TIME}{_limits(declared, format_time)}"
    if declared.kind == "metric":
        return f"one of {', '.join(METRICS)}"
    if declared.kind == "path":
        return "an existing file or folder"
    if declared.kind == "key":
        return "an existing file, or env: and the name of a set environment variable"
    if hint is int:
        return "a whole number" + declared.expected().removeprefix("a number")
    if hint is float:
        return declared.expected()
    return "a file or folder" if hint is Path else "text"


def _limits(declared: Parameter, show: Callable[[int], str]) -> str:
    limits = (
        ("above", declared.above),
        ("at least", declared.at_least),
        ("below", declared.below),
        ("at most", declared.at_most),
    )
    phrase = " and ".join(f"{word} {show(int(limit))}" for word, limit in limits if limit is not None)
    return f", {phrase}" if phrase else ""
