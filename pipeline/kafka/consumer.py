"""Reads a topic by partition and offset, whatever a consumer group says: positions are in the run's own checkpoints."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mechanisms.core.errors import DataError
from pipeline.kafka.client import PATIENCE, library, resolved_options, silent

if TYPE_CHECKING:
    from pipeline.sources.kafka import Kafka

#: Bytes that are taken together at most, and seconds that they are waited for.
_BYTES, _WAIT = 16 << 20, 0.1
#: Messages that are taken together at first, and at most.
_FEW, _MANY = 64, 50_000
#: Seconds after which it is looked whether the topic has more partitions.
_REFRESH = 60.0

Messages = dict[int, list[Any]]


class Consumer:
    """Messages of every partition of a topic, in order.

    Parameters
    ----------
    source
        What to read.

    Raises
    ------
    DataError
        No broker answers, or there is no such topic; later: what was to be read is no longer there.
    """

    def __init__(self, source: Kafka) -> None:
        self.topic = source.topic
        self._kafka = library()
        self._trouble, self._refused = "", False
        self._ended: dict[int, float] = {}
        self._waiting: dict[int, deque[Any]] = {}
        self._assigned: dict[int, int] = {}
        self._paused: set[int] = set()
        self._size = 1000.0
        #: Messages that are taken together at most.
        self.at_once = _FEW
        defaults = {"queued.max.messages.kbytes": 32 << 10, "fetch.message.max.bytes": 1 << 20}
        ours = {
            "group.id": source.group or "penstock",  # the client wants one
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "error_cb": self._note,
            "logger": silent(),
        }
        #: What the client raises.
        self.refused: type[Exception] = self._kafka.KafkaException
        self._client = self._kafka.Consumer(defaults | resolved_options(source.brokers, source.options) | ours)
        self._refreshed = time.monotonic()

    def close(self) -> None:
        """Leave the broker."""
        self._client.close()

    def partitions(self) -> list[int]:
        """Partitions of the topic."""
        until = time.monotonic() + PATIENCE
        while True:
            try:
                found = self._client.list_topics(self.topic, timeout=2.0).topics[self.topic]
                break
            except self._kafka.KafkaException as error:
                if self._refused or time.monotonic() > until:
                    reason = self._trouble or error.args[0].str()
                    raise DataError(f"topic {self.topic}: no broker answers ({reason})") from None
                if not self._assigned:
                    self._client.poll(0)  # for its reports of errors; later a message might come instead
        if found.error is not None:
            raise DataError(f"topic {self.topic}: {found.error.str()}")
        return sorted(found.partitions)

    def bounds(self, partition: int) -> tuple[int, int]:
        """First offset of a partition that is there, and the next one to be written."""
        try:
            place = self._kafka.TopicPartition(self.topic, partition)
            low, high = self._client.get_watermark_offsets(place, timeout=PATIENCE)
        except self._kafka.KafkaException as error:
            raise DataError(f"topic {self.topic}: {error.args[0].str()}") from None
        return int(low), int(high)

    def more(self) -> list[int]:
        """Partitions that the topic was given since it was looked at last."""
        if time.monotonic() - self._refreshed < _REFRESH:
            return []
        self._refreshed = time.monotonic()
        try:
            found = self._client.list_topics(self.topic, timeout=1.0).topics[self.topic].partitions
        except self._kafka.KafkaException:
            return []  # no broker answers at the moment; the next look may be lucky
        return sorted(partition for partition in found if partition not in self._assigned)

    def assign(self, offsets: Mapping[int, int]) -> None:
        """Read further partitions, each from an offset on."""
        places = [self._kafka.TopicPartition(self.topic, *place) for place in offsets.items()]
        self._assigned |= offsets
        self._waiting |= {partition: deque() for partition in offsets}
        self._client.incremental_assign(places)

    def commit(self, offsets: Mapping[int, int]) -> None:
        """Tell the group which offsets are to be read next; does not wait for an answer."""
        places = [self._kafka.TopicPartition(self.topic, *place) for place in offsets.items()]
        self._client.commit(offsets=places, asynchronous=True)

    def hold(self, partitions: set[int]) -> None:
        """Read these partitions no further for the moment."""
        places = self._kafka.TopicPartition
        if begins := partitions - self._paused:
            self._client.pause([places(self.topic, partition) for partition in begins])
        if ends := self._paused - partitions:
            self._client.resume([places(self.topic, partition) for partition in ends])
            self._ended |= dict.fromkeys(ends & self._ended.keys(), time.monotonic())
        self._paused = set(partitions)

    def poll(self) -> Messages:
        """What there is, by partition in increasing order; nothing where nothing has come for a while."""
        if not any(self._waiting.values()):
            self._fill()
        found = {partition: list(waiting) for partition, waiting in sorted(self._waiting.items()) if waiting}
        for partition in found:
            self._waiting[partition].clear()
        return found

    def adapt(self, is_much: bool | None) -> None:
        """Take fewer messages together where it was much, more where it was little (False)."""
        if is_much is not None:
            self.at_once = max(1, self.at_once // 2) if is_much else min(_MANY, 2 * self.at_once)

    def take(self, ranges: Mapping[int, tuple[int, int]]) -> Messages:
        """Exactly the messages of some ranges of offsets, which have been read before."""
        found: Messages = {}
        for partition, (first, end) in sorted(ranges.items()):
            if first == end:
                continue
            own = found[partition] = []
            waiting = self._waiting[partition]
            until = time.monotonic() + PATIENCE
            while True:
                while waiting and waiting[0].offset() < end:
                    own.append(waiting.popleft())
                # A marker of a transaction, or a compacted message, may be the last one.
                if waiting or (own and own[-1].offset() == end - 1):
                    break
                ended = partition in self._ended
                if time.monotonic() > until or (ended and self.bounds(partition)[1] < end):
                    raise DataError(f"topic {self.topic}: offsets {first} to {end} of partition {partition} are gone")
                if ended:
                    break
                self._fill()
        return found

    def at_end(self, partition: int) -> bool:
        """Whether nothing is left of a partition to be read at the moment."""
        return partition in self._ended

    def idle(self, after: int) -> frozenset[int]:
        """Partitions that have been at their end for so many milliseconds; of those that are held nobody knows."""
        since = time.monotonic() - after / 1000
        return frozenset(p for p, ended in self._ended.items() if ended <= since and p not in self._paused)

    def _fill(self) -> None:
        n_messages = max(1, min(self.at_once, int(_BYTES / self._size)))
        n_bytes, n_read = 0, 0
        for message in self._client.consume(n_messages, timeout=_WAIT):
            error = message.error()
            if error is None:
                self._waiting[message.partition()].append(message)
                self._ended.pop(message.partition(), None)
                n_bytes, n_read = n_bytes + len(message), n_read + 1
            elif error.code() == self._kafka.KafkaError._PARTITION_EOF:
                self._ended.setdefault(message.partition(), time.monotonic())
            elif error.code() == self._kafka.KafkaError.GROUP_AUTHORIZATION_FAILED:
                continue  # the client asks for its group, and nothing here needs one
            elif not error.retriable():
                raise DataError(f"topic {self.topic}, partition {message.partition()}: {error.str()}")
        if n_read:
            self._size += 0.2 * (n_bytes / n_read - self._size)

    def _note(self, error: Any) -> None:
        """While brokers are out of reach nobody knows whether a partition is at its end."""
        self._trouble = error.str()
        self._refused |= error.code() in (self._kafka.KafkaError._AUTHENTICATION, self._kafka.KafkaError._SSL)
        self._ended = dict.fromkeys(self._ended, time.monotonic())
