"""Extension of Griffe: docstrings for the API reference. Its examples run with python -m doctest docs/doctests.py."""

from __future__ import annotations

import dataclasses
import logging
import re
import runpy
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from griffe import Class, DocstringSectionKind, Extension, Function, Module

#: Its warnings make a strict build fail.
LOG = logging.getLogger("mkdocs.plugins.docstrings")
HEADING = re.compile(r"\n\n[A-Z][a-z ]+\n-{3,}\n")
PRIVACY = "**Privacy.**"


SITE = runpy.run_path(str(Path(__file__).with_name("website.py")))
#: Modules that are on a page.
SHOWN = {line.removeprefix("::: ") for names in SITE["API"].values() for line in SITE["reference"](names).split("\n\n")}


class Doctests(Extension):
    """Let docstrings be read as they are meant, and parameters be shown with their defaults and limits."""

    def on_package(self, *, pkg: Module, **_: Any) -> None:
        """Rewrite what a package defines, and warn of what is still not read as it is meant."""
        for obj in inside(pkg):
            if obj.docstring:
                obj.docstring.value = guarantee_first(headed(obj.docstring.value))
            if isinstance(obj, Class) and "dataclass" in obj.labels:
                show_declarations(obj)
            for fault in faults(obj):
                LOG.warning("%s: %s", obj.path, fault)


def headed(docstring: str) -> str:
    """Begin a section of examples where a docstring shows one without a heading, so that it is set as code."""
    text, mark, example = docstring.partition("\n>>> ")
    if not mark or "Examples\n-" in docstring:
        return docstring
    return f"{text.rstrip()}\n\nExamples\n--------{mark}{example}"


def guarantee_first(docstring: str) -> str:
    """Move the paragraphs on privacy before the first section.

    >>> print(guarantee_first("Add.\\n\\nParameters\\n----------\\nn\\n    Size.\\n\\n**Privacy.** None."))
    Add.
    <BLANKLINE>
    **Privacy.** None.
    <BLANKLINE>
    Parameters
    ----------
    n
        Size.
    """
    first, begin = HEADING.search(docstring), docstring.find(f"\n\n{PRIVACY}")
    if not first or begin < first.start():
        return docstring
    following = HEADING.search(docstring, begin)
    end = following.start() if following else len(docstring)
    return docstring[: first.start()] + docstring[begin:end] + docstring[first.start() : begin] + docstring[end:]


def inside(obj: Module | Class) -> Iterator[Module | Class | Function]:
    """Yield an object and all that is defined in it."""
    yield obj
    for member in obj.members.values():
        if isinstance(member, Module | Class):
            yield from inside(member)
        elif isinstance(member, Function):
            yield member


def show_declarations(obj: Class) -> None:
    """Show the default of a field, and what it must be, in place of the call that declares it."""
    from penstock.mechanisms.core.plugin import parameters_of

    cls: Any = import_module(obj.module.path)
    for name in obj.path.removeprefix(f"{obj.module.path}.").split("."):
        cls = getattr(cls, name)
    declared = parameters_of(cls)
    for field in dataclasses.fields(cls):
        if field.name in declared and field.name in obj.parameters:
            made = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
            obj.parameters[field.name].default = None if made is dataclasses.MISSING else repr(made)
    if obj.docstring:
        limits = {name: one.expected() for name, one in declared.items() if one.limits or one.choices}
        obj.docstring.value = with_limits(obj.docstring.value, limits)


def with_limits(docstring: str, limits: dict[str, str]) -> str:
    """Add to the text of each parameter what its value must be.

    >>> print(with_limits("Add.\\n\\nParameters\\n----------\\nn, k\\n    Sizes.\\n", {"n": "at least 1"}))
    Add.
    <BLANKLINE>
    Parameters
    ----------
    n, k
        Sizes. ``n``: at least 1.
    <BLANKLINE>
    """

    def add(item: re.Match[str]) -> str:
        names = [name for name in item[1].split(", ") if name in limits]
        return item[0] + "".join(
            f" ``{name}``: {limits[name]}." if "," in item[1] else f" Must be {limits[name]}." for name in names
        )

    return re.sub(r"^(\w+(?:, \w+)*)(?:\n    .+)+", add, docstring, flags=re.MULTILINE)


def faults(obj: Module | Class | Function) -> Iterator[str]:
    """Yield what is wrong with the docstring of an object as it is read."""
    if not obj.docstring or obj.module.path not in SHOWN:
        return
    known = set() if isinstance(obj, Module) else {*obj.all_members, *(one.name.lstrip("*") for one in obj.parameters)}
    sections = obj.docstring.parse("numpy", warnings=False)
    texts = [section.value for section in sections if section.kind is DocstringSectionKind.text]
    if PRIVACY in obj.docstring.value and not any(PRIVACY in text for text in texts):
        yield "the guarantee is not shown"
    for section in sections:
        if section.kind is DocstringSectionKind.parameters and not isinstance(obj, Module):
            for one in section.value:
                if one.name.lstrip("*") not in known:
                    yield f"{one.name} is documented and is no parameter"
