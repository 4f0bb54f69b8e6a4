"""Kafka consumer: reads messages, tracks offsets and arrival times, commits positions and forms micro-batches."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl

from penstock.mechanisms.core.plugin import DataError
from penstock.mechanisms.core.state import State
from penstock.pipeline.sources.base import MIN_EVENT_TIME, Checkpointed, EventBlock, LiveInput, MicroBatch, Reject
from penstock.pipeline.sources.reading.kafka_client import (
    ANSWER,
    KafkaSettings,
    Producer,
    library,
    null_logger,
    resolved_options,
    send_letters,
)
from penstock.pipeline.sources.reading.kafka_progress import Commits, Journal, PartitionAssignment, Progress, TopicEntry
from penstock.pipeline.sources.reading.messages import events_of
from penstock.pipeline.sources.reading.offsets import OffsetRange
from penstock.pipeline.sources.reading.services import PATIENCE, Outage

#: Seconds that messages are waited for.
_WAIT = 0.1
#: Messages that are taken together at first, and at most.
_FEW, _MANY = 64, 50_000
#: Seconds after which it is looked whether the topic has more partitions.
_REFRESH = 60.0
#: Seconds that a broker may take to say which partitions there are, or where they end.
_ANSWER = 2.0
#: Seconds after which it is asked again, and said again that windows wait for an answer.
_RETRY_INTERVAL, _REPEAT_INTERVAL = 1.0, 60.0

_LOG = logging.getLogger("penstock")

Messages = dict[int, list[Any]]


class Consumer:
    """Consumer of all of a topic's partitions. Messages are returned in order of partition and offset.

    Positions are in the run's own checkpoints, never taken from a consumer group.

    Raises `DataError` if no broker answers, or there is no such topic; later: what was to be read is no longer there.
    """

    def __init__(self, source: KafkaSettings, *, client: Any = None) -> None:
        self.topic = source.topic
        self._kafka = client or library()
        self._trouble, self._refused = "", False
        self._ended: dict[int, float] = {}
        self._ends: dict[int, int] = {}
        self._admin: Any = None
        self._options = resolved_options(source.brokers, source.options)
        self._waiting: dict[int, deque[Any]] = {}
        self._assigned: dict[int, int] = {}
        self._paused: set[int] = set()
        #: Messages that are taken together at most.
        self.at_once = _FEW
        #: Whether there may be more messages than were read last.
        self.more = True
        defaults = {"queued.max.messages.kbytes": 32 << 10, "fetch.message.max.bytes": 1 << 20}
        fixed = {
            "group.id": source.group or "penstock",  # the client wants one
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "error_cb": self._note,
            "logger": null_logger(),
        }
        #: What the client raises.
        self.refused: type[Exception] = self._kafka.KafkaException
        self._client = self._kafka.Consumer(defaults | self._options | fixed)

    def close(self) -> None:
        """Disconnect from the broker."""
        self._client.close()

    def unreadable_reason(self) -> str | None:
        """Return why the topic cannot be read now, or None if a broker confirms that all was read."""
        try:
            topic = self._client.list_topics(self.topic, timeout=_ANSWER).topics[self.topic]
        except self._kafka.KafkaException as error:
            return f"no broker answers ({self._trouble or error.args[0].str()})"
        if topic.error is not None:
            return str(topic.error.str())
        with_leader = {number for number, partition in topic.partitions.items() if partition.leader != -1}
        leaderless = sorted(self._assigned.keys() - with_leader)
        return f"no broker has partition {leaderless[0]}" if leaderless else None

    def partitions(self) -> list[int]:
        """Return the topic's partitions."""
        until = time.monotonic() + ANSWER
        while True:
            try:
                topic = self._client.list_topics(self.topic, timeout=2.0).topics[self.topic]
                break
            except self._kafka.KafkaException as error:
                if self._refused or time.monotonic() > until:
                    reason = self._trouble or error.args[0].str()
                    raise DataError(f"topic {self.topic}: no broker answers ({reason})") from None
                if not self._assigned:
                    self._client.poll(0)  # for its reports of errors; later a message might come instead
        if topic.error is not None:
            raise DataError(f"topic {self.topic}: {topic.error.str()}")
        return sorted(topic.partitions)

    def bounds(self, partition: int) -> tuple[int, int]:
        """Return the first offset that is available in a partition, and the next one that will be written."""
        try:
            place = self._kafka.TopicPartition(self.topic, partition)
            low, high = self._client.get_watermark_offsets(place, timeout=ANSWER)
        except self._kafka.KafkaException as error:
            raise DataError(f"topic {self.topic}: {error.args[0].str()}") from None
        return int(low), int(high)

    def listed(self) -> list[int] | None:
        """Return the topic's partitions as currently reported by a broker, or None if the answer is incomplete."""
        try:
            # Not over the connection on which messages are waited for: a broker answers one request of it at a time.
            topic = self._administrator().list_topics(self.topic, timeout=_ANSWER).topics[self.topic]
        except (self._kafka.KafkaException, KeyError):
            return None
        partitions = sorted(topic.partitions)
        is_whole = partitions == list(range(len(partitions))) and self._assigned.keys() <= topic.partitions.keys()
        return partitions if is_whole and topic.error is None else None

    def assign(self, offsets: Mapping[int, int]) -> None:
        """Start reading additional partitions, each from the given offset."""
        places = [self._kafka.TopicPartition(self.topic, *place) for place in offsets.items()]
        self._assigned |= offsets
        self._waiting |= {partition: deque() for partition in offsets}
        self._client.incremental_assign(places)

    def commit(self, offsets: Mapping[int, int]) -> None:
        """Commit the next offset to read in each partition, without waiting for an acknowledgement."""
        places = [self._kafka.TopicPartition(self.topic, *place) for place in offsets.items()]
        self._client.commit(offsets=places, asynchronous=True)

    def pause(self, partitions: set[int]) -> None:
        """Pause the given partitions and resume all others."""
        places = self._kafka.TopicPartition
        if begins := partitions - self._paused:
            self._client.pause([places(self.topic, partition) for partition in begins])
        if ends := self._paused - partitions:
            self._client.resume([places(self.topic, partition) for partition in ends])
            self._ended |= dict.fromkeys(ends & self._ended.keys(), time.monotonic())
        self._paused = set(partitions)

    def poll(self, waits: bool = True) -> Messages:
        """Return new messages by partition, in increasing order. The result is empty if there are none.

        Not ``waits``: what is there, once all partitions have been read to their ends.
        """
        if not any(self._waiting.values()):
            self._fill(_WAIT if waits or not self._assigned.keys() <= self._ended.keys() else 0.0)
        polled = {partition: list(waiting) for partition, waiting in sorted(self._waiting.items()) if waiting}
        self._waiting |= {partition: deque() for partition in polled}
        return polled

    def take(self, ranges: Mapping[int, tuple[int, int]]) -> Messages:
        """Return exactly the messages in the given offset ranges, which have been read before."""
        taken: Messages = {}
        for partition, (first, end) in sorted(ranges.items()):
            if first == end:
                continue
            messages = taken[partition] = []
            waiting = self._waiting[partition]
            until = time.monotonic() + ANSWER
            while True:
                while waiting and waiting[0].offset() < end:
                    messages.append(waiting.popleft())
                # A marker of a transaction, or a compacted message, may be the last one.
                if waiting or (messages and messages[-1].offset() == end - 1):
                    break
                ended = partition in self._ended
                if time.monotonic() > until or (ended and self.bounds(partition)[1] < end):
                    raise self.lost_offsets_error(partition, first, end)
                if ended:
                    break
                self._fill()
        return taken

    def at_end(self, partition: int) -> bool:
        """Return whether a partition has been read to the end."""
        return partition in self._ended

    def idle(self, after: int) -> frozenset[int]:
        """Return the partitions that are not paused and have been read to their end for at least ``after`` ms."""
        since = time.monotonic() - after / 1000
        return frozenset(p for p, ended in self._ended.items() if ended <= since and p not in self._paused)

    def confirmed(self, partitions: frozenset[int]) -> frozenset[int]:
        """Return the partitions for which a broker confirms that nothing follows the last message read.

        With what is not committed yet: an open transaction keeps everything after it from being read, also messages
        of others, which arrive when they were appended. None if a broker does not answer.
        """
        latest, level = self._kafka.admin.OffsetSpec.latest(), self._kafka.IsolationLevel.READ_UNCOMMITTED
        wanted = {self._kafka.TopicPartition(self.topic, partition): latest for partition in partitions}
        try:
            asked = self._administrator().list_offsets(wanted, isolation_level=level, request_timeout=_ANSWER)
            ends = {int(place.partition): future.result().offset for place, future in asked.items()}
        except self._kafka.KafkaException:
            self._admin = None  # one that was there before a partition goes on not to know it
            return frozenset()
        return frozenset(partition for partition, end in ends.items() if end <= self._ends.get(partition, -1))

    def topic_id(self) -> str:
        """Return the topic's identifier, which changes if the topic is deleted and created again."""
        asked = self._administrator().describe_topics(self._kafka.TopicCollection([self.topic]), request_timeout=ANSWER)
        try:
            return str(asked[self.topic].result().topic_id)
        except self._kafka.KafkaException as error:
            raise DataError(f"topic {self.topic}: {error.args[0].str()}") from None

    def end_before(self, partition: int, instant: int) -> int:
        """Return the offset of the first message at or after a time, or the partition's end if there is none."""
        place = self._kafka.TopicPartition(self.topic, partition, instant)
        try:
            (answer,) = self._client.offsets_for_times([place], timeout=ANSWER)
        except self._kafka.KafkaException as error:
            raise DataError(f"topic {self.topic}: {error.args[0].str()}") from None
        return int(answer.offset) if answer.offset >= 0 else self.bounds(partition)[1]

    def next_message(self, partition: int, offset: int) -> int | None:
        """Return the offset of the first message at or after the given offset, or None if there is none."""
        self.assign({partition: offset})
        until = time.monotonic() + ANSWER
        while not self._waiting[partition]:
            if self.at_end(partition):
                return None
            if time.monotonic() > until:
                raise DataError(f"topic {self.topic}: no broker answers ({self._trouble or 'in time'})")
            self._fill()
        return int(self._waiting[partition][0].offset())

    def _administrator(self) -> Any:
        if self._admin is None:
            self._admin = self._kafka.admin.AdminClient(self._options | {"logger": null_logger()})
        return self._admin

    def _fill(self, seconds: float = _WAIT) -> None:
        messages = self._client.consume(self.at_once, timeout=seconds)
        self.more = len(messages) == self.at_once
        for message in messages:
            error = message.error()
            if error is None:
                self._waiting[message.partition()].append(message)
                self._ended.pop(message.partition(), None)
            elif error.code() == self._kafka.KafkaError._PARTITION_EOF:
                self._ended.setdefault(message.partition(), time.monotonic())
                self._ends[message.partition()] = message.offset()
            elif error.code() == self._kafka.KafkaError.GROUP_AUTHORIZATION_FAILED:
                continue  # the client asks for its group, and nothing here needs one
            elif error.code() == self._kafka.KafkaError._AUTO_OFFSET_RESET:
                raise self.lost_offsets_error(
                    message.partition(), message.offset(), self.bounds(message.partition())[0]
                )
            elif not error.retriable():
                raise DataError(f"topic {self.topic}, partition {message.partition()}: {error.str()}")

    def lost_offsets_error(self, partition: int, first: int, end: int) -> DataError:
        """Return an error that states which of the required offsets no longer exist."""
        low, high = self.bounds(partition)
        lost = f"offsets {first} to {end}" if first < end else f"offset {first} and what follows"
        return DataError(
            f"topic {self.topic}: {lost} of partition {partition} are gone, of which there is now {low} to {high}: a "
            "broker has deleted them, or the topic was created again. What they held is lost to this run, which ends "
            "here; its releases stay. Begin another run in another folder, on the same output.ledger, with 'from' at "
            "the first window that is not released"
        )

    def _note(self, error: Any) -> None:
        """Record an error. Without a reachable broker, no partition is known to have been read to its end."""
        self._trouble = error.str()
        self._refused |= error.code() in (self._kafka.KafkaError._AUTHENTICATION, self._kafka.KafkaError._SSL)
        self._ended = dict.fromkeys(self._ended, time.monotonic())


