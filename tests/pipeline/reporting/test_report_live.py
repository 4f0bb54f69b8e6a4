"""The live page of a run, served to this machine only."""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from penstock.pipeline.cli.main import main
from penstock.pipeline.reporting.live import FINAL_WAIT, watch
from tests.tools.checkout import ROOT
from tests.tools.report_runs import run_folder


def get(address: str, **headers: str) -> str:
    with urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=10) as answer:
        return answer.read().decode()


def test_the_page_follows_the_files(tmp_path):
    with watch(tmp_path / "run") as address:
        with pytest.raises(urllib.error.HTTPError, match="503"):
            get(address)
        folder = run_folder(tmp_path / "run")
        manifest = folder / "operator" / "manifest.json"
        finished = manifest.read_bytes()
        manifest.unlink()
        going_on = get(address)
        assert '"over":false' in going_on
        assert "connect-src 'self'" in going_on
        assert get(address) == going_on
        manifest.write_bytes(finished)
        assert '"over":true' in get(address)
    with pytest.raises(urllib.error.URLError):
        get(address)


def test_only_this_machine_and_only_one_page(tmp_path):
    run_folder(tmp_path)
    with watch(tmp_path) as address:
        assert address.startswith("http://127.0.0.1:")
        with pytest.raises(urllib.error.HTTPError, match="403"):
            get(address, Host="penstock.example")
        with pytest.raises(urllib.error.HTTPError, match="404"):
            get(address + "operator/manifest.json")
        get(address)


def test_readers_get_the_last_page_before_the_server_goes(tmp_path):
    folder = run_folder(tmp_path)
    manifest = folder / "operator" / "manifest.json"
    finished = manifest.read_bytes()
    manifest.unlink()
    last: list[str] = []
    with watch(folder) as address:
        get(address)
        manifest.write_bytes(finished)
        reader = threading.Timer(0.3, lambda: last.append(get(address)))
        reader.start()
    reader.join(FINAL_WAIT)
    assert '"over":true' in last[0]


def test_run_watch(tmp_path: Path, capsys):
    words = ["run", "configs/quickstart.yaml", "--out", str(tmp_path / "out"), "--watch", "--quiet"]
    small = ["--set", "source.n_users=20", "--set", "source.until=2024-01-01T06:00:00Z"]
    words[1] = str(ROOT / words[1])
    assert main([*words, *small]) == 0
    assert "watch the run at http://127.0.0.1:" in capsys.readouterr().err
    assert (tmp_path / "out" / "report.html").exists()
