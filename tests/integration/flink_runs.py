"""Start, watch, kill and compare runs of ``penstock`` on Flink."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from penstock.pipeline.monitoring.verify import verify
from penstock.pipeline.releasing.ledger import SHORT, Ledger
from penstock.pipeline.runners.flink.jars import folder_of, versions
from tests.integration.flink_cluster import ROOT, FlinkCluster, end
from tests.tools.ledgers import windows_in

needs_flink = pytest.mark.skipif(
    not any(folder_of(version).exists() for version in versions()),
    reason="no Flink: python -m penstock.pipeline.runners.flink.jars fetches it",
)
PENSTOCK = ("-m", "penstock.pipeline.cli.main")
SAME = ("public/releases.parquet", "public/accounts.parquet", "operator/truth.parquet", "operator/ledger")


def start(config: Path, folder: Path, *words: str) -> subprocess.Popen[bytes]:
    """Start ``penstock run`` on Flink, logging beside its folder.

    Parameters
    ----------
    config, folder
        The configuration, and where to write.
    words
        Further ones of the command line; those after ``--`` are for Beam.
    """
    command = [sys.executable, *PENSTOCK, "run", str(config), "--out", str(folder), "--runner", "flink", *words]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with _log(folder).open("ab") as log:
        return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True)


@contextmanager
def running(*given: object, **options: object) -> Iterator[subprocess.Popen[bytes]]:
    """`start`, ended with the block."""
    driver = start(*given, **options)  # type: ignore[arg-type]
    try:
        yield driver
    finally:
        end(driver)


def words_of(folder: Path) -> str:
    """Return the tail of a run's log."""
    return _log(folder).read_text()[-3000:]


def _log(folder: Path) -> Path:
    return folder.parent / f"{folder.name}.log"


def n_releases(folder: Path) -> int:
    """Windows on disk."""
    return len(list((folder / "public" / "parts" / "releases").glob("*.parquet")))


def wait_until(happened: Callable[[], bool], seconds: float) -> bool:
    """Poll a condition until a deadline, ignoring time-outs of a busy machine."""
    deadline = time.monotonic() + seconds
    while True:
        is_last = time.monotonic() >= deadline
        try:
            if happened():
                return True
        except OSError:
            if is_last:
                raise
        if is_last:
            return False
        time.sleep(0.1)


def check(folder: Path, local: Path, same: Sequence[str] = SAME) -> dict[str, int]:
    """Compare bytes, charges and row outcomes with the local run, and return the row counts."""
    for name in same:
        assert (folder / name).read_bytes() == (local / name).read_bytes(), name
    windows = windows_in(folder)
    assert windows == list(range(1, len(windows) + 1))
    rows = [json.loads((one / "operator" / "manifest.json").read_text())["rows"] for one in (folder, local)]
    assert rows[0] == rows[1]
    assert [str(one) for one in verify(folder) if not one.passed] == []
    counts: dict[str, int] = rows[0]
    return counts


def goes_on(folder: Path, driver: subprocess.Popen[bytes], n_more: int = 1) -> bool:
    """Return whether the run releases another window."""
    enough = n_releases(folder) + n_more
    return wait_until(lambda: n_releases(folder) >= enough or driver.poll() is not None, 240) and driver.poll() is None


def savepoint(cluster: FlinkCluster, folder: Path, *, stop: bool = False) -> Path:
    """A savepoint of the only job that goes on, in the folder of its run, as an operator would take one."""
    (job,) = cluster.jobs()
    target = (folder / "operator" / "checkpoint" / "flink").as_uri()
    if stop:
        request = _post(cluster, f"/jobs/{job}/stop", {"targetDirectory": target, "drain": False})
    else:
        request = _post(cluster, f"/jobs/{job}/savepoints", {"target-directory": target, "cancel-job": False})
    actual: list[str] = []

    def is_there() -> bool:
        message = cluster.rest(f"/jobs/{job}/savepoints/{request['request-id']}")
        if message["status"]["id"] == "COMPLETED":
            assert "location" in message["operation"], f"the savepoint failed: {message['operation']}"
            actual.append(message["operation"]["location"].removeprefix("file:"))
        return bool(actual)

    assert wait_until(is_there, 120), "no savepoint in two minutes"
    return Path(actual[0])


