"""The stages of a local stream: each writes down what it remembers at every checkpoint, and goes on from there."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
from apache_beam.coders import BytesCoder
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import BagStateSpec, ReadModifyWriteStateSpec, TimerSpec, on_timer
from apache_beam.utils.timestamp import Timestamp

from mechanisms.core.state import State
from pipeline import parts, progress
from pipeline.account_stage import AccountInOrder
from pipeline.checkpoint import Checkpoints
from pipeline.count_stage import WriteTruth, as_kept
from pipeline.counting import Fate, GroupCounts, count_block, count_group, nothing, union
from pipeline.feed import Ticket, deadline, feed_of
from pipeline.lateness import closed_before
from pipeline.paths import parts_folder
from pipeline.plan import STREAM, Plan
from pipeline.release_loop import Batch
from pipeline.release_stage import ReleaseInOrder, WriteReleases

#: What of a stream goes from step to step: (kind, number or group, data).
Message = tuple[str, int, bytes]

#: Pieces of one group of windows that may wait before they are merged.
_MAX_PIECES = 64
#: Outputs whose parts are joined while a stream goes on.
ROLLED = ("releases", "truth", "accounts_public", "accounts")
_MARK = b"mark"


class InProcess(beam.DoFn):  # type: ignore[misc]
    """A step that stays in this process: the runner copies a step for every bundle, and this one is its own copy."""

    plan: Plan
    is_set_up = False

    def setup(self) -> None:
        """Make what is made once."""
        if not self.is_set_up:
            super().setup()
            self.is_set_up = True

    def __dir__(self) -> list[str]:
        # The runner looks through all methods for state and timers, for every bundle several times.
        return [name for name in ("process", "fire") if hasattr(self, name)]

    def __reduce__(self) -> Any:
        feed_of(self.plan.folder).steps[type(self).__name__] = self
        return step_of, (self.plan.folder, type(self).__name__)


def step_of(folder: Path, name: str) -> Any:
    """A step of the stream that writes into a folder."""
    return feed_of(folder).steps[name]


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
            parts.write_text(parts_folder(self.plan, "rejects") / f"{number:012d}.jsonl", "\n".join(kept) + "\n")
        progress.advance(events=piece.block.n_rows)
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
            due.set(Timestamp(micros=1000 * deadline(self.plan, number)), dynamic_timer_tag=str(number))
        else:
            self._merge(pending)
            self._note(own, pending.read())
            state = {"pending": _packed(pending.read()), "books": _bytes(json.dumps(own).encode())}
            commit(self.plan, self.checkpoints, number, "count", state)
            yield beam.pvalue.TaggedOutput("marks", (STREAM, _MARK + str(number).encode()))
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
        # The latest first: the release that it asks for takes all earlier windows along.
        for group in reversed(range(own["counted"], groups)):
            pieces = waiting.pop(group, [])
            counts = count_group(group, pieces, self.plan)[0] if pieces else nothing(group, self.plan)
            own["memberships"] += counts.n_memberships
            yield group, counts
        for group, pieces in waiting.items():
            for data in pieces:
                pending.add(_tagged(group, data))
        own["counted"] = max(own["counted"], groups)
        own["pieces"] = own["merged"] = sum(map(len, waiting.values()))
        books.write(json.dumps(own).encode())

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
        parts.write_json(parts_folder(self.plan, "fates") / "stream.json", own["fate"])
        total = own["memberships"] + open_memberships
        parts.write_json(parts_folder(self.plan, "memberships") / "stream.json", total)


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
        if not element[1].startswith(_MARK):
            super().process(element, pending, due)
            return
        number = int(element[1].removeprefix(_MARK))
        commit(self.plan, self.checkpoints, number, "release", {"loop": _bytes(loop.read())})
        yield number


class WriteStreamReleases(InProcess, WriteReleases):
    """Write batches of releases and hand them to every accountant; a budget that is used up ends the stream."""

    def process(self, batch: Batch | int) -> Iterator[Any]:  # type: ignore[override]
        """Write a batch and pass it on; marks go through."""
        if isinstance(batch, Batch):
            if batch.stopped:
                feed_of(self.plan.folder).stop()
            for _ in super().process(batch):
                pass
        for part in account_parts(self.plan):
            yield part, batch


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
            saved = {"loop": _bytes(state), "accounted": np.asarray(accounted)}
            commit(self.plan, self.checkpoints, batch, account_name(part), saved)
        else:
            super().process(element, waiting, loop)


def account_parts(plan: Plan) -> list[tuple[int, int]]:
    """Every accountant's parallel parts."""
    return [(number, shard) for number, own in enumerate(plan.shards) for shard in range(len(own))]


def account_name(part: tuple[int, int]) -> str:
    """Name of the piece of a checkpoint that belongs to one part of one accountant."""
    return f"account-{part[0]:03d}-{part[1]:06d}"


def commit(plan: Plan, checkpoints: Checkpoints, number: int, name: str, state: State) -> None:
    """Write one piece; with the last one, small parts that the checkpoint covers are joined into larger ones."""
    if checkpoints.write(number, name, state):
        for kind in ROLLED:
            parts.roll(parts_folder(plan, kind))


def _bytes(data: bytes) -> Any:
    return np.frombuffer(data, np.uint8)


def _tagged(group: int, data: bytes) -> bytes:
    return group.to_bytes(8, "little") + data


def _untagged(entry: bytes) -> tuple[int, bytes]:
    return int.from_bytes(entry[:8], "little"), entry[8:]


def _packed(entries: Iterable[bytes]) -> Any:
    return _bytes(b"".join(len(entry).to_bytes(8, "little") + entry for entry in entries))


def _unpacked(data: Any) -> Iterator[bytes]:
    whole, at = data.tobytes(), 0
    while at < len(whole):
        end = at + 8 + int.from_bytes(whole[at : at + 8], "little")
        yield whole[at + 8 : end]
        at = end
