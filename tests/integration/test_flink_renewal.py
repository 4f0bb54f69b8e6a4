"""A streaming job is renewed with a savepoint long before its readers have had too many turns for Beam's runner."""

from __future__ import annotations

import json
import logging
import os
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from penstock.pipeline.config.run import loads
from penstock.pipeline.monitoring.verify import verify
from penstock.pipeline.run import run
from penstock.pipeline.runners.beam import read
from penstock.pipeline.runners.beam.pool import worker_pool
from penstock.pipeline.runners.flink import renewal
from penstock.pipeline.sources.stream import Stream
from tests.integration.flink_cluster import FlinkCluster
from tests.integration.flink_runs import SAME, needs_flink

pytestmark = [pytest.mark.integration, pytest.mark.slow, needs_flink]


def configured(folder: Path, speed: str):
    """A day in windows of ten minutes."""
    source = {"type": "synthetic", "n_users": 100, "days": 1, "seed": 7, "events_per_hour": 2}
    space = {"type": "grid", "south": 37.74, "north": 37.82, "west": -122.47, "east": -122.37, "rows": 2, "columns": 2}
    value = {
        "name": "renewed",
        "seed": 3,
        "source": {"type": "stream", "of": source, "speed": speed},
        "space": space,
        "windows": {"type": "fixed", "size": "10m", "allowed_lateness": "1m"},
        "mechanism": {"type": "w_event_ba", "epsilon": 1.0, "w": 12},
        "accountants": [{"type": "composition"}],
        "output": {"path": str(folder), "report": False},
    }
    return loads(json.dumps(value))


#: Turns of all readers: a few, in jobs of a third of them; or more than Flink's runner has names for, in jobs that are
#: renewed as in production: ``PENSTOCK_TURNS=36000``, half an hour.
N_TURNS = int(os.environ.get("PENSTOCK_TURNS", "40"))
IS_SOAK = N_TURNS > renewal.MIN_TURNS


@pytest.mark.parametrize("on", ["embedded", "cluster"])
def test_a_renewed_job_releases_the_same(on, tmp_path, monkeypatch, caplog):
    """Of readers of which one has something to read; with short turns, of which each job has its share."""
    speed, n_more = ("96x", 11) if IS_SOAK else ("1800x", 1)
    local = run(configured(tmp_path / "local", "max"), runner="local")
    wait, write, read_batches, n_written = read.Reader.wait.fget, read.write_json, Stream.micro_batches, 0

    def counting(path, value):
        nonlocal n_written
        n_written += 1
        write(path, value)

    def micro_batches(self, run, folder, start, *given):
        return iter(()) if "more" in start else read_batches(self, run, folder, start, *given)

    monkeypatch.setattr(Stream, "starts", lambda *_: [{}, *({"more": np.asarray(n)} for n in range(n_more))])
    monkeypatch.setattr(Stream, "micro_batches", micro_batches)
    monkeypatch.setattr(read, "write_json", counting)
    monkeypatch.setitem(read.Replay.__init__.__kwdefaults__, "turn", -1.0)
    monkeypatch.setattr(read, "REST", 1e-6)
    monkeypatch.setattr(read.Reader, "wait", property(lambda self: min(0.1, wait(self))))
    if not IS_SOAK:
        n_turns = N_TURNS // 3 if on == "embedded" else 2 * N_TURNS  # a cluster takes longer to begin a job
        monkeypatch.setattr(renewal, "TURNS", n_turns)
        monkeypatch.setattr(renewal, "MIN_TURNS", n_turns)
    caplog.set_level(logging.INFO, logger="penstock")
    options = ["--checkpointing_interval=2000", "--parallelism=1", *["--max_bundle_time_mills=20"] * IS_SOAK]
    with ExitStack() as stack:
        if on == "cluster":
            cluster = stack.enter_context(FlinkCluster(tmp_path / "cluster", n_task_managers=1))
            # A pool of threads: the short turns are those of this process.
            pool = stack.enter_context(worker_pool())
            options = [*cluster.options, f"--environment_config={pool}", *options]
        renewed = run(configured(tmp_path / "renewed", speed), runner="flink", beam_options=options)
    stops = [record.facts for record in caplog.records if "stopped with a savepoint" in record.getMessage()]
    print(f"{n_written:,} turns, {len(stops)} renewals, savepoints in {[stop['seconds'] for stop in stops]} s")
    assert renewed.exit_code == 0
    assert n_written > N_TURNS
    assert len(stops) >= 2
    assert renewed.manifest["rows"] == local.manifest["rows"]
    for name in SAME:
        assert (tmp_path / "renewed" / name).read_bytes() == (tmp_path / "local" / name).read_bytes(), name
    assert [str(one) for one in verify(tmp_path / "renewed") if not one.passed] == []
