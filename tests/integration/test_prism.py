"""Real Prism, started by the driver: it releases what the plain loop does, stopped, killed or left alone."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from ipaddress import ip_address
from pathlib import Path

import pytest

from penstock.pipeline.config.run import load
from penstock.pipeline.output.writer import RunWriter
from penstock.pipeline.run import run
from tests.integration.flink_cluster import ROOT
from tests.integration.flink_runs import SAME, check, goes_on, refuses_a_copy, running, wait_until, words_of
from tests.integration.ports import descendants, listeners, name_of
from tests.integration.test_flink import BOUNDED, FINITE, config, local

PRISM = os.environ.get("PRISM") or shutil.which("prism")
needs_prism = pytest.mark.skipif(PRISM is None, reason="no Prism: $PRISM names the program, or it is on the PATH")
pytestmark = [pytest.mark.integration, needs_prism]
__all__ = ["config", "local"]
ON_PRISM = ("--runner", "prism")
LOCATION = ("--", f"--prism_location={PRISM}")


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_a_stream_that_is_stopped_or_killed_goes_on(config: Path, local: Path, tmp_path: Path, sent: int) -> None:
    folder = tmp_path / "run"
    with running(config, folder, *ON_PRISM, *LOCATION) as driver:
        assert goes_on(folder, driver, 3), words_of(folder)
        (prism,) = (pid for pid in descendants(driver.pid) if name_of(pid) == "prism")
        driver.send_signal(sent)
        assert driver.wait(60) == (4 if sent == signal.SIGINT else -sent), words_of(folder)
        assert wait_until(lambda: name_of(prism) != "prism", 30)
    with running(config, folder, *ON_PRISM, "--resume", *LOCATION) as driver:
        assert driver.wait(240) == 0, words_of(folder)
    check(folder, local)


def test_a_copy_of_a_resumed_deployment_releases_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuses_a_copy(tmp_path, monkeypatch, *ON_PRISM, *LOCATION)


def test_only_prisms_job_service_listens_everywhere(config: Path, tmp_path: Path) -> None:
    """That port takes jobs from whoever reaches it, and cannot be bound (docs/security.md); the others are."""
    folder = tmp_path / "run"
    with running(config, folder, *ON_PRISM, *LOCATION) as driver:
        assert goes_on(folder, driver), words_of(folder)
        addresses = listeners([driver.pid, *descendants(driver.pid)])
        (prism,) = (pid for pid in addresses if name_of(pid) == "prism")
        job_service = {(host, port) for host, port in addresses.pop(prism) if not ip_address(host).is_loopback}
        assert len({port for _, port in job_service}) <= 1
        assert addresses[driver.pid]
        assert all(ip_address(host).is_loopback for one in addresses.values() for host, _ in one), addresses
        driver.send_signal(signal.SIGINT)
        assert driver.wait(60) == 4, words_of(folder)


@pytest.mark.parametrize("changes", [(FINITE,), (FINITE, *BOUNDED), BOUNDED], ids=["finite", "finite bound", "bound"])
def test_releases_are_those_of_the_plain_loop(config: Path, tmp_path: Path, changes: tuple[str, ...]) -> None:
    folders = tmp_path / "local", tmp_path / "prism"
    speed = () if FINITE in changes else ("source.speed=max",)
    value = load(config, [*changes, *speed])
    run(value, folders[0], runner="local")
    run(value, folders[1], runner="prism", beam_options=[f"--prism_location={PRISM}"])
    for name in SAME:
        assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes(), name


def test_bundles_that_take_long_keep_what_they_have_counted(
    config: Path, local: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prism would split them, and lose the state of one part."""
    accounts = RunWriter.accounts

    def slow(self: RunWriter, *given: object) -> None:
        time.sleep(0.3)
        accounts(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(RunWriter, "accounts", slow)
    run(load(config, ["source.speed=max"]), tmp_path / "run", runner="prism", beam_options=LOCATION[1:])
    check(tmp_path / "run", local)


def test_prisms_clock_is_that_of_the_faster_reader() -> None:
    """Where this fails, Prism holds the minimum by now, and may have several readers."""
    example = [sys.executable, str(ROOT / "examples" / "watermarks_on_prism.py"), f"--prism_location={PRISM}"]
    lines = subprocess.run(example, capture_output=True, text=True, check=True, timeout=120).stdout.splitlines()
    assert lines[0].startswith("minute 5 has come after ")
    assert int(lines[0].split()[-2]) < 12
