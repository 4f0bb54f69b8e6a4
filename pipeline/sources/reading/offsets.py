"""Ranges of topic offsets that a run has counted, and the gaps between these ranges."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any, NamedTuple, Self


class OffsetRange(NamedTuple):
    """A range of offsets in one partition, from ``first`` up to but not including ``end``."""

    partition: int
    first: int
    end: int
    records: int = 0  # messages among them; the other offsets are markers of transactions, or were compacted
    twice: int = 0  # offsets that were counted more than once
    is_last: int = 0  # 1 where the run needs nothing of the partition behind the end


def joined_ranges(ranges: Iterable[Sequence[int]]) -> list[OffsetRange]:
    """Merge adjacent and overlapping ranges, and sort them by partition and offset.

    >>> joined_ranges([(0, 5, 9, 4), (0, 0, 5, 5), (1, 3, 4, 1)])  # doctest: +NORMALIZE_WHITESPACE
    [OffsetRange(partition=0, first=0, end=9, records=9, twice=0, is_last=0),
     OffsetRange(partition=1, first=3, end=4, records=1, twice=0, is_last=0)]
    """
    joined: list[OffsetRange] = []
    for after in sorted(OffsetRange(*given) for given in ranges):
        before = joined[-1] if joined else None
        if before is None or before.partition != after.partition or before.end < after.first:
            joined.append(after)
            continue
        joined[-1] = OffsetRange(
            before.partition,
            before.first,
            max(before.end, after.end),
            before.records + after.records,
            before.twice + after.twice + max(0, min(before.end, after.end) - after.first),
            max(before.is_last, after.is_last),
        )
    return joined


@dataclass(frozen=True)
class OffsetsRead:
    """All offsets that a run has counted."""

    ranges: tuple[OffsetRange, ...]  # as `joined_ranges` returns them
    topic_id: str | None = None  # of the topic that was read: one that is created again has another
    over: int | None = None  # when the last window was final, where the run has come to its end

    def gaps(self) -> list[str]:
        """Describe offsets that were not counted or were counted more than once.

        >>> OffsetsRead((OffsetRange(0, 0, 5, 5), OffsetRange(0, 8, 9, 1)), over=7).gaps()
        ['offsets 5 to 8 of partition 0 were not counted', 'partition 0 was not read to the end of the run, only to 9']
        """
        words = []
        for partition, group in groupby(self.ranges, key=lambda span: span.partition):
            ranges = list(group)
            for before, after in pairwise(ranges):
                words.append(f"offsets {before.end} to {after.first} of partition {partition} were not counted")
            if twice := sum(span.twice for span in ranges):
                words.append(f"{twice:,} offsets of partition {partition} were counted twice")
            if self.over is not None and not ranges[-1].is_last:
                words.append(f"partition {partition} was not read to the end of the run, only to {ranges[-1].end}")
        return words

    def as_json(self) -> dict[str, Any]:
        """Return the ranges for the operator's manifest, with the number of offsets without a record."""
        rows = [{**row._asdict(), "without_record": max(0, row.end - row.first - row.records)} for row in self.ranges]
        return {"topic_id": self.topic_id, "over": self.over, "ranges": rows}

    @classmethod
    def of_json(cls, value: dict[str, Any]) -> Self:
        """Create an instance from the result of `as_json`."""
        ranges = tuple(OffsetRange(*(row[name] for name in OffsetRange._fields)) for row in value["ranges"])
        return cls(ranges, value["topic_id"], value["over"])
