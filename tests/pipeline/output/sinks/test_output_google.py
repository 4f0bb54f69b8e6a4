"""Releases to Pub/Sub with a stub of the official client; tests/integration has the client."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.mechanisms.core.plugin import DataError, MissingLibrary, ParameterError
from penstock.pipeline.config.sections import PubSubOutput
from penstock.pipeline.output.sinks.messages import PubSub
from penstock.pipeline.output.writer import sinks_of
from tests.tools.small_configuration import published
from tests.tools.small_configuration import run_locally as run

TOPIC, ACCOUNTS = "projects/city-1/topics/footfall", "projects/city-1/topics/accounts"
TOPICS = f"report: false, pubsub: {{releases: {TOPIC}, accounts: {ACCOUNTS}}}"


class Sent(NamedTuple):
    topic: str
    data: bytes
    ordering_key: str
    id: str


class Topics:
    """Stub of ``google.cloud.pubsub_v1``."""

    def __init__(self) -> None:
        self.sent: list[Sent] = []
        self.clients: list[dict[str, Any]] = []
        self.refuses = 0
        self.types = SimpleNamespace(BatchSettings=dict, PublisherOptions=dict)

    def PublisherClient(self, **options: Any) -> Any:
        self.clients.append(options)
        return SimpleNamespace(publish=self.publish)

    def publish(self, topic: str, data: bytes, ordering_key: str = "", **attributes: str) -> Any:
        def result(timeout: float) -> None:
            if self.refuses:
                self.refuses -= 1
                raise RuntimeError("404 Resource not found")
            self.sent.append(Sent(topic, data, ordering_key, **attributes))

        return SimpleNamespace(result=result)


@pytest.fixture
def topics(monkeypatch) -> Topics:
    actual = Topics()
    monkeypatch.setitem(sys.modules, "google.cloud.pubsub_v1", actual)
    return actual


@pytest.mark.parametrize("streamed", [False, True])
def test_topics_get_every_row_in_order(tmp_path, topics, streamed):
    run(published(tmp_path / "run", TOPICS, streamed), runner="direct")
    releases = [message for message in topics.sent if message.topic == TOPIC]
    whole = pq.read_table(tmp_path / "run" / "public" / "releases.parquet").to_pylist()
    assert [message.id for message in releases] == [f"main/{row['window']}/{row['cell']}" for row in whole]
    assert [json.loads(message.data)["value"] for message in releases] == [row["value"] for row in whole]
    assert {message.ordering_key for message in topics.sent} == {"main"}
    assert {json.loads(message.data)["accountant"] for message in topics.sent if message.topic == ACCOUNTS} == {
        "composition"
    }
    ((options),) = topics.clients[:1]
    assert options["publisher_options"] == {"enable_message_ordering": True}


def test_a_repeated_row_has_the_same_id_and_bytes(tmp_path, topics):
    config = published(tmp_path / "run", TOPICS, streamed=True)
    run(config)
    once = list(topics.sent)
    run(config)
    assert topics.sent == once + once


def test_a_topic_that_refuses_ends_the_run_and_is_asked_again_by_a_new_client(topics):
    publisher = PubSub(PubSubOutput(releases=TOPIC, endpoint="europe-west1-pubsub.googleapis.com:443"))
    table = pa.table({"stream": ["main"], "window": [1], "cell": ["a"]})
    publisher.accounts(table)  # no topic for them
    assert not topics.clients
    topics.refuses = 1
    with pytest.raises(DataError, match=rf"topic {TOPIC}: 404 Resource not found"):
        publisher.releases(table)
    publisher.releases(table)
    assert [message.id for message in topics.sent] == ["main/1/a"]
    assert len(topics.clients) == 2
    assert topics.clients[0]["client_options"] == {"api_endpoint": "europe-west1-pubsub.googleapis.com:443"}


def test_the_missing_client_is_named(tmp_path, without):
    without("google.cloud.pubsub_v1")
    with pytest.raises(MissingLibrary, match=r"penstock\[pubsub\]"):
        run(published(tmp_path / "run", TOPICS))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, "projects/PROJECT/topics/TOPIC"),
        ({"releases": "footfall"}, "projects/PROJECT/topics/TOPIC"),
        ({"releases": "projects/city-1/topics/"}, "projects/PROJECT/topics/TOPIC"),
    ],
)
def test_names_that_no_topic_has_are_refused(values, expected):
    with pytest.raises(ParameterError, match=expected):
        PubSubOutput(**values)


def test_every_sink_is_made_where_it_is_named(tmp_path):
    from penstock.pipeline.config.plan import make_plan

    actual = sinks_of(make_plan(published(tmp_path, TOPICS)))
    assert [type(sink).__name__ for sink in actual] == ["PubSub"]
