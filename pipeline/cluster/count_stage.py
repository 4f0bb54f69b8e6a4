"""The counting stages of a cluster: blocks of events in, exact counts of the groups of windows that are over out."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import apache_beam as beam
import numpy as np
from apache_beam.coders import BytesCoder
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import BagStateSpec, ReadModifyWriteStateSpec, TimerSpec, on_timer
from apache_beam.utils.timestamp import Timestamp

from mechanisms.core.plugin import StateVersionError
from mechanisms.core.state import StateFormat
from pipeline.cluster.blocks import decode_block, whole_second
from pipeline.cluster.books import ENTRIES, entry
from pipeline.cluster.step import ClusterStep, discreetly
from pipeline.config.plan import STREAM
from pipeline.count_spans import as_kept
from pipeline.monitoring import metrics
from pipeline.output import files
from pipeline.output.files import parts_folder
from pipeline.steps.contributions import union
from pipeline.steps.count import GroupCounts, count_block, count_group
from pipeline.steps.ingest import Fate
from pipeline.waiting import leave

if TYPE_CHECKING:
    from pipeline.config.plan import Plan


#: Groups of windows are dealt out to so many keys for each shard of users, so that the number of keys is bounded.
LANES = 32
#: Pieces of a lane that may wait before they are merged.
MAX_PIECES = 64
#: What a piece of memberships begins with: its layout, its group of windows, and how many rows it stands for.
_HEAD = np.dtype([("layout", "S8"), ("group", "<i8"), ("n_rows", "<i8")])
_LAYOUT = b"PIECE001"
#: Counts of a group and shard, and how far a lane has been counted.
COUNTS, LANE = StateFormat("group_counts"), StateFormat("lane")


class CountBlocks(ClusterStep):
    """Reduce every block of events to distinct memberships, by lane and shard of users."""

    @discreetly
    def process(self, data: bytes) -> Iterator[Any]:
        """Emit ((lane, shard), piece), and an entry for the books; keep rejects once, under the block's name."""
        named = decode_block(data)
        used: dict[int, int] = {}
        fate, memberships = count_block(named.block, self.plan, named.closed, used)
        for (group, shard), piece in memberships:
            # A row is booked with the first piece of its group.
            yield (group % LANES, shard), pack(group, used.pop(group, 0), piece)
        if named.block.rejects:
            lines = [json.dumps(as_kept(reject, self.plan), ensure_ascii=False) for reject in named.block.rejects]
            path = parts_folder(self.plan, "rejects") / f"{named.name.replace('/', '-')}.jsonl"
            files.write_text(path, "\n".join(lines) + "\n")
        metrics.read_rows(fate)
        yield beam.pvalue.TaggedOutput(ENTRIES, entry(fate))


class CountOpen(ClusterStep):
    """Hold the distinct memberships of open windows; count a group once, when its last window is final.

    State: what the people of the open windows have done, in `LANES` keys for each shard of users, whatever the length
    of the stream.
    """

    PENDING = BagStateSpec("pending", BytesCoder())
    LANE = ReadModifyWriteStateSpec("lane", BytesCoder())
    DUE = TimerSpec("due", TimeDomain.WATERMARK)

    @discreetly
    def process(
        self,
        element: tuple[tuple[int, int], bytes],
        pending: Any = beam.DoFn.StateParam(PENDING),
        lane: Any = beam.DoFn.StateParam(LANE),
        due: Any = beam.DoFn.TimerParam(DUE),
    ) -> Iterator[Any]:
        """Keep a piece until its group is final; rows that come after that are late."""
        group, n_rows, _ = unpack(element[1])
        own = _lane(lane)
        if group <= own["counted"]:
            if n_rows:
                yield beam.pvalue.TaggedOutput(ENTRIES, late(n_rows))
            return
        pending.add(element[1])
        own["pieces"] += 1
        if own["pieces"] > own["merged"] + MAX_PIECES:
            own["pieces"] = own["merged"] = self._merge(pending)
        lane.write(_encoded(own))
        # Before the release: a step that is called at an instant holds the watermark at it.
        due.set(Timestamp(micros=1000 * group_deadline(self.plan, group) - 1000), dynamic_timer_tag=str(group))

    @on_timer(DUE)
    @discreetly
    def fire(
        self,
        tag: Any = beam.DoFn.DynamicTimerTagParam,
        pending: Any = beam.DoFn.StateParam(PENDING),
        lane: Any = beam.DoFn.StateParam(LANE),
    ) -> Iterator[tuple[str, bytes]]:
        """Count what is final now."""
        own, last = _lane(lane), int(tag)
        if last <= own["counted"]:
            return
        waiting = _by_group(pending.read())
        for group in sorted(group for group in waiting if group <= last):
            rows, pieces = waiting.pop(group)
            yield STREAM, encode_counts(count_group(group, pieces, self.plan)[0], rows, self.plan)
        self._leave(pending, waiting)
        lane.write(_encoded({"counted": last, "pieces": len(waiting), "merged": len(waiting)}))

    def _merge(self, pending: Any) -> int:
        """Leave one piece for every group: a membership that is met again takes no room."""
        waiting = _by_group(pending.read())
        self._leave(pending, waiting)
        return len(waiting)

    def _leave(self, pending: Any, waiting: dict[int, tuple[int, list[bytes]]]) -> None:
        leave(pending, [pack(group, n, union(pieces, self.plan, group)) for group, (n, pieces) in waiting.items()])


