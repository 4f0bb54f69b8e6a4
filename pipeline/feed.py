"""What a local stream is fed with: tickets for slices of events, due windows and checkpoints, and the watermark."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from apache_beam.coders import FastPrimitivesCoder
from apache_beam.portability.api import beam_runner_api_pb2
from apache_beam.utils.timestamp import MIN_TIMESTAMP

from pipeline.monitoring.server import HEALTH
from pipeline.output.checkpoint import Checkpoints, decode_position, encode_position
from pipeline.output.files import parts_folder
from pipeline.sources.base import NEVER, LiveSource, Slice

if TYPE_CHECKING:
    from pipeline.config.plan import Plan


CODER = FastPrimitivesCoder()
#: Seconds without an event after which one without meaning is sent: the runner gives up after 30.
HEARTBEAT = 5.0
#: Seconds between looks at whether the stream is to be stopped.
_PATIENCE = 0.1
#: Slices that may be under way at once.
_AHEAD = 2

#: ("slice", number), ("due", window) or ("checkpoint", number).
Ticket = tuple[str, int]

_feeds: dict[str, Feed] = {}


def feed_of(folder: Path) -> Feed:
    """The feed of the stream that writes into a folder, in this process."""
    return _feeds[str(folder)]


class Feed:
    """Feeds one local run of a stream.

    Events stay in this process; what goes through the runner are tickets, so that no more than a few slices are in
    memory. A window is announced as due just before the watermark reaches its end plus allowed lateness, and the
    runner fires it then. Only whole windows are ever announced: a stream that is stopped releases no other.

    Parameters
    ----------
    plan
        The run; its source is a stream.
    checkpoints
        Where positions are kept; the current one is where the feed starts.
    """

    def __init__(self, plan: Plan, checkpoints: Checkpoints) -> None:
        source = plan.config.source
        if not isinstance(source, LiveSource):
            raise TypeError(f"{type(source).__name__} is not a stream")
        self.plan, self.source, self.checkpoints = plan, source, checkpoints
        self.error: BaseException | None = None
        self.finished = False
        #: Whether the runner has taken all that there was to tell; otherwise it was the runner that ended the stream.
        self.exhausted = False
        #: The steps of the graph by name, which stay in this process too.
        self.steps: dict[str, Any] = {}
        self._stopping = threading.Event()
        self._slices: dict[int, Slice] = {}
        self._ready: queue.Queue[Slice | None] = queue.Queue(_AHEAD)
        self._room = threading.Semaphore(_AHEAD)
        self._position, numbers = decode_position(checkpoints.read("feed"))
        self._number, self._latest = numbers["number"], numbers["latest"]
        self._checkpoint = numbers["checkpoint"]
        self._closed = self.closed(self._watermark)
        self._start = max(self._latest, plan.calendar.from_ms)
        self._begun = self._written = self._spoken = time.monotonic()

    def __enter__(self) -> Feed:
        _feeds[str(self.plan.folder)] = self
        self._reader = threading.Thread(target=self._read, name="penstock-replay", daemon=True)
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._reader.join()
        del _feeds[str(self.plan.folder)]

    def stop(self) -> None:
        """End the stream after the slice that is under way."""
        self._stopping.set()

    def slice(self, number: int) -> Slice:
        """The events of a ticket."""
        return self._slices[number]

    def used(self, number: int) -> None:
        """The events of a ticket have been counted and can be forgotten."""
        if self._slices.pop(number, None) is not None:
            self._room.release()
            HEALTH.beat()

    def closed(self, watermark: int) -> int:
        """Last window that is final at a watermark: its end plus allowed lateness has been reached."""
        calendar = self.plan.calendar
        instant = watermark - self.plan.config.windows.allowed_lateness
        if instant < calendar.from_ms:
            return 0
        endless = replace(calendar, until_ms=None)
        last = int(endless.index(np.array([instant]))[0]) - calendar.n_hops
        return max(0, last if calendar.n_windows is None else min(last, calendar.n_windows))

    @property
    def _watermark(self) -> int:
        return NEVER if self._latest == NEVER else self._latest - self.source.disorder

    def read_multiple(self, _: Any) -> Iterator[Any]:
        """Everything that Beam's test stream service sends; ends early where reading failed, with `error` set."""
        try:
            yield from self.messages()
            self.exhausted = True
        except Exception as error:
            self.error = error

    def messages(self) -> Iterator[Any]:
        """Tickets, watermarks and heartbeats until the end, or until the stream is stopped."""
        while (piece := (yield from self._next())) is not None:
            self._slices[piece.number] = piece
            yield self._ticket("slice", piece.number)
            self._position, self._number, self._latest = piece.end, piece.number + 1, piece.after
            yield from self._advance(self.closed(self._watermark))
            if time.monotonic() - self._written >= self.source.checkpoint / 1000:
                yield self._mark()
        if self.error is not None:
            return
        n_windows = self.plan.calendar.n_windows
        if self.finished and n_windows is not None:
            yield from self._advance(n_windows)
        yield self._mark()

    def _next(self) -> Generator[Any, None, Slice | None]:
        """The next slice when its time has come and there is room for it; None at the end and when stopped."""
        piece: Slice | None = None
        while not self._stopping.is_set():
            if piece is None:
                HEALTH.beat()
                with suppress(queue.Empty):
                    piece = self._ready.get(timeout=_PATIENCE)
                    if piece is None:
                        self.finished = self.error is None
                        return None
            elif (wait := self._wait(piece)) > 0:
                HEALTH.beat()
                yield from self._idle(piece)
                self._stopping.wait(min(wait, _PATIENCE))
            elif self._room.acquire(timeout=_PATIENCE):
                return piece
            if time.monotonic() - self._spoken > HEARTBEAT:
                self._spoken = time.monotonic()
                yield _message(processing_time_event={"advance_duration": 1000})
        return None

    def _wait(self, piece: Slice) -> float:
        """Seconds until a slice is due."""
        if self.source.factor is None or piece.after == NEVER:
            return 0.0
        return self._begun + (piece.after - self._start) / 1000 / self.source.factor - time.monotonic()

    def _idle(self, piece: Slice) -> Iterator[Any]:
        """While nothing happens, time goes on up to the next event: only where the order of events is known."""
        if not self.source.by_time or self.source.factor is None or not piece.block.frame.height:
            return
        now = self._start + int((time.monotonic() - self._begun) * 1000 * self.source.factor)
        following = int(piece.block.frame["time"][0])
        yield from self._advance(self.closed(min(now, following) - self.source.disorder))

    def _advance(self, closed: int) -> Iterator[Any]:
        """Announce the windows that are final now, and let the watermark reach the deadline of the last one."""
        if closed > self._closed:
            self._closed = closed
            yield self._ticket("due", closed)
            yield _message(watermark_event={"new_watermark": 1000 * deadline(self.plan, closed)})

    def _mark(self) -> Any:
        self._checkpoint += 1
        numbers = {"number": self._number, "latest": self._latest, "checkpoint": self._checkpoint}
        self.checkpoints.write(self._checkpoint, "feed", encode_position(self._position, **numbers))
        self._written = time.monotonic()
        return self._ticket("checkpoint", self._checkpoint)

    def _ticket(self, kind: str, number: int) -> Any:
        self._spoken = time.monotonic()
        at = 1000 * deadline(self.plan, self._closed) if self._closed else MIN_TIMESTAMP.micros
        element = {"encoded_element": CODER.encode((kind, number)), "timestamp": at}
        return _message(element_event={"elements": [element]})

    def _read(self) -> None:
        """In a thread of its own: slices of the stream, a few ahead."""
        folder = parts_folder(self.plan, "spool")
        pieces = self.source.slices(self.plan, folder, self._position, self._number, self._latest)
        try:
            for piece in pieces:
                if self._stopping.is_set() or not (piece is None or self._put(piece)):
                    return
        except BaseException as error:
            self.error = error
        finally:
            pieces.close()  # type: ignore[attr-defined]
        self._put(None)

    def _put(self, piece: Slice | None) -> bool:
        while not self._stopping.is_set():
            try:
                self._ready.put(piece, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False


def deadline(plan: Plan, window: int) -> int:
    """When a window is final, in milliseconds since 1970."""
    return plan.calendar.end(window) + plan.config.windows.allowed_lateness


def _message(**event: Any) -> Any:
    # Beam reads times from its service in microseconds, though its own events are sent in milliseconds.
    return beam_runner_api_pb2.TestStreamPayload.Event(**event)
