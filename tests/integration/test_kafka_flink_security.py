"""Leak search in a deployment on Flink with Kafka: people, coordinates and the key."""

from __future__ import annotations

import base64
import io
import json
import struct
import threading
import urllib.request
from pathlib import Path

import polars as pl
import pytest

from tests.integration import kafka_broker

pytest.importorskip("confluent_kafka", reason="the extra 'kafka' is not installed")

from penstock.pipeline.config.plan import make_plan
from penstock.pipeline.config.run import loads
from penstock.pipeline.counting.users import user_codes
from penstock.pipeline.monitoring.verify import verify
from penstock.pipeline.output.checkpoint import nonce_of_run
from tests.integration.flink_cluster import FlinkCluster
from tests.integration.flink_runs import contents, goes_on, needs_flink, running, savepoint, wait_until, words_of
from tests.integration.kafka_broker import Broker
from tests.integration.ports import free_ports
from tests.integration.test_kafka_security import LATITUDE, LONGITUDE, USERS, content, make, planted, sections, send_end

pytestmark = [pytest.mark.integration, needs_flink]


@pytest.fixture
def broker(tmp_path: Path):
    if reason := kafka_broker.missing():
        pytest.skip(reason)
    with Broker(tmp_path / "broker") as started:
        yield started


def encodings(secret: bytes) -> set[bytes]:
    """Encodings of a secret: plain, hexadecimal, base64 at every offset, and wide characters."""
    actual = {secret, secret.hex().encode(), secret.hex().upper().encode()}
    for shift in range(3):
        text = base64.b64encode(bytes(shift) + secret)
        whole = text[-(-8 * shift // 6) : 4 * ((shift + len(secret)) // 3)]  # what depends on the secret alone
        actual |= {whole, whole.translate(bytes.maketrans(b"+/", b"-_"))}
    if secret.isascii():
        actual |= {secret.decode().encode(code) for code in ("utf-16-le", "utf-16-be")}
    return actual


def secrets(folder: Path) -> set[bytes]:
    """Encodings of all planted values, coordinates as binary numbers included."""
    numbers = [struct.pack(order + "d", place) for order in "<>" for place in (LATITUDE, LONGITUDE)]
    return set().union(*map(encodings, [*planted(folder), *numbers]))


def readable(path: Path, data: bytes) -> bytes:
    """Contents of a file, decompressed where necessary."""
    if path.suffix != ".parquet" or not data.endswith(b"PAR1"):
        return data
    return data + pl.read_parquet(io.BytesIO(data)).write_csv().encode()


def page(port: int) -> bytes:
    """The measures of a run."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        return bytes(answer.read())


def test_the_search_knows_its_encodings():
    message = b'{"user": "' + USERS[0].encode() + b'", "at": 1}'
    for shift in range(3):
        for encoded in (base64.b64encode(message[shift:]), base64.urlsafe_b64encode(message[shift:]), message.hex()):
            data = encoded if isinstance(encoded, bytes) else encoded.encode()
            assert any(secret in data for secret in encodings(USERS[0].encode()))
            assert not any(secret in data for secret in encodings(USERS[1].encode()))


def test_a_deployment_on_flink_leaves_no_trace_of_people_or_keys(broker, tmp_path, monkeypatch):
    """Everything is searched: files of the run and of Flink, temporary ones, logs, checkpoints, a savepoint, topics.

    A Python worker is killed on the way, so that there is a failure to be logged and state to be read again.
    """
    temporary, folder = tmp_path / "temporary", tmp_path / "out"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", f"-Djava.io.tmpdir={temporary}")
    topics = make(broker, "flink", tmp_path, end=False)
    value = sections(tmp_path, topics, broker.address)
    (tmp_path / "run.yaml").write_text(json.dumps(value))
    kept: dict[Path, bytes] = {}
    done = threading.Event()

    def look() -> None:
        while not done.wait(0.3):
            for place in (folder, temporary, tmp_path / "cluster"):
                kept.update(contents(place))

    looking = threading.Thread(target=look)
    with FlinkCluster(tmp_path / "cluster", n_task_managers=1) as cluster:
        looking.start()
        try:
            (port,) = free_ports(1)
            options = ["--metrics-port", str(port), "--", *cluster.options, "--parallelism=1"]
            options += ["--checkpointing_interval=500"]
            with running(tmp_path / "run.yaml", folder, *options) as driver:
                assert goes_on(folder, driver, 8), words_of(folder)  # the ninth window waits for its end
                state = contents(savepoint(cluster, folder))
                # What the workers have counted is on the driver's page.
                assert wait_until(lambda: b'windows_total{action="published"} 8' in page(port), 60)
                kept[tmp_path / "metrics"] = page(port)
                assert cluster.kill_worker()
                assert wait_until(lambda: bool(cluster.rest("/overview")["jobs-running"]), 60)
                send_end(broker, topics)
                assert driver.wait(240) == 0, words_of(folder)
        finally:
            done.set()
            looking.join()
    for place in (folder, temporary, tmp_path / "cluster", tmp_path / "out.log", broker.log):
        kept |= contents(place)
    assert [str(one) for one in verify(folder) if not one.passed] == []
    names = [str(path) for path in kept]
    for part in (
        "/chk-",
        "savepoint-",
        "task-manager-0.log",
        "job-manager.log",
        "pool.log",
        "job_server.log",
        "out.log",
    ):
        assert any(part in name for name in names), part
    # What state does hold: keyed digests of the people in windows that were open.
    config = loads(json.dumps(value))
    plan = make_plan(config, folder, nonce_of_run(config, folder, resume=True))
    (digest,) = user_codes(pl.Series(USERS[:1]), plan.keys.users)[1]
    assert any(half.tobytes() in data for half in digest for data in state.values())
    sent = {name: content(broker, name) for kind, name in topics.items() if kind != "events"}
    assert sent[topics["dead"]].count(b"latitude is no number of degrees") == 5
    assert sent[topics["releases"]].count(b'"cell"') == 81
    hidden = secrets(tmp_path)
    for where, data in {**{path: readable(path, data) for path, data in kept.items()}, **sent}.items():
        assert [secret for secret in hidden if secret in data] == [], where
