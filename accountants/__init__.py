"""Accountants: cost of releases. One file an accountant; pure NumPy, no Beam."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.accountants.core.accountant import Accountant

__all__ = ["get", "names"]


def names() -> tuple[str, ...]:
    """Names of all accountants, sorted."""
    from penstock.accountants.core.accountant import ACCOUNTANTS

    return ACCOUNTANTS.names()


def get(name: str) -> type[Accountant]:
    """Class of one accountant by its YAML name; raises `UnknownPlugin` with near misses.

    >>> get("landmark_budget").__name__
    'LandmarkBudget'
    """
    from penstock.accountants.core.accountant import ACCOUNTANTS

    return ACCOUNTANTS.get(name)
