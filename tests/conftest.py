"""Shared fixtures: location of real data, a Flink cluster, and small runs."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.tools.real_data import data_folder as data_folder
from tests.tools.small_configuration import small_sections

if TYPE_CHECKING:
    from tests.integration.flink_cluster import FlinkCluster


#: Where Linux keeps files in memory, and how many bytes have to be free there.
MEMORY, ROOM = Path("/dev/shm"), 8 << 30


def pytest_configure(config: pytest.Config) -> None:
    """Keep the folders of tests in memory if there is room, since runs sync every write.

    No test writes to the ledgers of whoever runs it, fixtures that several tests share included.
    """
    state = tempfile.TemporaryDirectory(prefix="penstock-state-")
    config.add_cleanup(state.cleanup)
    os.environ["XDG_STATE_HOME"] = state.name
    if MEMORY.exists():
        facts = os.statvfs(MEMORY)
        if facts.f_bavail * facts.f_frsize >= ROOM and not facts.f_flag & os.ST_NOEXEC:
            os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


@pytest.fixture(autouse=True)
def state_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Separate ledger folder for each test."""
    folder = tmp_path_factory.mktemp("state")
    monkeypatch.setenv("XDG_STATE_HOME", str(folder))
    return folder / "penstock"


@pytest.fixture
def working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the test's folder the working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def one_nonce() -> Iterator[None]:
    """Give all runs of a test one nonce."""
    from tests.tools.ledgers import under_nonce

    with under_nonce(b"the same nonce"):
        yield


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Connect sources of Kafka to a topic without a broker, optionally with its micro-batches."""
    from penstock.pipeline.sources.kafka import Kafka

    def connect(topic: Any, fed: Iterable[Any] | None = None) -> None:
        monkeypatch.setattr("penstock.pipeline.sources.reading.kafka.Consumer", topic)
        if fed is not None:
            monkeypatch.setattr(Kafka, "micro_batches", lambda *_: fed)
            monkeypatch.setattr(Kafka, "topic_id", lambda *_: topic.topic_id())

    return connect


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Make a module fail to be imported, as where its library is not installed."""
    return lambda module: monkeypatch.setitem(sys.modules, module, None)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Use one worker more than processors, since some tests wait."""
    return (os.cpu_count() or 1) + 1


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlinkCluster]:
    """The Flink of all suites: a job manager, two task managers and a pool of Python workers."""
    from tests.integration.flink_cluster import FlinkCluster

    with FlinkCluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


@pytest.fixture
def small_run(tmp_path: Path):
    """Write events as CSV, make a configuration with changes, run it in the plain loop and return the result."""
    from penstock.pipeline.config.run import loads
    from penstock.pipeline.run import run

    def go(
        events: list[tuple[Any, ...]] | str, out: str = "out", n_shards: int = 1, resume: bool = False, **changes: Any
    ):
        sections = small_sections(tmp_path, events, accountants=[{"type": "landmark_budget"}])
        sections["output"] = {"path": str(tmp_path / out), "report": False}
        for key, value in changes.items():
            if isinstance(value, dict) and isinstance(sections.get(key), dict) and "type" not in value:
                sections[key] = sections[key] | value
            else:
                sections[key] = value
        return run(loads(json.dumps(sections)), runner="local", n_shards=n_shards, resume=resume)

    return go
