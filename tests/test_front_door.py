"""`import penstock`: load, run and read a run; the transforms in a Beam pipeline of somebody's own."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import apache_beam as beam
import polars as pl
import pytest
from apache_beam.testing.util import assert_that, equal_to

import penstock
from penstock.beam import (
    IN_PROCESS,
    Account,
    CountDistinctUsers,
    EventsToBlocks,
    ReleaseInOrder,
    ReleasesToRows,
    TallyRows,
    WriteReleases,
    make_plan,
)

ROOT = Path(__file__).resolve().parent.parent
HOUR = 3_600_000
START = 1704067200000  # 2024-01-01T00:00:00Z
PEOPLE = [("ann", 0, "market"), ("bob", 0, "market"), ("ann", 0, "market"), ("cid", 2, "harbour")]


def sections(folder: Path, **changes: Any) -> dict[str, Any]:
    """Four hours, two places; exact counts unless changed."""
    rows = [f"{user},{START + hour * HOUR + 60_000},{place}" for user, hour, place in PEOPLE]
    (folder / "events.csv").write_text("\n".join(["user,time,place", *rows]) + "\n")
    source = {"type": "csv", "path": str(folder / "events.csv"), "time_format": "unix_ms"}
    return {
        "name": "front door",
        "seed": 7,
        "source": source | {"from": "2024-01-01T00:00:00Z", "until": "2024-01-01T04:00:00Z"},
        "space": {"type": "places", "list": ["harbour", "market"], "elsewhere": False},
        "windows": {"type": "fixed", "size": "1h"},
        "bounding": {"max_cells": 1},
        "mechanism": {"type": "discrete_laplace", "epsilon": 1.0},
        "accountants": [{"type": "composition"}],
        "utility": ["mae"],
        "output": {"path": str(folder / "run"), "report": False},
    } | changes


def test_importing_it_imports_nothing_heavy():
    code = "import penstock, sys; print(' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert not loaded & {"numpy", "polars", "pyarrow", "apache_beam", "scipy", "sklearn", "yaml"}


def test_every_name_it_offers_is_there():
    assert all(getattr(penstock, name) is not None for name in penstock.__all__)
    assert dir(penstock) == penstock.__all__
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = penstock.nothing


def test_a_configuration_is_a_path_or_a_text_or_a_mapping(tmp_path):
    value = sections(tmp_path)
    path = tmp_path / "run.yaml"
    text = "\n".join(f"{key}: {json.dumps(part)}" for key, part in value.items())
    path.write_text(text)
    assert penstock.load(value) == penstock.load(text) == penstock.load(path) == penstock.load(str(path))
    assert penstock.load(value, ["seed=8"]).seed == 8
    with pytest.raises(penstock.ConfigError, match="seed"):
        penstock.load(value, ["seed=-8"])


def test_a_result_hands_out_what_a_run_wrote(tmp_path):
    result = penstock.run(sections(tmp_path), tmp_path / "elsewhere", runner="direct")
    assert (result.exit_code, result.folder) == (0, tmp_path / "elsewhere")
    assert result.manifest["rows"]["used"] == len(PEOPLE)
    assert result.releases.equals(pl.read_parquet(result.folder / "public" / "releases.parquet"))
    busy = result.truth.filter(pl.col("count") > 0)
    assert busy.select("window", "cell", "count").rows() == [(1, "market", 2), (3, "harbour", 1)]
    assert set(result.utility["metric"]) == {"mae"}
    assert set(result.accounts["side"]) <= {"public", "operator"}
    n_rows = sum(pl.read_parquet(path).height for path in result.folder.glob("*/accounts.parquet"))
    assert result.accounts.height == n_rows > 0
    with pytest.raises(penstock.DataError, match=r"traces\.parquet: this run wrote no such file"):
        _ = result.traces
    assert penstock.Result(result.folder).exit_code == 0
    assert penstock.run(sections(tmp_path), result.folder, resume=True).releases.equals(result.releases)


def test_a_beam_pipeline_of_ones_own_releases_its_own_events(tmp_path):
    """The same events as a run's, in another order, give the rows that the run wrote."""
    value = sections(tmp_path)
    expected = penstock.run(value).releases
    plan = make_plan(penstock.load(value), tmp_path / "own")
    events = [{"user": user, "time": START + hour * HOUR + 60_000, "place": place} for user, hour, place in PEOPLE]
    with beam.Pipeline(runner=IN_PROCESS) as pipeline:
        blocks = pipeline | beam.Create(events[::-1]) | EventsToBlocks()
        counted = blocks | CountDistinctUsers(plan)
        released = counted["counts"] | ReleaseInOrder(plan)
        written = released["releases"] | WriteReleases(plan)
        _ = written | Account(plan)
        _ = (counted["rows"], released["rows"]) | TallyRows(plan)
        rows = written | ReleasesToRows(plan) | beam.Map(lambda row: (row["window"], row["cell"], row["value"]))
        assert_that(rows, equal_to(expected.select("window", "cell", "value").rows()))


def test_the_page_shows_what_happens(tmp_path, monkeypatch):
    """Every block of docs/library.md is run, in order; what it prints is on the page."""
    page = (ROOT / "docs" / "library.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```\n+(?:```text\n(.*?)^```$)?", page, re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 3
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    monkeypatch.chdir(tmp_path)
    code, shown = ("".join(part) for part in zip(*blocks))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == shown
