"""The counting stages of a local stream: tickets in, counts of the windows that are due out."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import apache_beam as beam
import numpy as np
from apache_beam.coders import BytesCoder
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import BagStateSpec, ReadModifyWriteStateSpec, TimerSpec, on_timer
from apache_beam.utils.timestamp import Timestamp

from pipeline.config.plan import STREAM
from pipeline.count_spans import as_kept
from pipeline.feed import Ticket, deadline, feed_of
from pipeline.monitoring import metrics
from pipeline.output import files
from pipeline.output.checkpoint import Checkpoints
from pipeline.output.files import PART_ROWS, parts_folder
from pipeline.steps.contributions import union
from pipeline.steps.count import GroupCounts, count_block, count_group, nothing
from pipeline.steps.ingest import Fate, closed_before
from pipeline.stream_step import MARK, InProcess, as_bytes, commit

if TYPE_CHECKING:
    from pipeline.config.plan import Plan


#: What of a stream goes from step to step: (kind, number or group, data).
Message = tuple[str, int, bytes]

#: Pieces of one group of windows that may wait before they are merged.
_MAX_PIECES = 64


class CountSlice(InProcess):
    """Turn tickets into messages: a slice becomes the fate of its rows, and memberships by group of windows."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def process(self, ticket: Ticket) -> Iterator[tuple[int, Message]]:
        """Emit messages in the order in which they have to be heard."""
        kind, number = ticket
        if kind != "slice":
            yield 0, (kind, number, b"")
            return
        feed = feed_of(self.plan.folder)
        piece = feed.slice(number)
        closed = closed_before(piece, self.plan)
        fate, memberships = count_block(piece.block, self.plan, closed)
        for (group, _), data in memberships:
            yield 0, ("add", group, data)
        yield 0, ("fate", number, json.dumps(asdict(fate)).encode())
        if piece.block.rejects:
            kept = [json.dumps(as_kept(reject, self.plan), ensure_ascii=False) for reject in piece.block.rejects]
            files.write_text(parts_folder(self.plan, "rejects") / f"{number:012d}.jsonl", "\n".join(kept) + "\n")
        metrics.read_rows(fate)
        metrics.reached(piece.after)
        feed.used(number)