def stop_and_go_on(
    cluster: FlinkCluster, config: Path, folder: Path, meanwhile: Callable[[], object] = lambda: None
) -> None:
    """Stop a run with a savepoint, do something while no job runs, and let a new driver and job end the run."""
    options = ["--", f"--flink_master=localhost:{cluster.rest_port}", "--parallelism=1"]
    options += [option for option in cluster.options if option.startswith("--files_to_stage")]
    with running(config, folder, *options) as driver:
        assert goes_on(folder, driver, 5), words_of(folder)
        print(savepoint(cluster, folder, stop=True).name, "after", n_releases(folder), "windows")
        assert driver.wait(120) == 4, words_of(folder)
    meanwhile()
    with running(config, folder, "--resume", *options) as driver:
        assert driver.wait(240) == 0, words_of(folder)


CITY = (
    "{type: synthetic, seed: 1, n_users: 400, events_per_hour: 20.0, "
    "from: 2024-01-01T06:00:00Z, until: 2024-01-01T16:00:00Z}"
)
#: Sections of a stream of that city which takes some seconds.
STREAM = f"""
source: {{type: stream, speed: 900x, of: {CITY}}}
space: {{type: grid, south: 37.74, north: 37.82, west: -122.47, east: -122.37, rows: 6, columns: 6}}
windows: {{type: fixed, size: 10m, allowed_lateness: 1m}}
bounding: {{max_cells: 2}}
mechanism: {{type: discrete_laplace, epsilon: 0.5}}
"""
DEPLOYED = f"""
name: deployed
mode: deployment
noise_key: env:NOISE_KEY
{STREAM}
output: {{path: runs/deployed, ledger_source: walks, report: false}}
"""


def refuses_a_copy(folder: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    """Interrupt a deployment, copy all that it has, resume it to its end, and see the copy refused with no release."""
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
    monkeypatch.setenv("NOISE_KEY", secrets.token_hex(32))
    config, original, copy = folder / "run.yaml", folder / "original", folder / "copy"
    ledger, copied = folder / "ledger", folder / "copied"
    config.write_text(DEPLOYED)
    words = ("--set", f"output.ledger={ledger}", *words)
    with running(config, original, *words) as driver:
        assert goes_on(original, driver, 3), words_of(original)
        driver.send_signal(signal.SIGINT)
        assert driver.wait(120) == 4, words_of(original)
    shutil.copytree(original, copy)
    for suffix in (".head", ""):
        shutil.copy2(f"{ledger}{suffix}", f"{copied}{suffix}")
    n_copied = n_releases(copy)
    at = words.index("--") if "--" in words else len(words)
    resumed = [*words[:at], "--resume", *words[at:]]
    with running(config, original, *resumed) as driver:
        assert driver.wait(240) == 0, words_of(original)
    entries = list(Ledger(ledger).entries())
    (begun,) = (entry.values["nonce"] for entry in entries if entry.kind == "run")
    (drawn,) = (entry.values["nonce"] for entry in entries if entry.kind == "nonce")
    assert begun != drawn
    charged = [entry.values["nonce"] for entry in entries if entry.kind == "charge"]
    assert charged[0] == begun[:SHORT]
    assert charged[-1] == drawn[:SHORT]
    assert [str(one) for one in verify(original) if not one.passed] == []
    resumed[1] = f"output.ledger={copied}"
    with running(config, copy, *resumed) as driver:
        assert driver.wait(120) in (1, 2), words_of(copy)
    assert n_releases(copy) == n_copied
    print(words_of(copy))


def _post(cluster: FlinkCluster, path: str, body: dict[str, object]) -> dict[str, str]:
    address = f"http://localhost:{cluster.rest_port}{path}"
    request = urllib.request.Request(address, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return dict(json.load(answer))


def contents(path: Path) -> dict[Path, bytes]:
    """Read all files of a folder except jars and deleted ones."""
    actual = {}
    files = [path] if path.is_file() else [Path(where) / name for where, _, names in os.walk(path) for name in names]
    for file in files:
        with suppress(OSError):
            if not _is_jar(file):
                actual[file] = file.read_bytes()
    return actual


def _is_jar(file: Path) -> bool:
    """Return whether a file is a jar under one of Flink's names."""
    if "blobStorage" not in file.parts:
        return file.suffix == ".jar"
    with file.open("rb") as opened:
        return opened.read(4) == b"PK\x03\x04"
