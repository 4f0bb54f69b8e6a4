"""Runs that read from a real broker and write to it: whatever happens to them, the releases are the same."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest

from tests.integration import kafka_broker

pytest.importorskip("confluent_kafka", reason="the extra 'kafka' is not installed")

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka import Producer as TransactionalProducer
from confluent_kafka.admin import AdminClient, NewPartitions

from penstock.mechanisms.core.noise_keys import new_key_file
from penstock.mechanisms.core.plugin import DataError
from penstock.pipeline import INTERRUPTED
from penstock.pipeline.cli.main import main
from penstock.pipeline.config.run import loads
from penstock.pipeline.monitoring.status import of_folder
from penstock.pipeline.run import run
from penstock.pipeline.sources.reading.kafka_client import Producer, null_logger
from tests.integration.kafka_broker import Broker, wait_for
from tests.tools.ledgers import charged_until, charges_in, windows_in
from tests.tools.play_topic import avro_schema, make_topics, play

pytestmark = pytest.mark.integration

SYNTHETIC = {"type": "synthetic", "n_users": 300, "days": 1, "seed": 7, "events_per_hour": 2}
SPACE = {"type": "grid", "south": 37.74, "north": 37.82, "west": -122.47, "east": -122.37, "rows": 3, "columns": 3}


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    if reason := kafka_broker.missing():
        pytest.skip(reason)
    with Broker(tmp_path_factory.mktemp("broker")) as broker:
        yield broker


@pytest.fixture
def topics(broker, request):
    """Names of topics that this test has for itself: events in three partitions, and one partition for the others."""
    stem = request.node.name.replace("[", "-").replace("]", "")
    names = {kind: f"{stem}-{kind}" for kind in ("events", "dead", "releases", "accounts")}
    make_topics(broker.address, {name: 3 if kind == "events" else 1 for kind, name in names.items()})
    return names


def sections(folder: Path, source: dict, **changes) -> dict:
    return {
        "name": "kafka",
        "seed": 3,
        "source": source,
        "space": SPACE,
        "windows": {"type": "fixed", "size": "20m", "allowed_lateness": "5m"},
        "bounding": {"max_cells": 2},
        "mechanism": {"type": "discrete_laplace", "epsilon": 1.0},
        "accountants": [{"type": "composition"}],
        "output": {"path": str(folder), "report": False, "ledger_source": "events"}
        | {"ledger": str(folder / "operator" / "ledger"), "new_ledger": True},
    } | changes


def configured(value: dict):
    return loads(json.dumps(value))


def events_of(value: dict = SYNTHETIC):
    return configured(sections(Path("unused"), value)).source


def topic(broker: Broker, topics: dict, **changes) -> dict:
    city = events_of()
    times = {"from": "2024-01-01T00:00:00Z", "until": "2024-01-02T00:00:00Z"}
    assert (city.from_, city.until) == tuple(
        int(pl.Series([t]).str.to_datetime()[0].timestamp() * 1000) for t in times.values()
    )
    return (
        {"type": "kafka", "brokers": broker.address, "topic": topics["events"], "user_type": "integer"}
        | {"time_format": "unix_ms", "checkpoint": "300ms", "watermark": "events"}
        | times
        | changes
    )


def producer(broker: Broker) -> Producer:
    return Producer(broker.address, {})


def outputs(folder: Path) -> dict[str, bytes]:
    names = ["public/releases.parquet", "public/accounts.parquet", "operator/truth.parquet"]
    return {name: (folder / name).read_bytes() for name in names}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Run the same events from files."""
    folder = tmp_path_factory.mktemp("finite") / "out"
    result = run(configured(sections(folder, SYNTHETIC)))
    return outputs(folder), result.manifest["rows"]


