"""A run whose releases lack or repeat a window fails at its end."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from penstock.mechanisms.core.plugin import RowEquationError
from penstock.pipeline.config.plan import Plan, make_plan
from penstock.pipeline.config.run import loads
from penstock.pipeline.counting.spec import STREAM
from penstock.pipeline.output import manifest
from penstock.pipeline.output.utility_summary import SHARED
from tests.tools.small_configuration import small_sections

N_WINDOWS = 6


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    """Of six windows, nothing released yet."""
    return replace(make_plan(loads(json.dumps(small_sections(tmp_path, n_windows=N_WINDOWS)))), folder=tmp_path / "run")


def release(plan: Plan, *windows: int) -> None:
    """Two rows for each of these."""
    (plan.folder / "public").mkdir(parents=True, exist_ok=True)
    actions = ["published" if window % 3 else "refused" for window in np.repeat(windows, 2)]
    shared = {"stream": STREAM, "window": np.repeat(windows, 2), "action": actions}
    rows = pl.DataFrame(dict.fromkeys(SHARED, 0) | shared).with_columns(pl.col("stream", "action").cast(pl.Categorical))
    rows.write_parquet(plan.folder / "public" / "releases.parquet")


def test_all_windows_that_are_due_are_there(plan: Plan) -> None:
    release(plan, *range(1, N_WINDOWS + 1))
    manifest.check_windows(plan, manifest.released(plan.folder), complete=True)
    assert manifest.actions(manifest.released(plan.folder)) == {"published": 4, "refused": 2}
    release(plan, 1, 2, 3)
    manifest.check_windows(plan, manifest.released(plan.folder), complete=False)  # interrupted after the third


@pytest.mark.parametrize("complete", [True, False])
def test_a_window_that_is_missing_is_named(plan: Plan, complete: bool) -> None:
    release(plan, 1, 2, 4, 6)
    with pytest.raises(RowEquationError, match=r"2 of 6 are missing \(3, 5\)"):
        manifest.check_windows(plan, manifest.released(plan.folder), complete)


def test_the_last_windows_are_due_at_the_end(plan: Plan) -> None:
    release(plan, 1, 2)
    with pytest.raises(RowEquationError, match=r"4 of 6 are missing \(3, 4, 5, 6\)"):
        manifest.check_windows(plan, manifest.released(plan.folder), complete=True)


def test_a_window_that_is_released_twice_is_reported(plan: Plan) -> None:
    release(plan, 1, 2, 3, 2, 3, 4, 5, 6)
    with pytest.raises(RowEquationError, match="twice"):
        manifest.check_windows(plan, manifest.released(plan.folder), complete=True)


def test_a_window_without_an_active_sensor_has_no_row(tmp_path: Path) -> None:
    awake = [f"{window},{cell}" for window in (1, 2, 4, 5, 6) for cell in "abc"]
    (tmp_path / "awake.csv").write_text("\n".join(["window,cell", *awake]) + "\n")
    value = small_sections(tmp_path, n_windows=N_WINDOWS, sensors={"schedule": str(tmp_path / "awake.csv")})
    plan = make_plan(loads(json.dumps(value)), tmp_path / "run")
    release(plan, 1, 2, 4, 5, 6)
    manifest.check_windows(plan, manifest.released(plan.folder), complete=True)
    release(plan, 1, 2, 4, 6)
    with pytest.raises(RowEquationError, match=r"1 of 6 are missing \(5\)"):
        manifest.check_windows(plan, manifest.released(plan.folder), complete=True)
