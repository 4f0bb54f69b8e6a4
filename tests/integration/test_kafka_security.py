"""Leak search in a deployment on Kafka, and authentication with brokers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial

import pytest

from tests.integration import kafka_broker

pytest.importorskip("confluent_kafka", reason="the extra 'kafka' is not installed")

from confluent_kafka import Consumer, TopicPartition

from penstock.mechanisms.core.noise_keys import new_key_file
from penstock.mechanisms.core.plugin import DataError
from penstock.pipeline.config.run import loads
from penstock.pipeline.run import run
from penstock.pipeline.sources.reading.kafka_client import Producer
from tests.integration.kafka_broker import Broker
from tests.tools.play_topic import make_topics

pytestmark = pytest.mark.integration

NOON = 1_704_110_400_000
PASSWORD = "correct-horse-battery-staple"
USERS = [f"planted-{name}-7f3a" for name in ("ann", "bob", "eve")]
LATITUDE, LONGITUDE = 37.7612345, -122.4198765
JAAS = "org.apache.kafka.common.security.plain.PlainLoginModule required user_penstock"
SECURE = f"""listener.name.sasl_ssl.sasl.enabled.mechanisms=PLAIN
listener.name.sasl_ssl.plain.sasl.jaas.config={JAAS}="{PASSWORD}";
ssl.keystore.type=PKCS12
ssl.keystore.password=storepassword
ssl.keystore.location="""


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    """A broker that listens with SASL over TLS too, and the certificate to trust."""
    if reason := kafka_broker.missing():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("secure")
    store = ["-keystore", str(folder / "store.p12"), "-storepass", "storepassword", "-alias", "broker"]
    names = ["-dname", "CN=localhost", "-ext", "SAN=dns:localhost,ip:127.0.0.1"]
    make = ["keytool", "-genkeypair", "-keyalg", "RSA", "-validity", "30", "-storetype", "PKCS12", *names, *store]
    subprocess.run(make, check=True, capture_output=True)
    show = ["keytool", "-exportcert", "-rfc", *store, "-file", str(folder / "broker.pem")]
    subprocess.run(show, check=True, capture_output=True)
    with Broker(folder / "broker", f"{SECURE}{folder / 'store.p12'}\n", secure=True) as broker:
        yield broker, folder / "broker.pem"


def events() -> list[dict]:
    actual = []
    for minute in range(0, 180, 2):
        place = {"latitude": LATITUDE, "longitude": LONGITUDE}
        actual.append({"user": USERS[minute % 3], "time": NOON + 60_000 * minute, **place})
    return actual


def sections(folder, topics, brokers: str, options: dict | None = None) -> dict:
    box = {"south": 37.74, "north": 37.82, "west": -122.47, "east": -122.37, "rows": 3, "columns": 3}
    client = {"brokers": brokers, "options": options or {}}
    return {
        "name": "deployed",
        "mode": "deployment",
        "allow_no_guarantee": True,  # the events are of 2024
        "noise_key": str(folder / "key"),
        "source": {
            "type": "kafka",
            "topic": topics["events"],
            "from": "2024-01-01T12:00:00Z",
            "until": "2024-01-01T15:00:00Z",
            "time_format": "unix_ms",
            "dead_letters": topics["dead"],
            "checkpoint": "100ms",
            "watermark": "events",
            **client,
        },
        "space": {"type": "grid", **box},
        "windows": {"type": "fixed", "size": "20m", "allowed_lateness": "5m"},
        "bounding": {"max_cells": 2},
        "mechanism": {"type": "discrete_laplace", "epsilon": 1.0},
        "accountants": [{"type": "composition"}],
        "output": {
            "path": str(folder / "out"),
            "ledger_source": "events",
            "ledger": str(folder / "ledger"),
            "kafka": {"releases": topics["releases"], "accounts": topics["accounts"], **client},
        },
    }


def make(broker: Broker, stem: str, tmp_path, end: bool = True) -> dict:
    """Topics and a key; events and what is none are sent, and the event that ends the run where it is wanted."""
    topics = {kind: f"{stem}-{kind}" for kind in ("events", "dead", "releases", "accounts")}
    make_topics(broker.address, dict.fromkeys(topics.values(), 1))
    new_key_file(tmp_path / "key")
    producer = Producer(broker.address, {})
    rows = events()
    for number, event in enumerate(rows):
        producer.send(topics["events"], event["user"], json.dumps(event))
        if number % 20 == 0:
            producer.send(topics["events"], event["user"], json.dumps(event)[:-1])
            producer.send(topics["events"], event["user"], json.dumps(event | {"latitude": 3e7 + LATITUDE}))
    producer.flush()
    if end:
        send_end(broker, topics)
    return topics


def send_end(broker: Broker, topics: dict) -> None:
    """An event long after the run, so that it ends."""
    producer = Producer(broker.address, {})
    producer.send(topics["events"], "", json.dumps(events()[0] | {"time": NOON + 10**9}))
    producer.flush()


def content(broker: Broker, topic: str) -> bytes:
    settings = {
        "bootstrap.servers": broker.address,
        "group.id": "test",
        "enable.partition.eof": True,
        "enable.auto.commit": False,
    }
    client = Consumer(settings)
    client.assign([TopicPartition(topic, 0, 0)])
    actual = []
    while (message := client.poll(20)) is not None and message.error() is None:
        actual.append((message.key() or b"") + b"\n" + (message.value() or b""))
    client.close()
    return b"\n".join(actual)


def planted(tmp_path) -> list[bytes]:
    """Planted ids, coordinates, key and password."""
    key = (tmp_path / "key").read_text().strip()
    texts = [*USERS, "planted", str(LATITUDE), str(LONGITUDE), "37.7612", "122.4198", key, PASSWORD]
    actual = [text.encode() for text in texts]
    for line in key.split():
        if len(line) >= 32 and all(letter in "0123456789abcdef" for letter in line):
            actual.append(bytes.fromhex(line))
    return actual


@pytest.mark.parametrize("killed", [False, True])
def test_a_deployment_leaves_no_trace_of_people_or_keys(broker, tmp_path, killed):
    """Every file, log line and topic of a run is searched; of one that was killed, with its checkpoint, too."""
    server, certificate = broker
    topics = make(server, f"leak{killed}", tmp_path)
    value = sections(tmp_path, topics, f"localhost:{server.secure_port}", secured(certificate))
    if killed:
        value["source"]["until"] = "2024-01-20T00:00:00Z"
    config = tmp_path / "run.yaml"
    config.write_text(json.dumps(value))
    command = [sys.executable, "-m", "penstock.pipeline.cli.main", "run", str(config)]
    running = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=os.environ | {"KAFKA_PASSWORD": PASSWORD}
    )
    if killed:
        parts = tmp_path / "out" / "operator" / "checkpoint" / "latest"
        messages = partial(content, server, topics["dead"])
        kafka_broker.wait_for(lambda: parts.exists() and messages().count(b"latitude is no number of degrees") == 5)
        running.kill()
    printed = running.communicate(timeout=60)[0]
    assert killed or running.returncode == 0, printed
    places = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert len(places) > 5
    sent = {name: content(server, name) for kind, name in topics.items() if kind != "events"}
    assert sent[topics["dead"]].count(b"latitude is no number of degrees") == 5
    assert killed or sent[topics["releases"]].count(b'"cell"') == 81
    for where, data in {**places, **sent, "printed": printed}.items():
        for secret in planted(tmp_path):
            assert secret not in data, f"{secret!r} in {where}"


def test_the_search_finds_what_is_planted(broker, tmp_path):
    """A search of the topic of events finds everybody, so the search works."""
    server, _ = broker
    topics = make(server, "found", tmp_path)
    data = content(server, topics["events"])
    assert [secret in data for secret in planted(tmp_path)[:4]] == [True] * 4


def secured(certificate) -> dict:
    return {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "penstock",
        "sasl.password": "env:KAFKA_PASSWORD",
        "ssl.ca.location": str(certificate),
    }


@pytest.mark.parametrize("wrong", ["password", "certificate"])
def test_who_cannot_be_trusted_gets_nothing(broker, tmp_path, monkeypatch, wrong):
    server, certificate = broker
    options = secured(certificate)
    monkeypatch.setenv("KAFKA_PASSWORD", "guess" if wrong == "password" else PASSWORD)
    if wrong == "certificate":
        del options["ssl.ca.location"]
    make_topics(server.address, {f"closed-{wrong}": 1})
    topics = {"events": f"closed-{wrong}", "dead": "dead", "releases": "releases", "accounts": "accounts"}
    new_key_file(tmp_path / "key")
    value = sections(tmp_path, topics, f"localhost:{server.secure_port}", options)
    with pytest.raises(DataError, match="no broker answers") as caught:
        run(loads(json.dumps(value)))
    assert "guess" not in str(caught.value)
