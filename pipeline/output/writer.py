"""Write a run's folder: parts, row counts, rejects and summaries."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from penstock.accountants.core.accountant import ACCOUNTANTS, Rows
from penstock.pipeline import atomic
from penstock.pipeline.counting.ingest import RowCounts, redacted_reject
from penstock.pipeline.output import files
from penstock.pipeline.output.files import PART_ROWS, has_truth, parts_folder
from penstock.pipeline.output.sinks import Sink
from penstock.pipeline.output.tables import accounts_table, releases_table, traces_table, true_traces_table, truth_table
from penstock.pipeline.releasing.release import Batch
from penstock.pipeline.sources.base import Reject

if TYPE_CHECKING:
    from penstock.pipeline.config.plan import Plan
    from penstock.pipeline.releasing.traces import TraceBatch


def sinks_of(plan: Plan) -> list[Sink]:
    """Return the sinks configured for a run."""
    output, sinks = plan.config.output, list[Sink]()
    if output.kafka is not None:
        from penstock.pipeline.output.sinks.messages import Publisher

        sinks.append(Publisher(output.kafka))
    if output.store is not None:
        from penstock.pipeline.output.sinks.store import Store

        sinks.append(Store(plan, output.store))
    if output.pubsub is not None:
        from penstock.pipeline.output.sinks.messages import PubSub

        sinks.append(PubSub(output.pubsub))
    return sinks


class RunWriter:
    """The only writer of a run's files, which all runners share.

    Every method is idempotent. A part is durable when its method returns, and its first write wins; row counts,
    memberships and summaries are replaced whole.
    """

    def __init__(
        self, plan: Plan, *, clock: Callable[[], float] = time.time, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self.plan, self._clock, self._sleep = plan, clock, sleep
        self._sinks = sinks_of(plan)

    def releases(self, batch: Batch, final_at: float | None = None) -> None:
        """Write charged releases, and publish them ``output.delay`` after ``final_at``, or at once if it is None."""
        if batch.stopped:
            self.stopped(batch.stopped)
        if not batch.releases:
            return
        plan, first, last = self.plan, batch.releases[0].window, batch.releases[-1].window
        # Before the wait: how long it takes depends on the data.
        table = releases_table(batch.releases, plan.grid.windows(first, last), plan.space.cells, plan.grid.lateness_ms)
        if final_at is not None:
            self._wait(final_at)
        held = files.write_part(parts_folder(plan, "releases"), files.part_name(first, last), table)
        # A sink gets what the file holds, also where an earlier execution has written it.
        for sink in self._sinks:
            sink.releases(held)

    def truth(self, first: int, counts: NDArray[Any], bounded: NDArray[Any]) -> None:
        """Write the true counts of consecutive windows, shape (n_windows, n_cells). A deployment writes none."""
        plan = self.plan
        if not has_truth(plan):
            return
        step = max(1, PART_ROWS // plan.grid.n_cells)
        for row in range(0, len(counts), step):
            windows = plan.grid.windows(first + row, first + min(row + step, len(counts)) - 1)
            some = slice(row, row + step)
            table = truth_table(counts[some], bounded[some], windows, plan.space.cells)
            name = files.part_name(windows[0].index, windows[-1].index)
            files.write_part(parts_folder(plan, "truth"), name, table)

    def traces(self, batch: TraceBatch) -> None:
        """Write the charged traces of one user shard along with the operator's records about them."""
        plan, name = self.plan, f"{batch.shard:06d}"
        files.write_part(parts_folder(plan, "traces"), name, traces_table(batch.released))
        if has_truth(plan):
            files.write_part(parts_folder(plan, "truth"), name, true_traces_table(batch.traces))
        for number, rows in enumerate(batch.accounts):
            self.accounts(number, batch.shard, 1, rows)
        if plan.summarises_users:
            self.users(batch.shard, batch.user_summary)

    def accounts(self, number: int, shard: int, first: int, rows: Rows) -> None:
        """Write the account rows of one shard of an accountant, starting at window ``first`` (1 for traces)."""
        if not rows:
            return
        accountant = self.plan.config.accountants[number]
        table = accounts_table(rows, accountant)
        kind = "accounts_public" if accountant.public else "accounts"
        held = files.write_part(parts_folder(self.plan, kind), f"{number:03d}-{first:012d}-{shard:06d}", table)
        if accountant.public and not self.plan.on_points:
            for sink in self._sinks:
                sink.accounts(held)

    def summary(self, number: int, figures: Mapping[str, Any]) -> None:
        """Write the summary of the accountant with a given index, replacing any earlier summary."""
        accountant = self.plan.config.accountants[number]
        line = {"accountant": ACCOUNTANTS.name_of(type(accountant)), "public": accountant.public, **figures}
        atomic.write_json(parts_folder(self.plan, "summaries") / f"{number:03d}.json", line)

    def row_counts(self, name: str, counts: RowCounts) -> None:
        """Write the row counts for part or all of the input, replacing any earlier counts."""
        atomic.write_json(parts_folder(self.plan, "row_counts") / f"{name}.json", asdict(counts))

    def memberships(self, name: str, n_memberships: int) -> None:
        """Write the number of distinct memberships in a part of the input, replacing any earlier number."""
        atomic.write_json(parts_folder(self.plan, "memberships") / f"{name}.json", n_memberships)

    def rejects(self, name: str, rejects: Iterable[Reject]) -> None:
        """Write a part's rejects, redacted in a deployment because a row identifies a person."""
        key, user_files = self.plan.keys.users, self.plan.config.source.recorded.has_user_names
        kept = [json.dumps(redacted_reject(one, key, user_files).as_dict(), ensure_ascii=False) for one in rejects]
        if kept:
            path = parts_folder(self.plan, "rejects") / f"{name}.jsonl"
            atomic.write_first(path, ("\n".join(kept) + "\n").encode())

    def users(self, shard: int, summary: Mapping[str, list[int]]) -> None:
        """Write statistics about each user in a shard, without any identities."""
        # In one line: Python indents JSON number by number.
        atomic.write_text(parts_folder(self.plan, "users") / f"{shard:06d}.json", json.dumps(summary))

    def stopped(self, reason: str) -> None:
        """Record the reason for stopping before the last window."""
        atomic.write_json(parts_folder(self.plan, "stopped") / "stopped.json", reason)

    def _wait(self, final_at: float) -> None:
        """Wait for what is left of the configured delay after the window became final."""
        delay = self.plan.config.output.delay / 1000
        if 0 < (left := final_at + delay - self._clock()) <= delay:
            self._sleep(left)
