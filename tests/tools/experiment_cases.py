"""A small experiment for tests: a base of one day and sixty people, and a grid of four settings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import polars as pl

from penstock.pipeline.experiments.load import Sweep, loads_experiment

BASE = """\
name: small
source: {type: synthetic, seed: 1, n_users: 60, from: 2024-01-01T00:00:00Z, until: 2024-01-02T00:00:00Z}
space: {type: grid, south: 37.74, north: 37.82, west: -122.47, east: -122.37, rows: 3, columns: 3}
windows: {type: fixed, size: 1h}
bounding: {max_cells: 1}
landmarks: {recurring: ["07:00-09:00"]}
mechanism: [{type: landmark_uniform, epsilon: 3}]
accountants: [{type: landmark_budget}]
utility: [mae, pearson]
output: {path: unused}
"""
#: A day of a made-up city to attack; its mechanism is to follow.
CITY = """
name: attack
seed: 3
source: {type: synthetic, n_users: 60, days: 1, from: 2024-01-01T00:00:00Z, rows: 3, columns: 3, events_per_hour: 2.0}
space: {type: grid, south: 37.74, north: 37.82, west: -122.47, east: -122.37, rows: 3, columns: 3}
windows: {type: fixed, size: 1h}
output: {path: unused, ledger_source: events}
"""
GRID = """\
name: e
question: which
base: base.yaml
measures: [mae, pearson, landmark_budget/period_loss, epsilon_in_3, share_published]
variants:
  uniform: {mechanism: {type: landmark_uniform, epsilon: 1}}
  adaptive: {mechanism: {type: landmark_adaptive, epsilon: 1}}
grid: {"mechanism[0].epsilon": [1, 9]}
seeds: 2
"""


def experiment_in(folder: Path) -> Callable[..., Sweep]:
    """Loads experiment texts whose base is ``base.yaml`` in a folder."""
    (folder / "base.yaml").write_text(BASE)

    def load(text: str = GRID, *overrides: str) -> Sweep:
        return loads_experiment(text, "e.yaml", folder, overrides)

    return load


def values(folder: Path) -> pl.DataFrame:
    return pl.read_parquet(folder / "results.parquet")