#: Seconds between two questions whether a topic is there.
_PROBE = 10.0


#: Of a message's timestamp: made by the broker as it appended the message (LogAppendTime).
_BY_BROKER = 2


def block_of(source: KafkaSettings, partition: int, messages: Sequence[Any]) -> EventBlock:
    """Return the events in messages from one partition. The message timestamps are stored in the ``arrival`` column.

    Every message is parsed or rejected. A reject's file is ``topic/partition``, its line the offset of its message.
    Raises `DataError` if a row is to be held against its broker's timestamp, and the message has its sender's.
    """
    stamps = [message.timestamp() for message in messages]
    if source.by_broker and (foreign := [i for i, (kind, _) in enumerate(stamps) if kind != _BY_BROKER]):
        raise DataError(
            f"topic {source.topic}, partition {partition}, offset {messages[foreign[0]].offset()}: the timestamp is "
            "its sender's, who would decide what is late; set message.timestamp.type=LogAppendTime on the topic and "
            "begin after the older messages (or, in a simulation, watermark: events)"
        )
    arrivals = np.asarray([stamp if kind else 2**62 for kind, stamp in stamps], np.int64)
    values = [message.value() for message in messages]
    return events_of(source, values, arrivals, lambda i: (f"{source.topic}/{partition}", messages[i].offset()))


