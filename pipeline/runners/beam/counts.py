"""Counting stage of the graph: turns blocks of events into exact counts of distinct users by window group."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import apache_beam as beam
from apache_beam.coders import BytesCoder
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import BagStateSpec, ReadModifyWriteStateSpec, TimerSpec, on_timer
from apache_beam.transforms.window import GlobalWindow
from apache_beam.typehints import Any as AnyType
from apache_beam.typehints import Tuple
from apache_beam.typehints.decorators import with_input_types
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import WindowedValue

from penstock.mechanisms.core.plugin import DataError
from penstock.pipeline import atomic
from penstock.pipeline.config.plan import Plan
from penstock.pipeline.counting.bounding import PeriodQuota
from penstock.pipeline.counting.contributions import Contributions, decoded, union
from penstock.pipeline.counting.count import GroupCounts, summarise_users
from penstock.pipeline.counting.ingest import RowCounts
from penstock.pipeline.counting.spec import STREAM
from penstock.pipeline.monitoring import metrics
from penstock.pipeline.output.files import parts_folder
from penstock.pipeline.runners.beam import coders
from penstock.pipeline.runners.beam.coders import NamedBlock
from penstock.pipeline.runners.beam.step import (
    ROWS,
    PlanTransform,
    Step,
    WritingStep,
    final_at,
    last_due,
    redacted,
    timestamp,
    typed,
)
from penstock.pipeline.runners.shared import N_THREADS, PIECE_ROWS, counted, map_in_order, reduced

#: Keys that the groups of windows are dealt out to, for each shard of users: their number stays bounded.
LANES = 32
#: Pieces of contributions that a lane may hold before they are merged.
MAX_PIECES = 64
#: Groups whose counts stay on disk after their release.
KEPT = 4096
#: Tag of the users' visits.
USERS = "users"
_CONTRIBUTIONS = Tuple[Tuple[int, int], bytes]  # ((lane, shard), packed contributions)
COUNTS = Tuple[str, bytes]  # (stream, counts of a group and a shard)
ROW_COUNTS = Tuple[int, bytes]  # (0, row counts)
_USERS = Tuple[int, AnyType]  # (shard, Contributions)
#: Row counts of a block, and what `_CONTRIBUTIONS` holds of it.
_Reduced = tuple[RowCounts, list[tuple[tuple[int, int], bytes]]]
#: A group whose windows are final, its rows and its pieces.
_Final = tuple[int, int, list[memoryview]]


@with_input_types(NamedBlock)
class CountDistinctUsers(PlanTransform):
    """Count the distinct users in every window and cell exactly, after bounding each user's contributions.

    A pipeline with finite input in which no row could be used fails at its end, but for ``allow_empty``.

    Contributions are deduplicated in each block, held in state by lane of windows and shard of users, and counted once,
    when their window is final. Rows that come later are late. Returns ``{"counts": PCollection[tuple[str, bytes]],
    "rows": PCollection[tuple[int, bytes]]}``: counts of a group of windows and a shard of users under the name of the
    stream (`coders.decode`), and row counts (`decode_rows`).
    """

    def __init__(self, plan: Plan, must_use_rows: bool = True) -> None:
        super().__init__(plan)
        self.must_use_rows = must_use_rows

    def expand(self, blocks: Any) -> dict[str, Any]:
        """Apply the steps of this transform."""
        plan = self.plan
        found = blocks | "FindContributions" >> beam.ParDo(FindContributions(plan)).with_outputs(ROWS, main="main")
        contributions = typed(found["main"], _CONTRIBUTIONS)
        # ((lane, shard), packed contributions)
        groups = contributions | "CountWhenFinal" >> beam.ParDo(CountWhenFinal(plan)).with_outputs(
            ROWS, USERS, main="main"
        )
        if plan.summarises_users:
            visits = typed(groups[USERS], _USERS)
            # (shard, Contributions)
            _ = visits | "ByShard" >> beam.GroupByKey() | "WriteUsers" >> beam.ParDo(WriteUsers(plan))
        late = (typed(found[ROWS], ROW_COUNTS), typed(groups[ROWS], ROW_COUNTS)) | "Rows" >> beam.Flatten()
        rows = typed(late, ROW_COUNTS)
        if self.must_use_rows and not (plan.streaming or plan.config.allow_empty):
            total = rows | beam.Values() | "Total" >> beam.CombineGlobally(_total)
            _ = total | "RequireUsed" >> beam.Map(require_used)
        return {"counts": typed(groups["main"], COUNTS), ROWS: rows}


def describe_rows(tally: bytes) -> dict[str, int]:
    """Return the row counts by outcome from the output of `TallyRows`."""
    counts, _ = coders.decode_rows(tally)
    outcomes = {name: getattr(counts, name) for name in ("rows", "used", "late", "out_of_area", "out_of_time")}
    return outcomes | {"rejected": sum(counts.rejected.values())}


def require_used(tally: bytes) -> dict[str, int]:
    """Return the row counts by outcome from the output of `TallyRows`. Raises `DataError` if no row was used, which
    usually means that columns, times or cells are wrong.

    Events are counted in the same pipeline that releases them, so that this is known at its end only: publish what it
    wrote after it has ended well.
    """
    outcomes, (counts, _) = describe_rows(tally), coders.decode_rows(tally)
    if not counts.used:
        numbers = ", ".join(f"{n:,} {name.replace('_', ' ')}" for name, n in outcomes.items() if name != "used")
        if counts.rejected:
            numbers += f", most of them since {max(counts.rejected, key=counts.rejected.__getitem__)}"
        raise DataError(f"no row could be used ({numbers}): what was released counts no one")
    return outcomes


def _total(tallies: Iterable[bytes]) -> bytes:
    total, memberships = RowCounts(), 0
    for counts, more in map(coders.decode_rows, tallies):
        total.add(counts)
        memberships += more
    return coders.row_counts(total, memberships)[1]


class FindContributions(WritingStep):
    """Reduce blocks to distinct contributions, keyed by window lane and user shard.

    Blocks of a bundle are reduced in threads while the next ones are read; results keep the order and the timestamps of
    the blocks, and all of them leave before the bundle ends.
    """

    def prepare(self) -> None:
        """Create the writer and the thread pool."""
        super().prepare()
        self.pool = ThreadPoolExecutor(N_THREADS, "penstock-counting")

    def teardown(self) -> None:
        """Stop the thread pool."""
        self.pool.shutdown(cancel_futures=True)
        super().teardown()

    def start_bundle(self) -> None:
        """Discard any state left behind by a failed bundle."""
        self.running: deque[tuple[NamedBlock, Timestamp, Future[_Reduced]]] = deque()

    @redacted
    def process(self, named: NamedBlock, instant: Any = beam.DoFn.TimestampParam) -> Iterator[Any]:
        """Emit ((lane, shard), contributions) and the row counts. Rejects are written once, in a file named after
        the block.
        """
        self.running.append((named, instant, self.pool.submit(self._reduce, named)))
        yield from self._results(N_THREADS)

    @redacted
    def finish_bundle(self) -> Iterator[Any]:
        """Emit the results for all remaining blocks."""
        yield from self._results(0)

    def _results(self, n_left: int) -> Iterator[Any]:
        """Emit the results for the oldest pending blocks until only ``n_left`` blocks remain."""
        while len(self.running) > n_left:
            named, instant, future = self.running.popleft()
            total, entries = future.result()
            for entry in entries:
                yield WindowedValue(entry, instant, (GlobalWindow(),))
            self.writer.rejects(named.name.replace("/", "-"), named.block.rejects)
            self.with_listeners(metrics.read_rows, total)
            yield beam.pvalue.TaggedOutput(ROWS, WindowedValue(coders.row_counts(total), instant, (GlobalWindow(),)))

    def _reduce(self, named: NamedBlock) -> _Reduced:
        total, row, entries = RowCounts(), 0, list[tuple[tuple[int, int], bytes]]()
        for piece in named.block.pieces(PIECE_ROWS):
            n_rows = piece.frame.height
            closed = None if named.closed is None else named.closed[row : row + n_rows]
            row += n_rows
            used: dict[int, int] = {}
            counts, parts = reduced(self.plan, piece, closed, used)
            total.add(counts)
            for (group, shard), contributions in parts:
                # A row is accounted for with the first contributions of its group.
                data = coders.pack(group, used.pop(group, 0), contributions.encode(self.plan.batching.layout))
                # All groups of finite input are final at once; those of one lane are counted side by side.
                lane = (group if self.plan.streaming else group // N_THREADS) % LANES
                # What one group leaves of a bound on budget periods is what the next one has.
                entries.append(((0 if self.plan.bounds.over_periods else lane, shard), data))
        return total, entries


class CountWhenFinal(Step):
    """Store distinct contributions to open windows, and count each group once its last window is final.

    State: what the users of the open windows have done, in `LANES` keys for each shard of users, whatever the length of
    the stream; with a bound on budget periods, what each user of the current one has used of it. That depends on the
    order of groups. A timer of a key that fires counts all groups up to its own, in order, and none of them twice.
    If the engine goes back behind a release, and another set of rows is in time then, the release stays what it was,
    but the state says what the new set has used. So a digest of that is written down with every group, and the first
    write counts: where the new one differs, no user has anything left of that period.
    """

    PENDING = BagStateSpec("pending", BytesCoder())
    LANE = ReadModifyWriteStateSpec("lane", BytesCoder())
    QUOTA = ReadModifyWriteStateSpec("quota", BytesCoder())
    DUE = TimerSpec("due", TimeDomain.WATERMARK)

    @redacted
    def process(
        self,
        element: tuple[tuple[int, int], bytes],
        pending: Any = beam.DoFn.StateParam(PENDING),
        lane: Any = beam.DoFn.StateParam(LANE),
        due: Any = beam.DoFn.TimerParam(DUE),
    ) -> Iterator[Any]:
        """Buffer contributions until their group is final. Rows that arrive after that count as late."""
        group, n_rows, _ = coders.unpack(element[1])
        progress = _lane(lane)
        if group <= progress["counted"]:
            if n_rows:
                yield beam.pvalue.TaggedOutput(ROWS, coders.late(n_rows))
            return
        pending.add(element[1])
        progress["pieces"] += 1
        if progress["pieces"] > progress["merged"] + MAX_PIECES:
            # A contribution that is met again takes no room.
            progress["pieces"] = progress["merged"] = self._merge_pieces(pending, by_group(pending.read()))
        lane.write(coders.encode(progress))
        last = last_due(self.plan, group)
        # Before the release: a step that is called at an instant holds the watermark at it.
        due.set(timestamp(final_at(self.plan, last) - 2), dynamic_timer_tag=str(last))

    @on_timer(DUE)
    @redacted
    def fire(
        self,
        key: Any = beam.DoFn.KeyParam,
        tag: Any = beam.DoFn.DynamicTimerTagParam,
        pending: Any = beam.DoFn.StateParam(PENDING),
        lane: Any = beam.DoFn.StateParam(LANE),
        quota: Any = beam.DoFn.StateParam(QUOTA),
    ) -> Iterator[Any]:
        """Count every group that has become final."""
        progress, last = _lane(lane), int(tag)
        if last <= progress["counted"]:
            return
        waiting = by_group(pending.read())
        # Contributions to a group are dropped as soon as it is counted.
        final = ((group, *waiting.pop(group)) for group in sorted(waiting) if group <= last)
        used: PeriodQuota | None = None
        works = map_in_order(self._count, final)
        if self.plan.bounds.over_periods:
            data = quota.read()
            used = PeriodQuota(coders.decode(data) if data else None)
            works = self._in_turn(final, used, key[1], progress["counted"], last)
        for n_rows, (counts, visits) in works:
            if visits is not None:
                yield beam.pvalue.TaggedOutput(USERS, (key[1], visits))
            yield beam.pvalue.TaggedOutput(ROWS, coders.row_counts(memberships=counts.n_memberships))
            yield STREAM, coders.encode_counts(counts, n_rows, self.plan)
        if used is not None:
            quota.write(coders.encode(used.state()))
        n_left = self._merge_pieces(pending, waiting)
        lane.write(coders.encode({"counted": last, "pieces": n_left, "merged": n_left}))

    def _in_turn(
        self, final: Iterable[_Final], used: PeriodQuota, shard: int, after: int, last: int
    ) -> Iterator[tuple[int, tuple[GroupCounts, Contributions | None]]]:
        """Count groups in order, carrying the remaining quotas over from one group to the next.

        A group of a stream that was counted from different rows before exhausts all users' quotas for its period.
        """
        works = {work[0]: work for work in final}
        if not self.plan.streaming:
            yield from (self._count(works[group], used) for group in sorted(works))
            return
        marks, batching = parts_folder(self.plan, "used") / f"{shard:06d}", self.plan.batching
        marked = {int(path.name): path for path in marks.glob("[0-9]*") if path.name.isdecimal()}
        for group in [group for group in marked if group <= last - KEPT]:
            marked.pop(group).unlink(missing_ok=True)
        for group in sorted(works.keys() | {group for group in marked if after < group <= last}):
            if group in works:
                yield self._count(works[group], used)
            path, digest = marks / f"{group:012d}", used.digest(self.plan.keys.bounding)
            if not atomic.write_first(path, digest) and path.read_bytes() != digest:
                window = group * batching.group + batching.windows_of(group)
                period = self.plan.grid.window(window).period
                if used.close(period):
                    self.with_listeners(metrics.period_closed, period)

    def _count(
        self, work: _Final, quota: PeriodQuota | None = None
    ) -> tuple[int, tuple[GroupCounts, Contributions | None]]:
        group, n_rows, pieces = work
        return n_rows, counted(self.plan, group, [decoded(piece) for piece in pieces], quota)

    def _merge_pieces(self, pending: Any, waiting: dict[int, tuple[int, list[memoryview]]]) -> int:
        """Merge the contributions to each open group into one entry and return the number of groups."""
        layout, merged = self.plan.batching.layout, []
        for group, (n_rows, pieces) in waiting.items():
            joined = union(list(map(decoded, pieces)), layout, self.plan.bounds.keep)
            merged.append(coders.pack(group, n_rows, joined.encode(layout)))
        replace_bag(pending, merged)
        return len(waiting)


class WriteUsers(WritingStep):
    """Summarise a shard's users for the operator's manifest."""

    @redacted
    def process(self, element: tuple[int, Iterable[Contributions]]) -> None:
        """Write each user's number of cells and number of windows, without any identities."""
        shard, visits = element
        self.writer.users(shard, summarise_users(visits, self.plan.grid.n_cells))


def _lane(state: Any) -> dict[str, int]:
    """Read a lane's progress, which is its last counted group (-1 if it is new) and its number of pending entries."""
    data = state.read()
    return dict(coders.decode(data)) if data else {"counted": -1, "pieces": 0, "merged": 0}


def by_group(entries: Iterable[bytes]) -> dict[int, tuple[int, list[memoryview]]]:
    """Collect each group's number of rows and its entries."""
    groups: dict[int, tuple[int, list[memoryview]]] = {}
    for data in entries:
        group, n_rows, piece = coders.unpack(data)
        rows, pieces = groups.get(group, (0, []))
        pieces.append(piece)
        groups[group] = (rows + n_rows, pieces)
    return groups


def replace_bag(bag: Any, entries: Iterable[Any]) -> None:
    """Replace all entries in a bag state. The bag must not be read at the same time."""
    bag.clear()
    for entry in entries:
        bag.add(entry)
