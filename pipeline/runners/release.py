"""Release the counts of consecutive windows, with every charge on disk before its release leaves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from penstock.pipeline.monitoring import metrics
from penstock.pipeline.output.files import PART_ROWS
from penstock.pipeline.output.ledger import Ledger
from penstock.pipeline.steps.count import GroupCounts
from penstock.pipeline.steps.release import Batch, ReleaseLoop
from penstock.pipeline.steps.targets import PrivateFacts

if TYPE_CHECKING:
    from penstock.pipeline.config.plan import Plan


def released_batches(
    plan: Plan, loop: ReleaseLoop, ledger: Ledger, state: bytes, counts: GroupCounts
) -> Iterator[tuple[Batch, bytes]]:
    """Batches of the size of a part, and the state after each; the same cuts whenever it is repeated."""
    step = max(1, PART_ROWS // plan.n_cells)
    for row in range(0, len(counts.bounded), step):
        first, bounded = counts.first + row, counts.bounded[row : row + step]
        last = first + len(bounded) - 1
        batch, state = ledger.charge(partial(loop.advance, state, first, bounded))
        if plan.targets.n_targets:
            seen = counts.target_cells[(counts.target_cells[:, 0] >= first) & (counts.target_cells[:, 0] <= last)]
            batch = replace(batch, known=PrivateFacts(first, bounded, seen))
        metrics.released(batch, int(plan.calendar.end(last)))
        yield batch, state
        if batch.stopped:
            return
