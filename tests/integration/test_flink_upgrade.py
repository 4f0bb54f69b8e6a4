"""A job is stopped with a savepoint and goes on with code whose state has later versions: the releases are the same."""

import json
import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from flink_cluster import ROOT, FlinkCluster, end

from pipeline.cluster.jars import jars_folder
from pipeline.configuration.run import load
from pipeline.ledger import Ledger
from pipeline.run import run
from pipeline.verify import verify

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not jars_folder().exists(), reason="no Flink: python -m pipeline.cluster.jars fetches it"),
]

CONFIG = """
name: upgrade
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
output: {path: runs/upgrade, report: false}
"""
#: State that the job has at any time: that of its steps, and that of what they call.
MIGRATED = {"account_loop", "accountant", "books", "cursor", "lane", "mechanism", "release_loop"}
N_WINDOWS = 36


def start(program: list[str], folder: Path, *words: str) -> subprocess.Popen[bytes]:
    """Start a run on the cluster, with its Python workers inside."""
    command = [sys.executable, *program, "run", str(folder.parent / "config.yaml"), "--out", str(folder)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with (folder.parent / "run.log").open("ab") as log:
        command += ["--runner", "flink", *words]
        return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True)


def post(cluster: FlinkCluster, path: str, body: dict[str, object]) -> dict[str, str]:
    """Ask the job manager for something."""
    address = f"http://localhost:{cluster.rest_port}{path}"
    request = urllib.request.Request(address, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return dict(json.load(answer))


def stop_with_savepoint(cluster: FlinkCluster, folder: Path) -> Path:
    """Stop the only job that runs as an operator would; gives its savepoint."""
    (job,) = [job["id"] for job in cluster.rest("/jobs")["jobs"] if job["status"] == "RUNNING"]
    request = post(cluster, f"/jobs/{job}/stop", {"targetDirectory": folder.as_uri(), "drain": False})["request-id"]
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        found = cluster.rest(f"/jobs/{job}/savepoints/{request}")
        if found["status"]["id"] == "COMPLETED":
            return Path(found["operation"]["location"].removeprefix("file:"))
        time.sleep(0.3)
    raise TimeoutError("no savepoint")


def test_an_upgrade_changes_no_release(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(CONFIG)
    undisturbed, folder = tmp_path / "undisturbed", tmp_path / "run"
    run(load(tmp_path / "config.yaml", ["source.speed=max"]), undisturbed)
    parts, log = folder / "public" / "parts" / "releases", tmp_path / "run.log"
    with FlinkCluster(tmp_path / "cluster", n_task_managers=1) as cluster:
        options = ["--", f"--flink_master=localhost:{cluster.rest_port}", "--parallelism=1"]
        options += [option for option in cluster.options if option.startswith("--files_to_stage")]
        first = start(["-m", "pipeline.cli"], folder, *options)
        deadline = time.monotonic() + 180
        while len(list(parts.glob("*.parquet"))) < 5 and first.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        savepoint = stop_with_savepoint(cluster, folder / "operator" / "checkpoint" / "flink")
        assert first.wait(60) == 4, log.read_text()[-3000:]
        n_before = len(list(parts.glob("*.parquet")))
        assert 5 <= n_before < N_WINDOWS
        assert "migrated" not in log.read_text()
        second = start([str(Path(__file__).with_name("next_version.py"))], folder, "--resume", *options)
        try:
            assert second.wait(240) == 0, log.read_text()[-3000:]
        finally:
            end(second)
    print(f"savepoint {savepoint.name} after {n_before} of {N_WINDOWS} windows")
    assert {line.split()[1] for line in log.read_text().splitlines() if line.startswith("migrated ")} >= MIGRATED
    for name in ("public/releases.parquet", "public/accounts.parquet", "operator/truth.parquet"):
        assert (folder / name).read_bytes() == (undisturbed / name).read_bytes(), name
    assert [charge.window for charge in Ledger(folder / "operator" / "ledger")] == list(range(1, N_WINDOWS + 1))
    rows = [json.loads((one / "operator" / "manifest.json").read_text())["rows"] for one in (folder, undisturbed)]
    assert rows[0] == rows[1]
    assert [str(one) for one in verify(folder) if not one.passed] == []