def check_same(folder: Path, undisturbed, **rows) -> None:
    files, expected = undisturbed
    assert outputs(folder) == files
    actual = json.loads((folder / "operator" / "manifest.json").read_text())["rows"]
    n_more = sum(rows.values())
    assert actual["rows"] == expected["rows"] + n_more
    for outcome in ("used", "duplicates", "late", "out_of_area", "out_of_time", "rejected"):
        assert actual[outcome] == expected[outcome] + rows.get(outcome, 0), outcome
    charges = windows_in(folder)
    assert charges == list(range(1, 73))


def read(broker: Broker, name: str) -> list[tuple[str, dict]]:
    """Everything that a topic holds."""
    settings = {
        "bootstrap.servers": broker.address,
        "group.id": "test",
        "enable.partition.eof": True,
        "enable.auto.commit": False,
    }
    client = Consumer(settings | {"auto.offset.reset": "earliest"})
    client.assign([TopicPartition(name, 0, 0)])
    actual = []
    while (message := client.poll(20)) is not None and message.error() is None:
        actual.append((message.key().decode(), json.loads(message.value())))
    client.close()
    return actual


def start(value: dict, folder: Path, resume: bool = False) -> subprocess.Popen:
    path = folder / "run.yaml"
    path.write_text(json.dumps(value))
    command = [sys.executable, "-m", "penstock.pipeline.cli.main", "run", str(path), *(["--resume"] if resume else [])]
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)


@pytest.mark.parametrize("format", ["json", "avro"])
def test_a_topic_releases_what_a_file_does(broker, topics, tmp_path, undisturbed, format):
    city = events_of()
    n_sent = play(city, producer(broker), topics["events"], 3, format, rows=500, end=True)
    source = topic(broker, topics, format=format)
    if format == "avro":
        columns = ["user", "time", "latitude", "longitude", "place"]
        source |= {"schema": avro_schema(columns, integer_users=True)}
    result = run(configured(sections(tmp_path / "out", source)))
    assert result.exit_code == 0
    assert result.manifest["rows"]["rows"] == n_sent + 3
    check_same(tmp_path / "out", undisturbed, out_of_time=3)


def test_what_was_counted_is_held_against_the_offsets_of_the_topic(broker, topics, tmp_path, capsys):
    """Markers of transactions, and what was aborted, are offsets without a record; what was not read is missed."""
    names = live_topic(broker, topics)
    sender = TransactionalProducer(
        {"bootstrap.servers": broker.address, "transactional.id": "offsets", "logger": null_logger()}
    )
    sender.init_transactions(20)
    value = sections(tmp_path / "out", topic(broker, names, **live(12)))
    value["windows"] = {"type": "fixed", "size": "2s", "allowed_lateness": "2s"}
    running = start(value, tmp_path)
    for number in range(12):
        row = {"user": number, "time": int(time.time() * 1000), "latitude": 37.78, "longitude": -122.42}
        sender.begin_transaction()
        sender.produce(names["events"], json.dumps(row), partition=number % 2)
        sender.flush()
        sender.abort_transaction(20) if number % 3 == 0 else sender.commit_transaction(20)
        time.sleep(0.5)
    assert running.wait(60) == 0, (tmp_path / "log").read_text()
    offsets = json.loads((tmp_path / "out" / "operator" / "manifest.json").read_text())["offsets"]
    assert (offsets["shortfall"], offsets["unchecked"]) == ([], None)
    rows = {one["partition"]: (one["first"], one["records"], one["without_record"]) for one in offsets["ranges"]}
    assert [rows[partition][:2] for partition in (0, 1)] == [(0, 4), (0, 4)]
    assert all(rows[partition][2] > 4 for partition in (0, 1))
    assert main(["verify", str(tmp_path / "out")]) == 0
    assert "without a record" in capsys.readouterr().out
    # What a later look finds: a broker whose clock was further behind than the configuration allows, say.
    path = tmp_path / "out" / "operator" / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["offsets"]["ranges"][0]["end"] -= 3
    path.write_text(json.dumps(manifest))
    assert main(["verify", str(tmp_path / "out")]) == 1
    assert "of partition 0 were not read" in capsys.readouterr().out


