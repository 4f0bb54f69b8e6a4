"""Sinks get releases as they are on disk, and rows of public accounts alone."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from penstock.accountants.core.accountant import AccountRow
from penstock.pipeline.config.plan import make_plan
from penstock.pipeline.config.run import loads
from penstock.pipeline.output.sinks import Sink
from penstock.pipeline.output.writer import RunWriter
from penstock.pipeline.releasing.release import Batch


class Recorder(Sink):
    """Keep what is published."""

    def __init__(self) -> None:
        self.released, self.accounted = list[pa.Table](), list[pa.Table]()

    def releases(self, table: pa.Table) -> None:
        self.released.append(table)

    def accounts(self, table: pa.Table) -> None:
        self.accounted.append(table)


def execution(folder: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> tuple[RunWriter, Recorder, Batch]:
    """A writer of a run in the folder, its sink, and the release of the first window."""
    value = {
        "name": "sinks",
        "seed": seed,
        "source": {"type": "synthetic", "n_users": 90, "days": 1, "seed": 1},
        "space": {"type": "grid", "south": 37, "north": 38, "west": -123, "east": -122, "rows": 1, "columns": 2},
        "windows": {"type": "fixed", "size": "1h"},
        "mechanism": {"type": "discrete_laplace", "epsilon": 0.1},
        "accountants": [{"type": "composition"}, {"type": "membership", "windows": 24, "targets": 2, "samples": 20}],
        "output": {"path": str(folder), "report": False},
    }
    plan, sink = make_plan(loads(json.dumps(value)), folder), Recorder()
    monkeypatch.setattr("penstock.pipeline.output.writer.sinks_of", lambda _: [sink])
    loop = plan.release_loop()
    batch, _ = loop.advance(loop.start(), 1, np.zeros((1, plan.grid.n_cells), np.int64))
    return RunWriter(plan), sink, batch


def test_a_sink_gets_the_release_that_an_earlier_execution_has_written(tmp_path, monkeypatch):
    first, published, batch = execution(tmp_path, monkeypatch, seed=1)
    first.releases(batch)
    again, repeated, other = execution(tmp_path, monkeypatch, seed=2)
    assert other.releases[0].values.tolist() != batch.releases[0].values.tolist()
    again.releases(other)
    assert repeated.released == published.released
    assert len(published.released) == 1


def test_a_sink_gets_rows_of_public_accounts_alone(tmp_path, monkeypatch):
    writer, sink, _ = execution(tmp_path, monkeypatch, seed=1)
    row = AccountRow(subject="everybody", window=1, name="x", value=1.0, unit="nats", adjacency="one")
    for number, accountant in enumerate(writer.plan.config.accountants):
        sink.accounted.clear()
        writer.accounts(number, 0, 1, [row])
        assert bool(sink.accounted) == accountant.public
    assert {accountant.public for accountant in writer.plan.config.accountants} == {True, False}
