"""The stages of a trace run's graph: spans of input in, parts of the output files out."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

import apache_beam as beam
import numpy as np

from mechanisms.core.traces import Traces
from pipeline.monitoring import metrics
from pipeline.output import files
from pipeline.output.files import ledger_path, parts_folder
from pipeline.output.ledger import Ledger
from pipeline.output.traces import traces_table, true_traces_table
from pipeline.sources.base import Span
from pipeline.steps.ingest import Fate, kept_reject
from pipeline.steps.traces import TraceLoop, accounts_of, gather, read_block, view

if TYPE_CHECKING:
    from pipeline.config.plan import Plan


class ReadPoints(beam.DoFn):
    """Read a span of input and split its points by user shard."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def process(self, span: Span) -> Iterator[tuple[int, bytes]]:
        """Emit (shard, points); leave the fate of the rows and the rejects as parts."""
        fate = Fate()
        name = f"{span.index:09d}"
        folder = parts_folder(self.plan, "rejects")
        with files.whole(folder / f"{name}.jsonl") as temporary, temporary.open("w", encoding="utf-8") as rejects:
            for block in self.plan.config.source.read(span):
                block_fate, points = read_block(block, self.plan)
                yield from points
                fate.add(block_fate)
                for reject in block.rejects:
                    rejects.write(json.dumps(kept_reject(reject, self.plan).as_dict(), ensure_ascii=False) + "\n")
                metrics.read_rows(block_fate)
        files.write_json(parts_folder(self.plan, "fates") / f"{name}.json", asdict(fate))


class ReleaseShard(beam.DoFn):
    """Release all traces of one shard, account them and write them; nothing is written before it is charged."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def process(self, element: tuple[int, Iterable[bytes]]) -> None:
        """Write the shard's parts."""
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

    def _for_the_operator(self, name: str, traces: Traces) -> None:
        plan = self.plan
        files.write_json(parts_folder(plan, "memberships") / f"{name}.json", len(traces.times))
        if plan.config.output.user_summaries:
            stays = np.add.reduceat(traces.landmarks, traces.starts, dtype=np.int64)
            summary = {"points": traces.lengths.tolist(), "landmarks": stays.tolist()}
            files.write_json(parts_folder(plan, "users") / f"{name}.json", summary)
        if plan.config.mode == "simulation" and plan.config.output.truth:
            files.write_part(parts_folder(plan, "truth"), name, true_traces_table(traces))