def test_malformed_messages_go_to_dead_letters(broker, topics, tmp_path, undisturbed):
    sender = producer(broker)
    for partition in range(3):
        sender.send(topics["events"], "secret-key", b"{secret", partition)
    play(events_of(), sender, topics["events"], 3, end=True)
    run(configured(sections(tmp_path / "out", topic(broker, topics, dead_letters=topics["dead"]))))
    check_same(tmp_path / "out", undisturbed, out_of_time=3, rejected=3)
    letters = read(broker, topics["dead"])
    name = topics["events"]
    assert sorted({key for key, _ in letters}) == [f"{name}/{partition}/0" for partition in range(3)]
    assert letters[0][1] == {
        "topic": name,
        "partition": int(letters[0][0].split("/")[1]),
        "offset": 0,
        "reason": "not valid JSON",
        "rows": 1,
    }


@pytest.mark.parametrize("n_kills", [3, pytest.param(30, marks=pytest.mark.slow)])
def test_runs_that_are_killed_end_like_others(broker, topics, tmp_path, undisturbed, n_kills):
    """SIGKILL at moments that are spread over a run whose events come while it goes on."""
    output = {"path": str(tmp_path / "out"), "report": False}
    output |= {"kafka": {"brokers": broker.address, "releases": topics["releases"], "accounts": topics["accounts"]}}
    value = sections(tmp_path, topic(broker, topics), output=output)
    rate = events_of().n_users * 48 / (4 + 2.5 * n_kills)
    feeding = threading.Thread(
        target=play,
        args=(events_of(), producer(broker), topics["events"], 3),
        kwargs={"rows": 50, "rate": rate, "end": True},
    )
    feeding.start()
    for number in range(n_kills):
        running = start(value, tmp_path, resume=number > 0)
        wait_for(lambda: any((tmp_path / "out" / "operator").glob("checkpoint/latest")), running)
        time.sleep(0.3 + number % 7 * 0.15)
        os.killpg(running.pid, signal.SIGKILL)
        assert running.wait() == -signal.SIGKILL
    running = start(value, tmp_path, resume=True)
    assert running.wait(120) == 0, (tmp_path / "log").read_text()
    feeding.join()
    check_same(tmp_path / "out", undisturbed, out_of_time=3)
    check_topics(broker, topics, tmp_path / "out")


def check_topics(broker: Broker, topics: dict, folder: Path) -> None:
    """The topics hold what the files hold, under each key the same whenever it was sent, windows in order."""
    sent = read(broker, topics["releases"])
    first = dict(reversed(sent))
    assert all(first[key] == row for key, row in sent)
    released = pl.read_parquet(folder / "public" / "releases.parquet")
    assert sorted(first) == sorted(f"main/{window}/{cell}" for window, cell in released.select("window", "cell").rows())
    windows = list(dict.fromkeys(row["window"] for _, row in sent))
    assert windows == sorted(windows)
    values = {(row["window"], row["cell"]): row["value"] for row in first.values()}
    assert values == {
        (window, cell): value for window, cell, value in released.select("window", "cell", "value").rows()
    }
    accounts = pl.read_parquet(folder / "public" / "accounts.parquet")
    assert len({key for key, _ in read(broker, topics["accounts"])}) == accounts.height


def test_an_interrupted_run_goes_on(broker, topics, tmp_path, undisturbed):
    play(events_of(), producer(broker), topics["events"], 3)
    value = sections(tmp_path / "out", topic(broker, topics))
    running = start(value, tmp_path)
    wait_for(lambda: any((tmp_path / "out" / "public" / "parts" / "releases").glob("*.parquet")), running)
    running.send_signal(signal.SIGINT)
    assert running.wait(60) == INTERRUPTED, (tmp_path / "log").read_text()
    beyond = events_of(SYNTHETIC | {"n_users": 3})
    play(beyond, producer(broker), topics["events"], 3, end=True, rows=10**6)
    running = start(value, tmp_path, resume=True)
    assert running.wait(60) == 0, (tmp_path / "log").read_text()
    manifest = json.loads((tmp_path / "out" / "operator" / "manifest.json").read_text())
    assert manifest["rows"]["late"] > 0
    assert manifest["windows"]["published"] == 72


