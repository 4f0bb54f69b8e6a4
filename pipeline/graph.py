"""The Beam graph of a finite run: spans of input in, parts of the output files out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import apache_beam as beam
from apache_beam.typehints import Tuple

from pipeline.account_stage import AccountInOrder
from pipeline.count_stage import CountGroup, CountHere, CountSpans, WriteTruth, WriteUsers
from pipeline.release_stage import ReleaseInOrder, WriteReleases
from pipeline.runners.beam.metrics import report_to_beam
from pipeline.sources.base import Span
from pipeline.steps.count import GroupCounts, Visits, nothing
from pipeline.steps.release import Batch

if TYPE_CHECKING:
    from pipeline.config.plan import Plan


def build(root: beam.Pipeline, plan: Plan, spans: list[Span], alone: bool = True) -> None:
    """Attach the whole graph to a pipeline; one worker ``alone`` reads and counts all spans without a shuffle."""
    report_to_beam()
    released = (
        (_count_here(root, plan, spans) if alone else _count_everywhere(root, plan, spans))
        | "WriteTruth" >> beam.ParDo(WriteTruth(plan)).with_output_types(tuple[str, bytes])
        | "Release" >> beam.ParDo(ReleaseInOrder(plan)).with_output_types(Batch)
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


def _count_here(root: beam.Pipeline, plan: Plan, spans: list[Span]) -> Any:
    return root | "Begin" >> beam.Impulse() | "CountHere" >> beam.ParDo(CountHere(plan, spans))


def _count_everywhere(root: beam.Pipeline, plan: Plan, spans: list[Span]) -> Any:
    counted = (
        root
        | "Spans" >> beam.Create(spans, reshuffle=False)
        | "CountSpans" >> beam.ParDo(CountSpans(plan)).with_output_types(tuple[tuple[int, int], bytes])
        | "ByGroup" >> beam.GroupByKey()
        | "CountGroup" >> beam.ParDo(CountGroup(plan)).with_outputs(CountGroup.USERS, main="counts")
    )
    counted["counts"].element_type = Tuple[int, GroupCounts]
    counted[CountGroup.USERS].element_type = Tuple[int, Visits]
    _ = counted[CountGroup.USERS] | "ByShard" >> beam.GroupByKey() | "WriteUsers" >> beam.ParDo(WriteUsers(plan))
    # Every group is there, so that windows without an event are released too.
    groups = root | "Groups" >> beam.Create(range(plan.n_groups), reshuffle=False)
    empty = groups | "Nothing" >> beam.Map(lambda group: (group, nothing(group, plan))).with_output_types(
        tuple[int, GroupCounts]
    )
    return (counted["counts"], empty) | "WithEmpty" >> beam.Flatten() | "SumShards" >> beam.CombinePerKey(_total)


def _total(groups: Iterable[GroupCounts]) -> GroupCounts:
    iterator = iter(groups)
    total = next(iterator)
    for group in iterator:
        total = total + group
    return total
