"""From nodes to dataclasses: types and declarations decide, and every problem is collected before any is reported."""

from __future__ import annotations

import difflib
import typing
from collections.abc import Mapping as Dictionary
from enum import Enum
from pathlib import Path
from typing import Any

from mechanisms.core.errors import ParameterError, PenstockError, UnknownPlugin
from mechanisms.core.parameters import Parameter
from mechanisms.core.registry import Registry
from pipeline.configuration import document
from pipeline.configuration.document import Mapping, Node, Problem, Scalar, Sequence, locate, plain, shown
from pipeline.configuration.fields import Field, alternatives, expected, fields_of, is_section, is_tuple
from pipeline.configuration.scalars import Wrong, scalar


class _Failed(Enum):
    """Stands for a value that could not be built; the problem has been noted."""

    FAILED = "failed"


FAILED = _Failed.FAILED

#: What other systems call a key, where its own name is not much like it.
ALSO_CALLED = {
    "hop": "period",
    "slide": "period",
    "step": "period",
    "stride": "period",
    "every": "period",
    "length": "size",
    "duration": "size",
    "width": "size",
    "tz": "time_zone",
}


class Builder:
    """Builds dataclasses from nodes and keeps the problems it meets.

    Parameters
    ----------
    unions
        Registry of plug-ins by their base class: such a field is a section whose ``type`` names the plug-in.
    folder
        Where relative paths are looked for after the working directory; None: nowhere else.

    Examples
    --------
    >>> from pipeline.source import Source
    >>> from pipeline.configuration.reader import parse
    >>> node, _ = parse("from: 2008-05-19\\nblock_rows: 0\\nunitl: x", "run.yaml")
    >>> builder = Builder({}, None)
    >>> builder.section(node, Source, ("source",)) is FAILED
    True
    >>> print(*sorted(map(str, builder.problems)), sep="\\n")  # doctest: +ELLIPSIS
    run.yaml:1: source.from: '2008-05-19' is not allowed; it must be a time such as 2008-05-19T00:00:00Z
    run.yaml:2: source.block_rows: 0 is not allowed; it must be a whole number at least 1
    run.yaml:3: source.unitl: unknown key; did you mean 'until'? (known: from, until, block_rows)
    """

    def __init__(self, unions: Dictionary[type, Registry[Any]], folder: Path | None) -> None:
        self.unions = dict(unions)
        self.folder = folder
        self.problems: list[Problem] = []

    def fail(self, node: Node, path: document.Path, text: str) -> _Failed:
        """Note a problem where a node stands."""
        self.problems.append(Problem(node.place, path, text))
        return FAILED

    def refuse(self, node: Node, path: document.Path, right: str) -> _Failed:
        """Note that a value is not what it must be."""
        return self.fail(node, path, f"{shown(node)} is not allowed; it must be {right}")

    def section(self, node: Node, cls: type, path: document.Path) -> Any:
        """Build one dataclass from a section, or give FAILED."""
        if not isinstance(node, Mapping):
            return self.refuse(node, path, expected(cls, Parameter(doc=""), self.unions))
        return self.construct(node, cls, self.values(node, cls, path), path)

    def values(self, node: Mapping, cls: type, path: document.Path, also: tuple[str, ...] = ()) -> dict[str, Any]:
        """Value (or FAILED) of every field that is written in a section or must be; ``also``: further known keys."""
        fields = fields_of(cls)
        known = (*also, *(field.key for field in fields))
        values: dict[str, Any] = {}
        meant = set()
        for key in sorted(node.items.keys() - set(known)):
            also_called = ALSO_CALLED.get(key.lower())
            near = [also_called] if also_called in known else difflib.get_close_matches(key.lower(), known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            text = f"unknown key{hint} (known: {', '.join(known)})"
            self.problems.append(Problem(node.keys[key], (*path, key), text))
            values[key] = FAILED
            meant.update(near)
        for field in fields:
            if field.key in node.items:
                values[field.name] = self.value(node.items[field.key], field, (*path, field.key))
            elif field.key in meant:
                values[field.name] = FAILED
            elif field.required:
                right = expected(field.hint, field.declared, self.unions)
                values[field.name] = self.fail(node, (*path, field.key), f"missing; it must be {right}")
        return values

    def construct(self, node: Mapping, cls: type, values: dict[str, Any], path: document.Path) -> Any:
        """Call the dataclass; what it refuses is reported on the line of the field it names."""
        if FAILED in values.values():
            return FAILED
        try:
            return cls(**values)
        except ParameterError as error:
            self.problems.append(_refused(node, cls, error, path))
        except (PenstockError, ValueError, TypeError, OSError) as error:
            self.fail(node, path, str(error))
        return FAILED

    def plugin(self, node: Node, base: type, path: document.Path) -> Any:
        """Build the plug-in that a section names under ``type``, or give FAILED."""
        registry = self.unions[base]
        if not isinstance(node, Mapping):
            return self.refuse(node, path, expected(base, Parameter(doc=""), self.unions))
        if "type" not in node.items:
            return self.fail(node, (*path, "type"), f"missing; it must be one of {', '.join(registry.names())}")
        name = node.items["type"]
        if not isinstance(name, Scalar) or not isinstance(name.value, str):
            return self.refuse(name, (*path, "type"), f"one of {', '.join(registry.names())}")
        try:
            cls = registry.get(name.value)
        except UnknownPlugin as error:
            return self.fail(name, (*path, "type"), str(error))
        except Exception as error:  # the file of a plug-in may hold anything
            return self.fail(
                name, (*path, "type"), f"{name.value!r} cannot be loaded ({type(error).__name__}: {error})"
            )
        return self.construct(node, cls, self.values(node, cls, path, ("type",)), path)

    def value(self, node: Node, field: Field, path: document.Path) -> Any:
        """Build the value of one field and hold it against its declaration."""
        value = self.typed(node, field.hint, field.declared, path)
        if value is FAILED or (value is None and field.default is None):
            return value
        if not field.declared.allows(value):
            return self.refuse(node, path, expected(field.hint, field.declared, self.unions))
        return value

    def typed(self, node: Node, hint: Any, declared: Parameter, path: document.Path) -> Any:
        """Read a node as a type; of a union, as the first member that fits."""
        members = alternatives(hint)
        if isinstance(node, Scalar) and node.value is None and type(None) in members:
            return None
        members = tuple(member for member in members if member is not type(None))
        if len(members) == 1:
            return self.member(node, members[0], declared, path)
        fitting = [member for member in members if self.fits(node, member)]
        if len(fitting) == 1:
            return self.member(node, fitting[0], declared, path)
        for member in fitting:
            trial = Builder(self.unions, self.folder)
            value = trial.member(node, member, declared, path)
            if value is not FAILED:
                return value
        return self.refuse(node, path, expected(hint, declared, self.unions))

    def fits(self, node: Node, hint: Any) -> bool:
        """Whether a node has at least the outer form of a type: a value, a list or a section."""
        if isinstance(node, Mapping):
            return hint in self.unions or is_section(hint) or typing.get_origin(hint) is dict
        if isinstance(node, Sequence):
            return is_tuple(hint)
        return not (hint in self.unions or is_section(hint) or is_tuple(hint) or typing.get_origin(hint) is dict)

    def member(self, node: Node, hint: Any, declared: Parameter, path: document.Path) -> Any:
        """Read a node as one type that is not a union."""
        if hint in self.unions:
            return self.plugin(node, hint, path)
        if is_section(hint):
            return self.section(node, hint, path)
        if is_tuple(hint):
            return self.list(node, hint, declared, path)
        if typing.get_origin(hint) is dict:
            return self.dictionary(node, hint, declared, path)
        try:
            return scalar(node, hint, declared, self.folder)
        except Wrong as wrong:
            return self.refuse(node, path, wrong.right or expected(hint, declared, self.unions))

    def list(self, node: Node, hint: Any, declared: Parameter, path: document.Path) -> Any:
        """Read a list; a single value or section stands for a list of one."""
        hints = typing.get_args(hint)
        if not isinstance(node, Sequence):
            if hints[-1] is not Ellipsis or not self.is_one(node, hints[0]):
                return self.refuse(node, path, expected(hint, declared, self.unions))
            value = self.typed(node, hints[0], declared, path)
            return FAILED if value is FAILED else (value,)
        if hints[-1] is Ellipsis:
            hints = (hints[0],) * len(node.items)
        if len(hints) != len(node.items):
            return self.refuse(node, path, expected(hint, declared, self.unions))
        values = [self.typed(node.items[i], hints[i], declared, (*path, i)) for i in range(len(hints))]
        return FAILED if FAILED in values else tuple(values)

    def is_one(self, node: Node, hint: Any) -> bool:
        """Whether a node that is no list may be the only entry of one."""
        return any(self.fits(node, member) for member in alternatives(hint)) and not (
            isinstance(node, Scalar) and node.value is None
        )

    def dictionary(self, node: Node, hint: Any, declared: Parameter, path: document.Path) -> Any:
        """Read a section whose keys are free."""
        if not isinstance(node, Mapping):
            return self.refuse(node, path, expected(hint, declared, self.unions))
        inner = typing.get_args(hint)[1]
        values = {key: self.typed(item, inner, declared, (*path, key)) for key, item in node.items.items()}
        return FAILED if FAILED in values.values() else values


def _refused(node: Mapping, cls: type, error: ParameterError, path: document.Path) -> Problem:
    """What a dataclass refused, on the line of the field (or the entry of its list) that it names."""
    steps: document.Path = tuple(error.field.split("."))
    place, found = locate(node, steps)
    if isinstance(found, Sequence):  # name the entry, not the list
        for i, item in enumerate(found.items):
            if plain(item) == error.value:
                steps, place, found = (*steps, i), item.place, item
                break
    elif isinstance(found, Mapping) and error.value in found.keys:
        text = f"unknown key; it must be {error.expected}"
        return Problem(found.keys[error.value], (*path, *steps, error.value), text)
    if found is None and steps[0] not in {field.key for field in fields_of(cls)}:
        steps, place, found = (), node.place, node  # about the section as a whole
    value = shown(found) if found is not None else repr(error.value)
    return Problem(place, (*path, *steps), f"{value} is not allowed; it must be {error.expected}")
