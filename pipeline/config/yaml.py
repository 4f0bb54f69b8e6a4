"""YAML documents whose nodes record their file, line and column, with overrides given by `--set`."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from penstock.mechanisms.core.plugin import ConfigError

# Nodes with the file and line that they were written on, and problems that quote these.

Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """A source location: a line in a file, or a ``--set`` argument, which has no line number."""

    file: str
    line: int | None = None

    def __str__(self) -> str:
        return self.file if self.line is None else f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem in a configuration, reported as a single line.

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
    """A scalar value and its source string."""

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
    """A mapping of keys to nodes that records each key's location."""

    place: Place
    items: dict[str, Node]
    keys: dict[str, Place]


Node = Scalar | Sequence | Mapping


def dotted(path: Path) -> str:
    """Return a path in dotted notation, the way users write it."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).removeprefix(".")


def shown(node: Node) -> str:
    """Format a node briefly on one line for use in messages."""
    if isinstance(node, Sequence):
        return "a list"
    if isinstance(node, Mapping):
        return "a section"
    if node.value is None:
        return "nothing"
    text = repr(node.value) if isinstance(node.value, str) else node.text
    return text if len(text) <= 80 else text[:77] + "..."


def plain(node: Node) -> Any:
    """Convert a node to plain Python values."""
    if isinstance(node, Scalar):
        return node.value
    if isinstance(node, Sequence):
        return [plain(item) for item in node.items]
    return {key: plain(item) for key, item in node.items.items()}


def nodes(value: Any, place: Place) -> Node:
    """Convert plain Python values to nodes, all with the same location."""
    if hasattr(value, "tolist"):  # of NumPy
        value = value.tolist()
    if isinstance(value, dict):
        return Mapping(place, {key: nodes(item, place) for key, item in value.items()}, dict.fromkeys(value, place))
    if isinstance(value, list | tuple):
        return Sequence(place, [nodes(item, place) for item in value])
    return Scalar(place, value, value if isinstance(value, str) else json.dumps(value, default=repr))


def locate(node: Node, path: Path) -> tuple[Place, Node | None]:
    """Return the location of the deepest part of a path that exists, along with the node if the whole path exists.

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


# Parsing by the core schema of YAML 1.2, with limits on size and depth.

MAX_CHARACTERS = 1_000_000
MAX_NODES = 100_000
MAX_DEPTH = 32


def parse(text: str, name: str, has_lines: bool = True) -> tuple[Node | None, list[Problem]]:
    """Parse a single YAML document, and return its root node (None if it is unreadable) and a list of problems.

    Scalars follow the YAML 1.2 core schema (``no`` and ``07:30`` are text, ``1e-3`` is a number). Tags, several
    documents, repeated keys and anything larger or deeper than a configuration needs are problems, not nodes.

    >>> node, problems = parse("seed: 7\\nseed: 8", "run.yaml")
    >>> print(plain(node), *problems)
    {'seed': 7} run.yaml:2: seed: written twice (first on line 1); keep one
    """
    if len(text) > MAX_CHARACTERS:
        return None, [Problem(Place(name), (), f"is larger than {MAX_CHARACTERS:,} characters; is it a configuration?")]
    reader = _NodeReader(text, name, has_lines)
    try:
        root = reader.document()
    except _Stop as stop:
        return None, [*reader.problems, stop.problem]
    except yaml.MarkedYAMLError as error:
        place = reader.at(error.problem_mark or error.context_mark)
        return None, [*reader.problems, Problem(place, (), f"not valid YAML: {error.problem or error.context}")]
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # unprintable characters; escapes beyond Unicode
        return None, [*reader.problems, Problem(Place(name), (), f"not valid YAML: {str(error).splitlines()[0]}")]
    return root, reader.problems