def test_what_was_idle_stays_idle_when_a_run_goes_on(broker, topics, tmp_path):
    """Windows are released while a partition is idle; its events come too late, and do so again after a kill."""
    sender, name = producer(broker), topics["events"]
    play(events_of(), sender, name, 1)
    value = sections(tmp_path / "out", topic(broker, topics, idle_after="1s", checkpoint="1h"))
    running = start(value, tmp_path)
    parts = tmp_path / "out" / "public" / "parts" / "releases"
    wait_for(lambda: any(parts.glob("*.parquet")), running)
    late = events_of(SYNTHETIC | {"n_users": 10})
    n_late = 0
    for block in (block for span in late.spans() for block in late.read(span)):
        early = block.frame.filter(pl.col("time") < late.from_ + 3_600_000 * 20)
        for row in early.iter_rows(named=True):
            sender.send(name, "", json.dumps(row), 1)
        n_late += early.height
    sender.flush()
    journal = tmp_path / "out" / "operator" / "parts" / "spool" / "journal-000001.jsonl"
    wait_for(lambda: f", {n_late}]" in journal.read_text(), running)
    before = {part.name: part.read_bytes() for part in parts.glob("*.parquet")}
    assert before
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()
    beyond = events_of()
    for partition in range(3):
        sender.send(
            name, "", json.dumps({"user": 1, "time": beyond.until + 10**8, "latitude": 1, "longitude": 1}), partition
        )
    sender.flush()
    running = start(value, tmp_path, resume=True)
    assert running.wait(60) == 0, (tmp_path / "log").read_text()
    rows = json.loads((tmp_path / "out" / "operator" / "manifest.json").read_text())["rows"]
    assert rows["late"] == n_late


def test_a_broker_that_goes_away_for_a_while(broker, topics, tmp_path, undisturbed):
    city = events_of()
    feeding = threading.Thread(
        target=play, args=(city, producer(broker), topics["events"], 3), kwargs={"rows": 50, "rate": 1200, "end": True}
    )
    feeding.start()
    value = sections(tmp_path / "out", topic(broker, topics))
    running = start(value, tmp_path)
    wait_for(lambda: any((tmp_path / "out" / "public" / "parts" / "releases").glob("*.parquet")), running)
    broker.stop(signal.SIGKILL)
    time.sleep(1)
    broker.start()
    assert running.wait(120) == 0, (tmp_path / "log").read_text()
    feeding.join()
    check_same(tmp_path / "out", undisturbed, out_of_time=3)


def test_a_topic_that_is_deleted_ends_the_run_and_one_made_anew_is_not_taken_for_it(broker, topics, tmp_path):
    n_sent = play(events_of(), producer(broker), topics["events"], 3)
    value = sections(tmp_path / "out", topic(broker, topics, patience="3s"))
    running = start(value, tmp_path)

    def text_of_error() -> str:
        return (tmp_path / "log").read_text()

    def has_read_all() -> bool:
        return (tmp_path / "out" / "operator" / "checkpoint" / "latest").exists() and (
            of_folder(tmp_path / "out").rows == n_sent
        )

    wait_for(has_read_all, running, seconds=240)
    released = sorted((tmp_path / "out" / "public" / "parts" / "releases").glob("*.parquet"))
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.delete_topics([topics["events"]])[topics["events"]].result()
    assert running.wait(240) == 1, text_of_error()
    assert "out of reach for" in text_of_error()
    assert "--resume goes on from it once the service is back" in text_of_error()
    assert start(value, tmp_path, resume=True).wait(240) == 1  # it is not there yet
    make_topics(broker.address, {topics["events"]: 3})
    play(events_of(), producer(broker), topics["events"], 3)  # offsets that the run would go on from
    assert start(value, tmp_path, resume=True).wait(240) == 1
    assert "was created again since the run began" in text_of_error()
    assert sorted((tmp_path / "out" / "public" / "parts" / "releases").glob("*.parquet")) == released