#: Windows that one partition may be read ahead of another: what is open has to be kept.
_WINDOWS_AHEAD = 64


def micro_batches(
    source: KafkaSettings,
    run: LiveInput,
    consumer: Consumer,
    start: State,
    number: int,
    latest: int,
    checkpointed: Checkpointed,
    *,
    now: Callable[[], float] = time.time,
    retry: float = _RETRY_INTERVAL,
) -> Iterator[MicroBatch | None]:
    """Yield the messages of a new consumer as micro-batches. For the other parameters, see `LiveSource.micro_batches`.

    Every micro-batch is written to a journal before it is counted: its offsets, and which partitions were idle. A run
    that is continued counts the same ones again from its checkpoint on, so that it releases the same.
    """
    with ExitStack() as held:
        letters = held.enter_context(closing(Producer(source.brokers, source.options))) if source.dead_letters else None
        reader = _TopicReader(source, run, consumer, letters, start, latest)
        reader.now, reader.retry = now, retry
        folder = run.spool / f"reader-{reader.assignment.reader:03d}" if reader.assignment.n_readers > 1 else run.spool
        journal = Journal(folder, number, TopicEntry.decode)
        commits = Commits(source.group, consumer, checkpointed)
        patience = PATIENCE if source.patience is None else source.patience / 1000
        probe = min(_PROBE, patience / 3)
        outage = Outage(f"topic {source.topic}", patience, probe, probe)
        for entry in journal.entries:
            reader.add({partition: first for partition, (first, _) in entry.ranges.items()})
            yield reader.batch(entry, consumer.take(entry.ranges))
            number = entry.number + 1
        new = reader.begin()
        while not reader.finished:
            messages = consumer.poll(run.waits)
            new |= reader.assign_and_pause(messages)
            idle, clock = reader.quiet(messages)
            moves = idle != reader.progress.idle or reader.passes(clock) or reader.passes(reader.common_time)
            if messages or new or moves:
                ranges = {partition: (first, first) for partition, first in new.items()}
                ranges |= {p: (polled[0].offset(), polled[-1].offset() + 1) for p, polled in messages.items()}
                entry = TopicEntry(number, ranges, idle, clock, reader.listed)
                journal.append(entry, checkpointed)
                yield replace(reader.batch(entry, messages), more=consumer.more)
                number, new = number + 1, {}
            else:
                yield None
            commits.update()
            outage.probe(consumer.unreadable_reason)