def _lane(lane: Any) -> dict[str, int]:
    data = lane.read()
    if data is None:
        return {"counted": -1, "pieces": 0, "merged": 0}
    return {name: int(value) for name, value in LANE.decode(data).items()}


def _encoded(own: dict[str, int]) -> bytes:
    return LANE.encode({name: np.asarray(value) for name, value in own.items()})


def _by_group(entries: Iterable[bytes]) -> dict[int, tuple[int, list[bytes]]]:
    """Rows and pieces of every group."""
    found: dict[int, tuple[int, list[bytes]]] = {}
    for data in entries:
        group, n_rows, piece = unpack(data)
        rows, pieces = found.get(group, (0, []))
        found[group] = (rows + n_rows, [*pieces, piece])
    return found


def pack(group: int, n_rows: int, piece: bytes) -> bytes:
    """A piece of memberships with its group, and how many rows are booked with it.

    Examples
    --------
    >>> unpack(pack(3, 10, b"piece"))
    (3, 10, b'piece')
    """
    return np.array([(_LAYOUT, group, n_rows)], _HEAD).tobytes() + piece


def unpack(data: bytes) -> tuple[int, int, bytes]:
    """The inverse of `pack`; raises `StateVersionError` for a piece in another layout."""
    if not data.startswith(_LAYOUT):
        raise StateVersionError("a piece of memberships has a layout that this code cannot read")
    head = np.frombuffer(data, _HEAD, 1)[0]
    return int(head["group"]), int(head["n_rows"]), data[_HEAD.itemsize :]


def late(n_rows: int) -> tuple[int, bytes]:
    """Move rows in the books from used to late."""
    return entry(Fate(used=-n_rows, late=n_rows))


def encode_counts(counts: GroupCounts, n_rows: int, plan: Plan) -> bytes:
    """Counts of one group and shard as they travel to the release; true counts only where they are written."""
    truth = plan.config.mode == "simulation" and plan.config.output.truth
    state = {
        "first": np.asarray(counts.first),
        "counts": counts.counts if truth else counts.bounded,
        "bounded": counts.bounded,
        "memberships": np.asarray(counts.n_memberships),
        "sightings": counts.sightings,
        "rows": np.asarray(n_rows),
    }
    return COUNTS.encode(state)


def decode_counts(data: bytes) -> tuple[GroupCounts, int]:
    """The inverse of `encode_counts`."""
    state = COUNTS.decode(data)
    counts = GroupCounts(
        int(state["first"]), state["counts"], state["bounded"], int(state["memberships"]), state["sightings"]
    )
    return counts, int(state["rows"])


def group_deadline(plan: Plan, group: int) -> int:
    """When the last window of a group is final, in milliseconds since 1970, up to the `whole_second`."""
    last = group * plan.group + plan.group_windows(group)
    return -whole_second(-int(plan.calendar.end(last)) - plan.config.windows.allowed_lateness)
