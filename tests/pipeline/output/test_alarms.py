"""The column `alarm`: in the releases of runs with a step that judges counts, and nowhere else."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.mechanisms.core.contract import Facts, Release
from penstock.pipeline.monitoring.verify import verify
from penstock.pipeline.output.tables import releases_table

SECTIONS = {
    "name": "alarms",
    "seed": 7,
    "source": {
        "type": "synthetic",
        "n_users": 40,
        "from": "2024-01-01T00:00:00Z",
        "until": "2024-01-01T06:00:00Z",
    },
    "space": {
        "type": "grid",
        "south": 37.74,
        "north": 37.82,
        "west": -122.47,
        "east": -122.37,
        "rows": 2,
        "columns": 2,
    },
    "windows": {"type": "fixed", "size": "1h"},
    "bounding": {"max_cells": 1},
    "output": {"path": "unused", "report": False},
}
NOISE = {"type": "discrete_laplace", "epsilon": 1.0}


def releases():
    """Two windows of three cells; the middle one of the second window is unusual, and its last sensor is not active."""
    common = {"noise": "laplace", "scale": 1.0}
    active = np.array([True, True, False])
    return [
        Release(window=1, values=np.ones(3), alarm=np.zeros(3, bool), **common),
        Release(
            window=2,
            values=np.array([1.0, 90.0, np.nan]),
            alarm=np.array([False, True, False]),
            **common,
            active=active,
        ),
    ]


def test_each_row_says_whether_its_value_is_unusual():
    windows = Facts(n_cells=3).windows(2)
    table = releases_table(releases(), windows, ["a", "b", "c"], 0)
    assert table.schema.field("alarm") == pa.field("alarm", pa.bool_(), nullable=False)
    assert table["alarm"].to_pylist() == [False, False, False, False, True]
    plain = [Release(window=1, values=np.ones(3), noise="laplace", scale=1.0)]
    assert "alarm" not in releases_table(plain, windows[:1], ["a", "b", "c"], 0).column_names


@pytest.mark.parametrize(
    ("steps", "judges"),
    [
        ([NOISE], False),
        ([NOISE, {"type": "filter"}], True),
        ([NOISE, {"type": "kalman"}, {"type": "suppress_small", "threshold": 2}], True),
        ([{"type": "temporal_generalization", "windows": 2}, NOISE, {"type": "filter"}], True),
    ],
    ids=["noise", "filter", "kalman", "longer windows"],
)
@pytest.mark.parametrize("runner", ["local", "direct"])
def test_a_run_has_the_column_where_a_step_judges_counts(tmp_path, steps, judges, runner):
    folder = penstock.run(SECTIONS | {"mechanism": steps}, tmp_path / "run", runner=runner).folder
    schema = pq.read_schema(folder / "public" / "releases.parquet")
    assert ("alarm" in schema.names) == judges
    assert [check.name for check in verify(folder) if not check.passed] == []
    # A table that lacks it, or has it where nothing judges, is not what the configuration says.
    table = pq.read_table(folder / "public" / "releases.parquet")
    other = table.drop(["alarm"]) if judges else table.append_column("alarm", pa.array([False] * len(table)))
    pq.write_table(other, folder / "public" / "releases.parquet")
    assert "columns of releases.parquet" in [check.name for check in verify(folder) if not check.passed]
