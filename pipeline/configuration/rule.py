"""What a rule between sections is.

A rule is a function that names the sections it reads as its parameters and yields a `Finding` for every violation. It
is asked only if all of these sections could be built, so that one pass reports everything that can be known to be
wrong.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from pipeline.configuration.document import Mapping, Path, Problem, locate, shown


@dataclass(frozen=True)
class Finding:
    """A violated rule: where, which value (None: it is missing), and what would be right."""

    path: Path
    value: Any
    right: str


Rule = Callable[..., Iterator[Finding]]


def broken_rules(rules: Iterable[Rule], root: Mapping, known: dict[str, Any]) -> list[Problem]:
    """Problems of all rules whose sections are known, on the lines they are about."""
    problems = []
    for check in rules:
        names = inspect.signature(check).parameters
        if not set(names) <= set(known):
            continue
        for finding in check(**{name: known[name] for name in names}):
            place, node = locate(root, finding.path)
            if finding.value is None:
                text = f"missing; it must be {finding.right}"
            else:
                value = shown(node) if node is not None else repr(finding.value)
                text = f"{value} is not allowed; it must be {finding.right}"
            problems.append(Problem(place, finding.path, text))
    return problems