class CountDue(InProcess):
    """Hold distinct memberships of the open windows; count each group once, when its last window is due.

    The state is as large as what the people of the open windows have done, whatever the length of the stream.
    """

    PENDING = BagStateSpec("pending", BytesCoder())
    BOOKS = ReadModifyWriteStateSpec("books", BytesCoder())
    DUE = TimerSpec("due", TimeDomain.WATERMARK)

    def __init__(self, plan: Plan, checkpoints: Checkpoints) -> None:
        self.plan, self.checkpoints = plan, checkpoints

    def process(
        self,
        element: tuple[int, Message],
        pending: Any = beam.DoFn.StateParam(PENDING),
        books: Any = beam.DoFn.StateParam(BOOKS),
        due: Any = beam.DoFn.TimerParam(DUE),
    ) -> Iterator[Any]:
        """Keep memberships and fates; ask to be woken when windows are due; write down the state when told to."""
        kind, number, data = element[1]
        own = self._books(books, pending)
        if kind == "add":
            pending.add(_tagged(number, data))
            own["pieces"] += 1
            if own["pieces"] > own["merged"] + _MAX_PIECES:
                own["pieces"] = own["merged"] = self._merge(pending)
        elif kind == "fate":
            total = Fate(**own["fate"])
            total.add(Fate(**json.loads(data)))
            own["fate"] = asdict(total)
        elif kind == "due":
            metrics.became_final(number)
            due.set(Timestamp(micros=1000 * deadline(self.plan, number)), dynamic_timer_tag=str(number))
        else:
            self._merge(pending)
            self._note(own, pending.read())
            state = {"pending": _packed(pending.read()), "books": as_bytes(json.dumps(own).encode())}
            commit(self.plan, self.checkpoints, number, "count", state)
            yield beam.pvalue.TaggedOutput("marks", (STREAM, MARK + str(number).encode()))
        books.write(json.dumps(own).encode())

    @on_timer(DUE)
    def fire(
        self,
        tag: Any = beam.DoFn.DynamicTimerTagParam,
        pending: Any = beam.DoFn.StateParam(PENDING),
        books: Any = beam.DoFn.StateParam(BOOKS),
    ) -> Iterator[tuple[int, GroupCounts]]:
        """Count every group whose last window is due, empty ones included."""
        own = self._books(books, pending)
        last, n_windows = int(tag), self.plan.calendar.n_windows
        groups = -(-last // self.plan.group) if last == n_windows else last // self.plan.group
        waiting: dict[int, list[bytes]] = {}
        for entry in pending.read():
            group, data = _untagged(entry)
            waiting.setdefault(group, []).append(data)
        pending.clear()
        # What is due together travels together, and is released and written together.
        step = max(1, PART_ROWS // (self.plan.group * self.plan.n_cells))
        for first in range(own["counted"], groups, step):
            due = range(first, min(first + step, groups))
            counts = _joined([self._count(group, waiting.pop(group, [])) for group in due])
            own["memberships"] += counts.n_memberships
            yield first, counts
        for group, pieces in waiting.items():
            for data in pieces:
                pending.add(_tagged(group, data))
        own["counted"] = max(own["counted"], groups)
        own["pieces"] = own["merged"] = sum(map(len, waiting.values()))
        books.write(json.dumps(own).encode())

    def _count(self, group: int, pieces: list[bytes]) -> GroupCounts:
        return count_group(group, pieces, self.plan)[0] if pieces else nothing(group, self.plan)

    def _books(self, books: Any, pending: Any) -> dict[str, Any]:
        data = books.read()
        if data is not None:
            own: dict[str, Any] = json.loads(data)
            return own
        saved = self.checkpoints.read("count")
        if saved is None:
            return {"fate": asdict(Fate()), "memberships": 0, "counted": 0, "pieces": 0, "merged": 0}
        for entry in _unpacked(saved["pending"]):
            pending.add(entry)
        restored: dict[str, Any] = json.loads(saved["books"].tobytes())
        return restored

    def _merge(self, pending: Any) -> int:
        """Leave one piece for every group: a membership that is met again takes no room."""
        waiting: dict[int, list[bytes]] = {}
        for entry in pending.read():
            group, data = _untagged(entry)
            waiting.setdefault(group, []).append(data)
        pending.clear()
        for group, pieces in waiting.items():
            pending.add(_tagged(group, union(pieces, self.plan, group)))
        return len(waiting)

    def _note(self, own: dict[str, Any], entries: Iterable[bytes]) -> None:
        """Write the rows so far where the end of a run looks for them."""
        open_memberships = 0
        for entry in entries:
            group, data = _untagged(entry)
            open_memberships += count_group(group, [data], self.plan)[0].n_memberships
        files.write_json(parts_folder(self.plan, "fates") / "stream.json", own["fate"])
        total = own["memberships"] + open_memberships
        files.write_json(parts_folder(self.plan, "memberships") / "stream.json", total)


def _joined(groups: list[GroupCounts]) -> GroupCounts:
    """Counts of consecutive groups of windows as those of one."""
    return GroupCounts(
        groups[0].first,
        np.concatenate([group.counts for group in groups]),
        np.concatenate([group.bounded for group in groups]),
        sum(group.n_memberships for group in groups),
        np.concatenate([group.sightings for group in groups]),
    )


def _tagged(group: int, data: bytes) -> bytes:
    return group.to_bytes(8, "little") + data


def _untagged(entry: bytes) -> tuple[int, bytes]:
    return int.from_bytes(entry[:8], "little"), entry[8:]


def _packed(entries: Iterable[bytes]) -> Any:
    return as_bytes(b"".join(len(entry).to_bytes(8, "little") + entry for entry in entries))


def _unpacked(data: Any) -> Iterator[bytes]:
    whole, at = data.tobytes(), 0
    while at < len(whole):
        end = at + 8 + int.from_bytes(whole[at : at + 8], "little")
        yield whole[at + 8 : end]
        at = end
