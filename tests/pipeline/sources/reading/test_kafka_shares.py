"""Kafka partitions shared by readers: assignment, and watermarks that wait for slower ones."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from penstock.mechanisms.core.plugin import DataError, ParameterError
from penstock.pipeline.config.plan import make_plan
from penstock.pipeline.config.run import loads
from penstock.pipeline.runners.shared import live_input
from penstock.pipeline.sources.base import MIN_EVENT_TIME, Checkpointed
from penstock.pipeline.sources.reading import kafka, kafka_client, services
from penstock.pipeline.sources.reading.kafka import Consumer
from penstock.pipeline.sources.reading.kafka_progress import Commits, PartitionAssignment, Progress

CONFIG = """
name: shares
seed: 1
source: {type: kafka, brokers: "localhost:1", topic: events, from: 2024-01-01T00:00:00Z, GROUP}
space: {type: grid, south: 37.74, north: 37.82, west: -122.47, east: -122.37, rows: 2, columns: 2}
windows: {type: fixed, size: 10s}
mechanism: {type: discrete_laplace, epsilon: 0.5}
output: {path: PATH, report: false}
"""


class Broker:
    """A consumer without a broker."""

    refused = ConnectionError

    def __init__(self, n_partitions: int = 0) -> None:
        self.n_partitions = n_partitions
        self.committed: list[dict[int, int]] = []
        self.held: set[int] = set()
        self.new: list[int] = []

    def __call__(self, _: object) -> Broker:
        return self

    def partitions(self):
        return list(range(self.n_partitions))

    def topic_id(self):
        return "id"

    def bounds(self, _: int):
        return 0, 100

    def assign(self, _: object):
        pass

    def at_end(self, _: int):
        return False

    def listed(self):
        return [*range(self.n_partitions), *self.new]

    def pause(self, partitions: set[int]):
        self.held = partitions

    def commit(self, offsets: dict[int, int]):
        self.committed.append(offsets)

    def close(self):
        pass


def plan_in(folder, more: str = ""):
    text = CONFIG.replace("PATH", str(folder)).replace(", GROUP", more and f", {more}")
    return make_plan(loads(text), folder)


def reader_of(plan, assignment: PartitionAssignment, consumer: Broker):
    return kafka._TopicReader(
        plan.config.source, live_input(plan), consumer, None, assignment.as_state(), MIN_EVENT_TIME
    )


def test_every_partition_has_one_reader_whenever_a_run_goes_on(tmp_path, connect):
    plan = plan_in(tmp_path)
    for n_partitions in (5, 9):  # the topic has grown before the run goes on
        connect(Broker(n_partitions))
        actual = [PartitionAssignment.of(position) for position in plan.config.source.starts(live_input(plan))]
        assert actual == [PartitionAssignment(number, 5) for number in range(5)]
    assert all(sum(share.owns(partition) for share in actual) == 1 for partition in range(9))
    readers = [reader_of(plan, share, Broker(9)) for share in actual]
    assert [list(reader.begin()) for reader in readers] == [[0, 5], [1, 6], [2, 7], [3, 8], [4]]


def test_a_topic_of_many_partitions_has_a_bounded_number_of_readers(tmp_path, connect):
    connect(Broker(1000))
    plan = plan_in(tmp_path)
    assert len(plan.config.source.starts(live_input(plan))) == plan.batching.max_readers


@pytest.mark.parametrize(("seconds", "passes"), [(33.999, False), (34, True), (None, False)])
def test_only_a_window_that_is_final_is_worth_a_slice(tmp_path, seconds, passes):
    """Windows of ten seconds, final at a watermark four seconds behind the clock."""
    plan = plan_in(tmp_path, "disorder: 4s")
    reader = reader_of(plan, PartitionAssignment(0, 2), Broker())
    reader.progress.watermark = plan.grid.calendar.from_ms + 24_001
    assert reader.passes(seconds and plan.grid.calendar.from_ms + int(seconds * 1000)) is passes


def test_a_reader_whose_partitions_are_all_idle_goes_by_its_own_and_never_back(tmp_path):
    progress = Progress({0: 0, 3: 0}, {0: 70, 3: 90}, watermark=20)
    progress.read({}, frozenset({0, 3}))
    assert progress.watermark == 90
    progress.read({0: (1, np.array([50]))}, frozenset({3}))
    assert progress.watermark == 90
    consumer = Broker()
    consumer.idle = lambda _: frozenset({0})
    reader = reader_of(plan_in(tmp_path, "watermark: events"), PartitionAssignment(0, 3), consumer)
    reader.progress = Progress({0: 5}, {0: 70})
    assert reader.quiet({}) == (frozenset({0}), None)


def test_a_partition_that_is_far_ahead_of_another_is_held(tmp_path):
    consumer = Broker()
    reader = reader_of(plan_in(tmp_path), PartitionAssignment(0, 2), consumer)
    reader.progress = Progress({0: 5, 2: 5}, {0: 2_000_000, 2: MIN_EVENT_TIME})
    for typical, held in (
        ({0: 2_000_000}, {0}),  # the other may have everything before it
        ({0: 2_000_000, 2: 1_000_000}, {0}),
        ({0: 2_000_000, 2: 1_900_000}, set()),
    ):
        reader.typical = typical
        assert reader.assign_and_pause({}) == {}
        assert consumer.held == held
    consumer.new = [6, 7]
    assert reader.assign_and_pause({}) == {}  # a list a minute will do while no window waits for one
    reader._asked -= 60.0
    assert reader.assign_and_pause({}) == {6: 0}


class Client:
    """Client that receives one event other than a message."""

    code, partition = 0, 0

    def consume(self, _, timeout):
        self.waited = timeout
        error = SimpleNamespace(code=lambda: self.code, retriable=lambda: False, str=lambda: "refused")
        return [SimpleNamespace(error=lambda: error, partition=lambda: self.partition, offset=lambda: 7)]

    def pause(self, _: object):
        pass

    resume = pause


@pytest.fixture
def client():
    codes = SimpleNamespace(
        _PARTITION_EOF=-191, GROUP_AUTHORIZATION_FAILED=30, _AUTO_OFFSET_RESET=-140, _AUTHENTICATION=-169, _SSL=-181
    )
    actual = Client()
    actual.library = SimpleNamespace(
        Consumer=lambda _: actual,
        KafkaException=OSError,
        KafkaError=codes,
        TopicPartition=lambda *place: place,
        admin=SimpleNamespace(AdminClient=lambda _: actual),
    )
    return actual


def consumer_of(folder, client: Client) -> Consumer:
    return Consumer(plan_in(folder).config.source, client=client.library)


@pytest.mark.parametrize(
    ("partitions", "error", "actual"),
    [
        ([0, 1], None, [0, 1]),
        ([2, 0, 1], None, [0, 1, 2]),
        ([0], None, None),  # lacks what is being read
        ([], None, None),
        ([0, 1, 3], None, None),
        ([0, 1], "unknown topic", None),
        (OSError("no answer"), None, None),
        (KeyError("events"), None, None),
    ],
)
def test_a_list_that_lacks_a_partition_is_none(tmp_path, client, partitions, error, actual):
    def list_topics(_, timeout):
        assert timeout == 2.0
        if isinstance(partitions, Exception):
            raise partitions
        return SimpleNamespace(
            topics={"events": SimpleNamespace(error=error, partitions=dict.fromkeys(partitions, "its brokers"))}
        )

    client.list_topics, client.incremental_assign = list_topics, lambda _: None
    reading = consumer_of(tmp_path, client)
    reading.assign({0: 0, 1: 0})
    assert reading.listed() == actual


def test_a_reader_that_takes_turns_waits_for_no_message_at_the_end(tmp_path, client):
    """While it waited, the other readers of its slot would."""
    client.incremental_assign = lambda _: None
    reading = consumer_of(tmp_path, client)
    reading.assign({0: 0})
    waited = []
    for code, waits in ((30, False), (-191, False), (-191, True), (-191, False)):
        client.code = code
        reading.poll(waits)
        waited.append(client.waited)
    assert waited == [0.1, 0.1, 0.1, 0.0]  # it is at the end from the second one on


def test_a_partition_that_is_held_is_not_idle(tmp_path, client):
    """Messages that arrive meanwhile are not read, and would be late."""
    client.code = -191
    reading = consumer_of(tmp_path, client)
    assert reading.poll() == {}
    assert reading.idle(0) == {0}
    reading.pause({0})
    assert (reading.idle(0), reading.at_end(0)) == (frozenset(), True)
    reading.pause(set())
    assert (reading.idle(60_000), reading.idle(0)) == (frozenset(), {0})


def test_a_group_that_is_refused_is_not_needed(tmp_path, client):
    client.code, client.partition = 30, -1
    reading = consumer_of(tmp_path, client)
    assert reading.poll() == {}
    client.code = 29
    with pytest.raises(DataError, match="refused"):
        reading.poll()


def commits_of(plan, consumer: Broker, checkpointed: Checkpointed) -> Commits:
    return Commits(plan.config.source.group, consumer, checkpointed, every=-1.0)


def test_offsets_are_committed_once_the_engine_has_taken_them(tmp_path):
    plan, consumer, checkpointed = plan_in(tmp_path, "group: watched"), Broker(), Checkpointed()
    commits = commits_of(plan, consumer, checkpointed)
    commits.update()
    assert consumer.committed == []
    checkpointed.move(PartitionAssignment(1, 2).as_state())
    commits.update()
    assert consumer.committed == []  # a reader that has no partition yet
    for number in (4, 4, 9):
        checkpointed.move(Progress({1: number}, {1: MIN_EVENT_TIME}).as_state() | PartitionAssignment(1, 2).as_state())
        commits.update()
    assert consumer.committed == [{1: 4}, {1: 9}]


def test_a_run_on_one_machine_commits_what_its_checkpoint_holds(tmp_path):
    plan, consumer, checkpointed = plan_in(tmp_path, "group: watched"), Broker(), Checkpointed()
    commits = commits_of(plan, consumer, checkpointed)
    commits.update()
    assert consumer.committed == []
    checkpointed.move(Progress({0: 4, 1: 7}, {0: MIN_EVENT_TIME, 1: 5}).as_state(), 1)
    commits.update()
    commits.update()
    assert consumer.committed == [{0: 4, 1: 7}]


def test_without_a_group_nothing_is_committed(tmp_path):
    plan, consumer = plan_in(tmp_path), Broker()
    checkpointed = Checkpointed(Progress({0: 4}, {0: MIN_EVENT_TIME}).as_state())
    commits_of(plan, consumer, checkpointed).update()
    assert consumer.committed == []


def test_a_producer_has_one_request_in_flight():
    """With several, brokers lose the first messages of a new partition and report them as delivered (KAFKA-15591)."""
    options = []
    kafka_client.Producer("localhost:1", {"linger.ms": "50"}, client=SimpleNamespace(Producer=options.append))
    assert options[0]["max.in.flight"] == 1
    assert options[0]["enable.idempotence"] is True
    for name in ("max.in.flight", "max.in.flight.requests.per.connection"):
        with pytest.raises(ParameterError, match="without it"):
            services.check_options({name: "5"})
