"""A topic that is read on Flink, a reader for each partition, releases what one process releases."""

from __future__ import annotations

import json
import signal
import threading
import time
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace

import polars as pl
import pytest

pytest.importorskip("confluent_kafka", reason="the extra 'kafka' is not installed")

from confluent_kafka.admin import AdminClient, NewPartitions

from penstock.mechanisms.core.plugin import ConfigError
from penstock.pipeline import INTERRUPTED
from penstock.pipeline.monitoring.verify import verify
from penstock.pipeline.run import run
from penstock.pipeline.runners.flink.jars import class_path
from penstock.pipeline.sources.base import EventBlock
from tests.integration.flink_cluster import FlinkCluster
from tests.integration.flink_runs import goes_on, running, stop_and_go_on, wait_until, words_of
from tests.integration.test_kafka import (
    broker,
    check_same,
    check_topics,
    configured,
    events_of,
    live,
    live_topic,
    outputs,
    producer,
    sections,
    topic,
    topics,
)
from tests.integration.test_kafka import undisturbed as undisturbed
from tests.tools.ledgers import charged_until
from tests.tools.play_topic import play

pytestmark = pytest.mark.integration
__all__ = ["broker", "topics", "undisturbed"]


@pytest.fixture(autouse=True)
def flink():
    try:
        class_path()
    except ConfigError as error:
        pytest.skip(str(error))


def check(result, folder, undisturbed) -> None:
    """The run has the outcomes and releases of a finite run."""
    outcomes = ("used", "duplicates", "late")
    assert [result.manifest["rows"][outcome] for outcome in outcomes] == [
        undisturbed[1][outcome] for outcome in outcomes
    ]
    assert outputs(folder)["public/releases.parquet"] == undisturbed[0]["public/releases.parquet"]


def test_flink_reads_a_topic_and_writes_one(broker, topics, tmp_path, undisturbed):
    play(events_of(), producer(broker), topics["events"], 3, end=True)
    output = {"path": str(tmp_path / "out"), "report": False}
    output |= {"kafka": {"brokers": broker.address, "releases": topics["releases"], "accounts": topics["accounts"]}}
    result = run(configured(sections(tmp_path, topic(broker, topics), output=output)), runner="flink")
    assert result.exit_code == 0
    check(result, tmp_path / "out", undisturbed)
    check_topics(broker, topics, tmp_path / "out")


def test_partitions_that_are_idle_or_added_close_nobodys_window_on_flink(broker, topics, tmp_path):
    """The third partition has a reader and never an event: its watermark follows the clock; nobody's row is late.

    Nor is one of a fourth partition, which the topic is given while its future reader reads another one.
    """
    folder, names = tmp_path / "out", live_topic(broker, topics)
    value = sections(folder, topic(broker, names, **live(0)))
    value["windows"] = {"type": "fixed", "size": "2s", "allowed_lateness": "2s"}
    config, admin = tmp_path / "config.json", AdminClient({"bootstrap.servers": broker.address})
    config.write_text(json.dumps(value))
    name, sender, place = names["events"], producer(broker), {"latitude": 37.78, "longitude": -122.42}

    def send(user: int, time: float, partition: int) -> None:
        sender.send(name, "", json.dumps({"user": user, "time": int(time * 1000), **place}), partition)
        sender.flush()

    begin = time.time()
    send(0, begin + 19, 0)  # from the future
    for user in range(1, 20):
        send(user, begin + user / 20, user % 2)
    with running(config, folder) as driver:
        readers, ledger = folder / "operator" / "parts" / "spool", folder / "operator" / "ledger"
        assert wait_until(lambda: len(list(readers.glob("reader-*/journal-*.jsonl"))) == 3, 240), words_of(folder)
        admin.create_partitions([NewPartitions(name, 4)])[name].result()
        assert wait_until(lambda: len(admin.list_topics(name).topics[name].partitions) == 4, 60)
        sender = producer(broker)  # one that knows it
        for user in range(20, 30):
            last = time.time()
            send(user, last, 3 if user % 2 else user % 4 // 2)
            time.sleep(0.4)
        end = 1000 * max(last, begin + 19)
        assert wait_until(lambda: ledger.exists() and charged_until(ledger) > end, 120), words_of(folder)
        driver.send_signal(signal.SIGINT)
        assert driver.wait(120) == INTERRUPTED, words_of(folder)
    rows = json.loads((folder / "operator" / "manifest.json").read_text())["rows"]
    assert [rows[outcome] for outcome in ("rows", "used", "late")] == [30, 30, 0]


def test_readers_that_are_killed_count_nothing_twice(broker, topics, tmp_path, undisturbed):
    """Python workers are killed while events come: every reader goes on where the last checkpoint left it."""
    output = {"path": str(tmp_path / "out"), "report": False}
    output |= {"kafka": {"brokers": broker.address, "releases": topics["releases"], "accounts": topics["accounts"]}}
    config, folder = tmp_path / "config.json", tmp_path / "out"
    config.write_text(json.dumps(sections(tmp_path, topic(broker, topics), output=output)))
    with (
        FlinkCluster(tmp_path / "cluster", n_task_managers=1) as cluster,
        running(config, folder, "--", *cluster.options, "--checkpointing_interval=1000") as driver,
    ):
        assert wait_until(lambda: bool(cluster.workers()), 240), words_of(folder)
        # For 40 seconds from here on, so that the run does not end before it has lost two workers.
        with coming(broker, topics, rate=400):
            for number in range(2):
                assert goes_on(folder, driver), words_of(folder)
                time.sleep(0.7 * number)
                # What was released last may be the last word of workers that are gone.
                assert wait_until(lambda: bool(cluster.workers()), 120)
                assert cluster.kill_worker()
            assert driver.wait(240) == 0, words_of(folder)
    assert outputs(folder) == undisturbed[0]
    check_topics(broker, topics, folder)


@pytest.mark.slow  # test_flink_savepoint.py is the same without a topic, and always runs
def test_a_savepoint_changes_no_release(broker, topics, tmp_path, undisturbed):
    """A run is stopped with a savepoint at noon, and a new job goes on with what has come meanwhile."""
    config, folder = tmp_path / "config.json", tmp_path / "out"
    config.write_text(json.dumps(sections(folder, topic(broker, topics))))
    play(half_of(events_of(), 0), producer(broker), topics["events"], 3)
    rest = partial(play, half_of(events_of(), 1), producer(broker), topics["events"], 3, end=True)
    with FlinkCluster(tmp_path / "cluster", n_task_managers=1) as cluster:
        stop_and_go_on(cluster, config, folder, rest)
    check_same(folder, undisturbed, out_of_time=3)  # the events that end it
    assert [str(one) for one in verify(folder) if not one.passed] == []


def half_of(source, number: int):
    """A source of a day with the events before noon alone (0), or those after it (1)."""

    def all_blocks():
        for block in source.all_blocks():
            later = pl.col("time") >= (source.from_ + source.until) // 2
            half = block.frame.filter(later if number else ~later)
            yield EventBlock(half, half.height)

    return SimpleNamespace(all_blocks=all_blocks, until=source.until)


@contextmanager
def coming(broker, topics, rate: float):
    """Events that come at a rate while something else is done."""
    sending = {"rows": 50, "rate": rate, "end": True}
    feeding = threading.Thread(target=play, args=(events_of(), producer(broker), topics["events"], 3), kwargs=sending)
    feeding.start()
    yield
    feeding.join()
