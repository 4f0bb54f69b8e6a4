"""The middle of the graph for traces: blocks of events to points by shard of users, then released traces."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import apache_beam as beam
import numpy as np
from apache_beam.typehints.decorators import with_input_types

from mechanisms.core.traces import Traces
from pipeline.monitoring import metrics
from pipeline.output import files
from pipeline.output.files import ledger_path, parts_folder
from pipeline.output.ledger import Ledger
from pipeline.output.traces import accounts_of, traces_table, true_traces_table
from pipeline.output.writer import RunWriter
from pipeline.runners.beam.coders import NamedBlock, row_counts
from pipeline.runners.beam.step import ROWS, Step, discreetly, typed
from pipeline.steps.traces import TraceLoop, gather, read_block, view

if TYPE_CHECKING:
    from pipeline.config.plan import Plan


@with_input_types(NamedBlock)
class ReleaseTraces(beam.PTransform[Any, Any]):  # type: ignore[misc]
    """Release the traces of finite input, shard by shard of users, and account them.

    Parameters
    ----------
    plan
        The run.

    Returns
    -------
    ``{"shards": PCollection[int], "rows": PCollection[tuple[int, bytes]]}``: shards whose traces are written, and row
    counts (`decode_rows`).
    """

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.plan = plan

    def expand(self, blocks: Any) -> dict[str, Any]:
        """Attach the steps."""
        found = blocks | "FindPoints" >> beam.ParDo(FindPoints(self.plan)).with_outputs(ROWS, main="main")
        released = (
            typed(found["main"], tuple[int, bytes])
            # (shard, points)
            | "ByShard" >> beam.GroupByKey()
            | "ReleaseShard" >> beam.ParDo(ReleaseShard(self.plan)).with_outputs(ROWS, main="main")
        )
        rows = (typed(found[ROWS], tuple[int, bytes]), typed(released[ROWS], tuple[int, bytes])) | beam.Flatten()
        return {"shards": typed(released["main"], int), ROWS: rows}


class FindPoints(Step):
    """Split the points of every block by shard of users."""

    def prepare(self) -> None:
        """Make the writer."""
        self.writer = RunWriter(self.plan)

    @discreetly
    def process(self, named: NamedBlock) -> Iterator[Any]:
        """Emit (shard, points), and the row counts; keep rejects once, under the block's name."""
        fate, points = read_block(named.block, self.plan)
        yield from points
        self.writer.rejects(named.name.replace("/", "-"), named.block.rejects)
        metrics.read_rows(fate)
        yield beam.pvalue.TaggedOutput(ROWS, row_counts(fate))


class ReleaseShard(Step):
    """Release all traces of one shard, account them and write them; nothing is written before it is charged."""

    @discreetly
    def process(self, element: tuple[int, Iterable[bytes]]) -> Iterator[Any]:
        """Write the shard's parts, the first write of each, and emit its number."""
        shard, pieces = element
        plan, name = self.plan, f"{shard:06d}"
        traces = gather(pieces, plan)
        batch = TraceLoop(plan).release(shard, traces)
        Ledger(ledger_path(plan)).append(batch.charges)
        files.write_part(parts_folder(plan, "traces"), name, traces_table(traces, batch.released))
        seen = view(plan, traces, batch.released)
        for number, accountant in enumerate(plan.accountants):
            kind = "accounts_public" if accountant.public else "accounts"
            files.write_part(parts_folder(plan, kind), f"{number:03d}-{name}", accounts_of(accountant, seen))
        self._for_the_operator(name, traces)
        metrics.released_points(len(traces.times))
        yield beam.pvalue.TaggedOutput(ROWS, row_counts(memberships=len(traces.times)))
        yield shard

    def _for_the_operator(self, name: str, traces: Traces) -> None:
        plan = self.plan
        if plan.config.output.user_summaries:
            stays = np.add.reduceat(traces.landmarks, traces.starts, dtype=np.int64)
            summary = {"points": traces.lengths.tolist(), "landmarks": stays.tolist()}
            files.write_json(parts_folder(plan, "users") / f"{name}.json", summary)
        if plan.config.mode == "simulation" and plan.config.output.truth:
            files.write_part(parts_folder(plan, "truth"), name, true_traces_table(traces))
