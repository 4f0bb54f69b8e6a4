"""Parameters of plug-ins and configuration sections: declared once, checked and documented everywhere.

A plug-in is a frozen keyword-only dataclass whose fields are made with `parameter`. The bounds written there are
what the constructor checks, what ``penstock validate`` reports and what the JSON Schema says.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import MISSING, dataclass
from typing import Any

from mechanisms.core.errors import ParameterError


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """What is known about one field: its meaning, unit and allowed values."""

    doc: str
    above: float | None = None
    at_least: float | None = None
    below: float | None = None
    at_most: float | None = None
    choices: tuple[Any, ...] | None = None
    unit: str | None = None
    kind: str | None = None
    key: str | None = None

    def expected(self) -> str:
        """Say what would be right, as a phrase that completes "must be …"."""
        if self.choices is not None:
            return "one of " + ", ".join(str(choice) for choice in self.choices)
        limits = (("above", self.above), ("at least", self.at_least), ("below", self.below), ("at most", self.at_most))
        phrase = " and ".join(f"{word} {limit:g}" for word, limit in limits if limit is not None)
        return f"a number {phrase}".strip() + (f" ({self.unit})" if self.unit else "")

    def allows(self, value: Any) -> bool:
        """Whether a value is one of the choices and inside the bounds; NaN never is."""
        if self.choices is not None:
            return value in self.choices
        if all(limit is None for limit in (self.above, self.at_least, self.below, self.at_most)):
            return not (isinstance(value, float) and math.isnan(value))
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return (
            not math.isnan(value)
            and (self.above is None or value > self.above)
            and (self.at_least is None or value >= self.at_least)
            and (self.below is None or value < self.below)
            and (self.at_most is None or value <= self.at_most)
        )


def parameter(default: Any = MISSING, *, factory: Any = MISSING, doc: str, **limits: Any) -> Any:
    """Declare a dataclass field together with its meaning and bounds.

    Parameters
    ----------
    default, factory
        Default value, or a function without arguments that makes it; neither: the field is required.
    doc
        One phrase for people: help, schema and generated tables show it.
    limits
        ``above``, ``at_least``, ``below``, ``at_most``, ``choices``, ``unit``; ``kind`` names how YAML is read:
        ``duration`` ("10m" to milliseconds), ``time`` (ISO 8601 to milliseconds since 1970 UTC), ``path``;
        ``key`` is the YAML key where it differs from the field (``from`` is a Python keyword).

    Examples
    --------
    >>> @dataclass(frozen=True, kw_only=True)
    ... class Example(Checked):
    ...     epsilon: float = parameter(doc="budget of the series", above=0, unit="nats")
    >>> Example(epsilon=1.0)
    Example(epsilon=1.0)
    >>> Example(epsilon=0)
    Traceback (most recent call last):
    mechanisms.core.errors.ParameterError: epsilon: 0 is not allowed; it must be a number above 0 (nats)
    """
    metadata = {"parameter": Parameter(doc=doc, **limits)}
    if factory is not MISSING:
        return dataclasses.field(default_factory=factory, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def parameters_of(cls: type) -> dict[str, Parameter]:
    """Every declared parameter of a dataclass by field name, in order of declaration."""
    return {f.name: f.metadata["parameter"] for f in dataclasses.fields(cls) if "parameter" in f.metadata}


class Checked:
    """Mixin for dataclasses whose parameters are checked on construction.

    A parameter with a default of None may be None; every other value must satisfy its declaration. Subclasses
    add conditions between fields by extending ``__post_init__`` and raising `ParameterError`.
    """

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            declared = field.metadata.get("parameter")
            value = getattr(self, field.name)
            if declared is None or (value is None and field.default is None):
                continue
            if not declared.allows(value):
                raise ParameterError(declared.key or field.name, value, declared.expected())
