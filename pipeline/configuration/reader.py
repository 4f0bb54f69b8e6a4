"""YAML read with positions, by the core schema of YAML 1.2, and within limits."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml

from mechanisms.core.errors import ConfigError
from pipeline.configuration.document import Mapping, Node, Path, Place, Problem, Scalar, Sequence, shown

MAX_CHARACTERS = 1_000_000
MAX_NODES = 100_000
MAX_DEPTH = 32


def parse(text: str, name: str) -> tuple[Node | None, list[Problem]]:
    """Parse one YAML document into nodes.

    Scalars follow the YAML 1.2 core schema (``no`` and ``07:30`` are text, ``1e-3`` is a number). Tags, several
    documents, repeated keys and anything larger or deeper than a configuration needs are problems, not nodes.

    Parameters
    ----------
    text
        The YAML text.
    name
        What to call the file in messages.

    Returns
    -------
    The root node (None where nothing could be read) and the problems found.

    Examples
    --------
    >>> from pipeline.configuration.document import plain
    >>> node, problems = parse("seed: 7\\nseed: 8", "run.yaml")
    >>> print(plain(node), *problems)
    {'seed': 7} run.yaml:2: seed: written twice (first on line 1); keep one
    """
    if len(text) > MAX_CHARACTERS:
        return None, [Problem(Place(name), (), f"is larger than {MAX_CHARACTERS:,} characters; is it a configuration?")]
    reader = _Reader(text, name)
    try:
        root = reader.document()
    except _Stop as stop:
        return None, [*reader.problems, stop.problem]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = Place(name, mark.line + 1 if mark else None)
        return None, [*reader.problems, Problem(place, (), f"not valid YAML: {error.problem or error.context}")]
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # unprintable characters; escapes beyond Unicode
        return None, [*reader.problems, Problem(Place(name), (), f"not valid YAML: {str(error).splitlines()[0]}")]
    return root, reader.problems


def parse_section(text: str, name: str, whose: str) -> tuple[Mapping, list[Problem]]:
    """Parse a document whose top is a section.

    Parameters
    ----------
    text, name
        As in `parse`.
    whose
        What its keys are of, for instance ``a run``.

    Raises
    ------
    ConfigError
        If there is no section to look into.
    """
    root, problems = parse(text, name)
    if isinstance(root, Mapping):
        return root, problems
    if not problems:
        wrong = "is empty" if root is None else f"{shown(root)} is not allowed at the top"
        problems = [Problem(Place(name), (), f"{wrong}; it must be a section with the keys of {whose}")]
    raise ConfigError(tuple(map(str, problems)))


class _Stop(Exception):
    """The document cannot be read any further."""

    def __init__(self, place: Place, path: Path, text: str) -> None:
        self.problem = Problem(place, path, text)


class _Reader:
    """Turns parser events into nodes; aliases are copied, so that the caps hold for the expanded document."""

    def __init__(self, text: str, name: str) -> None:
        self.name = name
        self.events: Iterator[Any] = yaml.parse(text, Loader=yaml.SafeLoader)
        self.anchors: dict[str, Node] = {}
        self.problems: list[Problem] = []
        self.n_nodes = 0

    def document(self) -> Node | None:
        """Read the only document of the stream."""
        root = None
        for event in self.events:
            if isinstance(event, yaml.DocumentStartEvent):
                if root is not None:
                    raise _Stop(self.place(event), (), "a second document starts here; a configuration is only one")
                root = self.node(next(self.events), ())
        return root

    def place(self, event: Any) -> Place:
        """Line on which an event starts."""
        return Place(self.name, event.start_mark.line + 1)

    def node(self, event: Any, path: Path) -> Node:
        """Read the node that an event begins."""
        self.count(self.place(event), path)
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in self.anchors:
                raise _Stop(self.place(event), path, f"the alias *{event.anchor} is used before it is complete")
            return self.copy(self.anchors[event.anchor], path)
        if event.tag is not None:
            self.problems.append(Problem(self.place(event), path, f"the tag {event.tag} is not allowed; remove it"))
        if isinstance(event, yaml.ScalarEvent):
            node: Node = self.scalar(event, path)
        elif isinstance(event, yaml.SequenceStartEvent):
            node = self.sequence(event, path)
        else:
            node = self.mapping(event, path)
        if event.anchor is not None:
            self.anchors[event.anchor] = node
        return node

    def count(self, place: Place, path: Path) -> None:
        """Refuse documents that are too deep or too large once their aliases are expanded."""
        self.n_nodes += 1
        if len(path) > MAX_DEPTH:
            raise _Stop(place, path[:3], f"nested more than {MAX_DEPTH} levels deep")
        if self.n_nodes > MAX_NODES:
            raise _Stop(place, path[:3], f"the document has more than {MAX_NODES:,} values (aliases expanded)")

    def scalar(self, event: Any, path: Path) -> Scalar:
        """Read a single value."""
        if any("\ud800" <= c <= "\udfff" for c in event.value):
            raise _Stop(self.place(event), path, "half of a surrogate pair is not text")
        value = resolve(event.value) if event.style is None else event.value
        return Scalar(self.place(event), value, event.value)

    def sequence(self, start: Any, path: Path) -> Sequence:
        """Read a list."""
        items: list[Node] = []
        while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
            items.append(self.node(event, (*path, len(items))))
        return Sequence(self.place(start), items)

    def mapping(self, start: Any, path: Path) -> Mapping:
        """Read a section; of repeated keys the first counts."""
        mapping = Mapping(self.place(start), {}, {})
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            key = self.node(event, path)
            if not isinstance(key, Scalar):
                raise _Stop(key.place, path, f"{shown(key)} cannot be a key; it must be a name")
            value = self.node(next(self.events), (*path, key.text))
            if key.text in mapping.items:
                first = mapping.keys[key.text].line
                text = f"written twice (first on line {first}); keep one"
                self.problems.append(Problem(key.place, (*path, key.text), text))
            else:
                mapping.items[key.text], mapping.keys[key.text] = value, key.place
        return mapping

    def copy(self, node: Node, path: Path) -> Node:
        """Copy an anchored node to where its alias stands, counting what it adds."""
        self.count(node.place, path)
        if isinstance(node, Scalar):
            return Scalar(node.place, node.value, node.text)
        if isinstance(node, Sequence):
            return Sequence(node.place, [self.copy(item, (*path, i)) for i, item in enumerate(node.items)])
        items = {key: self.copy(item, (*path, key)) for key, item in node.items.items()}
        return Mapping(node.place, items, dict(node.keys))


_INTEGER = re.compile(r"[-+]?[0-9][0-9_]*")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"([-+]?)\.?(inf|Inf|INF)|\.(nan|NaN|NAN)")
_WORDS: dict[str, bool | None] = {"": None, "~": None, "null": None, "Null": None, "NULL": None}
_WORDS |= {word: word.lower() == "true" for word in ("true", "True", "TRUE", "false", "False", "FALSE")}


def resolve(text: str) -> bool | int | float | str | None:
    """Value of an unquoted scalar by the YAML 1.2 core schema (and ``inf``, ``1_000``).

    >>> [resolve(text) for text in ("7", "1e-3", ".5", "-.inf", "no", "07:30", "True", "")]
    [7, 0.001, 0.5, -inf, 'no', '07:30', True, None]
    """
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text) and len(text) <= 100:
        return int(text.replace("_", ""))
    if _FLOAT.fullmatch(text):
        return float(text)
    if _NOT_FINITE.fullmatch(text):
        return float(text.replace(".", ""))
    return text
