"""Topic of Kafka without a broker: partitions as lists of times."""

from __future__ import annotations

from penstock.pipeline.sources.kafka import Kafka

NOON = 1_704_110_400_000


class Topic:
    """Partitions as lists of the times at which messages were appended; None holds no message."""

    def __init__(self, *partitions: list[int | None], deleted: int = 0, topic_id: str = "first") -> None:
        self.times, self.deleted, self.id = partitions, deleted, topic_id

    def __call__(self, _: object) -> Topic:
        return self

    def partitions(self):
        return list(range(len(self.times)))

    def topic_id(self):
        return self.id

    def bounds(self, partition):
        return self.deleted, len(self.times[partition])

    def end_before(self, partition, instant):
        later = [i for i, time in enumerate(self.times[partition]) if time is not None and time >= instant]
        return max(self.deleted, later[0] if later else len(self.times[partition]))

    def next_message(self, partition, offset):
        return next((i for i, time in enumerate(self.times[partition]) if i >= offset and time is not None), None)

    def close(self):
        pass


def source(**changes) -> Kafka:
    return Kafka(**{"brokers": "localhost:1", "topic": "events", "columns": {"place": "place"}} | changes)
