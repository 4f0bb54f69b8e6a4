"""The Beam graph of a finite run: spans of input in, parts of the output files out."""

from __future__ import annotations

from collections.abc import Iterable

import apache_beam as beam
import numpy as np

from pipeline.account_stage import AccountInOrder
from pipeline.count_stage import CountGroup, CountSpans, WriteTruth, WriteUsers
from pipeline.counting import GroupCounts
from pipeline.plan import Plan
from pipeline.release_loop import Batch
from pipeline.release_stage import ReleaseInOrder, WriteReleases
from pipeline.source import Span


def build(root: beam.Pipeline, plan: Plan, spans: list[Span], alone: bool = True) -> None:
    """Attach the whole graph to a pipeline; one worker ``alone`` reads all spans, and can so read ahead."""
    work = [tuple(spans)] if alone else [(span,) for span in spans]
    counted = (
        root
        | "Spans" >> beam.Create(work, reshuffle=False)
        | "CountSpans" >> beam.ParDo(CountSpans(plan))
        | "ByGroup" >> beam.GroupByKey()
        | "CountGroup" >> beam.ParDo(CountGroup(plan)).with_outputs(CountGroup.USERS, main="counts")
    )
    _ = counted[CountGroup.USERS] | "ByShard" >> beam.GroupByKey() | "WriteUsers" >> beam.ParDo(WriteUsers(plan))
    # The last group is always there, so that windows after the last event are released too.
    last = (plan.n_windows - 1) // plan.group
    end = root | "End" >> beam.Create([(last, _empty(plan, last))], reshuffle=False)
    released = (
        (counted["counts"], end)
        | "WithEnd" >> beam.Flatten()
        | "SumShards" >> beam.CombinePerKey(_total)
        | "WriteTruth" >> beam.ParDo(WriteTruth(plan)).with_output_types(tuple[str, bytes])
        | "Release" >> beam.ParDo(ReleaseInOrder(plan))
        | "WriteReleases" >> beam.ParDo(WriteReleases(plan))
    )
    accounted = [(number, shard) for number, own in enumerate(plan.shards) for shard in range(len(own))]
    _ = (
        released
        | "ForEachAccountant"
        >> beam.FlatMap(lambda batch: [(part, batch) for part in accounted]).with_output_types(
            tuple[tuple[int, int], Batch]
        )
        | "Account" >> beam.ParDo(AccountInOrder(plan))
    )


def _empty(plan: Plan, group: int) -> GroupCounts:
    first = group * plan.group + 1
    zeros = np.zeros((min(plan.group, plan.n_windows - first + 1), plan.n_cells), np.int64)
    return GroupCounts(first, zeros, zeros, 0)


def _total(groups: Iterable[GroupCounts]) -> GroupCounts:
    iterator = iter(groups)
    total = next(iterator)
    for group in iterator:
        total = total + group
    return total