def live_topic(broker, topics: dict) -> dict:
    """Create a topic with broker timestamps."""
    name = f"{topics['events']}-live"
    make_topics(broker.address, {name: 3}, by_broker=True)
    return topics | {"events": name}


def live(seconds: int) -> dict:
    """A source of events that come from now on."""
    begin = datetime.now(UTC).replace(microsecond=0)
    ends = [(begin + timedelta(seconds=after)).isoformat().replace("+00:00", "Z") for after in (0, seconds)]
    return {"watermark": "broker", "from": ends[0], "until": ends[1] if seconds else None, "idle_after": "1s"}


def test_an_event_from_the_future_closes_nobodys_windows(broker, topics, tmp_path):
    """By the broker's clock; an open transaction in one partition delays all windows and makes no row late."""
    names = live_topic(broker, topics)
    open_one = TransactionalProducer(
        {"bootstrap.servers": broker.address, "transactional.id": "slow", "logger": null_logger()}
    )
    open_one.init_transactions(20)
    source = topic(broker, names, **live(20))
    value = sections(tmp_path / "out", source, windows={"type": "fixed", "size": "2s", "allowed_lateness": "2s"})
    value |= {"mode": "deployment", "noise_key": str(tmp_path / "key"), "seed": None}
    new_key_file(tmp_path / "key")
    sender, place = producer(broker), {"latitude": 37.78, "longitude": -122.42}
    begin = configured(value).source.from_
    far = {"user": 0, "time": begin + 11_000, **place}
    sender.send(names["events"], "", json.dumps(far), 0)
    sender.flush()
    running = start({key: section for key, section in value.items() if section is not None}, tmp_path)
    for number in range(20):
        row = {"user": 1 + number, "time": int(time.time() * 1000), **place}
        sender.send(names["events"], "", json.dumps(row), number % 3)
        sender.flush()
        time.sleep(0.3)
    open_one.begin_transaction()
    for user in (100, 0):  # the other row is appended behind the open transaction
        row = json.dumps({"user": user, "time": int(time.time() * 1000), **place})
        if user:
            open_one.produce(names["events"], row, partition=1)
            open_one.flush()
        else:
            sender.send(names["events"], "", row, 1)
            sender.flush()
    time.sleep(6)
    open_one.commit_transaction()
    assert running.wait(90) == 0, (tmp_path / "log").read_text()
    rows = json.loads((tmp_path / "out" / "operator" / "manifest.json").read_text())["rows"]
    assert (rows["rows"], rows["used"], rows["late"]) == (23, 23, 0)


def test_a_partition_that_is_added_while_a_run_goes_on_is_in_time(broker, topics, tmp_path):
    """Its rows are appended before their windows' deadlines, and those of the other partitions stay what they are."""
    names = live_topic(broker, topics)
    name, admin = names["events"], AdminClient({"bootstrap.servers": broker.address})
    source = topic(broker, names, **live(0))
    value = sections(tmp_path / "out", source, windows={"type": "fixed", "size": "4s", "allowed_lateness": "4s"})
    running = start(value, tmp_path)
    ledger = tmp_path / "out" / "operator" / "ledger"
    wait_for(ledger.exists, running)
    sender, place = producer(broker), {"latitude": 37.78, "longitude": -122.42}
    for number in range(20):
        if number == 5:
            admin.create_partitions([NewPartitions(name, 4)])[name].result()
            wait_for(lambda: len(admin.list_topics(name).topics[name].partitions) == 4)
            sender = producer(broker)  # one that knows it
        row = {"user": number, "time": int(time.time() * 1000), **place}
        sender.send(name, "", json.dumps(row), 3 if number >= 5 and number % 2 else number % 3)
        sender.flush()
        time.sleep(0.5)
    wait_for(lambda: charged_until(ledger) > row["time"], running)
    running.send_signal(signal.SIGINT)
    assert running.wait(60) == INTERRUPTED, (tmp_path / "log").read_text()
    rows = json.loads((tmp_path / "out" / "operator" / "manifest.json").read_text())["rows"]
    assert (rows["rows"], rows["used"], rows["late"]) == (20, 20, 0)


