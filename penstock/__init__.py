"""The front door: configure, run and read a release simulation from a notebook or a script.

Everything is imported when it is first used. `penstock.beam`, a module of its own, holds the transforms for somebody's
own Beam pipeline.

Examples
--------
>>> import penstock
>>> penstock.mechanisms.names()[:3]
('adaptive_ranges', 'correlated', 'crowd_blending')
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock import accountants as accountants
    from penstock import evaluation as evaluation
    from penstock import mechanisms as mechanisms
    from penstock.arrays import Released, release
    from penstock.front import Result, load, run
    from penstock.mechanisms.core.plugin import BudgetExceeded, ConfigError, DataError, PenstockError
    from penstock.pipeline.config.run import RunConfig


__all__ = [
    "BudgetExceeded",
    "ConfigError",
    "DataError",
    "PenstockError",
    "Released",
    "Result",
    "RunConfig",
    "accountants",
    "evaluation",
    "load",
    "mechanisms",
    "release",
    "run",
]

_PACKAGES = ("accountants", "evaluation", "mechanisms")
_HOMES = {
    **dict.fromkeys(("Released", "release"), "penstock.arrays"),
    **dict.fromkeys(("Result", "load", "run"), "penstock.front"),
    "RunConfig": "penstock.pipeline.config.run",
}


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return import_module(f"penstock.{name}")
    if name not in __all__:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    return getattr(import_module(_HOMES.get(name, "penstock.mechanisms.core.plugin")), name)


def __dir__() -> list[str]:
    return __all__
