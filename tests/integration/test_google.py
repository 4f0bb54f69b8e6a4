"""The official client of Pub/Sub, against Google's fake of the service.

It runs where the client is installed and ``PUBSUB_EMULATOR_HOST`` names an emulator or a fake; ``.ci/clouds`` sees to
both.
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from penstock.mechanisms.core.plugin import DataError
from penstock.pipeline.config.run import RunConfig
from penstock.pipeline.run import run
from tests.tools.small_configuration import published

pytestmark = pytest.mark.integration


def configured(folder: Path, sink: str) -> RunConfig:
    """A stream of a hundred rows a window."""
    return published(folder, f"report: false, {sink}", streamed=True, **{"space.rows": "10", "space.columns": "10"})


@pytest.mark.skipif("PUBSUB_EMULATOR_HOST" not in os.environ, reason="no emulator of Pub/Sub")
def test_every_row_is_in_the_topic_in_order(tmp_path):
    pubsub = pytest.importorskip("google.cloud.pubsub_v1")
    publisher, subscriber = pubsub.PublisherClient(), pubsub.SubscriberClient()
    name = f"footfall-{uuid.uuid4().hex[:8]}"
    topic, subscription = f"projects/city-1/topics/{name}", f"projects/city-1/subscriptions/{name}"
    publisher.create_topic(name=topic)
    subscriber.create_subscription(request={"name": subscription, "topic": topic, "enable_message_ordering": True})
    run(configured(tmp_path / "run", f"pubsub: {{releases: {topic}}}"))
    whole = pq.read_table(tmp_path / "run" / "public" / "releases.parquet").to_pylist()
    actual: list[Any] = []
    while len(actual) < len(whole):
        pulled = subscriber.pull(request={"subscription": subscription, "max_messages": 1000}).received_messages
        actual += pulled
        subscriber.acknowledge(request={"subscription": subscription, "ack_ids": [one.ack_id for one in pulled]})
    assert [one.message.attributes["id"] for one in actual] == [f"main/{row['window']}/{row['cell']}" for row in whole]
    assert {one.message.ordering_key for one in actual} == {"main"}


@pytest.mark.skipif("PUBSUB_EMULATOR_HOST" not in os.environ, reason="no emulator of Pub/Sub")
def test_a_topic_that_is_not_there_ends_the_run(tmp_path):
    pytest.importorskip("google.cloud.pubsub_v1")
    config = configured(tmp_path / "run", "pubsub: {releases: projects/city-1/topics/nowhere}")
    with pytest.raises(DataError, match=r"Pub/Sub, topic projects/city-1/topics/nowhere: 404"):
        run(config)
