"""An unreachable Kafka topic: waiting time, messages, losses; without a broker."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from penstock.mechanisms.core.plugin import DataError
from penstock.pipeline.config.canonical import digest
from penstock.pipeline.config.plan import make_plan
from penstock.pipeline.config.run import loads
from penstock.pipeline.runners.shared import live_input
from penstock.pipeline.sources.base import MIN_EVENT_TIME, Checkpointed
from penstock.pipeline.sources.kafka import Kafka
from penstock.pipeline.sources.reading import kafka
from penstock.pipeline.sources.reading.kafka import Consumer
from penstock.pipeline.sources.reading.services import Outage

CONFIG = """
name: reach
seed: 1
source: {type: kafka, brokers: "localhost:1", topic: events, from: 2024-01-01T00:00:00Z, PATIENCE}
space: {type: grid, south: 37.74, north: 37.82, west: -122.47, east: -122.37, rows: 2, columns: 2}
windows: {type: fixed, size: 10s}
mechanism: {type: discrete_laplace, epsilon: 0.5}
output: {path: PATH, report: false}
"""


class Refused(Exception):
    """Error of the client."""


class Said:
    """An error as the client has it."""

    def __init__(self, number: int, text: str = "") -> None:
        self.number, self.text = number, text

    def code(self) -> int:
        return self.number

    def str(self) -> str:
        return self.text

    def retriable(self) -> bool:
        return False


GONE = 7


class Client:
    """Scripted client of one topic with two partitions."""

    KafkaException = Refused
    KafkaError = SimpleNamespace(
        _PARTITION_EOF=1, GROUP_AUTHORIZATION_FAILED=2, _AUTO_OFFSET_RESET=GONE, _AUTHENTICATION=3, _SSL=4
    )

    def __init__(self) -> None:
        self.admin = SimpleNamespace(AdminClient=lambda _: self)
        self.error: Said | None = None
        self.leaders = {0: 1, 1: 1}
        self.answers = True
        self.coming: list[SimpleNamespace] = []

    def Consumer(self, _: dict) -> Client:
        return self

    def TopicPartition(self, *place: object) -> tuple:
        return place

    def incremental_assign(self, places: list) -> None:
        pass

    def list_topics(self, topic: str, timeout: float) -> SimpleNamespace:
        if not self.answers:
            raise Refused(Said(5, "timed out"))
        partitions = {number: SimpleNamespace(leader=leader) for number, leader in self.leaders.items()}
        return SimpleNamespace(topics={topic: SimpleNamespace(error=self.error, partitions=partitions)})

    def get_watermark_offsets(self, place: tuple, timeout: float) -> tuple[int, int]:
        return 500, 900

    def consume(self, n: int, timeout: float) -> list:
        actual, self.coming = self.coming, []
        return actual

    def close(self) -> None:
        pass


@pytest.fixture
def client():
    return Client()


def consumer_of(client: Client) -> Consumer:
    consumer = Consumer(Kafka(brokers="localhost:1", topic="events"), client=client)
    consumer.assign({0: 120, 1: 7})
    return consumer


def test_what_keeps_a_topic_from_being_read_is_named(client):
    consumer = consumer_of(client)
    assert consumer.unreadable_reason() is None
    client.leaders[1] = -1
    assert consumer.unreadable_reason() == "no broker has partition 1"
    del client.leaders[1]
    assert consumer.unreadable_reason() == "no broker has partition 1"
    client.error = Said(6, "Broker: Unknown topic or partition")
    assert consumer.unreadable_reason() == "Broker: Unknown topic or partition"
    client.answers = False
    assert consumer.unreadable_reason() == "no broker answers (timed out)"


def test_a_run_waits_as_long_as_configured_and_starts_over_when_the_topic_is_back(caplog):
    now, reasons = [0.0], ["gone"]
    outage = Outage("topic events", every=10.0, longest=10.0, clock=lambda: now[0])
    for now[0] in (9.9, 10.0, 150.0, 309.0):
        outage.probe(lambda: reasons[-1])
    assert caplog.text.count("topic events: out of reach (gone); the run waits 300 s for it") == 1
    reasons.append(None)
    now[0] = 320.0
    outage.probe(lambda: reasons[-1])
    reasons.append("gone")
    for now[0] in (330.0, 629.0):
        outage.probe(lambda: reasons[-1])
    now[0] = 640.0
    with pytest.raises(DataError, match=r"out of reach for 310 s \(gone\). Nothing is lost: .* --resume goes on"):
        outage.probe(lambda: reasons[-1])


def test_a_slow_loop_is_no_reason_to_give_up():
    """Nobody has asked for an hour, because the loop was busy: the outage begins with the first answer."""
    now = [0.0]
    outage = Outage("topic events", every=10.0, longest=10.0, clock=lambda: now[0])
    now[0] = 3600.0
    outage.probe(lambda: "gone")
    now[0] = 3900.0
    with pytest.raises(DataError, match="out of reach for 300 s"):
        outage.probe(lambda: "gone")


def plan_in(folder, patience: str):
    return make_plan(loads(CONFIG.replace("PATH", str(folder)).replace("PATIENCE", patience)), folder)


def test_a_run_whose_topic_is_deleted_ends(client, tmp_path):
    plan = plan_in(tmp_path, "patience: 1ms")
    source = plan.config.source
    consumer = Consumer(source, client=client)
    pieces = kafka.micro_batches(source, live_input(plan), consumer, {}, 0, MIN_EVENT_TIME, Checkpointed())
    assert next(pieces).block.n_rows == 0  # its two partitions are known
    client.error = Said(6, "Broker: Unknown topic or partition")
    with pytest.raises(DataError, match=r"topic events: out of reach for .* \(Broker: Unknown topic or partition\)"):
        for _ in pieces:
            pass


def test_offsets_that_are_gone_are_named_with_what_was_lost_and_how_to_go_on(client):
    consumer = consumer_of(client)
    client.coming = [SimpleNamespace(error=lambda: Said(GONE, "out of range"), partition=lambda: 0, offset=lambda: 120)]
    with pytest.raises(DataError) as raised:
        consumer.poll()
    assert str(raised.value) == (
        "topic events: offsets 120 to 500 of partition 0 are gone, of which there is now 500 to 900: a broker has "
        "deleted them, or the topic was created again. What they held is lost to this run, which ends here; its "
        "releases stay. Begin another run in another folder, on the same output.ledger, with 'from' at the first "
        "window that is not released"
    )


def test_how_long_a_run_waits_is_no_part_of_what_noise_is_bound_to(tmp_path):
    configurations = [plan_in(tmp_path, patience).config for patience in ("patience: 1m", "disorder: 1s")]
    assert len({digest(config) for config in configurations}) == 1
    deployed = [Kafka(brokers="b:1", topic="t", patience=patience).recorded for patience in (None, 60_000)]
    assert deployed[0] == deployed[1]