class _TopicReader:
    """Converts a topic's messages to micro-batches."""

    def __init__(
        self,
        source: KafkaSettings,
        run: LiveInput,
        consumer: Consumer,
        letters: Producer | None,
        start: State,
        latest: int,
    ) -> None:
        self.source, self.run, self.consumer, self.letters = source, run, consumer, letters
        self.now: Callable[[], float] = time.time
        self.retry = _RETRY_INTERVAL
        self.assignment = PartitionAssignment.of(start)
        #: Middle of the times that each partition has shown last.
        self.typical: dict[int, float] = {}
        #: Time from before which no partition is unknown; None if that decides nothing.
        self.listed: int | None = MIN_EVENT_TIME if source.by_broker else None
        self._asked = self._said = float("-inf")
        over = run.grid.over
        self.end = None if over is None else over + source.disorder
        facts: dict[str, Any] = {"disorder": source.disorder, "by_broker": source.by_broker}
        self.progress = Progress(watermark=latest, first=run.grid.calendar.from_ms, limit=self.end, **facts)
        self.progress.restore(start)
        if self.progress.offsets:
            consumer.assign(self.progress.offsets)

    def begin(self) -> dict[int, int]:
        """Assign new partitions and return the offsets at which they start."""
        partitions = filter(self.assignment.owns, self.consumer.partitions())
        unknown = [partition for partition in partitions if partition not in self.progress.offsets]
        return self._find(unknown, from_start=bool(self.progress.offsets))

    @property
    def finished(self) -> bool:
        """True if all of the run's windows are final."""
        return self.end is not None and self.progress.watermark >= self.end

    def quiet(self, messages: Messages) -> tuple[frozenset[int], int | None]:
        """Return idle partitions and, if broker timestamps decide lateness, the clock time they have reached."""
        # The clock is read before the brokers are asked: what is appended after that has a later timestamp.
        clock = int(self.now() * 1000) - self.source.idle_after
        if not self.source.by_broker:
            return self.consumer.idle(self.source.idle_after) - messages.keys(), None
        ended = frozenset(p for p in self.progress.offsets if self.consumer.at_end(p) and p not in messages)
        if self.passes(self._complete_time(self._by_clock(ended, clock))):
            ended = self.consumer.confirmed(ended)
            if self.passes(self._complete_time(self._by_clock(ended, clock))):
                return ended, clock
        return frozenset(), None

    @property
    def common_time(self) -> int | None:
        """The time that all partitions have reached, or None if the list of partitions does not affect lateness."""
        return None if self.listed is None else self._complete_time(self._by_clock(frozenset(), MIN_EVENT_TIME))

    def _complete_time(self, time: int | None) -> int | None:
        return time if time is None or self.listed is None else min(time, self.listed)

    def _by_clock(self, ended: frozenset[int], clock: int, messages: Messages | None = None) -> int | None:
        """Return the time reached once ``messages`` are read, given that ``ended`` partitions ended at ``clock``."""
        read = {p: polled[-1].timestamp()[1] for p, polled in (messages or {}).items()}
        times = {p: max(time, read.get(p, time)) for p, time in self.progress.times.items()}
        return min((self.progress.at_end(p, clock) if p in ended else time for p, time in times.items()), default=None)

    def passes(self, time: int | None) -> bool:
        """Return whether reaching a time moves the watermark past the end of a window or of the run."""
        if time is None:
            return False
        before, after = (self.run.grid.last_final(at - self.source.disorder) for at in (self.progress.watermark, time))
        return after > before

    def assign_and_pause(self, messages: Messages) -> dict[int, int]:
        """Pause partitions that are far ahead of one with a backlog. Assign new partitions and return their offsets.

        ``messages`` were polled last, and are not read yet: a window that they end waits for no other turn.
        """
        partitions = self.progress.offsets
        # One that has shown nothing yet may have everything before it: the others wait until it has been heard of.
        behind = [self.typical.get(p, MIN_EVENT_TIME) for p in partitions if not self.consumer.at_end(p)]
        longest = _WINDOWS_AHEAD * self.run.grid.calendar.step
        self.consumer.pause({p for p, time in self.typical.items() if behind and time > min(behind) + longest})
        return self._assign_new(messages)

    def _assign_new(self, messages: Messages) -> dict[int, int]:
        """Assign partitions that were added to the topic, and return the offsets at which they start.

        A window ends only with a list of the partitions that is younger than its deadline: a message of a partition
        that is not in it arrives after the list, and is late for the window whatever happens. Without a whole list the
        window waits.
        """
        # Read before the broker is asked, as in `quiet`; and what a broker does not know yet is no older than that.
        clock = int(self.now() * 1000) - self.source.idle_after
        is_due = False
        if self.listed is not None:
            ended = frozenset(filter(self.consumer.at_end, self.progress.offsets))
            clock_after = self._by_clock(ended - messages.keys(), clock, messages)
            is_due = not self.passes(self._complete_time(clock_after)) and self.passes(
                min(clock, clock_after or MIN_EVENT_TIME)
            )
        if time.monotonic() - self._asked < (self.retry if is_due else _REFRESH):
            return {}
        partitions, offsets = self.consumer.listed(), None
        if partitions is not None:
            new = [p for p in partitions if self.assignment.owns(p) and p not in self.progress.offsets]
            with suppress(DataError):  # one whose broker does not answer yet
                offsets = self._find(new, from_start=True)
        self._asked = time.monotonic()
        if offsets is None:
            if is_due and self._asked - self._said > _REPEAT_INTERVAL:
                self._said = self._asked
                _LOG.warning(f"topic {self.source.topic}: no broker lists all partitions; windows wait until one does")
            return {}
        if self.listed is not None:
            self.listed = clock
            self._asked = float("-inf") if is_due else self._asked
        return offsets

    def batch(self, entry: TopicEntry, messages: Messages) -> MicroBatch:
        """Return the events in some messages as a micro-batch, and advance the reader's progress accordingly."""
        before = self.progress.watermark
        frames = [pl.DataFrame(schema=self.source.layout.schema | {"arrival": pl.Int64})]
        rejects: list[Reject] = []
        rows: dict[int, Any] = {}
        for partition, polled in messages.items():
            part = block_of(self.source, partition, polled)
            frames.append(part.frame)
            rejects += part.rejects
            column = "arrival" if self.source.by_broker else "time"
            rows[partition] = (entry.ranges[partition][1], part.frame[column].to_numpy())
        frame = pl.concat(frames).drop("arrival")
        self._adapt_batch_size(rows)
        if self.letters is not None and rejects:
            send_letters(self.letters, str(self.source.dead_letters), rejects)
        before_rows = dict(self.progress.offsets)
        watermarks = self.progress.read(rows, entry.idle, entry.clock, entry.listed)
        offsets = tuple(
            # With what lies between the last message and this one, which holds none.
            OffsetRange(partition, before_rows[partition], end, len(messages.get(partition, ())), 0, int(self.finished))
            for partition, end in sorted(self.progress.offsets.items())
            if self.finished or partition in entry.ranges
        )
        block = self.run.ingest(EventBlock(frame, len(frame) + len(rejects), tuple(rejects)))
        return MicroBatch(
            number=entry.number,
            block=replace(block, offsets=offsets),
            before=before,
            after=self.progress.watermark,
            end=self.progress.as_state() | self.assignment.as_state(),
            watermarks=np.concatenate([np.zeros(0, np.int64), *watermarks]),
        )

    def _adapt_batch_size(self, rows: Mapping[int, tuple[int, Any]]) -> None:
        """Size batches so that each spans few windows, which are kept in memory. A backlog may span thousands of them.

        By typical times, so that single ones that are wrong decide nothing.
        """
        longest = 0.0
        for partition, (_, times) in rows.items():
            if len(times):
                low, self.typical[partition], high = np.quantile(times, (0.1, 0.5, 0.9))
                longest = max(longest, (high - low) / self.run.grid.calendar.step)
        if longest > _WINDOWS_AHEAD:
            self.consumer.at_once = max(1, self.consumer.at_once // 2)
        elif longest < _WINDOWS_AHEAD / 4:
            self.consumer.at_once = min(_MANY, 2 * self.consumer.at_once)

    def _find(self, partitions: list[int], from_start: bool) -> dict[int, int]:
        bounds = {partition: self.consumer.bounds(partition) for partition in partitions}
        earliest = from_start or self.source.offset == "earliest"
        offsets = {partition: low if earliest else high for partition, (low, high) in bounds.items()}
        self.add(offsets)
        return offsets

    def add(self, offsets: Mapping[int, int]) -> None:
        """Start reading partitions at the given offsets. Partitions that are already known are not changed."""
        new = {partition: offset for partition, offset in offsets.items() if partition not in self.progress.offsets}
        self.progress.offsets |= new
        self.progress.times |= dict.fromkeys(new, MIN_EVENT_TIME)
        if new:
            self.consumer.assign(new)
