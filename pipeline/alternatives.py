"""Parameters of which one stands in place of the others."""

from __future__ import annotations

from typing import Any

from mechanisms.core.errors import ParameterError


def check_one_of(given: dict[str, Any], required: bool = True) -> None:
    """Check that one of several parameters is given, and no second one.

    Parameters
    ----------
    given
        Value by name; None, an empty tuple and an empty list stand for a parameter that is not given.
    required
        Whether one must be given.

    Raises
    ------
    ParameterError
        Naming the missing or the surplus parameter.

    Examples
    --------
    >>> check_one_of({"list": ("a",), "file": None, "top": 3})
    Traceback (most recent call last):
    mechanisms.core.errors.ParameterError: top: 3 is not allowed; it must be left out where list is given
    """
    there = [name for name, value in given.items() if value is not None and value != () and value != []]
    if len(there) > 1:
        raise ParameterError(there[1], given[there[1]], f"left out where {there[0]} is given")
    if required and not there:
        first, *others = given
        raise ParameterError(first, given[first], f"given, unless there is {' or '.join(others)}")
