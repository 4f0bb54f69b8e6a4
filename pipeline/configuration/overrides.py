"""``--set key.path=value``: changes to a configuration from the command line, before it is checked."""

from __future__ import annotations

import re

from pipeline.configuration.document import Mapping, Node, Path, Place, Problem, Scalar, Sequence, dotted
from pipeline.configuration.reader import parse

_STEPS = re.compile(r"[^.\[\]=]+(\[\d{1,6}\])*(\.[^.\[\]=]+(\[\d{1,6}\])*)*", re.ASCII)
_STEP = re.compile(r"\[(\d+)\]|([^.\[\]]+)", re.ASCII)


def apply_override(root: Node, argument: str) -> list[Problem]:
    """Write one value into a document; sections that are not there are made.

    Parameters
    ----------
    root
        Root of the document, changed in place.
    argument
        ``key.path=value``, the value in YAML; entries of a list as ``mechanism[0].epsilon`` or
        ``mechanism.0.epsilon``, the number after the last one adds an entry.

    Returns
    -------
    What is wrong with the argument; empty if it was applied.

    Examples
    --------
    >>> from pipeline.configuration.document import plain
    >>> from pipeline.configuration.reader import parse
    >>> root, _ = parse("mechanism: [{type: laplace, epsilon: 1}]", "run.yaml")
    >>> apply_override(root, "mechanism[0].epsilon=0.5"), apply_override(root, "bounding.max_cells=2")
    ([], [])
    >>> plain(root)
    {'mechanism': [{'type': 'laplace', 'epsilon': 0.5}], 'bounding': {'max_cells': 2}}
    >>> print(*apply_override(root, "mechanism[2].epsilon=1"))
    --set mechanism[2].epsilon=1: mechanism: has 1 entry; the index must be 0, or 1 to add one
    """
    place = Place(f"--set {argument}")
    key, equals, text = argument.partition("=")
    if not equals or (steps := key_path(key)) is None:
        return [Problem(place, (), "must be written key.path=value, for instance mechanism[0].epsilon=0.5")]
    value, problems = parse(text, place.file)
    if problems:
        return [Problem(place, problem.path, problem.text) for problem in problems]
    written = _moved(Scalar(place, None, "") if value is None else value, place)
    problem = write(root, steps, written)
    return [problem] if problem else []


def key_path(text: str) -> Path | None:
    """Steps of a key path, or None where it is none.

    >>> key_path("mechanism[0].epsilon"), key_path("mechanism..epsilon")
    (('mechanism', 0, 'epsilon'), None)
    """
    if not _STEPS.fullmatch(text.strip()):
        return None
    return tuple(
        int(m[1] or m[2]) if m[1] or re.fullmatch(r"\d{1,6}", m[2], re.ASCII) else m[2]
        for m in _STEP.finditer(text.strip())
    )


def write(root: Node, steps: Path, value: Node) -> Problem | None:
    """Put a node under a key path, or say why that is not possible; sections that are not there are made."""
    return _write(root, steps, value, ())


def _write(node: Node, steps: Path, value: Node, done: Path) -> Problem | None:
    """Put a value under the given steps, or say why that is not possible."""
    step, rest = steps[0], steps[1:]
    if isinstance(step, int) and isinstance(node, Sequence):
        return _write_entry(node, step, rest, value, done)
    if isinstance(node, Mapping) and step == 0 and rest and "0" not in node.items:
        return _write(node, rest, value, done)  # a single section stands for a list of one
    if isinstance(node, Mapping):
        name = str(step)
        if not rest:
            node.items[name], node.keys[name] = value, value.place
            return None
        below = node.items.get(name)
        if below is None or (isinstance(below, Scalar) and below.value is None):
            node.items[name], node.keys[name] = _empty(rest[0], value.place), value.place
        return _write(node.items[name], rest, value, (*done, name))
    if isinstance(node, Sequence):
        example = dotted((*done, 0, *steps))
        return Problem(value.place, done, f"is a list; say which entry, for instance {example}")
    return Problem(value.place, done, f"is a single value; {dotted((*done, *steps))} cannot be set")


def _write_entry(node: Sequence, index: int, rest: Path, value: Node, done: Path) -> Problem | None:
    """Put a value into a list, or at its end."""
    n = len(node.items)
    if index > n:
        entries = "1 entry" if n == 1 else f"{n} entries"
        indices = f"0, or {n}" if n == 1 else f"0 to {n - 1}, or {n}" if n else "0"
        return Problem(value.place, done, f"has {entries}; the index must be {indices} to add one")
    if not rest:
        node.items[index : index + 1] = [value]
        return None
    if index == n:
        node.items.append(_empty(rest[0], value.place))
    return _write(node.items[index], rest, value, (*done, index))


def _empty(step: str | int, place: Place) -> Node:
    """A new section or list, as the next step needs it."""
    return Sequence(place, []) if isinstance(step, int) else Mapping(place, {}, {})


def _moved(node: Node, place: Place) -> Node:
    """The same value, said to stand in the argument."""
    if isinstance(node, Scalar):
        return Scalar(place, node.value, node.text)
    if isinstance(node, Sequence):
        return Sequence(place, [_moved(item, place) for item in node.items])
    return Mapping(
        place, {key: _moved(item, place) for key, item in node.items.items()}, dict.fromkeys(node.keys, place)
    )
