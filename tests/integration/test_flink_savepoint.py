"""A job is stopped with a savepoint and another goes on from it: the releases are the same."""

from pathlib import Path

import pytest

from penstock.pipeline.config.run import load
from penstock.pipeline.run import run
from tests.integration.flink_cluster import FlinkCluster
from tests.integration.flink_runs import check, needs_flink, stop_and_go_on

pytestmark = [pytest.mark.integration, needs_flink]

CONFIG = """
name: savepoint
seed: 11
source:
  type: stream
  speed: 1200x
  of: {type: synthetic, seed: 1, n_users: 300, events_per_hour: 10.0, from: 2024-01-01T06:00:00Z,
       until: 2024-01-01T12:00:00Z}
space: {type: grid, south: 37.74, north: 37.82, west: -122.47, east: -122.37, rows: 5, columns: 5}
windows: {type: fixed, size: 10m, allowed_lateness: 20m}
bounding: {max_cells: 2}
mechanism: {type: discrete_laplace, epsilon: 0.5}
accountants: [{type: composition}]
output: {path: runs/savepoint, report: false}
"""


def test_a_savepoint_changes_no_release(tmp_path: Path, cluster: FlinkCluster) -> None:
    (tmp_path / "config.yaml").write_text(CONFIG)
    undisturbed, folder = tmp_path / "undisturbed", tmp_path / "run"
    run(load(tmp_path / "config.yaml", ["source.speed=max"]), undisturbed)
    stop_and_go_on(cluster, tmp_path / "config.yaml", folder)
    assert check(folder, undisturbed)["used"] > 0
