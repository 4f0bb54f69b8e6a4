"""The canonical form of a configuration: the plain values used in manifests and in the digest that seeds the noise."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from penstock.mechanisms.core.plugin import Parameter
from penstock.pipeline.config.build import fields_of, is_section
from penstock.pipeline.config.kinds import show
from penstock.pipeline.config.run import RunConfig
from penstock.pipeline.config.sections import UNIONS
from penstock.pipeline.sources.base import FileSource

SECRETS = ("seed", "noise_key")

#: Top-level keys outside the digest. The seed and the key decide the noise, but through the key alone: the digest is
#: no secret. ``on_exhausted`` says what happens *instead* of a release.
_WITHOUT_EFFECT = {"name", "mode", "source", "accountants", "utility", "output", "plugins", "on_exhausted"}
_WITHOUT_EFFECT |= {"allow_no_guarantee", "looked_at_data", "allow_empty", "typical_count", *SECRETS}


def resolved(config: RunConfig, secrets: bool = False, files: Callable[[str], str] = str) -> dict[str, Any]:
    """Return a configuration as plain values, with all defaults filled in and keys sorted.

    ``secrets`` keeps ``seed`` and ``noise_key``: never in anything public, since the seed undoes the noise. ``files``
    gives what stands for a path. Returns a dict that JSON and YAML can write and `loads` reads back; durations and
    times as people write them, an infinite number as "inf".
    """
    values: dict[str, Any] = _plain_value(config, Parameter(doc=""), files, files)
    return {key: value for key, value in values.items() if secrets or key not in SECRETS}


def digest(config: RunConfig) -> bytes:
    """Return the SHA-256 digest of all settings that affect released values, except the noise key.

    Left out: names, accountants, metrics, output, how sources are cut and ordered (``block_rows``, ``disorder``). In a
    simulation of the source only ``from`` and ``until`` count, so that the same events release the same bytes from
    whatever files; in a deployment all of it does (but not how it is streamed), so that two sources never share noise.
    Other input files count by their content.

    **Privacy**: it confirms a guess of a deployment's source, hence it is the operator's.
    """
    values: dict[str, Any] = {}
    for field in fields_of(type(config)):
        value = getattr(config, field.name)
        if field.name not in _WITHOUT_EFFECT:
            values[field.key] = _plain_value(value, field.declared, content_digest)
    source = config.source.recorded
    if config.mode == "simulation":
        values["source"] = [source.from_, source.until]
    else:
        if isinstance(source, FileSource) and type(source).disorder is None:  # in a made-up city it decides the events
            source = replace(source, disorder=None)
        values["source"] = _plain_value(source, Parameter(doc="")) | {"block_rows": None}
    return values_digest(values)


def values_digest(values: dict[str, Any]) -> bytes:
    """Return the SHA-256 digest of plain values, serialised as JSON with sorted keys and without spaces.

    >>> values_digest({}).hex() == hashlib.sha256(b"{}").hexdigest()
    True
    """
    return hashlib.sha256(json.dumps(values, sort_keys=True, separators=(",", ":")).encode()).digest()


def content_digest(path: str) -> str:
    """Return the SHA-256 digest of a file, or of a folder's sorted names and contents. A URL is returned unchanged."""
    if not os.path.exists(path):
        return path
    total = hashlib.sha256()
    for file in sorted(Path(path).rglob("*")) if os.path.isdir(path) else [Path(path)]:
        if file.is_file():
            total.update(file.name.encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
    return total.hexdigest()


def _plain_value(
    value: Any, declared: Parameter, input_path: Callable[[str], str] = str, output_path: Callable[[str], str] = str
) -> Any:
    """Return a value as it would be written in YAML. Paths are mapped with ``input_path`` and ``output_path``."""
    if is_section(type(value)):
        keys: dict[str, Any] = {}
        for field in fields_of(type(value)):
            inner = getattr(value, field.name)
            if inner is not None or field.default is not None:  # what is None by default is left out
                keys[field.key] = _plain_value(inner, field.declared, input_path, output_path)
        for base, registry in UNIONS.items():
            if isinstance(value, base):
                keys["type"] = registry.name_of(type(value))
        return dict(sorted(keys.items()))
    if isinstance(value, tuple):
        return [_plain_value(entry, declared, input_path, output_path) for entry in value]
    if isinstance(value, dict):
        return {key: _plain_value(value[key], declared, input_path, output_path) for key in sorted(value)}
    if isinstance(value, float) and math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if declared.kind == "path" and value is not None:
        return input_path(str(value))
    if declared.kind == "output" and value is not None:
        return output_path(str(value))
    return str(value) if isinstance(value, Path) else show(value, declared)
