"""The accounting stage of the graph: every accountant sees every release once and in order."""

from __future__ import annotations

import math
from typing import Any

import apache_beam as beam
from apache_beam.coders import BytesCoder
from apache_beam.transforms.userstate import BagStateSpec, ReadModifyWriteStateSpec

from pipeline import parts
from pipeline.account_loop import AccountLoop
from pipeline.paths import parts_folder
from pipeline.plan import STREAM, Plan
from pipeline.release_loop import Batch
from pipeline.tables import accounts_table


class AccountInOrder(beam.DoFn):
    """Step one accountant through all releases in order."""

    WAITING = BagStateSpec("waiting", beam.coders.PickleCoder())
    LOOP = ReadModifyWriteStateSpec("loop", BytesCoder())

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def setup(self) -> None:
        """Make what is not shipped."""
        self.loops = [AccountLoop(self.plan, accountant) for accountant in self.plan.accountants]

    def process(
        self,
        element: tuple[int, Batch],
        waiting: Any = beam.DoFn.StateParam(WAITING),
        loop: Any = beam.DoFn.StateParam(LOOP),
    ) -> None:
        """Account what is next in order; keep what came too early."""
        number, batch = element
        account = self.loops[number]
        state = loop.read() or account.start()
        batches = sorted([*waiting.read(), batch], key=lambda b: b.releases[0].window if b.releases else math.inf)
        waiting.clear()
        for candidate in batches:
            if candidate.releases and candidate.releases[0].window > account.accounted(state) + 1:
                waiting.add(candidate)
                continue
            first = account.accounted(state) + 1
            rows, state = account.advance(state, candidate)
            if rows:
                kind = "accounts_public" if account.accountant.public else "accounts"
                table = accounts_table(rows, account.name, STREAM)
                parts.write_part(parts_folder(self.plan, kind), f"{number:03d}-{first:012d}", table)
        loop.write(state)
        summary = {"accountant": account.name, "public": account.accountant.public, **account.summary(state)}
        parts.write_json(parts_folder(self.plan, "summaries") / f"{number:03d}.json", summary)