#: ``penstock`` with a clock that is off by as many seconds as a file says.
CLOCK = """
import pathlib, sys, time

now, step = time.time, pathlib.Path(sys.argv.pop(1))
time.time = lambda: now() + float(step.read_text())

from penstock.pipeline.cli.main import main

sys.exit(main(sys.argv[1:]))
"""


def test_a_clock_that_steps_back_delays_windows_and_loses_nothing(broker, topics, tmp_path):
    """That of the machine that reads, in a deployment: released windows stay, the next ones wait until it is there."""
    names = live_topic(broker, topics)
    windows = {"type": "fixed", "size": "1s", "allowed_lateness": "1s"}
    value = sections(tmp_path / "out", topic(broker, names, **live(30)), windows=windows)
    new_key_file(tmp_path / "key")
    value |= {"mode": "deployment", "noise_key": str(tmp_path / "key")}
    del value["seed"]
    (tmp_path / "run.yaml").write_text(json.dumps(value))
    (tmp_path / "step").write_text("0")
    command = [sys.executable, "-c", CLOCK, str(tmp_path / "step"), "run", str(tmp_path / "run.yaml")]
    with (tmp_path / "log").open("ab") as log:
        running = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    ledger, sender, place = tmp_path / "out" / "operator" / "ledger", producer(broker), {"latitude": 37.78}
    place |= {"longitude": -122.42}
    wait_for(lambda: ledger.exists() and bool(charges_in(ledger)), running)
    begun, n_sent, before = time.monotonic(), 0, 0
    while time.monotonic() < begun + 12:
        row = {"user": n_sent, "time": int(time.time() * 1000), **place}
        sender.send(names["events"], "", json.dumps(row), n_sent % 3)
        sender.flush()
        n_sent += 1
        if not before and time.monotonic() > begun + 4:
            (tmp_path / "step").write_text("-8")
            before = len(charges_in(ledger))
        time.sleep(0.2)
    assert running.wait(120) == 0, (tmp_path / "log").read_text()
    rows = json.loads((tmp_path / "out" / "operator" / "manifest.json").read_text())["rows"]
    assert (rows["late"], rows["used"] + rows["out_of_time"]) == (0, n_sent)
    assert 0 < before < 30
    assert windows_in(ledger) == list(range(1, 31))


def test_a_topic_with_the_timestamps_of_senders_is_refused(broker, topics, tmp_path):
    play(events_of(SYNTHETIC | {"n_users": 3}), producer(broker), topics["events"], 3)
    with pytest.raises(DataError, match=r"message\.timestamp\.type=LogAppendTime"):
        run(configured(sections(tmp_path / "out", topic(broker, topics, watermark="broker"))))


def test_windows_end_by_the_clock_where_nothing_comes(broker, topics, tmp_path):
    """Neither the content nor the time of a message shows whether there were events."""
    source = topic(broker, live_topic(broker, topics), offset="latest", **live(0))
    value = sections(tmp_path / "out", source, windows={"type": "fixed", "size": "1s"})
    running = start(value, tmp_path)
    ledger = tmp_path / "out" / "operator" / "ledger"
    wait_for(lambda: ledger.exists() and len(ledger.read_text().splitlines()) >= 5, running)
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()
    charged = len(ledger.read_text().splitlines())
    running = start(value, tmp_path, resume=True)
    wait_for(lambda: len(ledger.read_text().splitlines()) >= charged + 3, running)
    running.send_signal(signal.SIGINT)
    assert running.wait(60) == INTERRUPTED, (tmp_path / "log").read_text()
    released = pl.read_parquet(tmp_path / "out" / "public" / "releases.parquet")
    windows = released["window"].unique().sort().to_list()
    assert windows == list(range(1, len(windows) + 1))
    assert released.group_by("window").len()["len"].unique().to_list() == [9]
