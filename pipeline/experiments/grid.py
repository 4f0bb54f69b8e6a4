"""What varies in an experiment: variants, zipped and crossed keys, and seeds, as one configuration for each cell."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pipeline.configuration import document
from pipeline.configuration.build import FAILED, Builder
from pipeline.configuration.document import Mapping, Node, Problem, Scalar, Sequence, plain, shown
from pipeline.configuration.overrides import key_path, write
from pipeline.experiments.config import Range

#: Sections of an experiment that are read here.
SECTIONS = ("set", "variants", "zip", "grid")
VARIANT = "variant"
#: Names of the result table that nothing that varies may take.
RESERVED = ("cell", "seed", "measure", "value", "unit", "configuration", "inputs", "counts", "versions")
MAX_CELLS = 100_000


@dataclass(frozen=True)
class Change:
    """One value under one key path."""

    key: str
    steps: document.Path
    node: Node
    path: document.Path

    def apply(self, root: Node) -> Problem | None:
        """Write a copy of the value into a document, or say why that is not possible."""
        problem = write(root, self.steps, copy.deepcopy(self.node))
        return problem and Problem(self.node.place, self.path, problem.text)


@dataclass(frozen=True)
class Option:
    """One point of an axis: how tables show it, and what it changes."""

    values: tuple[Any, ...]
    changes: tuple[Change, ...]


@dataclass(frozen=True)
class Axis:
    """Something that varies: the columns of the table that show it, and its points."""

    columns: tuple[str, ...]
    options: tuple[Option, ...]


@dataclass(frozen=True)
class Setting:
    """One point of the whole grid without its seed: a value for each column, and the changes in their order."""

    values: dict[str, Any]
    changes: tuple[Change, ...]


class Grid:
    """Reads the sections that say what varies; keeps the problems it meets.

    Parameters
    ----------
    root
        The experiment's document.

    Examples
    --------
    >>> from pipeline.configuration.reader import parse
    >>> root, _ = parse("grid: {a: [1, 2], b.c: {from: 0, to: 1, step: 1}}\\nzip: {d: [3, 4], e: [x, y]}", "e.yaml")
    >>> grid = Grid(root)
    >>> [tuple(setting.values.values()) for setting in grid.settings()][:3], grid.columns
    ([(3, 'x', 1, 0), (3, 'x', 1, 1), (3, 'x', 2, 0)], ('d', 'e', 'a', 'b.c'))
    """

    def __init__(self, root: Mapping) -> None:
        self.problems: list[Problem] = []
        self.fixed: tuple[Change, ...] = ()
        axes: list[Axis] = []
        if (node := self._section(root, "set")) is not None:
            self.fixed = tuple(self._changes(node, ("set",)))
        if (node := self._section(root, "variants")) is not None:
            axes.append(self._variants(node))
        axes += self._zipped(root.items.get("zip"))
        if (node := self._section(root, "grid")) is not None:
            for key in node.items:
                axes += self._axis(Mapping(node.place, {key: node.items[key]}, {key: node.keys[key]}), ("grid",))
        self.axes = tuple(axes)
        self.columns = tuple(column for axis in self.axes for column in axis.columns)
        self._check_columns(root)

    def settings(self) -> Iterator[Setting]:
        """Every combination, the last axis fastest."""
        for options in itertools.product(*(axis.options for axis in self.axes)):
            values = [value for option in options for value in option.values]
            changes = tuple(change for option in options for change in option.changes)
            yield Setting(dict(zip(self.columns, values)), self.fixed + changes)

    def _section(self, root: Mapping, name: str) -> Mapping | None:
        node = root.items.get(name)
        if node is None or isinstance(node, Mapping):
            return node
        self._refuse(node, (name,), "a section of key paths and values")
        return None

    def _changes(self, node: Mapping, path: document.Path) -> list[Change]:
        """One change for each key of a section; what is no key path is a problem."""
        found = []
        for key, item in node.items.items():
            steps = key_path(key)
            if steps is None or steps[0] == "seed":
                right = "'seed' cannot be varied here; it must be a key path of a run (seeds: is for seeds)"
                wrong = right if steps else "not a key path such as mechanism[0].epsilon"
                self.problems.append(Problem(node.keys[key], (*path, key), wrong))
            else:
                found.append(Change(key, steps, item, (*path, key)))
        return found

    def _variants(self, node: Mapping) -> Axis:
        options = []
        for name, changes in node.items.items():
            if isinstance(changes, Mapping):
                options.append(Option((name,), tuple(self._changes(changes, ("variants", name)))))
            elif isinstance(changes, Scalar) and changes.value is None:
                options.append(Option((name,), ()))  # the base as it is
            else:
                self._refuse(changes, ("variants", name), "a section of key paths and values")
        return Axis((VARIANT,), tuple(options))

    def _zipped(self, node: Node | None) -> list[Axis]:
        """One axis for each group of keys that vary together."""
        if node is None:
            return []
        groups = node.items if isinstance(node, Sequence) else [node]
        axes = []
        for i, group in enumerate(groups):
            path: document.Path = ("zip", i) if isinstance(node, Sequence) else ("zip",)
            if isinstance(group, Mapping):
                axes += self._axis(group, path)
            else:
                self._refuse(group, path, "a section of key paths and lists of values")
        return axes

    def _axis(self, group: Mapping, path: document.Path) -> list[Axis]:
        """The axis along which the keys of a group vary, one after the other and together."""
        changes = self._changes(group, path)
        columns = [self._values(change) for change in changes]
        lengths = [len(nodes) for nodes in columns]
        if len(changes) < len(group.items) or not all(lengths):
            return []
        if len(set(lengths)) != 1:
            said = ", ".join(f"{change.key} has {n}" for change, n in zip(changes, lengths))
            self.problems.append(Problem(group.place, path, f"zipped keys need equally many values: {said}"))
            return []
        options = []
        for nodes in zip(*columns):
            moved = tuple(Change(c.key, c.steps, node, c.path) for c, node in zip(changes, nodes))
            options.append(Option(tuple(_shown(node) for node in nodes), moved))
        return [Axis(tuple(change.key for change in changes), tuple(options))]

    def _values(self, change: Change) -> list[Node]:
        """Nodes of the values of one key: those of its list, or of its range."""
        node, path = change.node, change.path
        if isinstance(node, Sequence) and node.items:
            return node.items
        if isinstance(node, Mapping):
            builder = Builder({}, None)
            found = builder.section(node, Range, path)
            self.problems += builder.problems
            return [] if found is FAILED else [Scalar(node.place, value, repr(value)) for value in found.values]
        self._refuse(node, path, "a list of values, or a range {from: …, to: …, step: …}")
        return []

    def _refuse(self, node: Node, path: document.Path, right: str) -> None:
        self.problems.append(Problem(node.place, path, f"{shown(node)} is not allowed; it must be {right}"))

    def _check_columns(self, root: Mapping) -> None:
        for column in dict.fromkeys(self.columns):
            if self.columns.count(column) > 1:
                self.problems.append(Problem(root.place, (), f"{column} varies twice; it must be in one place"))
            if column in RESERVED:
                self.problems.append(Problem(root.place, (), f"{column} is a column of the results and cannot vary"))
        n_settings = 1
        for axis in self.axes:
            n_settings *= len(axis.options)
        if n_settings > MAX_CELLS:
            text = f"{n_settings:,} settings; there must be at most {MAX_CELLS:,}"
            self.problems.append(Problem(root.place, (), text))


def _shown(node: Node) -> Any:
    """A value as tables show it: single values as they are, sections as JSON."""
    value = plain(node)
    return value if isinstance(node, Scalar) else json.dumps(value, sort_keys=True, ensure_ascii=False)
