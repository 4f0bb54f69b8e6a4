"""Mechanisms: one kind of release per file, in pure NumPy without Beam."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.mechanisms.core.contract import ChainStep, Facts, Mechanism
    from penstock.mechanisms.core.run import run_mechanism


__all__ = ["Facts", "Mechanism", "get", "names", "run_mechanism"]

_HOMES = {"Facts": "contract", "Mechanism": "contract", "run_mechanism": "run"}


def names() -> tuple[str, ...]:
    """Return the sorted names of all mechanisms."""
    from penstock.mechanisms.core.contract import MECHANISMS

    return MECHANISMS.names()


def get(name: str) -> type[ChainStep]:
    """Return a step's class by its YAML name. Raise `UnknownPlugin`, which lists similar names, if there is none.

    >>> get("raw").__name__
    'Raw'
    """
    from penstock.mechanisms.core.contract import MECHANISMS

    return MECHANISMS.get(name)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'mechanisms' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"penstock.mechanisms.core.{_HOMES[name]}"), name)
