"""Runs whose public files go to an object store, and the names that they have there."""

from __future__ import annotations

from pathlib import Path

from penstock.pipeline.config.run import RunConfig
from tests.tools.small_configuration import published

FINITE = {"run.json", "releases.parquet", "accounts.parquet", "cells.geojson", "manifest.json"}
WINDOWS = {f"releases/{window:012d}.parquet" for window in range(1, 7)}


def configured(
    folder: Path | str, store: Path | str = "memory://bucket/run", streamed: bool = False, **changes: str
) -> RunConfig:
    """The six hours of `published`, with a store."""
    return published(folder, f"store: {{path: {store}}}", streamed, **changes)
