"""High-level API for notebooks and scripts: load a configuration, run it, and read the results.

Importing it imports no library. `penstock.beam`, a module of its own, holds the transforms for a Beam
pipeline.

Examples
--------
>>> import penstock
>>> penstock.mechanisms.names()[:3]
('adaptive_ranges', 'clip', 'correlated')
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from penstock import accountants, evaluation, mechanisms
from penstock.arrays import Released, release
from penstock.front import load, run
from penstock.mechanisms.core.plugin import BudgetExceeded, ConfigError, DataError, PenstockError

if TYPE_CHECKING:
    from penstock.pipeline.config.run import RunConfig
    from penstock.pipeline.reporting.result import Result

__version__ = "0.1.0"

__all__ = [
    "BudgetExceeded",
    "ConfigError",
    "DataError",
    "PenstockError",
    "Released",
    "Result",
    "RunConfig",
    "__version__",
    "accountants",
    "evaluation",
    "load",
    "mechanisms",
    "release",
    "run",
]


#: Names of the pipeline, which is imported when one of them is first asked for.
_OF_THE_PIPELINE = {"Result": "penstock.pipeline.reporting.result", "RunConfig": "penstock.pipeline.config.run"}


def __getattr__(name: str) -> Any:
    if name not in _OF_THE_PIPELINE:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    return getattr(import_module(_OF_THE_PIPELINE[name]), name)
