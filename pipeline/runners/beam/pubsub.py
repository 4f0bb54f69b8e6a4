"""Read from a Pub/Sub subscription through Beam's connector."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import apache_beam as beam
import numpy as np
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import WindowedValue

from penstock.mechanisms.core.plugin import MissingLibrary
from penstock.pipeline.config.plan import Plan
from penstock.pipeline.counting.ingest import last_final_windows
from penstock.pipeline.runners.beam.coders import NamedBlock
from penstock.pipeline.runners.beam.step import PlanTransform, Step, redacted, timestamp
from penstock.pipeline.runners.shared import ingestion
from penstock.pipeline.sources.base import MIN_EVENT_TIME, EventBlock, MicroBatch
from penstock.pipeline.sources.pubsub import Pubsub
from penstock.pipeline.sources.reading.messages import events_of

#: Messages that are decoded together.
_MANY = 10_000


class ReadMessages(PlanTransform):
    """Read messages as blocks, following the contract of `pipeline.runners.beam.read` with one exception.

    The timestamp of a block is when its first message was published, and not that of its earliest event: windows are
    final by the time of publication, so that a row which is in time holds back its windows all the same.

    ``connector`` reads `PubsubMessage`s with the time of publication as their timestamp; None: Beam's.
    """

    def __init__(self, plan: Plan, connector: beam.PTransform[Any, Any] | None = None) -> None:
        super().__init__(plan)
        self.connector = connector

    def expand(self, root: Any) -> Any:
        """Apply the steps of this transform."""
        return (
            root
            | "Messages" >> (self.connector or connector_of(self.plan))
            # PubsubMessage
            | "Decode" >> beam.ParDo(DecodeMessages(self.plan)).with_output_types(NamedBlock)
        )


def connector_of(plan: Plan) -> beam.PTransform[Any, Any]:
    """Return Beam's connector for a plan's subscription. Raises `MissingLibrary` if a library it needs is missing."""
    from apache_beam.io.gcp.pubsub import ReadFromPubSub

    try:
        import_module("google.cloud.pubsub")
    except ImportError:
        text = "Beam's connector needs libraries that are not installed: pip install 'apache-beam[gcp]'"
        raise MissingLibrary(text) from None
    # Without an attribute for it, the timestamp is the time of publication.
    return ReadFromPubSub(subscription=source_of(plan).subscription, with_attributes=True)


def source_of(plan: Plan) -> Pubsub:
    """Return a plan's Pub/Sub subscription, or raise `TypeError` if the plan has a different source."""
    source = plan.config.source
    if not isinstance(source, Pubsub):
        raise TypeError(f"{type(source).__name__} is not a subscription")
    return source


class DecodeMessages(Step):
    """Decode a bundle's messages in batches.

    What is rejected travels alone, under the id of its message: a bundle that is repeated may hold other messages, and
    rejects are kept once for each name.
    """

    def start_bundle(self) -> None:
        """Discard any state left behind by a failed bundle."""
        self.waiting: list[tuple[Any, Timestamp]] = []

    @redacted
    def process(self, message: Any, instant: Any = beam.DoFn.TimestampParam) -> Iterator[Any]:
        """Buffer a message and emit blocks once the buffer is full."""
        self.waiting.append((message, instant))
        if len(self.waiting) >= _MANY:
            yield from self._decode()

    @redacted
    def finish_bundle(self) -> Iterator[Any]:
        """Emit the remaining messages as blocks."""
        if self.waiting:
            yield from self._decode()

    def _decode(self) -> Iterator[Any]:
        messages, instants = zip(*self.waiting)
        self.waiting = []
        arrivals = np.asarray([instant.micros // 1000 for instant in instants], np.int64)
        ids = [str(message.message_id) for message in messages]
        source, first = source_of(self.plan), timestamp(int(arrivals.min()))
        block = events_of(source, [message.data for message in messages], arrivals, lambda i: (ids[i], 1))
        for named in self._blocks(block, ids[0]):
            yield WindowedValue(named, first, (GlobalWindow(),))

    def _blocks(self, block: EventBlock, name: str) -> Iterator[NamedBlock]:
        nothing, ingest = block.frame.drop("arrival").clear(), ingestion(self.plan)
        for message_id in dict.fromkeys(reject.file for reject in block.rejects):
            rejected = tuple(reject for reject in block.rejects if reject.file == message_id)
            unread = EventBlock(nothing, len(rejected), rejected)
            yield NamedBlock(f"rejected/{message_id}", ingest(unread))
        if block.frame.height:
            sound = ingest(EventBlock(block.frame.drop("arrival"), block.frame.height))
            arrivals = block.frame["arrival"].to_numpy()
            piece = MicroBatch(number=0, block=sound, before=MIN_EVENT_TIME, after=MIN_EVENT_TIME, watermarks=arrivals)
            closed = last_final_windows(piece, self.plan.grid)
            yield NamedBlock(f"messages/{name}", piece.block, closed if closed.any() else None)