def parse_section(text: str, name: str, owner: str) -> tuple[Mapping, list[Problem]]:
    """Parse a document whose top level is a section with the keys of ``owner``. Raises `ConfigError` if it is not."""
    root, problems = parse(text, name)
    if isinstance(root, Mapping):
        return root, problems
    if not problems:
        wrong = "is empty" if root is None else f"{shown(root)} is not allowed at the top"
        problems = [Problem(Place(name), (), f"{wrong}; it must be a section with the keys of {owner}")]
    raise ConfigError(tuple(map(str, problems)))


class _Stop(Exception):
    """Raised if the rest of the document cannot be read."""

    def __init__(self, place: Place, path: Path, text: str) -> None:
        self.problem = Problem(place, path, text)


class _NodeReader:
    """Reader that converts parser events to nodes. Aliases are copied so that limits apply to the expanded document."""

    def __init__(self, text: str, name: str, has_lines: bool) -> None:
        self.name, self.has_lines = name, has_lines
        self.events: Iterator[Any] = yaml.parse(text, Loader=yaml.SafeLoader)
        self.anchors: dict[str, Node] = {}
        self.problems: list[Problem] = []
        self.n_nodes = 0

    def document(self) -> Node | None:
        """Read the only document in the stream."""
        root = None
        for event in self.events:
            if isinstance(event, yaml.DocumentStartEvent):
                if root is not None:
                    raise _Stop(self.place(event), (), "a second document starts here; a configuration is only one")
                root = self.node(next(self.events), ())
        return root

    def place(self, event: Any) -> Place:
        """Return the location at which an event starts."""
        return self.at(event.start_mark)

    def at(self, mark: Any) -> Place:
        """Return the location of a parser mark, including its line number if it is known."""
        return Place(self.name, mark.line + 1 if self.has_lines and mark else None)

    def node(self, event: Any, path: Path) -> Node:
        """Read the node that starts with an event."""
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
            node = Sequence(self.place(event), [])
            while not isinstance(entry := next(self.events), yaml.SequenceEndEvent):
                node.items.append(self.node(entry, (*path, len(node.items))))
        else:
            node = self.mapping(event, path)
        if event.anchor is not None:
            self.anchors[event.anchor] = node
        return node

    def count(self, place: Place, path: Path) -> None:
        """Count a node. Rejects the document if it is too deep or, with aliases expanded, too large."""
        self.n_nodes += 1
        if len(path) > MAX_DEPTH:
            raise _Stop(place, path[:3], f"nested more than {MAX_DEPTH} levels deep")
        if self.n_nodes > MAX_NODES:
            raise _Stop(place, path[:3], f"the document has more than {MAX_NODES:,} values (aliases expanded)")

    def scalar(self, event: Any, path: Path) -> Scalar:
        """Read a single value."""
        try:  # JSON writes a letter beyond 16 bits as a pair
            written = event.value.encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError:
            raise _Stop(self.place(event), path, "half of a surrogate pair is not text") from None
        value = resolve(written) if event.style is None else written
        if value in (math.inf, -math.inf) and not _NOT_FINITE.fullmatch(written):
            text = f"{written[:20]} is too large for a number (1.8e308 is the largest); inf is without end"
            self.problems.append(Problem(self.place(event), path, text))
        return Scalar(self.place(event), value, written)

    def mapping(self, start: Any, path: Path) -> Mapping:
        """Read a section. If a key is repeated, the first value wins."""
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
        """Return a copy of the node to which an alias refers, and count the added nodes."""
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
    """Resolve an unquoted scalar according to the YAML 1.2 core schema, extended by ``inf`` and ``1_000``.

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


# ``--set key.path=value``: changes to a configuration from the command line, before it is checked.


_STEPS = re.compile(r"[^.\[\]=]+(\[\d{1,6}\])*(\.[^.\[\]=]+(\[\d{1,6}\])*)*", re.ASCII)
_STEP = re.compile(r"\[(\d+)\]|([^.\[\]]+)", re.ASCII)


def apply_override(root: Node, argument: str) -> list[Problem]:
    """Apply a ``key.path=value`` override to a document, creating missing sections, and return any problems.

    Entries of a list are ``mechanism[0].epsilon`` or ``mechanism.0.epsilon``, the number after the last one adds an
    entry. ``key.path=`` removes what is there.

    >>> root, _ = parse("mechanism: [{type: laplace, epsilon: 1}]", "run.yaml")
    >>> apply_override(root, "mechanism[0].epsilon=0.5"), apply_override(root, "bounding.max_cells=2")
    ([], [])
    >>> plain(root)
    {'mechanism': [{'type': 'laplace', 'epsilon': 0.5}], 'bounding': {'max_cells': 2}}
    >>> apply_override(root, "bounding="), plain(root)
    ([], {'mechanism': [{'type': 'laplace', 'epsilon': 0.5}]})
    >>> print(*apply_override(root, "mechanism[2].epsilon=1"))
    --set mechanism[2].epsilon=1: mechanism: has 1 entry; the index must be 0, or 1 to add one
    """
    place = Place(f"--set {argument}")
    key, equals, text = argument.partition("=")
    if not equals or (steps := key_path(key)) is None:
        return [Problem(place, (), "must be written key.path=value, for instance mechanism[0].epsilon=0.5")]
    if text.strip():
        value, problems = parse(text, place.file, has_lines=False)
        if not problems and (problem := write(root, steps, value or Scalar(place, None, ""))):
            problems = [problem]
        return problems
    _, parent = locate(root, steps[:-1])
    step, name = steps[-1], str(steps[-1])
    if isinstance(parent, Mapping) and name in parent.items:
        del parent.items[name], parent.keys[name]
    elif isinstance(parent, Sequence) and isinstance(step, int) and step < len(parent.items):
        del parent.items[step]
    else:
        return [Problem(place, steps, "is not there, and so cannot be removed")]
    return []


def key_path(text: str) -> Path | None:
    """Split a key path into steps. Returns None if it is malformed."""
    if not _STEPS.fullmatch(text.strip()):
        return None
    steps = (match[1] or match[2] for match in _STEP.finditer(text.strip()))
    return tuple(int(step) if re.fullmatch(r"\d{1,6}", step, re.ASCII) else step for step in steps)


def write(node: Node, steps: Path, value: Node, done: Path = ()) -> Problem | None:
    """Set a value at a key path below the path ``done``, creating sections. Return a problem if this is impossible."""
    step, rest = steps[0], steps[1:]
    if isinstance(step, int) and isinstance(node, Sequence):
        if step > (n := len(node.items)):
            entries = "1 entry" if n == 1 else f"{n} entries"
            indices = f"0, or {n}" if n == 1 else f"0 to {n - 1}, or {n}" if n else "0"
            return Problem(value.place, done, f"has {entries}; the index must be {indices} to add one")
        if not rest:
            node.items[step : step + 1] = [value]
            return None
        if step == n:
            node.items.append(_empty(rest[0], value.place))
        return write(node.items[step], rest, value, (*done, step))
    if isinstance(node, Mapping) and step == 0 and rest and "0" not in node.items:
        return write(node, rest, value, done)  # a single section stands for a list of one
    if isinstance(node, Mapping):
        name = str(step)
        if not rest:
            node.items[name], node.keys[name] = value, value.place
            return None
        below = node.items.get(name)
        if below is None or (isinstance(below, Scalar) and below.value is None):
            node.items[name], node.keys[name] = _empty(rest[0], value.place), value.place
        return write(node.items[name], rest, value, (*done, name))
    if isinstance(node, Sequence):
        example = dotted((*done, 0, *steps))
        return Problem(value.place, done, f"is a list; say which entry, for instance {example}")
    return Problem(value.place, done, f"is a single value; {dotted((*done, *steps))} cannot be set")


def _empty(step: str | int, place: Place) -> Node:
    """Return an empty section or list, depending on the next step in the path."""
    return Sequence(place, []) if isinstance(step, int) else Mapping(place, {}, {})
