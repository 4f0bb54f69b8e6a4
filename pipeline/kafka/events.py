"""From messages to a block of events: every message is read or rejected, whatever is in it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from pipeline.block import EventBlock, Reject
from pipeline.kafka.payload import Rows, read_messages
from pipeline.reading.checks import reasons, sound_rows
from pipeline.reading.parsing import MAX_RAW_CHARACTERS

if TYPE_CHECKING:
    from pipeline.sources.kafka import Kafka


def block_of(source: Kafka, partition: int, messages: Sequence[Any]) -> EventBlock:
    """The events of consecutive messages of one partition.

    Parameters
    ----------
    source
        Says how messages are read.
    partition
        Where they are from.
    messages
        As the client gives them. A reject's file is ``topic/partition``, its line the offset of its message.
    """
    values = [message.value() for message in messages]
    rows = read_messages(values, source.layout, source.parser)
    events = _checked(rows, messages, source.ahead)
    is_sound = sound_rows(events)
    rejects = [_reject(source.topic, partition, messages[i], reason) for i, reason in rows.problems.items()]
    if not is_sound.all():
        bad = (~is_sound).arg_true().to_numpy()
        for i, reason, row in zip(rows.message[bad].tolist(), reasons(events[bad]), rows.frame[bad].iter_rows()):
            rejects.append(_reject(source.topic, partition, messages[i], reason, row))
        events = events.filter(is_sound)
    frame = events.select(rows.frame.columns)
    return EventBlock(frame, frame.height + len(rejects), tuple(rejects))


def joined(blocks: Iterable[EventBlock], source: Kafka) -> EventBlock:
    """Blocks one after the other as one; an empty one where there is none."""
    blocks = list(blocks)
    frame = pl.concat([pl.DataFrame(schema=source.layout.schema), *(block.frame for block in blocks)])
    rejects = tuple(reject for block in blocks for reject in block.rejects)
    return EventBlock(frame, frame.height + len(rejects), rejects)


def _checked(rows: Rows, messages: Sequence[Any], ahead: int) -> pl.DataFrame:
    """The rows, with a ``problem`` where an event claims to be from long after its message was sent."""
    sent = np.asarray([_sent(message) for message in messages], np.int64)[rows.message]
    is_ahead = pl.Series(rows.frame["time"].fill_null(0).to_numpy() - ahead > sent)
    return rows.frame.with_columns(
        pl.when(is_ahead).then(pl.lit("time is later than its message was sent")).alias("problem")
    )


def _sent(message: Any) -> int:
    kind, milliseconds = message.timestamp()
    return int(milliseconds) if kind else 2**62


def _reject(topic: str, partition: int, message: Any, reason: str, row: Sequence[Any] | None = None) -> Reject:
    if row is not None:
        raw = str(row)
    else:
        raw = (message.value() or b"")[: 4 * MAX_RAW_CHARACTERS].decode("utf-8", "backslashreplace")
    return Reject(f"{topic}/{partition}", message.offset(), reason, raw[:MAX_RAW_CHARACTERS])
