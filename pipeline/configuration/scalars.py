"""Single values: from what was written to what a field's type and kind ask for."""

from __future__ import annotations

import os
import typing
from pathlib import Path
from typing import Any, Literal

from evaluation.utility import METRICS
from mechanisms.core.near import nearest
from mechanisms.core.parameters import Parameter
from pipeline.configuration.document import Node, Scalar
from pipeline.configuration.files import find
from pipeline.configuration.values import A_DURATION, A_TIME, parse_duration, parse_time


class Wrong(Exception):
    """A value cannot be read as the type that is asked for; ``right`` says more than the type's own phrase."""

    def __init__(self, right: str | None = None) -> None:
        self.right = right
        super().__init__(right)


def scalar(node: Node, hint: Any, declared: Parameter, folder: Path | None) -> Any:
    """Read a single value as a type; raises `Wrong`.

    Parameters
    ----------
    node
        What was written.
    hint
        The type: bool, int, float, str, `pathlib.Path`, a Literal or Any.
    declared
        Its ``kind`` says how durations, times, paths and metrics are read.
    folder
        Where paths are looked for after the working directory.

    Examples
    --------
    >>> from pipeline.configuration.reader import parse
    >>> node, _ = parse("1h30m", "run.yaml")
    >>> scalar(node, int, Parameter(doc="", kind="duration"), None)
    5400000
    """
    if not isinstance(node, Scalar) or node.value is None:
        raise Wrong
    if typing.get_origin(hint) is Literal:
        choices = [choice for choice in typing.get_args(hint) if choice == node.value]
        if not choices or type(choices[0]) is not type(node.value):
            raise Wrong
        return choices[0]
    if declared.kind in _KINDS and hint is not bool:
        value = _KINDS[declared.kind](node.value, folder)
    elif hint in _TYPES:
        value = _TYPES[hint](node.value)
    else:
        return node.value
    return Path(value) if hint is Path else value


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise Wrong
    return value


def _integer(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value // 1:
        raise Wrong
    if abs(value) >= 2**63:
        raise Wrong("a whole number that fits in 64 bits")
    return int(value)


def _number(value: Any) -> float:
    if value in ("inf", "-inf"):
        return float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Wrong
    return float(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise Wrong("text (in quotes if it looks like something else)")
    return value


def _duration(value: Any, folder: Path | None) -> int:
    if value == 0 and not isinstance(value, bool):
        return 0
    return _parsed(value, parse_duration)


def _time(value: Any, folder: Path | None) -> int:
    return _parsed(value, parse_time)


def _parsed(value: Any, parse: typing.Callable[[str], int]) -> int:
    if not isinstance(value, str):
        raise Wrong
    try:
        return parse(value)
    except ValueError as error:
        raise Wrong(None if str(error) in (A_DURATION, A_TIME) else str(error)) from None


def _input(value: Any, folder: Path | None) -> str:
    found = find(_text(value), folder)
    if found is None:
        raise Wrong("an existing file or folder (looked for from the working directory and beside the configuration)")
    return found


def _key(value: Any, folder: Path | None) -> str:
    text = _text(value)
    if not text.startswith("env:"):
        return _input(text, folder)
    if not os.environ.get(text.removeprefix("env:")):
        raise Wrong("the name of an environment variable that is set")
    return text


def _metric(value: Any, folder: Path | None) -> str:
    if value not in METRICS:
        near = nearest(str(value), METRICS)
        raise Wrong(f"one of {', '.join(METRICS)} (did you mean {near!r}?)" if near else None)
    return _text(value)


_TYPES: dict[Any, Any] = {bool: _boolean, int: _integer, float: _number, str: _text, Path: _text}
_KINDS: dict[str | None, Any] = {"duration": _duration, "time": _time, "path": _input, "key": _key, "metric": _metric}
