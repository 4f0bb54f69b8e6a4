"""A topic that is read on Flink, a reader for each partition, releases what one process releases."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time

import pytest

pytest.importorskip("confluent_kafka", reason="the extra 'kafka' is not installed")

from confluent_kafka import Consumer, TopicPartition
from flink_cluster import ROOT, FlinkCluster, end
from kafka_broker import wait_for
from test_kafka import broker, check_topics, configured, events_of, outputs, producer, sections, topic, topics
from test_kafka import undisturbed as undisturbed

from mechanisms.core.errors import ConfigError
from pipeline.cluster.jars import class_path
from pipeline.kafka.play import play
from pipeline.run import run

pytestmark = pytest.mark.integration
__all__ = ["broker", "topics", "undisturbed"]


@pytest.fixture(autouse=True)
def flink():
    try:
        class_path()
    except ConfigError as error:
        pytest.skip(str(error))


def check(result, folder, undisturbed) -> None:
    """The run came to its end with the fates and releases of a finite run."""
    assert result.exit_code == 0
    fates = ("used", "duplicates", "late")
    assert [result.manifest["rows"][fate] for fate in fates] == [undisturbed[1][fate] for fate in fates]
    assert outputs(folder)["public/releases.parquet"] == undisturbed[0]["public/releases.parquet"]


def committed(broker, group: str, name: str) -> list[int]:
    """Offsets of the three partitions that a consumer group holds."""
    client = Consumer({"bootstrap.servers": broker.address, "group.id": group, "enable.auto.commit": False})
    found = client.committed([TopicPartition(name, partition) for partition in range(3)], timeout=20)
    client.close()
    return [place.offset for place in found]


def test_flink_reads_a_topic_and_writes_one(broker, topics, tmp_path, undisturbed):
    play(events_of(), producer(broker), topics["events"], 3, end=True)
    output = {"path": str(tmp_path / "out"), "report": False}
    output |= {"kafka": {"brokers": broker.address, "releases": topics["releases"], "accounts": topics["accounts"]}}
    result = run(configured(sections(tmp_path, topic(broker, topics, group="watched"), output=output)), runner="flink")
    check(result, tmp_path / "out", undisturbed)
    check_topics(broker, topics, tmp_path / "out")
    offsets = committed(broker, "watched", topics["events"])
    told = [offset for offset in offsets if offset >= 0]  # a reader that ends within its first turn tells nothing
    assert 0 < sum(told) <= result.manifest["rows"]["rows"], offsets


def test_an_idle_partition_holds_no_window_back_on_flink(broker, topics, tmp_path, undisturbed):
    """The third partition has a reader and never an event; time is what it is at the others."""
    play(events_of(), producer(broker), topics["events"], 2, end=True)
    result = run(configured(sections(tmp_path / "out", topic(broker, topics, idle_after="2s"))), runner="flink")
    check(result, tmp_path / "out", undisturbed)


def test_readers_that_are_killed_count_nothing_twice(broker, topics, tmp_path, undisturbed):
    """Python workers are killed while events come: every reader goes on where the last checkpoint left it."""
    output = {"path": str(tmp_path / "out"), "report": False}
    output |= {"kafka": {"brokers": broker.address, "releases": topics["releases"], "accounts": topics["accounts"]}}
    (tmp_path / "config.json").write_text(json.dumps(sections(tmp_path, topic(broker, topics), output=output)))
    sending = {"rows": 50, "rate": 800, "end": True}
    feeding = threading.Thread(target=play, args=(events_of(), producer(broker), topics["events"], 3), kwargs=sending)
    released = tmp_path / "out" / "public" / "parts" / "releases"
    with FlinkCluster(tmp_path / "cluster", n_task_managers=1) as cluster, (tmp_path / "log").open("ab") as log:
        command = [sys.executable, "-m", "pipeline.cli", "run", str(tmp_path / "config.json"), "--runner", "flink"]
        command += ["--", *cluster.options, "--checkpointing_interval=1000"]
        running = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, start_new_session=True)
        try:
            feeding.start()
            for number in range(2):
                seen = len(list(released.glob("*.parquet")))
                wait_for(lambda seen=seen: len(list(released.glob("*.parquet"))) > seen, running, 180)
                time.sleep(0.7 * number)
                assert cluster.kill_worker()
            assert running.wait(240) == 0, (tmp_path / "log").read_text()[-3000:]
        finally:
            end(running)
    feeding.join()
    assert outputs(tmp_path / "out") == undisturbed[0]
    check_topics(broker, topics, tmp_path / "out")
