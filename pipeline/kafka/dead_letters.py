"""Tells a topic of messages that were rejected: where they are and what is wrong, and by choice what they were."""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pipeline.block import Reject
from pipeline.kafka.producer import Producer

if TYPE_CHECKING:
    from pipeline.sources.kafka import Kafka


class DeadLetters:
    """Sends a letter for every rejected message, before the message counts as read.

    A letter's key is ``topic/partition/offset``, so that letters that are sent again after a kill replace themselves in
    a compacted topic.

    Parameters
    ----------
    source
        Says where to, and whether with content.
    """

    def __init__(self, source: Kafka) -> None:
        self.source = source
        self._producer = Producer(source.brokers, source.options) if source.dead_letters else None

    def close(self) -> None:
        """Leave the broker; everything has been delivered."""
        if self._producer is not None:
            self._producer.close()

    def send(self, rejects: Sequence[Reject], messages: Mapping[int, Sequence[Any]]) -> None:
        """Tell of some rejects, and wait until all is delivered."""
        if self._producer is None or not rejects:
            return
        sent = self._contents(messages) if self.source.dead_letter_content else {}
        for (file, offset, reason), n_rows in Counter((r.file, r.line, r.reason) for r in rejects).items():
            topic, _, partition = file.rpartition("/")
            letter = {"topic": topic, "partition": int(partition), "offset": offset, "reason": reason, "rows": n_rows}
            letter |= sent.get((int(partition), offset), {})
            self._producer.send(self.source.dead_letters or "", f"{file}/{offset}", json.dumps(letter))
        self._producer.flush()

    @staticmethod
    def _contents(messages: Mapping[int, Sequence[Any]]) -> dict[tuple[int, int], dict[str, str | None]]:
        found = {}
        for partition, own in messages.items():
            for message in own:
                found[partition, message.offset()] = {
                    "key": _text(message.key()),
                    "value": _text(message.value()),
                }
        return found


def _text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()
