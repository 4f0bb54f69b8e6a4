"""A configuration as written: nodes that remember the file and line they stand on, and problems that say so."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """Where something was written: a line of a file, or a ``--set`` argument (which has no line)."""

    file: str
    line: int | None = None

    def __str__(self) -> str:
        return self.file if self.line is None else f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong, told in one line.

    >>> print(Problem(Place("run.yaml", 3), ("mechanism", 0, "epsilon"), "missing"))
    run.yaml:3: mechanism[0].epsilon: missing
    """

    place: Place
    path: Path
    text: str

    def __str__(self) -> str:
        line = ": ".join(part for part in (str(self.place), dotted(self.path), self.text) if part)
        return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in line)


@dataclass(slots=True)
class Scalar:
    """A single value; ``text`` is how it was written."""

    place: Place
    value: bool | int | float | str | None
    text: str


@dataclass(slots=True)
class Sequence:
    """A list of nodes."""

    place: Place
    items: list[Node]


@dataclass(slots=True)
class Mapping:
    """Nodes by key, and where each key was written."""

    place: Place
    items: dict[str, Node]
    keys: dict[str, Place]


Node = Scalar | Sequence | Mapping


def dotted(path: Path) -> str:
    """A path as people write it.

    >>> dotted(("mechanism", 0, "epsilon"))
    'mechanism[0].epsilon'
    """
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}"
    return text.removeprefix(".")


def shown(node: Node) -> str:
    """A node as messages quote it: short, and on one line."""
    if isinstance(node, Sequence):
        return "a list"
    if isinstance(node, Mapping):
        return "a section"
    if node.value is None:
        return "nothing"
    text = repr(node.value) if isinstance(node.value, str) else node.text
    return text if len(text) <= 80 else text[:77] + "..."


def plain(node: Node) -> Any:
    """A node as ordinary Python values."""
    if isinstance(node, Scalar):
        return node.value
    if isinstance(node, Sequence):
        return [plain(item) for item in node.items]
    return {key: plain(item) for key, item in node.items.items()}


def nodes(value: Any, place: Place) -> Node:
    """Ordinary Python values, such as JSON has, as a node that stands all in one place.

    >>> plain(nodes({"radius": 50, "file": "a.csv", "list": ["x"]}, Place("manifest.json")))
    {'radius': 50, 'file': 'a.csv', 'list': ['x']}
    """
    if isinstance(value, dict):
        return Mapping(place, {key: nodes(item, place) for key, item in value.items()}, dict.fromkeys(value, place))
    if isinstance(value, list):
        return Sequence(place, [nodes(item, place) for item in value])
    return Scalar(place, value, value if isinstance(value, str) else json.dumps(value))


def locate(node: Node, path: Path) -> tuple[Place, Node | None]:
    """Place of the deepest existing part of a path, and the node if all of it exists.

    A step ``0`` into something that is not a list stays where it is: one value may stand for a list of one.
    """
    place = node.place
    for step in path:
        if isinstance(node, Mapping) and step in node.items:
            place, node = node.keys[str(step)], node.items[str(step)]
        elif isinstance(node, Sequence) and isinstance(step, int) and 0 <= step < len(node.items):
            node = node.items[step]
            place = node.place
        elif step != 0 or isinstance(node, Sequence):
            return place, None
    return place, node
