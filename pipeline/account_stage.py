"""The accounting stage of the graph: every accountant sees every release once and in order."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import apache_beam as beam
from apache_beam.coders import BytesCoder
from apache_beam.transforms.userstate import BagStateSpec, ReadModifyWriteStateSpec

from pipeline.batch_format import BatchCoder
from pipeline.config.plan import STREAM
from pipeline.output import files
from pipeline.output.files import parts_folder
from pipeline.output.kafka import publish_accounts
from pipeline.output.tables import accounts_table
from pipeline.steps.account import AccountLoop
from pipeline.steps.release import Batch

if TYPE_CHECKING:
    from pipeline.config.plan import Plan


class AccountInOrder(beam.DoFn):
    """Step one parallel part of one accountant through all releases in order."""

    WAITING = BagStateSpec("waiting", BatchCoder())
    LOOP = ReadModifyWriteStateSpec("loop", BytesCoder())
    write = staticmethod(files.write_part)

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def setup(self) -> None:
        """Make what is not shipped."""
        self.loops: dict[tuple[int, int], AccountLoop] = {}

    def loop_of(self, part: tuple[int, int]) -> AccountLoop:
        """The loop of one part, made when it is first needed: a part may hold many priors."""
        if part not in self.loops:
            number, shard = part
            self.loops[part] = AccountLoop(self.plan, self.plan.accountants[number], shard)
        return self.loops[part]

    def process(
        self,
        element: tuple[tuple[int, int], Batch],
        waiting: Any = beam.DoFn.StateParam(WAITING),
        loop: Any = beam.DoFn.StateParam(LOOP),
    ) -> None:
        """Account what is next in order; keep what came too early."""
        (number, shard), batch = element
        account = self.loop_of((number, shard))
        state = loop.read() or account.start()
        batches = sorted([*waiting.read(), batch], key=_position)
        waiting.clear()
        for candidate in batches:
            if account.is_early(state, candidate):
                waiting.add(candidate)
                continue
            first = account.accounted(state) + 1
            rows, state = account.advance(state, candidate)
            if rows:
                kind = "accounts_public" if account.accountant.public else "accounts"
                table = accounts_table(rows, account.name, STREAM)
                table = self.write(parts_folder(self.plan, kind), f"{number:03d}-{first:012d}-{shard:06d}", table)
                if account.accountant.public:
                    publish_accounts(self.plan, table)
        loop.write(state)
        if shard:
            return  # the summary is the same in every part
        summary = {"accountant": account.name, "public": account.accountant.public, **account.summary(state)}
        files.write_json(parts_folder(self.plan, "summaries") / f"{number:03d}.json", summary)


def _position(batch: Batch) -> float:
    if batch.known is not None:
        return batch.known.first
    return batch.releases[0].window if batch.releases else math.inf
