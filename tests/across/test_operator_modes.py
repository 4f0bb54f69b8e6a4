"""File modes: nobody but the owner can open the operator's files, on any runner."""

from __future__ import annotations

import os
import stat
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from penstock.pipeline import DONE
from penstock.pipeline.experiments.runner import run_experiment
from penstock.pipeline.run import run
from penstock.pipeline.runners.beam.jobs import served
from tests.tools.deployments import accessible_to_others, configured, sections
from tests.tools.experiment_cases import experiment_in


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


class Watched:
    """Looks at a folder again and again while a run goes on."""

    def __init__(self, operator: Path) -> None:
        self.operator, self.found, self._ended = operator, set[str](), threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Watched:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.001):
            with suppress(FileNotFoundError):  # a folder that is removed meanwhile
                self.found |= set(accessible_to_others(self.operator))


@pytest.mark.parametrize("mode", ["deployment", "simulation"])
@pytest.mark.parametrize("runner", ["local", "direct", "stream"])
def test_nobody_else_can_open_what_is_the_operators(tmp_path, monkeypatch, runner, mode):
    changes = {} if mode == "deployment" else {"mode": "simulation", "noise_key": None, "seed": 3}
    value = {key: part for key, part in (sections(tmp_path) | changes).items() if part is not None}
    if mode == "deployment":
        value["output"]["ledger"] = str(tmp_path / "out" / "operator" / "ledger")
    if runner == "stream":
        value["source"] = {"type": "stream", "of": value["source"], "order": "time", "checkpoint": "1ms"}
    monkeypatch.setattr("penstock.pipeline.run.outcome.clear_parts", lambda plan: None)
    with Watched(tmp_path / "out" / "operator") as watched:
        result = run(configured(value), runner="local" if runner == "local" else "direct")
    assert result.exit_code == DONE
    assert watched.found == set()
    assert accessible_to_others(result.folder / "operator") == []
    assert stat.S_IMODE((result.folder / "public" / "releases.parquet").stat().st_mode) == 0o644
    if mode == "simulation":
        assert stat.S_IMODE((result.folder / "report.html").stat().st_mode) == 0o600
    (result.folder / "operator" / "manifest.json").unlink()
    assert run(configured(value), runner="local" if runner == "local" else "direct", resume=True).exit_code == DONE
    assert accessible_to_others(result.folder / "operator") == []


def test_what_a_job_server_writes_is_its_owners(tmp_path):
    program = """
import pathlib, sys, time
from concurrent import futures
import grpc
(pathlib.Path(sys.argv[1]) / "chk-1").mkdir()
(pathlib.Path(sys.argv[1]) / "chk-1" / "_metadata").write_text("counts")
server = grpc.server(futures.ThreadPoolExecutor(1))
server.add_insecure_port(f"localhost:{sys.argv[2]}")
server.start()
time.sleep(600)
"""
    folder = tmp_path / "server"
    with served("x", lambda port: [sys.executable, "-c", program, str(folder), str(port)], folder):
        assert (folder / "chk-1" / "_metadata").read_text() == "counts"
        assert {path.name for path in folder.iterdir()} == {"chk-1", "job_server.log"}
        assert accessible_to_others(folder) == []


def test_people_and_report_of_an_experiment_are_their_owners(tmp_path):
    folder = run_experiment(experiment_in(tmp_path)(), tmp_path / "out", n_jobs=1).folder
    assert len(list((folder / "people").glob("*.parquet"))) == 1
    assert accessible_to_others(folder / "people") == []
    assert stat.S_IMODE((folder / "report.html").stat().st_mode) == 0o600


def test_the_ledgers_of_the_state_folder_are_their_owners(tmp_path, state_folder):
    run(configured(sections(tmp_path)), runner="local")
    assert (state_folder / "ledgers" / "events").exists()
    assert accessible_to_others(state_folder) == []


def test_a_wider_mode_on_resume_is_a_caution(tmp_path, caplog):
    folder = run(configured(sections(tmp_path)), runner="local").folder
    (folder / "operator" / "manifest.json").unlink()
    (folder / "operator").chmod(0o755)
    assert run(configured(sections(tmp_path)), runner="local", resume=True).exit_code == DONE
    assert any("can be opened by others than their owner" in message for message in caplog.messages)
