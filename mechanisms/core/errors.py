"""The one family of errors that the project raises on purpose."""

from __future__ import annotations

from typing import Any


class PenstockError(Exception):
    """Base of every error that penstock raises on purpose."""


class ParameterError(PenstockError, ValueError):
    """A parameter is outside what its definition allows.

    Parameters
    ----------
    field
        Name of the parameter, as it is written in Python and YAML.
    value
        The value that was refused.
    expected
        What would be right, as a phrase that completes "must be …".

    Examples
    --------
    >>> str(ParameterError("epsilon", -1, "a number above 0"))
    'epsilon: -1 is not allowed; it must be a number above 0'
    """

    def __init__(self, field: str, value: Any, expected: str) -> None:
        self.field, self.value, self.expected = field, value, expected
        super().__init__(f"{field}: {value!r} is not allowed; it must be {expected}")

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.field, self.value, self.expected))


class UnknownPlugin(PenstockError, KeyError):
    """No plug-in has that name; the message lists near misses and all names."""

    def __init__(self, kind: str, name: str, names: tuple[str, ...], near: tuple[str, ...] = ()) -> None:
        self.kind, self.name, self.names, self.near = kind, name, names, near
        hint = f"; did you mean {near[0]!r}?" if near else ""
        self.message = f"{name!r} is not a known {kind}{hint} (known: {', '.join(names)})"
        super().__init__(self.message)

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.kind, self.name, self.names, self.near))


class ConfigError(PenstockError):
    """A configuration is wrong; carries every problem found, one line each."""

    def __init__(self, problems: tuple[str, ...]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.problems,))


class DataError(PenstockError):
    """An input file as a whole cannot be read; names the file and, if known, the line."""


class RowEquationError(PenstockError):
    """Rows read and rows accounted for differ, or windows due and released: something was lost or is there twice."""


class BudgetExceeded(PenstockError):
    """A release would spend more than the budget; nothing was charged or released."""

    def __init__(self, window: int, spent: float, charge: float, budget: float) -> None:
        self.window, self.spent, self.charge, self.budget = window, spent, charge, budget
        super().__init__(
            f"window {window}: a charge of {charge:g} on top of {spent:g} already spent exceeds the budget {budget:g}"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.window, self.spent, self.charge, self.budget))


class UnsupportedEvent(PenstockError):
    """An accountant was given a privacy event (or a schedule) it has no theorem for."""


class StateVersionError(PenstockError):
    """Encoded state was written by a version that this code cannot read."""
