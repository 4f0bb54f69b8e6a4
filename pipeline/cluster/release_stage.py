"""The release stage of a cluster: counts of shards in, releases in order out, each window once, empty ones included."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apache_beam as beam
from apache_beam.coders import BytesCoder
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import BagStateSpec, ReadModifyWriteStateSpec, TimerSpec, on_timer
from apache_beam.utils.timestamp import Timestamp

from pipeline.cluster.books import ENTRIES, entry
from pipeline.cluster.count_stage import decode_counts, encode_counts, group_deadline, late, pack, unpack
from pipeline.cluster.step import ClusterStep, discreetly
from pipeline.config.plan import STREAM
from pipeline.monitoring import metrics
from pipeline.output import files
from pipeline.output.checkpoint import open_ledger
from pipeline.output.files import PART_ROWS, parts_folder
from pipeline.output.tables import truth_table
from pipeline.release_stage import WriteReleases
from pipeline.steps.count import GroupCounts, nothing
from pipeline.steps.release import Batch, ReleaseLoop
from pipeline.steps.targets import Known
from pipeline.waiting import leave

if TYPE_CHECKING:
    from pipeline.config.plan import Plan


#: The element that starts the release, whether there are events or not.
BEGIN = b""
#: Groups that timers are set for ahead of time.
_AHEAD = 64
#: Groups whose counts are kept after their release.
_KEPT = 4096


class ReleaseOnCluster(ClusterStep):
    """Step the release loop through the groups of windows in order.

    A chain of timers, one just after the deadline of every group, releases what has been counted until then. The
    counts of a group are written down before they are noised, and what is there counts: if the engine goes back behind
    a release and another set of rows is in time then, neither the release nor its charge becomes another one.

    State: counts of the groups that are not released yet. Those of the stretch of `_AHEAD` groups at hand are read and
    written with every release, those further on once in a stretch: there may be thousands while much is caught up with.
    """

    PENDING = BagStateSpec("pending", BytesCoder())
    FURTHER = BagStateSpec("further", BytesCoder())
    LOOP = ReadModifyWriteStateSpec("loop", BytesCoder())
    DUE = TimerSpec("due", TimeDomain.WATERMARK)

    @discreetly
    def setup(self) -> None:
        """Make what is not shipped."""
        self.loop = ReleaseLoop(self.plan)
        self.ledger = open_ledger(self.plan, strict=True)

    @discreetly
    def process(
        self,
        element: tuple[str, bytes],
        pending: Any = beam.DoFn.StateParam(PENDING),
        further: Any = beam.DoFn.StateParam(FURTHER),
        loop: Any = beam.DoFn.StateParam(LOOP),
        due: Any = beam.DoFn.TimerParam(DUE),
    ) -> Iterator[Any]:
        """Keep counts until their windows are final; rows counted after that are late."""
        if element[1] == BEGIN:
            for group in range(_AHEAD):
                self._wake(due, group)
            return
        counts, n_rows = decode_counts(element[1])
        released = self.loop.released(loop.read() or self.loop.start())
        if counts.first <= released:
            yield beam.pvalue.TaggedOutput(ENTRIES, late(n_rows))
        else:
            group = (counts.first - 1) // self.plan.group
            is_near = group // _AHEAD <= released // self.plan.group // _AHEAD
            (pending if is_near else further).add(pack(group, n_rows, element[1]))

    @on_timer(DUE)
    @discreetly
    def fire(
        self,
        tag: Any = beam.DoFn.DynamicTimerTagParam,
        pending: Any = beam.DoFn.StateParam(PENDING),
        further: Any = beam.DoFn.StateParam(FURTHER),
        loop: Any = beam.DoFn.StateParam(LOOP),
        due: Any = beam.DoFn.TimerParam(DUE),
    ) -> Iterator[Any]:
        """Release one group, and set the timer of one further on."""
        group = int(tag)
        state = loop.read() or self.loop.start()
        if self.loop.released(state) != group * self.plan.group:
            return
        if group % _AHEAD == 0:
            _begin_stretch(group, pending, further)
        counts, memberships = self._counted(group, pending)
        stopped = False
        for batch, after in self._release(state, counts):
            loop.write(after)
            stopped = batch.stopped is not None
            yield batch
        yield beam.pvalue.TaggedOutput(ENTRIES, entry(memberships=memberships))
        if not stopped:
            self._wake(due, group + _AHEAD)

    def _wake(self, due: Any, group: int) -> None:
        n_windows = self.plan.calendar.n_windows
        if n_windows is None or group * self.plan.group < n_windows:
            due.set(Timestamp(micros=1000 * group_deadline(self.plan, group)), dynamic_timer_tag=str(group))

    def _counted(self, group: int, pending: Any) -> tuple[GroupCounts, int]:
        """Counts of a group as they are released, and how many memberships this attempt has counted."""
        counts, later = nothing(group, self.plan), []
        for data in pending.read():
            number, _, found = unpack(data)
            if number == group:
                counts = counts + decode_counts(found)[0]
            else:
                later.append(data)
        leave(pending, later)
        return self._settled(group, counts), counts.n_memberships

    def _settled(self, group: int, counts: GroupCounts) -> GroupCounts:
        """The counts that were written down first."""
        path = self._path(group)
        if path.exists():
            return decode_counts(path.read_bytes())[0]
        files.write_first(path, encode_counts(counts, 0, self.plan))
        self._path(group - _KEPT).unlink(missing_ok=True)
        return decode_counts(path.read_bytes())[0]

    def _path(self, group: int) -> Path:
        return parts_folder(self.plan, "counted") / f"{group:012d}"

    def _release(self, state: bytes, counts: GroupCounts) -> Iterator[tuple[Batch, bytes]]:
        """Batches of a group, charges on disk, and the state after each; the same cuts whenever it is repeated."""
        step = max(1, PART_ROWS // self.plan.n_cells)
        for row in range(0, len(counts.bounded), step):
            first, bounded = counts.first + row, counts.bounded[row : row + step]
            last = first + len(bounded) - 1
            self._write_truth(counts.counts[row : row + step], bounded, first)
            batch, state = self.loop.advance(state, first, bounded)
            if self.plan.targets.n_targets:
                seen = counts.sightings[(counts.sightings[:, 0] >= first) & (counts.sightings[:, 0] <= last)]
                batch = replace(batch, known=Known(first, bounded, seen))
            self.ledger.append(batch.charges)
            metrics.released(batch, int(self.plan.calendar.end(last)))
            yield batch, state
            if batch.stopped:
                return

    def _write_truth(self, counts: Any, bounded: Any, first: int) -> None:
        plan = self.plan
        if plan.config.mode == "simulation" and plan.config.output.truth:
            windows = plan.windows(first, first + len(counts) - 1)
            table = truth_table(counts, bounded, windows, plan.space.cells, STREAM)
            files.write_part(parts_folder(plan, "truth"), f"{first:012d}", table)


def _begin_stretch(group: int, pending: Any, further: Any) -> None:
    """Move the counts of a stretch of groups that begins to where every release looks for them."""
    far = []
    for data in further.read():
        if unpack(data)[0] < group + _AHEAD:
            pending.add(data)
        else:
            far.append(data)
    leave(further, far)


class WriteOnCluster(ClusterStep, WriteReleases):
    """Write batches of releases and hand them to every part of every accountant."""

    write = staticmethod(files.write_shared_part)

    @discreetly
    def process(self, batch: Batch) -> Iterator[Any]:
        """Write a batch, once, and pass it on."""
        for _ in super().process(batch):
            pass
        if batch.releases and batch.releases[-1].window == self.plan.calendar.n_windows:
            files.write_json(parts_folder(self.plan, "ended") / "releases.json", True)
        for part in account_parts(self.plan):
            yield part, batch


def account_parts(plan: Plan) -> list[tuple[int, int]]:
    """Every accountant's parallel parts."""
    return [(number, shard) for number, own in enumerate(plan.shards) for shard in range(len(own))]
