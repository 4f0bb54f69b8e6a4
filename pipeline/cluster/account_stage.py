"""The accounting stage of a cluster: as on one machine, and it says when the books are closed."""

from __future__ import annotations

from typing import Any

import apache_beam as beam

from pipeline.account_stage import AccountInOrder
from pipeline.cluster.step import ClusterStep, discreetly
from pipeline.output import files
from pipeline.output.files import parts_folder
from pipeline.steps import account
from pipeline.steps.release import Batch


class AccountOnCluster(ClusterStep, AccountInOrder):
    """Step one parallel part of one accountant through all releases, each once and in order.

    Batches are cut alike whenever they are repeated, so a part of the accounts that is there already is the same.
    """

    write = staticmethod(files.write_shared_part)

    @discreetly
    def process(
        self,
        element: tuple[tuple[int, int], Batch],
        waiting: Any = beam.DoFn.StateParam(AccountInOrder.WAITING),
        loop: Any = beam.DoFn.StateParam(AccountInOrder.LOOP),
    ) -> None:
        """Account what is next in order; note when nothing more is to come."""
        super().process(element, waiting, loop)
        number, shard = element[0]
        if account.FORMAT.decode(loop.read())["finished"]:
            files.write_json(parts_folder(self.plan, "ended") / f"account-{number:03d}-{shard:06d}.json", True)
