"""Messages of a small Pub/Sub subscription: in time, late, wrong, and as its connector gives them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from apache_beam.coders import FastPrimitivesCoder
from apache_beam.io.gcp.pubsub import PubsubMessage
from apache_beam.testing.test_stream import TestStream
from apache_beam.transforms.window import TimestampedValue

from penstock.pipeline.runners.beam.step import end_of_input, final_at, timestamp

CONFIG = """
name: subscribed
seed: 7
source:
  type: pubsub
  subscription: projects/city-1/subscriptions/events
  columns: {place: stop}
  from: 2024-01-01T00:00:00Z
  until: 2024-01-01T04:00:00Z
space: {type: places, list: [a, b], elsewhere: false}
windows: {type: fixed, size: 1h, allowed_lateness: 5m}
mechanism: {type: discrete_laplace, epsilon: 0.5}
accountants: [{type: composition}]
output: {path: PATH, report: false, ledger_source: events}
"""
HOUR, MINUTE = 3_600_000, 60_000
FIRST = 1704067200000  # 2024-01-01T00:00:00Z
#: Minute of publication, and what was published.
EVENTS: list[tuple[float, Any]] = [
    (11, ("ann", 10, "a")),
    (11, ("ann", 10, "a")),
    (21, ("bob", 20, "a")),
    (64.9, ("cid", 30, "b")),  # in time by a few seconds
    (65, ("dan", 30, "b")),  # when its window is final
    (70, b"{"),
    (71, ("eva", "noon", "a")),
    (131, ("ann", 130, "b")),
    (132, ("fay", 133 + 24 * 60, "b")),  # from the future
    (140, ("gus", -5, "a")),
    (141, ("ann", 141, "c")),
]


def text_of(minute: Any) -> str:
    if isinstance(minute, str):
        return minute
    return datetime.fromtimestamp((FIRST + minute * MINUTE) / 1000, UTC).isoformat()


def data_of(event: Any) -> bytes:
    if isinstance(event, bytes):
        return event
    user, minute, place = event
    return json.dumps({"user": user, "time": text_of(minute), "stop": place}).encode()


def messages() -> list[tuple[int, PubsubMessage]]:
    """Milliseconds of publication, and the message."""
    return [
        (FIRST + int(minute * MINUTE), PubsubMessage(data_of(event), {}, str(1000 + number)))
        for number, (minute, event) in enumerate(EVENTS)
    ]


def connector(plan: Any) -> TestStream:
    """Messages as the service gives them: each at the time of its publication, then the watermark."""
    stream, reached = TestStream(coder=FastPrimitivesCoder()), 0
    deadlines = [final_at(plan, group) for group in range(plan.grid.n_windows)]
    for instant, message in [*messages(), (end_of_input(plan), None)]:
        # This runner lets a watermark pass the counting before its timers have been called, so it takes small steps.
        for step in sorted({*(at - 2 for at in deadlines), *(at - 1 for at in deadlines), instant}):
            if reached < step <= instant:
                stream.advance_watermark_to(timestamp(step))
                reached = step
        if message is not None:
            stream.add_elements([TimestampedValue(message, timestamp(instant))])
    return stream
