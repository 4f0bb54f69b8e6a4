"""Accountants: compute the privacy cost of releases, one accountant per file, in pure NumPy without Beam."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.accountants.core.accountant import Accountant

__all__ = ["get", "names"]


def names() -> tuple[str, ...]:
    """Return the sorted names of all accountants."""
    from penstock.accountants.core.accountant import ACCOUNTANTS

    return ACCOUNTANTS.names()


def get(name: str) -> type[Accountant]:
    """Return an accountant's class by its YAML name. Raise `UnknownPlugin`, which lists similar names, if unknown.

    >>> get("landmark_budget").__name__
    'LandmarkBudget'
    """
    from penstock.accountants.core.accountant import ACCOUNTANTS

    return ACCOUNTANTS.get(name)
