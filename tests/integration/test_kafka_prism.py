"""Kafka on Prism: refused as unverified, and missing rows are detected."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

pytest.importorskip("confluent_kafka", reason="the extra 'kafka' is not installed")

from penstock.mechanisms.core.plugin import ConfigError
from penstock.pipeline.monitoring.verify import verify
from penstock.pipeline.run import run
from tests.integration.ports import free_ports
from tests.integration.test_kafka import (
    broker,
    check_same,
    configured,
    events_of,
    producer,
    sections,
    topic,
    topics,
    undisturbed,
)
from tests.tools.play_topic import play

PRISM = os.environ.get("PRISM") or shutil.which("prism")
pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(PRISM is None, reason="no Prism: $PRISM names its binary, or it is on the PATH"),
]
__all__ = ["broker", "topics", "undisturbed"]


@pytest.fixture
def endpoint():
    (port,) = free_ports(1)
    prism = subprocess.Popen([str(PRISM), f"--job_port={port}", "--serve_http=false"], stderr=subprocess.DEVNULL)
    yield f"--job_endpoint=localhost:{port}"
    prism.kill()
    prism.wait()


def test_what_prism_leaves_out_is_refused_or_found_out(broker, topics, tmp_path, endpoint):
    n_sent = 3 + play(events_of(), producer(broker), topics["events"], 3, end=True)
    config = configured(sections(tmp_path / "out", topic(broker, topics)))
    with pytest.raises(ConfigError, match="the engine behind it is Prism"):
        run(config, runner="flink", beam_options=[endpoint])
    assert not (tmp_path / "out").exists()
    result = run(config, runner="flink", beam_options=[endpoint], unverified_engine=True)
    offsets, rows = result.manifest["offsets"], result.manifest["rows"]
    print(f"exit {result.exit_code}; of {n_sent:,} rows {rows}; {offsets['shortfall']}")
    assert (result.exit_code == 0) is (rows["rows"] == n_sent) is (offsets["shortfall"] == [])
    assert {one.name: one.passed for one in verify(tmp_path / "out")}["offsets"] is (result.exit_code == 0)


def test_one_reader_of_all_partitions_counts_every_row(broker, topics, tmp_path, undisturbed):
    n_sent = 3 + play(events_of(), producer(broker), topics["events"], 3, end=True)
    config = configured(sections(tmp_path / "out", topic(broker, topics)))
    result = run(config, runner="prism", beam_options=[f"--prism_location={PRISM}"])
    print(result.manifest["rows"], result.manifest["offsets"])
    assert result.exit_code == 0
    assert result.manifest["rows"]["rows"] == n_sent
    check_same(tmp_path / "out", undisturbed, out_of_time=3)
    assert [str(one) for one in verify(tmp_path / "out") if not one.passed] == []
