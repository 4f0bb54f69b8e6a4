"""Trace stage of the graph: splits blocks of events into points by user shard and releases them as traces."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import apache_beam as beam
from apache_beam.typehints.decorators import with_input_types

from penstock.pipeline.monitoring import metrics
from penstock.pipeline.output.registration import open_ledger
from penstock.pipeline.releasing.traces import points_of
from penstock.pipeline.runners.beam.coders import NamedBlock, decode, encode, row_counts
from penstock.pipeline.runners.beam.step import ROWS, PlanTransform, WritingStep, redacted, typed
from penstock.pipeline.runners.shared import release_shard


@with_input_types(NamedBlock)
class ReleaseTraces(PlanTransform):
    """Release and account for the traces in finite input, one user shard at a time.

    Returns ``{"shards": PCollection[int], "rows": PCollection[tuple[int, bytes]]}``: shards whose traces are written,
    and row counts (`decode_rows`).
    """

    def expand(self, blocks: Any) -> dict[str, Any]:
        """Apply the steps of this transform."""
        points = blocks | "FindPoints" >> beam.ParDo(FindPoints(self.plan)).with_outputs(ROWS, main="main")
        shards = typed(points["main"], tuple[int, bytes]) | "ByShard" >> beam.GroupByKey()
        # (shard, points)
        released = shards | "ReleaseShard" >> beam.ParDo(ReleaseShard(self.plan)).with_outputs(ROWS, main="main")
        rows = (typed(points[ROWS], tuple[int, bytes]), typed(released[ROWS], tuple[int, bytes])) | beam.Flatten()
        return {"shards": typed(released["main"], int), ROWS: rows}


class FindPoints(WritingStep):
    """Split the points in each block by user shard."""

    @redacted
    def process(self, named: NamedBlock) -> Iterator[Any]:
        """Emit (shard, points) and the row counts. Rejects are written once, in a file named after the block."""
        plan = self.plan
        counts, points = points_of(named.block, plan.grid, plan.space, plan.keys, plan.batching.n_shards)
        yield from ((shard, encode(piece)) for shard, piece in points)
        self.writer.rejects(named.name.replace("/", "-"), named.block.rejects)
        self.with_listeners(metrics.read_rows, counts)
        yield beam.pvalue.TaggedOutput(ROWS, row_counts(counts))


class ReleaseShard(WritingStep):
    """Release, charge, account for and write all traces in a shard."""

    def prepare(self) -> None:
        """Create the writer and open the ledger."""
        super().prepare()
        self.ledger = open_ledger(self.plan)

    @redacted
    def process(self, element: tuple[int, Iterable[bytes]]) -> Iterator[Any]:
        """Write a shard's parts, keeping the first version of each, and emit the shard's index."""
        shard, pieces = element
        n_points = self.with_listeners(release_shard, self.plan, self.ledger, self.writer, shard, map(decode, pieces))
        yield beam.pvalue.TaggedOutput(ROWS, row_counts(memberships=n_points))
        yield shard
