"""The lock of a run's folder: one run at a time, and a killed run's lock is released."""

from __future__ import annotations

import fcntl
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.mechanisms.core.plugin import ConfigError
from penstock.pipeline.output.files import LOCK, exclusive_lock
from tests.tools import deployments
from tests.tools.ledgers import windows_in
from tests.tools.small_configuration import run_locally as run

RUNNING = """
import sys
from pathlib import Path
from penstock.pipeline.output.files import exclusive_lock

with exclusive_lock(Path(sys.argv[1])):
    print("running", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def running(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that writes into the folder ``out``."""
    command = [sys.executable, "-c", RUNNING, str(tmp_path / "out")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "running\n"
        yield process
        process.kill()


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("changes", [{}, {"mode": "simulation", "seed": 1, "noise_key": None}])
def test_a_second_run_in_the_folder_changes_nothing(tmp_path, running, resume, changes):
    sections = deployments.sections(tmp_path, **changes)
    config = deployments.configured({key: value for key, value in sections.items() if value is not None})
    holder = f"process {running.pid} on {socket.gethostname()}"
    with pytest.raises(ConfigError, match=f"output.path: {holder} is running in {tmp_path / 'out'}"):
        run(config, resume=resume)
    assert [path.name for path in (tmp_path / "out").iterdir()] == [LOCK]


def test_a_killed_run_keeps_nobody_out_and_a_finished_one_leaves_no_lock(tmp_path, running):
    config = deployments.configured(deployments.sections(tmp_path))
    running.kill()
    running.wait()
    assert (tmp_path / "out" / LOCK).exists()
    folder = run(config).folder
    assert not (folder / LOCK).exists()
    assert windows_in(folder) == [1, 2, 3, 4, 5, 6]


def test_where_there_is_nothing_to_continue_no_folder_is_left(tmp_path):
    config = deployments.configured(deployments.sections(tmp_path))
    with pytest.raises(ConfigError, match="holds no run to continue"):
        run(config, resume=True)
    assert not (tmp_path / "out").exists()


def test_runs_in_other_folders_and_later_runs_are_let_in(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    with (
        exclusive_lock(one),
        exclusive_lock(other),
        pytest.raises(ConfigError, match="is running in"),
        exclusive_lock(one),
    ):
        pass
    with exclusive_lock(one):
        assert not (other / LOCK).exists()


def test_a_lock_is_for_its_owner_alone(tmp_path):
    """Another account that could read it could hold it, and so keep every run from starting."""
    with exclusive_lock(tmp_path):
        assert (tmp_path / LOCK).stat().st_mode & 0o777 == 0o600


def test_a_lock_that_was_removed_while_it_was_waited_for_is_not_taken(tmp_path, monkeypatch):
    """Who opens the file, and locks it after its owner has removed it, would be beside whoever makes it anew."""
    lock, owner = fcntl.flock, exclusive_lock(tmp_path)
    owner.__enter__()

    def lock_late(file, how):
        monkeypatch.setattr(fcntl, "flock", lock)
        owner.__exit__(None, None, None)
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", lock_late)
    with exclusive_lock(tmp_path):
        assert (tmp_path / LOCK).exists()
        with pytest.raises(ConfigError, match="is running in"), exclusive_lock(tmp_path):
            pass
