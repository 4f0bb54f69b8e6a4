"""Configuration: YAML to frozen dataclasses, every problem in one line, and a JSON Schema from the same source."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline.config.canonical import digest, resolved
    from pipeline.config.run import RunConfig, load, loads
    from pipeline.config.schema import json_schema, reference_markdown


__all__ = ["RunConfig", "digest", "json_schema", "load", "loads", "reference_markdown", "resolved"]

_HOMES = {"json_schema": "schema", "reference_markdown": "schema"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'pipeline.config' has no attribute {name!r}")
    return getattr(import_module(f"pipeline.config.{_HOMES.get(name, 'run')}"), name)
