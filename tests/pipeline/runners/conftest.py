"""Stand-ins for Java, for the jars of Flink, and for a Flink that jobs are submitted to."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from penstock.pipeline.runners.flink import jars, runner


@pytest.fixture
def java(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Java command beside an empty cache of jars, with no configuration of Flink."""
    folder = tmp_path_factory.mktemp("java")
    monkeypatch.setenv("PENSTOCK_CACHE", str(folder))
    monkeypatch.setenv("JAVA_HOME", str(folder))
    monkeypatch.delenv("FLINK_CONF_DIR", raising=False)
    (folder / "bin").mkdir()
    (folder / "bin" / "java").touch()
    return folder / "bin" / "java"


@pytest.fixture
def fetched(java: Path) -> str:
    """Version of the runner of Flink whose jars are in the cache, older than the installed Beam."""
    *_, version = jars.versions()
    jars.folder_of(version).mkdir()
    (jars.folder_of(version) / f"beam-runners-flink-{version}.jar").touch()
    return version


@pytest.fixture
def submitted(java: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Any]]:
    """Make a function run in place of every submission; it returns a list of the checkpoints of job servers."""

    def submitted(submit: Callable[..., Any] = lambda *_: "ended") -> list[Any]:
        restored: list[Any] = []
        monkeypatch.setattr(
            runner, "job_server", lambda *words: restored.append(words[3]) or nullcontext("localhost:1")
        )
        monkeypatch.setattr(runner, "_submit", submit)
        return restored

    return submitted
