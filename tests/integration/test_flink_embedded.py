"""An embedded Flink goes on from its checkpoint, and listens on the loopback interface wherever that can be had."""

from __future__ import annotations

import json
import signal
import urllib.request
from contextlib import suppress
from http.client import HTTPException
from ipaddress import ip_address
from pathlib import Path

import pytest

from tests.integration.flink_cluster import children
from tests.integration.flink_runs import check, goes_on, needs_flink, refuses_a_copy, running, words_of
from tests.integration.ports import listeners
from tests.integration.test_flink import config as config
from tests.integration.test_flink import local as local

pytestmark = [pytest.mark.integration, needs_flink]


def is_rest(port: int) -> bool:
    """Return whether a Flink REST service answers at a local port."""
    address = f"http://127.0.0.1:{port}/overview"
    with suppress(OSError, ValueError, HTTPException), urllib.request.urlopen(address, timeout=10) as page:
        return "flink-version" in json.load(page)
    return False


def test_resume_restores_the_checkpoint(config: Path, local: Path, tmp_path: Path) -> None:
    """By Flink's own log: equal bytes would also come of reading all of the input again."""
    folder = tmp_path / "run"
    log = folder / "operator" / "checkpoint" / "flink" / "job_server" / "job_server.log"
    words = ["--", "--checkpointing_interval=1000"]
    with running(config, folder, *words) as driver:
        assert goes_on(folder, driver, 5), words_of(folder)
        driver.send_signal(signal.SIGINT)
        assert driver.wait(120) == 4, words_of(folder)
    made = max(log.parents[1].glob("*/chk-*/_metadata"), key=lambda path: path.stat().st_mtime_ns).parent
    before = log.stat().st_size
    with running(config, folder, "--resume", *words) as driver:
        assert goes_on(folder, driver), words_of(folder)
        message = log.read_bytes()[before:].decode()
        assert f"from savepoint {made.as_uri()}" in message
        assert driver.wait(240) == 0, words_of(folder)
    check(folder, local)


def test_a_copy_of_a_resumed_deployment_releases_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuses_a_copy(tmp_path, monkeypatch, "--", "--checkpointing_interval=1000")


def test_only_beams_java_services_listen_everywhere(config: Path, tmp_path: Path) -> None:
    """Those cannot be bound (docs/security.md); the driver, its workers and Flink's REST service are on loopback."""
    folder = tmp_path / "run"
    with running(config, folder) as driver:
        assert goes_on(folder, driver), words_of(folder)
        (java,) = (pid for pid in children(driver.pid) if "java" in Path(f"/proc/{pid}/comm").read_text())
        actual = listeners([driver.pid, java])
        assert actual[driver.pid]
        assert all(ip_address(host).is_loopback for host, _ in actual[driver.pid]), actual
        rest = [host for host, port in actual[java] if is_rest(port)]
        assert rest
        assert all(ip_address(host).is_loopback for host in rest), actual
        driver.send_signal(signal.SIGINT)
        assert driver.wait(120) == 4, words_of(folder)
