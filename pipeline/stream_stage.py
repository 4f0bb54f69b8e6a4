"""The last stages of a local stream: true counts, releases and accounts, with checkpoints of their state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import apache_beam as beam
import numpy as np

from pipeline.account_stage import AccountInOrder
from pipeline.count_stage import WriteTruth
from pipeline.feed import feed_of
from pipeline.monitoring import metrics
from pipeline.output.checkpoint import Checkpoints
from pipeline.release_stage import ReleaseInOrder, WriteReleases
from pipeline.steps.count import GroupCounts
from pipeline.steps.release import Batch
from pipeline.stream_step import MARK, InProcess, as_bytes, commit

if TYPE_CHECKING:
    from pipeline.config.plan import Plan


class WriteStreamTruth(InProcess, WriteTruth):
    """Keep what was counted; memberships are in the books of the step before."""

    def note(self, group: GroupCounts) -> None:
        """Nothing: a file for every window of an endless stream would be too many."""


class ReleaseStream(InProcess, ReleaseInOrder):
    """Release what is due, and write down the state of the release loop when told to."""

    def __init__(self, plan: Plan, checkpoints: Checkpoints) -> None:
        super().__init__(plan)
        self.checkpoints = checkpoints

    def process(  # type: ignore[override]
        self,
        element: tuple[str, bytes],
        pending: Any = beam.DoFn.StateParam(ReleaseInOrder.PENDING),
        due: Any = beam.DoFn.TimerParam(ReleaseInOrder.DUE),
        loop: Any = beam.DoFn.StateParam(ReleaseInOrder.LOOP),
    ) -> Iterator[int]:
        """Keep counts as the base does; pass a checkpoint's mark on once everything before it has been released."""
        if loop.read() is None:
            saved = self.checkpoints.read("release")
            loop.write(saved["loop"].tobytes() if saved else self.loop.start())
        if not element[1].startswith(MARK):
            super().process(element, pending, due)
            return
        number = int(element[1].removeprefix(MARK))
        commit(self.plan, self.checkpoints, number, "release", {"loop": as_bytes(loop.read())})
        yield number


class WriteStreamReleases(InProcess, WriteReleases):
    """Write batches of releases and hand them to every accountant; a budget that is used up ends the stream."""

    def __init__(self, plan: Plan, checkpoints: Checkpoints) -> None:
        super().__init__(plan)
        self.checkpoints = checkpoints

    def process(self, batch: Batch | int) -> Iterator[Any]:  # type: ignore[override]
        """Write a batch and pass it on; marks go through."""
        if isinstance(batch, Batch):
            if batch.stopped:
                feed_of(self.plan.folder).stop()
            for _ in super().process(batch):
                pass
        else:  # a checkpoint is complete only once what was released before it has left
            commit(self.plan, self.checkpoints, batch, "written", {"number": np.asarray(batch)})
        for part in account_parts(self.plan):
            yield part, batch

    def final_since(self, window: int) -> float | None:
        """When the feed announced that a window is final: the events may be old ones that are replayed."""
        return metrics.final_since(window)


class AccountStream(InProcess, AccountInOrder):
    """Account what is released, and write down the state of the books when told to."""

    def __init__(self, plan: Plan, checkpoints: Checkpoints) -> None:
        super().__init__(plan)
        self.checkpoints = checkpoints

    def process(
        self,
        element: tuple[tuple[int, int], Any],
        waiting: Any = beam.DoFn.StateParam(AccountInOrder.WAITING),
        loop: Any = beam.DoFn.StateParam(AccountInOrder.LOOP),
    ) -> None:
        """Account a batch as the base does; a mark finds nothing waiting, since what came before it is done."""
        part, batch = element
        if loop.read() is None:
            saved = self.checkpoints.read(account_name(part))
            loop.write(saved["loop"].tobytes() if saved else self.loop_of(part).start())
        if isinstance(batch, int):
            state, accounted = loop.read(), self.loop_of(part).accounted(loop.read())
            saved = {"loop": as_bytes(state), "accounted": np.asarray(accounted)}
            commit(self.plan, self.checkpoints, batch, account_name(part), saved)
        else:
            super().process(element, waiting, loop)


def account_parts(plan: Plan) -> list[tuple[int, int]]:
    """Every accountant's parallel parts."""
    return [(number, shard) for number, own in enumerate(plan.shards) for shard in range(len(own))]


def account_name(part: tuple[int, int]) -> str:
    """Name of the piece of a checkpoint that belongs to one part of one accountant."""
    return f"account-{part[0]:03d}-{part[1]:06d}"
