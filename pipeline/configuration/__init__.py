"""Configuration: YAML to frozen dataclasses, every problem in one line, and a JSON Schema from the same source."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline.configuration.reference import reference_markdown
    from pipeline.configuration.run import RunConfig, digest, load, loads, resolved
    from pipeline.configuration.schema import json_schema

__all__ = ["RunConfig", "digest", "json_schema", "load", "loads", "reference_markdown", "resolved"]

_HOMES = {"json_schema": "schema", "reference_markdown": "reference"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'pipeline.configuration' has no attribute {name!r}")
    return getattr(import_module(f"pipeline.configuration.{_HOMES.get(name, 'run')}"), name)
